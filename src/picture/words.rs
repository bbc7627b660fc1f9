//! Text about the nodes of a layout, for its drawings.

use crate::layout::tree::{Graph, Item};
use crate::layout::{Encrypted, Filesystem, Format, OnReinstall, PartitionKind, Raid, Size};
use crate::text::counted;

/// Returns the device without `/dev/`.
pub fn short(device: &str) -> &str {
    device.strip_prefix("/dev/").unwrap_or(device)
}

/// Describes a size in MiB, or GiB if it is a multiple.
pub fn size(size: Size) -> String {
    match size.mib() {
        None => "the rest".to_owned(),
        Some(mib) if mib.is_multiple_of(1024) => format!("{} GiB", mib / 1024),
        Some(mib) => format!("{mib} MiB"),
    }
}

pub fn node_size(item: Item) -> String {
    match item {
        Item::Partition(partition) => size(partition.size),
        Item::Volume(volume) => size(volume.size),
        _ => String::new(),
    }
}

/// Describes the type of a node: level, type code or type of volume, with the label in the partition table.
pub fn kind(item: Item) -> String {
    match item {
        Item::Disk(disk) => format!("disk  {}", if disk.wipeonreinstall { "WIPE" } else { "keep" }),
        Item::Partition(partition) => {
            let code = partition.kind.unwrap_or(PartitionKind::Linux).code();
            format!("{code}{}", quoted(partition.label.as_deref()))
        }
        Item::Array(raid) => raid.level.to_string(),
        Item::Group(_) => "group".to_owned(),
        Item::Volume(volume) => volume.lvmtype.to_string(),
        Item::Filesystem(filesystem) => content(filesystem),
        Item::Missing => "missing".to_owned(),
    }
}

fn quoted(label: Option<&str>) -> String {
    label.map(|label| format!(" \"{label}\"")).unwrap_or_default()
}

/// Describes format and label.
pub fn content(filesystem: &Filesystem) -> String {
    match filesystem.format {
        Format::None => "no filesystem".to_owned(),
        format => format!("{format}{}", quoted(filesystem.label.as_deref())),
    }
}

/// Returns the mount point, or a description if there is none.
pub fn mount_point(filesystem: &Filesystem) -> String {
    match (&filesystem.path, filesystem.format) {
        (_, Format::Swap) => "swap".to_owned(),
        (Some(path), format) if format != Format::None => path.clone(),
        (_, Format::None) => String::new(),
        _ => "not mounted".to_owned(),
    }
}

/// Returns further details of a node, most important first.
pub fn details(graph: &Graph, node: usize) -> Vec<String> {
    match graph.nodes[node].item {
        Item::Disk(disk) => {
            let hints: Vec<String> =
                disk.hints.iter().map(|(hint, expression)| format!("{hint} {expression}")).collect();
            let image = disk.image.then(|| "takes the raw image".to_owned());
            let found = (!hints.is_empty()).then(|| format!("found by {}", hints.join(", ")));
            image.into_iter().chain(found).collect()
        }
        Item::Array(raid) => array(graph, raid),
        Item::Group(group) => {
            let volumes = counted(group.devices.len(), "PV", "PVs");
            let encrypted = group.encrypted.map(in_luks);
            std::iter::once(volumes).chain(encrypted).chain(group.tags.iter().map(|tag| format!("tag {tag}"))).collect()
        }
        Item::Filesystem(filesystem) => options(filesystem),
        Item::Missing => vec!["not defined in the layout".to_owned()],
        Item::Partition(_) | Item::Volume(_) => Vec::new(),
    }
}

pub fn on_reinstall(wipe: bool) -> &'static str {
    if wipe { "WIPE on reinstall" } else { "keep on reinstall" }
}

fn array(graph: &Graph, raid: &Raid) -> Vec<String> {
    let spares = raid.spares as usize;
    let mut details = vec![counted(raid.devices.len().saturating_sub(spares), "member", "members")];
    if spares > 0 {
        details.push(counted(spares, "spare", "spares"));
    }
    details.push(format!("metadata {}", graph.layout.metadata(raid)));
    let others = raid.other_options();
    if !others.is_empty() {
        details.push(format!("mdadm {}", others.join(" ")));
    }
    details
}

/// Returns the options of mkfs and mount, and the behaviour in a reinstall.
pub fn options(filesystem: &Filesystem) -> Vec<String> {
    let tool = if filesystem.format == Format::Swap { "mkswap" } else { "mkfs" };
    let made = (!filesystem.createoptions.is_empty()).then(|| format!("{tool} {}", filesystem.createoptions.join(" ")));
    let mounted = (!filesystem.mountoptions.is_empty()).then(|| filesystem.mountoptions.join(", "));
    let merged = (filesystem.reinstall == OnReinstall::Merge).then(|| "merged by a reinstall".to_owned());
    let grown = filesystem.grow.then(|| "grows to the end of the disk".to_owned());
    let encrypted = filesystem.encrypted.map(in_luks);
    made.into_iter().chain(encrypted).chain(mounted).chain(grown).chain(merged).collect()
}

fn in_luks(encrypted: Encrypted) -> String {
    format!("in LUKS2, key: {}", encrypted.key)
}

/// Describes which allocations the layout is for.
pub fn purpose(graph: &Graph) -> String {
    let constraints = &graph.layout.constraints;
    // A layout is selected by size and image together.
    if constraints.sizes.is_empty() || constraints.images.is_empty() {
        return "for allocations that name it".to_owned();
    }
    let images = constraints.images.iter().map(|(os, version)| match version.trim() {
        "*" => os.clone(),
        version => format!("{os} {version}"),
    });
    format!("for {} with {}", constraints.sizes.join(", "), images.collect::<Vec<_>>().join(", "))
}
