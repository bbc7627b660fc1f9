//! Properties of all layouts and all strings.

use super::{SEEDS, format_problems};
use crate::layout::*;
use common::diagnostic::join_problems;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9]{0,7}"
}

/// Generates valid layouts. Each partition has a separate filesystem or swap area, and the first one is the root
/// filesystem. Further disks may be under an array, a volume group and its volumes.
fn valid_layout() -> impl Strategy<Value = Layout> {
    let disks = vec((vec((partition(), filesystem()), 1..5), any::<bool>(), any::<bool>(), disk_name()), 1..4);
    let sizes = prop::collection::btree_set("[a-z][0-9]-large", 0..3);
    let images = prop::collection::btree_map(name(), "(>=|<|~>|=) [1-9][0-9]?(\\.[0-9]{1,8}){0,2}|\\*", 0..3);
    (name(), option::of("[a-z]\\PC{0,20}"), disks, option::of(stack()), sizes, images).prop_map(
        |(id, description, disks, stack, sizes, images)| {
            let constraints = LayoutConstraints { sizes: sizes.into_iter().collect(), images };
            let mut layout = Layout { id, description, constraints, ..Layout::default() };
            for (index, (partitions, rest, wipeonreinstall, (device, mut hints))) in disks.into_iter().enumerate() {
                if !hints.is_empty() {
                    hints.insert("by_path".to_owned(), format!("<in> usb-{index}"));
                }
                let device = format!(
                    "{device}{}",
                    if device.ends_with("sd") { ["a", "b", "c"] } else { ["0", "1", "2"] }[index]
                );
                let disk =
                    DiskSpec { device: device.into(), hints, partitions: Vec::new(), wipeonreinstall, image: false };
                push_disk(&mut layout, disk, partitions, rest);
            }
            if let Some(stack) = stack {
                push_stack(&mut layout, stack);
            }
            layout
        },
    )
}

/// Generates the prefix of a disk's name, and the hints that a disk with this prefix requires.
fn disk_name() -> impl Strategy<Value = (&'static str, BTreeMap<String, String>)> {
    let expressions = vec![
        ("size", "16"),
        ("size", "smallest >= 8"),
        ("size", "<range-in> ( 10 20 ]"),
        ("serial", "<or> S45NNE0M01 <or> \"8e00\""),
        ("model", "s!= samsung: \\ 960 #1"),
        ("rotational", "true"),
        ("hctl", "<in> :0:0:0"),
        ("name", "<in> /dev/sd"),
    ];
    let hints = prop::collection::btree_map(name(), prop::sample::select(expressions), 1..3);
    let hints = hints.prop_map(|hints| hints.into_values().map(|(hint, text)| (hint.into(), text.into())).collect());
    prop_oneof![
        3 => prop::sample::select(vec!["/dev/sd", "/dev/nvme0n", "/dev/mmcblk", "/dev/disk/by-path/pci-"])
            .prop_map(|name| (name, BTreeMap::new())),
        1 => hints.prop_map(|hints| ("disk-", hints)),
    ]
}

fn partition() -> impl Strategy<Value = PartitionSpec> {
    let label = option::of(prop_oneof![name(), "\\PC{1,18}"]);
    (label, 1..1u64 << 18, option::of(prop::sample::select(&PartitionType::ALL[..])))
        .prop_map(|(label, mib, kind)| PartitionSpec { number: 0, label, size: mib.into(), kind, preserve: false })
}

fn filesystem() -> impl Strategy<Value = FilesystemSpec> {
    let formats = vec![
        FilesystemFormat::Ext3,
        FilesystemFormat::Ext4,
        FilesystemFormat::Xfs,
        FilesystemFormat::Btrfs,
        FilesystemFormat::Vfat,
        FilesystemFormat::Swap,
        FilesystemFormat::None,
    ];
    // An option with a value that all tools except mkfs.vfat support.
    let createoptions = vec("-L[A-Za-z0-9=^,]{1,5}", 0..3);
    (prop::sample::select(formats), option::of(name()), vec(name(), 0..3), createoptions).prop_map(
        |(format, label, mountoptions, createoptions)| {
            let (path, device) = (None, String::new());
            let createoptions = if format == FilesystemFormat::Vfat { Vec::new() } else { createoptions };
            FilesystemSpec {
                path,
                device: device.into(),
                format,
                label,
                mountoptions,
                createoptions,
                reinstall: Default::default(),
                grow: false,
                encrypted: None,
                preserve: false,
            }
        },
    )
}

fn push_disk(layout: &mut Layout, mut disk: DiskSpec, partitions: Vec<(PartitionSpec, FilesystemSpec)>, rest: bool) {
    let last = partitions.len();
    for ((mut partition, mut filesystem), number) in partitions.into_iter().zip(1u32..) {
        partition.number = number;
        if rest && number as usize == last {
            partition.size = RequestedSize::Rest;
        } else if matches!(filesystem.format, FilesystemFormat::Xfs | FilesystemFormat::Btrfs) {
            partition.size = (partition.size.as_mib().unwrap() + 300).into();
        }
        filesystem.device = disk.device.partition_path(number);
        push_filesystem(layout, filesystem);
        disk.partitions.push(partition);
    }
    layout.disks.push(disk);
}

fn push_filesystem(layout: &mut Layout, mut filesystem: FilesystemSpec) {
    if layout.filesystems.is_empty() {
        filesystem.path = Some("/".to_owned());
        filesystem.format = FilesystemFormat::Ext4;
    } else if !matches!(filesystem.format, FilesystemFormat::Swap | FilesystemFormat::None) {
        filesystem.path = Some(format!("/data/{}", layout.filesystems.len()));
    }
    layout.filesystems.push(filesystem);
}

/// Array on whole disks, and a volume group on this array and a further disk, with volumes.
#[derive(Debug, Clone)]
struct Stack {
    raid: ArraySpec,
    group: VolumeGroupSpec,
    volumes: Vec<(LogicalVolumeSpec, FilesystemSpec)>,
}

fn stack() -> impl Strategy<Value = Stack> {
    let raid = (
        prop::sample::select(vec!["/dev/md0", "/dev/md/data", "/dev/md/x-1.y_z"]),
        prop::sample::select(&RaidLevel::ALL[..]),
        prop::sample::select(vec![&[][..], &["--metadata=1.0"], &["-e", "1.2", "--size=max"], &["--assume-clean"]]),
        0..3u32,
    );
    let raid = raid.prop_map(|(arrayname, level, options, spares)| {
        let spares = if level == RaidLevel::Raid0 { 0 } else { spares };
        let devices = (0..4 + spares).map(|index| format!("/dev/nvme{index}n9").into()).collect();
        let createoptions = options.iter().map(|word| word.to_string()).collect();
        ArraySpec { arrayname: arrayname.into(), devices, level, createoptions, spares, preserve: false }
    });
    let tags = prop::collection::btree_set("[a-z0-9+=/&#][a-z0-9+=/&#-]{0,8}", 0..3);
    let volume = (300..1u64 << 18, prop::sample::select(&LvmType::ALL[..]), filesystem());
    let volumes = prop::collection::btree_map(name(), volume, 0..4);
    (raid, "v[a-z0-9+_.-]{1,8}", tags, volumes, any::<bool>()).prop_map(|(raid, name, tags, volumes, rest)| {
        let devices = vec![raid.arrayname.clone(), "/dev/nvme8n9".into()];
        let group = VolumeGroupSpec {
            name: name.clone(),
            devices,
            tags: tags.into_iter().collect(),
            encrypted: None,
            preserve: GroupPreservation::None,
        };
        let volumes = volumes.into_iter().map(|(volume, (mib, lvmtype, mut filesystem))| {
            filesystem.device = format!("/dev/{name}/{volume}").into();
            (
                LogicalVolumeSpec {
                    name: volume,
                    volumegroup: name.clone(),
                    size: u64::into(mib),
                    lvmtype,
                    preserve: false,
                },
                filesystem,
            )
        });
        let mut volumes: Vec<_> = volumes.collect();
        if let Some((volume, _)) = volumes.last_mut().filter(|_| rest) {
            volume.size = RequestedSize::Rest;
        }
        Stack { raid, group, volumes }
    })
}

fn push_stack(layout: &mut Layout, stack: Stack) {
    for device in stack.raid.devices.iter().chain(&stack.group.devices[1..]) {
        let (device, hints, partitions) = (device.clone(), BTreeMap::new(), Vec::new());
        layout.disks.push(DiskSpec { device, hints, partitions, wipeonreinstall: false, image: false });
    }
    layout.raid.push(stack.raid);
    let (mut group, has_root) = (stack.group, layout.filesystems.is_empty());
    for (volume, filesystem) in stack.volumes {
        layout.logicalvolumes.push(volume);
        push_filesystem(layout, filesystem);
    }
    // A group that contains the root filesystem is not encrypted, because the root filesystem cannot be encrypted.
    group.encrypted = (!has_root && group.tags.len() != 1).then_some(EncryptionSpec { key: KeySource::File });
    layout.volumegroups.push(group);
}

/// Generates the text of a seed with replaced bytes, and with duplicated, removed or moved lines.
fn mutated_seed() -> impl Strategy<Value = String> {
    let change = (any::<prop::sample::Index>(), 0..4u8, "[ -~\n]{0,3}");
    (prop::sample::select(&SEEDS[..]), vec(change, 1..8)).prop_map(|(seed, changes)| {
        let mut lines: Vec<String> = seed.lines().map(str::to_owned).collect();
        for (index, kind, text) in changes {
            let at = index.index(lines.len());
            match kind {
                0 => lines.insert(at, lines[at].clone()),
                1 if lines.len() > 1 => drop(lines.remove(at)),
                2 => lines[at].insert_str(0, &text),
                _ => lines[at] = lines[at].replacen(['"', ':', '-', '1', '0', 'a'], &text, 1),
            }
        }
        lines.join("\n")
    })
}

fn never_panics(text: &str) -> Result<(), TestCaseError> {
    if let Err(problems) = read_yaml(text) {
        prop_assert!(!problems.is_empty());
    }
    if let Ok(value) = serde_json::from_str(text) {
        let _ = read_json(&value);
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in "(?s).*|[a-z0-9:,\\[\\]{}&*!|>'\"%@`#?\n -]{0,200}") {
        never_panics(&text)?;
    }

    #[test]
    fn any_mutated_seed_is_parsed_or_refused(text in mutated_seed()) {
        never_panics(&text)?;
    }

    #[test]
    fn valid_layout_survives_json_and_yaml_unchanged(layout in valid_layout()) {
        prop_assert_eq!(validate_layout(&layout), Vec::new());
        let wire = serde_json::to_value(&layout).unwrap();
        let parsed = read_json(&wire).map_err(|problems| TestCaseError::fail(join_problems(&problems)))?;
        prop_assert_eq!(format_problems(&parsed.notes), Vec::<String>::new());
        prop_assert_eq!(&parsed.layout, &layout);
        // JSON is valid YAML, so the YAML parser must return the same layout.
        let parsed = read_yaml(&wire.to_string()).map_err(|problems| TestCaseError::fail(join_problems(&problems)))?;
        prop_assert_eq!(&parsed.layout, &layout);
        let parsed = read_yaml(&canonical_yaml(&layout)).map_err(|problems| TestCaseError::fail(join_problems(&problems)))?;
        prop_assert_eq!(format_problems(&parsed.notes), Vec::<String>::new());
        prop_assert_eq!(&parsed.layout, &layout);
    }
}
