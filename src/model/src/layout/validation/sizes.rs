//! Rules for sizes that depend only on the layout. Sizes that depend on a disk are checked by the plan.
//!
//! Computed sizes are upper bounds: the metadata of arrays takes more space than these rules subtract.

use super::validation_state::LayoutCheck;
use crate::device_name::LayoutPath;
use crate::layout::{
    ArraySpec, FilesystemFormat, Layout, LogicalVolumeSpec, LvmType, RaidLevel, VolumeGroupSpec, max_filesystem_bytes,
};
use std::collections::BTreeMap;

/// LVM's default metadata size at the start of each physical volume, in MiB.
const METADATA_MIB: u64 = 1;
/// LVM's default extent size, in MiB.
const EXTENT_MIB: u64 = 4;
/// Size of the headers and key slots of a LUKS container that the plan creates, in MiB.
const LUKS_MIB: u64 = 16;
/// Number of bytes in a MiB.
const MIB: u64 = 1 << 20;
/// Minimum size of an xfs filesystem in MiB: mkfs.xfs of xfsprogs 5.19 and later refuses to create a smaller
/// filesystem.
pub const MIN_XFS_MIB: u64 = 300;
/// Minimum size of an ext3 filesystem in MiB. In a smaller filesystem, mkfs.ext3 does not create a journal, and the
/// kernel mounts a filesystem as ext3 only if it has a journal.
pub const MIN_EXT3_MIB: u64 = 2;
/// Largest supported sector size, in bytes. Limits are computed with this size, because the sector size of the disk is
/// unknown without an inventory.
const MAX_SECTOR_BYTES: u32 = 4096;
/// Minimum size of a filesystem that mkfs.btrfs creates without options, in MiB. This is the space for the first
/// chunks, with two copies of the metadata.
pub const MIN_BTRFS_MIB: u64 = 109;

/// Sizes in MiB of the devices whose size does not depend on a disk.
type FixedSizes = BTreeMap<LayoutPath, u64>;

pub(super) fn check_device_sizes(check: &mut LayoutCheck, layout: &Layout) {
    let known = ["disks", "raid", "volumegroups", "logicalvolumes"].iter().all(|list| check.is_whole_readable(list));
    if !known {
        return;
    }
    let mut sizes = FixedSizes::new();
    for disk in &layout.disks {
        for partition in &disk.partitions {
            let device = disk.device.partition_path(partition.number);
            sizes.extend(partition.size.as_mib().map(|mib| (device, mib)));
        }
    }
    for raid in &layout.raid {
        if let Some(size) = compute_array_size(raid, &sizes) {
            sizes.insert(raid.arrayname.clone(), size);
        }
    }
    for group in &layout.volumegroups {
        check_group(check, group, &layout.logicalvolumes, &sizes);
    }
    for volume in &layout.logicalvolumes {
        sizes.extend(volume.size.as_mib().map(|mib| (volume.device_path(), mib)));
    }
    check_filesystems(check, layout, &sizes);
}

/// Returns the size of an array in MiB; `None` if a member's size is unknown, or if create options may change the size.
fn compute_array_size(raid: &ArraySpec, sizes: &FixedSizes) -> Option<u64> {
    if !raid.options_without_metadata().is_empty() {
        return None;
    }
    let members: Vec<u64> = raid.devices.iter().map(|device| sizes.get(device).copied()).collect::<Option<_>>()?;
    let active = raid.count_active() as u64;
    let least = members.iter().min().copied()?;
    match raid.level {
        RaidLevel::Raid0 => members.iter().try_fold(0u64, |sum, size| sum.checked_add(*size)),
        RaidLevel::Raid1 => Some(least),
        RaidLevel::Raid5 => least.checked_mul(active.saturating_sub(1)),
        RaidLevel::Raid6 => least.checked_mul(active.saturating_sub(2)),
        RaidLevel::Raid10 => least.checked_mul(active).map(|both| both / 2),
    }
}

fn check_group(check: &mut LayoutCheck, group: &VolumeGroupSpec, volumes: &[LogicalVolumeSpec], sizes: &FixedSizes) {
    let before = METADATA_MIB + if group.encrypted.is_some() { LUKS_MIB } else { 0 };
    let extents = |device: &LayoutPath| Some(sizes.get(device)?.saturating_sub(before) / EXTENT_MIB);
    let Some(extents) = group.devices.iter().map(extents).collect::<Option<Vec<u64>>>() else { return };
    if extents.is_empty() {
        return;
    }
    let all = extents.iter().fold(0, |sum: u64, extents| sum.saturating_add(*extents));
    let mut left = all;
    for (index, volume) in volumes.iter().enumerate().filter(|(_, volume)| volume.volumegroup == group.name) {
        let needed = count_extents(volume, group.devices.len() as u64);
        if needed > left {
            let message = format!(
                "lv:{volume} in vg:{group} takes {needed} MiB, but at most {usable} MiB of the group are usable, of which {free} MiB are free",
                volume = volume.name,
                group = group.name,
                needed = needed.saturating_mul(EXTENT_MIB),
                usable = all.saturating_mul(EXTENT_MIB),
                free = left.saturating_mul(EXTENT_MIB)
            );
            check.report_problem(&format!("logicalvolumes[{index}].size"), message);
            return;
        }
        left -= needed;
    }
}

/// Returns the number of extents of a volume. A volume uses at least one extent of each of its physical volumes.
fn count_extents(volume: &LogicalVolumeSpec, devices: u64) -> u64 {
    let extents = volume.size.as_mib().map_or(1, |mib| mib.div_ceil(EXTENT_MIB));
    match volume.lvmtype {
        LvmType::Linear => extents,
        LvmType::Striped => extents.div_ceil(devices).saturating_mul(devices),
        // Each of the two copies has an extent for its metadata.
        LvmType::Raid1 => extents.saturating_add(1).saturating_mul(2),
    }
}

fn check_filesystems(check: &mut LayoutCheck, layout: &Layout, sizes: &FixedSizes) {
    for (index, filesystem) in layout.filesystems.iter().enumerate() {
        let Some(&size) = sizes.get(&filesystem.device) else { continue };
        let least = match filesystem.format {
            FilesystemFormat::Xfs => MIN_XFS_MIB,
            FilesystemFormat::Ext3 => MIN_EXT3_MIB,
            // The minimum applies only without create options, because these may select another profile or mixed block
            // groups, which need less space.
            FilesystemFormat::Btrfs if filesystem.createoptions.is_empty() => MIN_BTRFS_MIB,
            _ => 0,
        };
        let most = max_filesystem_bytes(filesystem, MAX_SECTOR_BYTES);
        let (device, format) = (&filesystem.device, filesystem.format);
        let message = match most {
            _ if size < least => format!("device:{device} is {size} MiB, but {format} needs at least {least}"),
            Some((most, why)) if size > most / MIB => {
                format!("device:{device} is {size} MiB, but {format} supports at most {most} bytes: {why}")
            }
            _ => continue,
        };
        check.report_problem(&format!("filesystems[{index}].device"), message);
    }
}
