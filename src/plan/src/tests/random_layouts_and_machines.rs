//! Random layouts and machines for property tests.

use super::arrays_and_groups::{group, raid, volume};
use super::*;
use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::layout::{
    ArraySpec, EncryptionSpec, KeySource, LogicalVolumeSpec, LvmType, MAX_PARTITION_NUMBER, RaidLevel, RequestedSize,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const NAMES: [&str; 6] = ["sda", "sdb", "sdc", "sdd", "sde", "sdf"];

/// Random properties of one disk of a layout.
#[derive(Debug, Clone)]
struct RandomDisk {
    listed: bool,
    /// True for a data disk, which a reinstall preserves. A system disk is wiped.
    data: bool,
    sizes: Vec<u64>,
    /// Use of each partition, or of the whole disk if it has no partitions.
    use_of: Vec<u8>,
}

prop_compose! {
    fn random_disk()(
        listed in prop::bool::weighted(0.7),
        data in any::<bool>(),
        sizes in prop::collection::vec(prop_oneof![Just(0u64), 300u64..1500], 0..4),
        use_of in prop::collection::vec(0u8..6, 4),
    ) -> RandomDisk {
        RandomDisk { listed, data, sizes, use_of }
    }
}

/// A raw image, and the disk that it is written to.
#[derive(Debug, Clone)]
struct Raw {
    disk: prop::sample::Index,
    /// Numbers of the partitions of the image that the layout mounts.
    numbers: BTreeSet<u32>,
    grow: bool,
}

prop_compose! {
    fn raw()(
        disk in any::<prop::sample::Index>(),
        numbers in prop::collection::btree_set(1u32..=MAX_PARTITION_NUMBER, 1..5),
        grow in any::<bool>(),
    ) -> Raw {
        Raw { disk, numbers, grow }
    }
}

prop_compose! {
    /// Returns a valid layout. In a quarter of the layouts, arrays and groups span preserved and wiped disks. In a
    /// quarter, a raw image is written to one of the disks.
    pub(super) fn any_layout()(
        raw in prop::option::weighted(0.25, raw()),
        random_disk in prop::collection::vec(random_disk(), NAMES.len()),
        mixed in prop::bool::weighted(0.25),
        levels in prop::collection::vec(0usize..5, 4),
        volumes in prop::collection::vec((0usize..3, 1u64..60), 1..4),
        last_takes_all in any::<bool>(),
        formats in prop::collection::vec(0usize..20, 30),
        below in prop::collection::vec(any::<prop::sample::Index>(), 30),
        encrypted in prop::collection::vec(prop::bool::weighted(0.4), 4),
    ) -> Layout {
        let mut made = Layout { id: "drawn".to_owned(), ..Layout::default() };
        let mut buckets: BTreeMap<(bool, u8), Vec<LayoutPath>> = BTreeMap::new();
        let mut plain = Vec::new();
        let mut brought: Vec<LayoutPath> = Vec::new();
        let listed: Vec<(&str, &RandomDisk)> =
            NAMES.into_iter().zip(&random_disk).filter(|(name, random_disk)| *name == "sda" || random_disk.listed).collect();
        let raw = raw.map(|raw| (raw.disk.index(listed.len()), raw));
        for (index, (name, random_disk)) in listed.into_iter().enumerate() {
            let device = LayoutPath::from(format!("/dev/{name}"));
            if let Some((_, raw)) = raw.as_ref().filter(|(taken, _)| *taken == index) {
                brought = raw.numbers.iter().map(|number| device.partition_path(*number)).collect();
                made.disks.push(DiskSpec { device, hints: Default::default(), partitions: Vec::new(), wipeonreinstall: true, image: true });
                continue;
            }
            let last = random_disk.sizes.len();
            let sizes = random_disk.sizes.iter().enumerate();
            let sizes = sizes.map(|(index, size)| if index + 1 < last { (*size).max(300) } else { *size });
            let partitions: Vec<PartitionSpec> =
                sizes.enumerate().map(|(index, size)| partition(index as u32 + 1, "p", size, PartitionType::Linux)).collect();
            let leaves: Vec<LayoutPath> = match partitions.is_empty() {
                true => vec![device.clone()],
                false => partitions.iter().map(|partition| device.partition_path(partition.number)).collect(),
            };
            for (leaf, use_of) in leaves.into_iter().zip(&random_disk.use_of) {
                match use_of {
                    0 | 1 => plain.push((random_disk.data, leaf)),
                    other => buckets.entry((random_disk.data && !mixed, *other)).or_default().push(leaf),
                }
            }
            made.disks.push(DiskSpec { device, hints: Default::default(), partitions, wipeonreinstall: !random_disk.data, image: false });
        }
        stack_up(&mut made, buckets, &mut plain, &levels, &volumes, last_takes_all);
        put_filesystems(&mut made, &brought, plain, &formats, &below);
        encrypt(&mut made, &encrypted);
        if raw.is_some_and(|(_, raw)| raw.grow) {
            let grows = |filesystem: &&mut FilesystemSpec| brought.contains(&filesystem.device) && filesystem.format != FilesystemFormat::Vfat;
            made.filesystems.iter_mut().find(grows).unwrap().grow = true;
        }
        made
    }
}

/// Builds stacked devices: arrays on the devices with use 2 and 3, a group on those with use 4, and an array with a
/// group on those with use 5.
fn stack_up(
    made: &mut Layout,
    buckets: BTreeMap<(bool, u8), Vec<LayoutPath>>,
    plain: &mut Vec<(bool, LayoutPath)>,
    levels: &[usize],
    volumes: &[(usize, u64)],
    last_takes_all: bool,
) {
    let mut volumes_left = volumes.len();
    for ((data, use_of), devices) in buckets {
        let side = if data { "data" } else { "system" };
        let mut physical = devices.clone();
        if use_of != 4 {
            let Some(array) = any_array(&format!("/dev/md/{side}{use_of}"), &devices, levels[made.raid.len() % 4])
            else {
                plain.extend(devices.into_iter().map(|device| (data, device)));
                continue;
            };
            physical = vec![array.arrayname.clone()];
            made.raid.push(array);
        }
        if use_of < 4 {
            plain.extend(physical.into_iter().map(|device| (data, device)));
            continue;
        }
        let name = format!("vg-{side}{use_of}");
        made.volumegroups.push(group(&name, &physical.iter().map(LayoutPath::as_str).collect::<Vec<_>>()));
        for (number, (kind, size_mib)) in volumes.iter().enumerate().take(volumes_left) {
            let kind = if physical.len() < 2 { LvmType::Linear } else { LvmType::ALL[*kind] };
            let new: LogicalVolumeSpec = volume(&format!("lv{number}"), &name, *size_mib, kind);
            plain.push((data, new.device_path()));
            made.logicalvolumes.push(new);
        }
        volumes_left = volumes_left.saturating_sub(1);
    }
    if let Some(last) = made.logicalvolumes.last_mut().filter(|_| last_takes_all) {
        last.size = RequestedSize::Rest;
    }
}

/// Encrypts some of the groups, but not the group with `/`.
fn encrypt(made: &mut Layout, encrypted: &[bool]) {
    let root =
        made.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/")).unwrap().device.clone();
    for (group, _) in made.volumegroups.iter_mut().zip(encrypted).filter(|(_, encrypted)| **encrypted) {
        if !root.as_str().starts_with(&format!("/dev/{}/", group.name)) {
            group.encrypted = Some(EncryptionSpec { key: KeySource::Server });
        }
    }
}

fn any_array(name: &str, devices: &[LayoutPath], level: usize) -> Option<ArraySpec> {
    let least = |level: RaidLevel| match level {
        RaidLevel::Raid5 => 3,
        RaidLevel::Raid6 => 4,
        _ => 2,
    };
    let level = Some(RaidLevel::ALL[level]).filter(|level| devices.len() >= least(*level)).unwrap_or(RaidLevel::Raid1);
    let devices: Vec<&str> = devices.iter().map(LayoutPath::as_str).collect();
    let spares = u32::from(devices.len() > least(level) && level != RaidLevel::Raid0);
    (devices.len() >= 2).then(|| raid(name, &devices, level, spares))
}

/// Puts root on a partition of the raw image or, without a raw image, on a system disk, and the other filesystems at
/// random mount points below `/`.
fn put_filesystems(
    made: &mut Layout,
    brought: &[LayoutPath],
    mut devices: Vec<(bool, LayoutPath)>,
    formats: &[usize],
    below: &[prop::sample::Index],
) {
    devices.sort();
    let devices = brought.iter().chain(devices.iter().map(|(_, device)| device));
    let mut paths = Vec::new();
    for (index, device) in devices.enumerate() {
        let format = match formats[index % formats.len()] {
            0 => FilesystemFormat::Xfs,
            1..10 => FilesystemFormat::Ext4,
            // vfat on an array would be an ESP, which only some arrays support.
            10..15 if !device.as_str().starts_with("/dev/md") => FilesystemFormat::Vfat,
            // A layout lists only the partitions of an image that it mounts.
            _ if index < brought.len() => FilesystemFormat::Vfat,
            _ => FilesystemFormat::Swap,
        };
        let path = match paths.len() {
            0 => "/".to_owned(),
            _ => format!("{}/d{index}", below[index % below.len()].get(&paths)).replace("//", "/"),
        };
        let format = if path == "/" { FilesystemFormat::Ext4 } else { format };
        if format == FilesystemFormat::Swap {
            made.filesystems.push(filesystem("", device.as_str(), format, ""));
        } else {
            made.filesystems.push(filesystem(&path, device.as_str(), format, ""));
            paths.push(path);
        }
    }
    // The list is reversed, because the mount order must not depend on the order in the layout.
    made.filesystems.reverse();
}

pub(super) fn blank() -> Inventory {
    Inventory { disks: NAMES.map(|name| disk(name, 6000)).into(), ..Inventory::default() }
}

prop_compose! {
    /// Returns a machine with the remains of another layout. All devices are active, and some are in use.
    pub(super) fn any_machine()(
        before in any_layout(),
        assembled in prop::bool::weighted(0.8),
        stopped in prop::collection::vec(prop::bool::weighted(0.1), 20),
        used in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        sizes in prop::collection::vec(prop_oneof![9 => Just(6000u64), 1 => 0u64..6000], NAMES.len()),
        sectors in prop_oneof![3 => Just(0u32), 1 => 0u32..6],
    ) -> Inventory {
        // The current content of the disks has other UUIDs than the objects that the plan creates.
        let request = PlanRequest { mode: InstallMode::Install, steps: StepList::default(), subject: subject(), assigned: Default::default(), claim: None };
        let plan = super::super::make_plan(&before, &blank(), request, &mut counting_from(5000));
        let mut machine = plan.map_or_else(|_| blank(), |plan| after(&plan, blank()));
        for (index, disk) in machine.disks.iter_mut().enumerate() {
            if disk.table.is_none() {
                disk.size_bytes = sizes[index] * MIB;
            }
            if (index as u32) < sectors {
                disk.sector_bytes = 4096;
            }
        }
        stop(&mut machine, &stopped);
        machine.stacked.iter_mut().for_each(|stacked| stacked.assembled = assembled);
        if let Some(index) = used.filter(|_| !machine.stacked.is_empty()) {
            index.get_mut(&mut machine.stacked).uses.push(DeviceUse::Mounted("/mnt".to_owned()));
        }
        machine
    }
}

/// Deactivates some of the topmost devices.
fn stop(machine: &mut Inventory, stopped: &[bool]) {
    let held: BTreeSet<KernelName> = machine.stacked.iter().flat_map(|stacked| stacked.below.clone()).collect();
    let all: Vec<(KernelName, DevicePath)> =
        machine.stacked.iter().map(|stacked| (stacked.name.clone(), stacked.device.clone())).collect();
    for ((name, device), _) in all.iter().zip(stopped).filter(|((name, _), stop)| **stop && !held.contains(name)) {
        machine.stacked.retain(|stacked| stacked.name != *name);
        let forget = |uses: &mut Vec<DeviceUse>| uses.retain(|usage| *usage != DeviceUse::Holder(name.clone()));
        for disk in &mut machine.disks {
            forget(&mut disk.uses);
            let partitions = disk.table.iter_mut().flat_map(|table| &mut table.partitions);
            partitions.for_each(|partition| forget(&mut partition.uses));
        }
        machine.stacked.iter_mut().for_each(|stacked| forget(&mut stacked.uses));
        machine.arrays.iter_mut().for_each(|array| drop(array.running.take_if(|running| running == name)));
        // The content of an inactive array or a closed container is not visible.
        let held = machine.groups.iter_mut().flat_map(|group| &mut group.physical);
        held.for_each(|held| drop(held.device.take_if(|on| on == device)));
        machine.groups.retain(|group| group.present_devices().next().is_some());
        let volumes = machine.groups.iter_mut().flat_map(|group| &mut group.volumes);
        volumes.for_each(|volume| drop(volume.running.take_if(|running| running == name)));
    }
}
