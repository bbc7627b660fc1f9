//! Text that describes the nodes of a layout in drawings of the layout.

use common::format::format_count;
use model::layout::graph::{LayoutGraph, LayoutItem};
use model::layout::{
    ArraySpec, EncryptionSpec, FilesystemFormat, FilesystemSpec, OnReinstall, PartitionType, RequestedSize,
};

/// Returns the path of a device without the leading `/dev/`.
pub fn strip_dev(device: &str) -> &str {
    device.strip_prefix("/dev/").unwrap_or(device)
}

/// Formats a size in MiB, or in GiB if it is a multiple of 1 GiB. The remaining space is formatted as `the rest`.
pub(crate) fn describe_size(size: RequestedSize) -> String {
    match size.as_mib() {
        None => "the rest".to_owned(),
        Some(mib) if mib.is_multiple_of(1024) => format!("{} GiB", mib / 1024),
        Some(mib) => format!("{mib} MiB"),
    }
}

pub fn node_size(item: LayoutItem) -> String {
    match item {
        LayoutItem::Partition(partition) => describe_size(partition.size),
        LayoutItem::Volume(volume) => describe_size(volume.size),
        _ => String::new(),
    }
}

/// Describes the type of a node, such as the RAID level, the type code of a partition, or the type of a volume. For a
/// partition or filesystem, the text ends with its label.
pub fn describe_type(item: LayoutItem) -> String {
    match item {
        LayoutItem::Disk(disk) => format!("disk  {}", if disk.wipeonreinstall { "WIPE" } else { "keep" }),
        LayoutItem::Partition(partition) => {
            let code = partition.kind.unwrap_or(PartitionType::Linux).code();
            format!("{code}{}", quote_label(partition.label.as_deref()))
        }
        LayoutItem::Array(raid) => raid.level.to_string(),
        LayoutItem::Group(_) => "group".to_owned(),
        LayoutItem::Volume(volume) => volume.lvmtype.to_string(),
        LayoutItem::Filesystem(filesystem) => describe_content(filesystem),
        LayoutItem::Missing => "missing".to_owned(),
    }
}

fn quote_label(label: Option<&str>) -> String {
    label.map(|label| format!(" \"{label}\"")).unwrap_or_default()
}

/// Describes format and label of a filesystem.
pub fn describe_content(filesystem: &FilesystemSpec) -> String {
    match filesystem.format {
        FilesystemFormat::None => "no filesystem".to_owned(),
        format => format!("{format}{}", quote_label(filesystem.label.as_deref())),
    }
}

/// Returns the mount point of a filesystem, or a description such as `swap` if it has none.
pub fn mount_point(filesystem: &FilesystemSpec) -> String {
    match (&filesystem.path, filesystem.format) {
        (_, FilesystemFormat::Swap) => "swap".to_owned(),
        (Some(path), format) if format != FilesystemFormat::None => path.clone(),
        (_, FilesystemFormat::None) => String::new(),
        _ => "not mounted".to_owned(),
    }
}

/// Returns further details of a node, sorted by descending importance.
pub fn describe_details(graph: &LayoutGraph, node: usize) -> Vec<String> {
    match graph.nodes[node].item {
        LayoutItem::Disk(disk) => {
            let hints: Vec<String> =
                disk.hints.iter().map(|(hint, expression)| format!("{hint} {expression}")).collect();
            let image = disk.image.then(|| "the raw image is written to this disk".to_owned());
            let found = (!hints.is_empty()).then(|| format!("found by {}", hints.join(", ")));
            image.into_iter().chain(found).collect()
        }
        LayoutItem::Array(raid) => describe_array(graph, raid),
        LayoutItem::Group(group) => {
            let volumes = format_count(group.devices.len(), "PV", "PVs");
            let encrypted = group.encrypted.map(describe_luks);
            std::iter::once(volumes).chain(encrypted).chain(group.tags.iter().map(|tag| format!("tag {tag}"))).collect()
        }
        LayoutItem::Filesystem(filesystem) => describe_options(filesystem),
        LayoutItem::Missing => vec!["not defined in the layout".to_owned()],
        LayoutItem::Partition(_) | LayoutItem::Volume(_) => Vec::new(),
    }
}

pub(crate) fn reinstall_badge(wipe: bool) -> &'static str {
    if wipe { "WIPE on reinstall" } else { "keep on reinstall" }
}

fn describe_array(graph: &LayoutGraph, raid: &ArraySpec) -> Vec<String> {
    let spares = raid.spares as usize;
    let mut details = vec![format_count(raid.devices.len().saturating_sub(spares), "member", "members")];
    if spares > 0 {
        details.push(format_count(spares, "spare", "spares"));
    }
    details.push(format!("metadata {}", graph.layout.effective_metadata(raid)));
    let others = raid.options_without_metadata();
    if !others.is_empty() {
        details.push(format!("mdadm {}", others.join(" ")));
    }
    details
}

/// Describes a filesystem: its options for mkfs and mount, its encryption, its growth, and its behavior in a
/// reinstall.
pub fn describe_options(filesystem: &FilesystemSpec) -> Vec<String> {
    let tool = if filesystem.format == FilesystemFormat::Swap { "mkswap" } else { "mkfs" };
    let made = (!filesystem.createoptions.is_empty()).then(|| format!("{tool} {}", filesystem.createoptions.join(" ")));
    let mounted = (!filesystem.mountoptions.is_empty()).then(|| filesystem.mountoptions.join(", "));
    let merged = (filesystem.reinstall == OnReinstall::Merge).then(|| "merged by a reinstall".to_owned());
    let grown = filesystem.grow.then(|| "grows to the end of the disk".to_owned());
    let encrypted = filesystem.encrypted.map(describe_luks);
    made.into_iter().chain(encrypted).chain(mounted).chain(grown).chain(merged).collect()
}

fn describe_luks(encrypted: EncryptionSpec) -> String {
    format!("in LUKS2, key: {}", encrypted.key)
}

/// Describes the allocations for which the layout is selected.
pub fn describe_purpose(graph: &LayoutGraph) -> String {
    let constraints = &graph.layout.constraints;
    // A layout is selected only if both the size and the image match.
    if constraints.sizes.is_empty() || constraints.images.is_empty() {
        return "used only by allocations that name this layout".to_owned();
    }
    let images = constraints.images.iter().map(|(os, version)| match version.trim() {
        "*" => os.clone(),
        version => format!("{os} {version}"),
    });
    format!("for {} with {}", constraints.sizes.join(", "), images.collect::<Vec<_>>().join(", "))
}
