//! Rules for sizes that follow from the layout alone. Sizes that depend on a disk are checked by the plan.
//!
//! Computed sizes are upper bounds: the metadata of arrays takes more than is deducted.

use super::Check;
use crate::device::LayoutPath;
use crate::layout::{Format, Layout, LogicalVolume, LvmType, Raid, RaidLevel, VolumeGroup};
use std::collections::BTreeMap;

/// LVM's defaults: 1 MiB of metadata at the start of each physical volume, and extents of 4 MiB.
const METADATA_MIB: u64 = 1;
const EXTENT_MIB: u64 = 4;
/// Headers and key slots of a LUKS container as the plan creates it.
const LUKS_MIB: u64 = 16;
/// Minimum sizes: mkfs.xfs refuses a smaller xfs since xfsprogs 5.19; a smaller btrfs with two copies of its metadata has no space for its
/// first chunks.
const LEAST_XFS_MIB: u64 = 300;
const LEAST_BTRFS_MIB: u64 = 109;

/// Size in MiB by device, for devices whose size does not depend on a disk.
type Sizes = BTreeMap<LayoutPath, u64>;

pub(super) fn check(check: &mut Check, layout: &Layout) {
    let known = ["disks", "raid", "volumegroups", "logicalvolumes"].iter().all(|list| check.known_whole(list));
    if !known {
        return;
    }
    let mut sizes = Sizes::new();
    for disk in &layout.disks {
        for partition in &disk.partitions {
            let device = disk.device.partition(partition.number);
            sizes.extend(partition.size.mib().map(|mib| (device, mib)));
        }
    }
    for raid in &layout.raid {
        if let Some(size) = array_size(raid, &sizes) {
            sizes.insert(raid.arrayname.clone(), size);
        }
    }
    for group in &layout.volumegroups {
        check_group(check, group, &layout.logicalvolumes, &sizes);
    }
    for volume in &layout.logicalvolumes {
        sizes.extend(volume.size.mib().map(|mib| (volume.device(), mib)));
    }
    check_filesystems(check, layout, &sizes);
}

/// Returns the size of an array; `None` if the size of a member is not known or the create options may change the size.
fn array_size(raid: &Raid, sizes: &Sizes) -> Option<u64> {
    if !raid.other_options().is_empty() {
        return None;
    }
    let members: Vec<u64> = raid.devices.iter().map(|device| sizes.get(device).copied()).collect::<Option<_>>()?;
    let active = raid.active() as u64;
    let least = members.iter().min().copied()?;
    match raid.level {
        RaidLevel::Raid0 => members.iter().try_fold(0u64, |sum, size| sum.checked_add(*size)),
        RaidLevel::Raid1 => Some(least),
        RaidLevel::Raid5 => least.checked_mul(active.saturating_sub(1)),
        RaidLevel::Raid6 => least.checked_mul(active.saturating_sub(2)),
        RaidLevel::Raid10 => least.checked_mul(active).map(|both| both / 2),
    }
}

fn check_group(check: &mut Check, group: &VolumeGroup, volumes: &[LogicalVolume], sizes: &Sizes) {
    let before = METADATA_MIB + if group.encrypted.is_some() { LUKS_MIB } else { 0 };
    let extents = |device: &LayoutPath| Some(sizes.get(device)?.saturating_sub(before) / EXTENT_MIB);
    let Some(extents) = group.devices.iter().map(extents).collect::<Option<Vec<u64>>>() else { return };
    if extents.is_empty() {
        return;
    }
    let all = extents.iter().fold(0, |sum: u64, extents| sum.saturating_add(*extents));
    let mut left = all;
    for (index, volume) in volumes.iter().enumerate().filter(|(_, volume)| volume.volumegroup == group.name) {
        let needed = extents_of(volume, group.devices.len() as u64);
        if needed > left {
            let message = format!(
                "lv:{} in vg:{} takes {} MiB, but at most {} MiB of the group are usable, of which {} MiB are free",
                volume.name,
                group.name,
                needed.saturating_mul(EXTENT_MIB),
                all.saturating_mul(EXTENT_MIB),
                left.saturating_mul(EXTENT_MIB)
            );
            check.report(&format!("logicalvolumes[{index}].size"), message);
            return;
        }
        left -= needed;
    }
}

/// Returns the number of extents of a volume, at least one for each physical volume that it uses.
fn extents_of(volume: &LogicalVolume, devices: u64) -> u64 {
    let extents = volume.size.mib().map_or(1, |mib| mib.div_ceil(EXTENT_MIB));
    match volume.lvmtype {
        LvmType::Linear => extents,
        LvmType::Striped => extents.div_ceil(devices).saturating_mul(devices),
        // Each of the two copies has an extent for its metadata.
        LvmType::Raid1 => extents.saturating_add(1).saturating_mul(2),
    }
}

fn check_filesystems(check: &mut Check, layout: &Layout, sizes: &Sizes) {
    for (index, filesystem) in layout.filesystems.iter().enumerate() {
        let least = match filesystem.format {
            Format::Xfs => LEAST_XFS_MIB,
            // Other profiles and mixed block groups need less.
            Format::Btrfs if filesystem.createoptions.is_empty() => LEAST_BTRFS_MIB,
            _ => continue,
        };
        if let Some(size) = sizes.get(&filesystem.device).filter(|size| **size < least) {
            let (device, format) = (&filesystem.device, filesystem.format);
            let message = format!("device:{device} has {size} MiB, but {format} needs at least {least}");
            check.report(&format!("filesystems[{index}].device"), message);
        }
    }
}
