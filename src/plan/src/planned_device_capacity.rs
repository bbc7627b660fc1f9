//! Capacity of stacked devices that do not exist yet. If a tool chooses the size, the computed capacity is a lower
//! bound.

use super::partition_placement::MIB;
use model::layout::{
    ArraySpec, FilesystemFormat, FilesystemSpec, LvmType, MIN_BTRFS_MIB, MIN_EXT3_MIB, MIN_XFS_MIB, RaidLevel,
    RequestedSize,
};

/// Default extent size of LVM, in bytes.
pub(crate) const EXTENT_BYTES: u64 = 4 * MIB;
/// Size of LVM's metadata at the start of a physical volume (lvm.conf(5), `default_data_alignment`).
pub(crate) const LVM_METADATA_BYTES: u64 = MIB;
/// Default chunk size of mdadm, in bytes.
const CHUNK_BYTES: u64 = 512 << 10;
/// Minimum number of clusters of a FAT32 filesystem. According to the FAT specification, a filesystem with fewer
/// clusters is a FAT16 filesystem, regardless of its header.
const FAT32_CLUSTERS: u64 = 65525;
/// Minimum size of a FAT32 filesystem with clusters of 4096 bytes, in MiB, including both file allocation tables.
/// Smaller filesystems did not boot in OVMF.
const FAT32_4K_MIB: u64 = 260;

/// Returns the size of an array with members of these sizes; `sizes` includes the spares. Returns `None` if a size is
/// unknown, or if the create options of the array affect its size.
pub(crate) fn array_bytes(raid: &ArraySpec, metadata: &str, sizes: &[Option<u64>]) -> Option<u64> {
    let sizes: Vec<u64> = sizes.iter().copied().collect::<Option<_>>()?;
    let least = sizes.iter().copied().min()?;
    if changes_size(raid) {
        return None;
    }
    // Sizes are rounded to 1 MiB, because a multiple of 1 MiB is also a multiple of the chunk size.
    let usable = |size_bytes: u64| member_bytes(size_bytes, metadata) / MIB * MIB;
    let member = usable(least);
    Some(match raid.level {
        // RAID 0 uses larger members completely (drivers/md/raid0.c: create_strip_zones).
        RaidLevel::Raid0 if member > 0 => sizes.into_iter().map(usable).fold(0, u64::saturating_add),
        RaidLevel::Raid10 => member.saturating_mul(active_members(raid)) / 2,
        _ => member.saturating_mul(data_members(raid)),
    })
}

/// Returns an upper bound for the size of an array with these members, regardless of its create options.
pub(crate) fn max_array_bytes(raid: &ArraySpec, most_of_members: impl Iterator<Item = u64>) -> u64 {
    let members: Vec<u64> = most_of_members.collect();
    let least = members.iter().copied().min().unwrap_or_default();
    match raid.level {
        // RAID 0 uses the whole space of all members, even if their sizes differ.
        RaidLevel::Raid0 => members.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes)),
        // The number of copies depends on the RAID 10 layout of the array, so one copy is assumed for the upper bound.
        RaidLevel::Raid10 => least.saturating_mul(active_members(raid)),
        _ => least.saturating_mul(data_members(raid)),
    }
}

/// Returns the size that one member contributes to an array. Metadata 1.1 and 1.2 reserve space at the start for a
/// reshape: a 1024th of the member, at most 128 MiB, in addition to superblock, bitmap and bad block log (mdadm,
/// super1.c: validate_geometry1).
fn member_bytes(size_bytes: u64, metadata: &str) -> u64 {
    let reserved = match metadata {
        "0.90" | "1.0" => MIB,
        _ => (2 * MIB + size_bytes / 1024).min(130 * MIB),
    };
    size_bytes.saturating_sub(reserved)
}

/// Returns whether a create option changes the size: `--size`, `--data-offset`, `--layout`, `--parity`, `--rounding`,
/// `--chunk` or a short form.
pub(crate) fn changes_size(raid: &ArraySpec) -> bool {
    let starts = ["--s", "--da", "--la", "--p", "--ro", "--ch", "-z", "-p", "-c"];
    raid.options_without_metadata().iter().any(|option| starts.iter().any(|start| option.starts_with(start)))
}

/// Returns the stripe size to which LVM aligns its data (lvm.conf(5), `data_alignment_detection`); 0 if the array does
/// not have stripes.
pub(crate) fn stripe_bytes(raid: &ArraySpec) -> u64 {
    match raid.level {
        RaidLevel::Raid1 => 0,
        RaidLevel::Raid10 => CHUNK_BYTES.saturating_mul(active_members(raid)),
        _ => CHUNK_BYTES.saturating_mul(data_members(raid)),
    }
}

fn active_members(raid: &ArraySpec) -> u64 {
    (raid.devices.len() as u64).saturating_sub(u64::from(raid.spares))
}

fn data_members(raid: &ArraySpec) -> u64 {
    match raid.level {
        RaidLevel::Raid0 | RaidLevel::Raid10 => active_members(raid),
        RaidLevel::Raid1 => 1,
        RaidLevel::Raid5 => active_members(raid).saturating_sub(1),
        RaidLevel::Raid6 => active_members(raid).saturating_sub(2),
    }
}

/// Returns the number of extents of a physical volume.
pub(crate) fn physical_volume_extents(size_bytes: u64, stripe_bytes: u64) -> u64 {
    let start = match stripe_bytes {
        0 => LVM_METADATA_BYTES,
        stripe => LVM_METADATA_BYTES.next_multiple_of(stripe),
    };
    size_bytes.saturating_sub(start) / EXTENT_BYTES
}

/// Shortage of space for a volume that does not fit into its volume group.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CapacityShortage {
    pub required_mib: u64,
    pub existing_mib: u64,
}

/// Returns the requested size of a volume, rounded up to whole extents, for a group whose size is unknown. The extents
/// of a striped volume are distributed evenly to the physical volumes of the group, whose number is `physical`. Returns
/// `None` if the volume takes the remaining space of the group.
pub(crate) fn requested_bytes(kind: LvmType, size: RequestedSize, physical: usize) -> Option<u64> {
    let unit = match kind {
        LvmType::Linear | LvmType::Raid1 => EXTENT_BYTES,
        LvmType::Striped => EXTENT_BYTES.saturating_mul(physical as u64),
    };
    size.as_mib().map(|mib| mib.saturating_mul(MIB).div_ceil(unit.max(1)).saturating_mul(unit))
}

/// Takes the extents of a volume from `free`, the number of free extents of each physical volume. `extent_bytes` is the
/// size of an extent. Returns the size of the volume in bytes.
///
/// # Errors
/// Fails if there are not enough free extents, or if they are not distributed as the type requires.
pub(crate) fn allocate_extents(
    kind: LvmType,
    size: RequestedSize,
    extent_bytes: u64,
    free: &mut [u64],
) -> Result<u64, CapacityShortage> {
    let extent_bytes = extent_bytes.max(1);
    let wanted = size.as_mib().map(|mib| mib.saturating_mul(MIB).div_ceil(extent_bytes));
    let to_mib = |extents: u64| extents.saturating_mul(extent_bytes) / MIB;
    let check_enough = |required: u64, existing: u64| match required <= existing {
        true => Ok(()),
        false => Err(CapacityShortage { required_mib: to_mib(required), existing_mib: to_mib(existing) }),
    };
    match kind {
        LvmType::Linear => {
            let extents = wanted.unwrap_or_else(|| free.iter().sum());
            check_enough(extents.max(1), free.iter().sum())?;
            take_linear(extents.max(1), free);
            Ok(extents * extent_bytes)
        }
        LvmType::Striped => {
            let stripes = free.len() as u64;
            let room = free.iter().copied().min().unwrap_or_default();
            let each = wanted.map_or(room.max(1), |wanted| wanted.div_ceil(stripes.max(1)));
            check_enough(each.saturating_mul(stripes), room.saturating_mul(stripes))?;
            free.iter_mut().for_each(|free| *free -= each);
            Ok(each * stripes * extent_bytes)
        }
        LvmType::Raid1 => {
            let mut order = most_free_first(free);
            order.truncate(2);
            let room = if order.len() < 2 { 0 } else { order.iter().map(|&at| free[at]).min().unwrap_or_default() };
            // Each of the two mirror legs needs one additional extent for metadata.
            let leg = wanted.map_or(room.max(2), |wanted| wanted.saturating_add(1));
            check_enough(leg.saturating_mul(2), room.saturating_mul(2))?;
            order.iter().for_each(|&at| free[at] -= leg);
            Ok((leg - 1) * extent_bytes)
        }
    }
}

/// Takes extents from the largest free areas first, as LVM does.
fn take_linear(extents: u64, free: &mut [u64]) {
    let mut left = extents;
    for at in most_free_first(free) {
        let taken = left.min(free[at]);
        free[at] -= taken;
        left -= taken;
    }
}

fn most_free_first(free: &[u64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..free.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(free[at]));
    order
}

/// Returns the minimum size of the filesystem in MiB, and the reason for this minimum; `None` if there is no minimum.
pub(crate) fn min_filesystem_mib(filesystem: &FilesystemSpec, sector_bytes: u32) -> Option<(u64, &'static str)> {
    match filesystem.format {
        FilesystemFormat::Xfs => Some((MIN_XFS_MIB, "mkfs.xfs refuses smaller devices")),
        FilesystemFormat::Ext3 => {
            Some((MIN_EXT3_MIB, "a smaller ext3 filesystem lacks a journal and cannot be mounted"))
        }
        // The minimum applies only without create options, because these may select another profile or mixed block
        // groups, which need less space.
        FilesystemFormat::Btrfs if filesystem.createoptions.is_empty() => {
            Some((MIN_BTRFS_MIB, "mkfs.btrfs refuses smaller devices"))
        }
        FilesystemFormat::Vfat if is_fat32(filesystem) && sector_bytes == 4096 => {
            Some((FAT32_4K_MIB, "firmware does not boot from a smaller FAT32 filesystem if the sectors are 4096 bytes"))
        }
        FilesystemFormat::Vfat if is_fat32(filesystem) => {
            // A cluster is at least one sector, and has a four-byte entry in each of the two tables.
            let bytes = FAT32_CLUSTERS * (u64::from(sector_bytes) + 2 * 4);
            Some((bytes.div_ceil(MIB), "a FAT32 filesystem requires at least 65525 clusters"))
        }
        _ => None,
    }
}

/// Returns whether the create options contain `-F 32` for mkfs.vfat.
fn is_fat32(filesystem: &FilesystemSpec) -> bool {
    filesystem.find_option_value('F') == Some("32")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn raid(level: RaidLevel, members: usize, spares: u32, options: &[&str]) -> ArraySpec {
        ArraySpec {
            arrayname: "/dev/md0".into(),
            devices: (0..members).map(|number| format!("/dev/sd{number}").into()).collect(),
            level,
            createoptions: options.iter().map(|option| (*option).to_owned()).collect(),
            spares,
            preserve: false,
        }
    }

    #[test]
    fn smallest_member_limits_redundant_arrays_but_not_raid_0() {
        let cases = [
            (RaidLevel::Raid0, 2, 0, "1.2", Some(1021 + 2044)),
            (RaidLevel::Raid0, 3, 0, "1.2", Some(1021 + 2 * 2044)),
            (RaidLevel::Raid0, 3, 0, "1.0", Some(1023 + 2 * 2047)),
            (RaidLevel::Raid1, 3, 1, "1.2", Some(1021)),
            (RaidLevel::Raid1, 2, 0, "1.0", Some(1023)),
            (RaidLevel::Raid1, 2, 0, "0.90", Some(1023)),
            (RaidLevel::Raid5, 4, 1, "1.2", Some(2 * 1021)),
            (RaidLevel::Raid6, 5, 1, "1.2", Some(2 * 1021)),
            (RaidLevel::Raid10, 4, 0, "1.2", Some(2 * 1021)),
            (RaidLevel::Raid10, 3, 0, "1.2", Some(3 * 1021 / 2)),
        ];
        for (level, members, spares, metadata, expected_mib) in cases {
            let mut sizes = vec![Some(2 * GIB); members];
            sizes[0] = Some(GIB);
            let bytes = array_bytes(&raid(level, members, spares, &[]), metadata, &sizes);
            assert_eq!(bytes.map(|bytes| bytes / MIB), expected_mib, "{level} {members} {spares}");
        }
        let large = array_bytes(&raid(RaidLevel::Raid1, 2, 0, &[]), "1.2", &[Some(1000 * GIB); 2]).unwrap();
        assert_eq!(large, 1000 * GIB - 130 * MIB);
        assert_eq!(array_bytes(&raid(RaidLevel::Raid1, 2, 0, &[]), "1.2", &[Some(1000), Some(1000)]), Some(0));
        assert_eq!(array_bytes(&raid(RaidLevel::Raid0, 2, 0, &[]), "1.2", &[Some(1000), Some(GIB)]), Some(0));
    }

    #[test]
    fn size_changing_create_options_leave_array_size_unknown() {
        let cases = [
            (&["--size=5G"][..], false),
            (&["-z", "5G"], false),
            (&["--layout=f2"], false),
            (&["--chunk=64"], false),
            (&["--data-offset=1M"], false),
            (&["--assume-clean", "--bitmap=internal"], true),
            (&["--metadata=1.2"], true),
        ];
        for (options, known) in cases {
            let array = raid(RaidLevel::Raid10, 4, 0, options);
            assert_eq!(array_bytes(&array, "1.2", &[Some(GIB); 4]).is_some(), known, "{options:?}");
        }
        assert_eq!(array_bytes(&raid(RaidLevel::Raid1, 2, 0, &[]), "1.2", &[Some(GIB), None]), None);
    }

    #[test]
    fn maximum_array_size_ignores_create_options() {
        for (level, spares, expected) in [
            (RaidLevel::Raid0, 0, 7),
            (RaidLevel::Raid1, 0, 1),
            (RaidLevel::Raid5, 1, 2),
            (RaidLevel::Raid6, 0, 2),
            (RaidLevel::Raid10, 0, 4),
        ] {
            let array = raid(level, 4, spares, &["--size=max", "--layout=n2"]);
            let members = [GIB, 2 * GIB, 2 * GIB, 2 * GIB];
            assert_eq!(max_array_bytes(&array, members.into_iter()) / GIB, expected, "{level}");
        }
        let all = raid(RaidLevel::Raid0, 2, 0, &[]);
        assert_eq!(max_array_bytes(&all, [u64::MAX; 2].into_iter()), u64::MAX);
    }

    #[test]
    fn volume_size_is_rounded_up_to_whole_extents() {
        for (kind, size_mib, expected_mib) in [
            (LvmType::Linear, 0, None),
            (LvmType::Linear, 401, Some(404)),
            (LvmType::Raid1, 400, Some(400)),
            (LvmType::Striped, 401, Some(408)),
        ] {
            assert_eq!(
                requested_bytes(kind, RequestedSize::from(size_mib), 3),
                expected_mib.map(|mib: u64| mib * MIB),
                "{kind} {size_mib}"
            );
        }
    }

    #[test]
    fn physical_volume_extents_exclude_metadata_and_remainder() {
        let cases = [(GIB, 0, 255), (MIB, 0, 0), (5 * MIB, 0, 1), (5 * MIB - 1, 0, 0), (8 * MIB, 4 * MIB, 1)];
        for (size, stripe, expected) in cases {
            assert_eq!(physical_volume_extents(size, stripe), expected, "{size}");
        }
    }

    type Case = (LvmType, u64, &'static [u64], Result<u64, CapacityShortage>, &'static [u64]);

    #[test]
    fn allocates_extents_according_to_volume_type() {
        let no_room = |required_mib, existing_mib| Err(CapacityShortage { required_mib, existing_mib });
        let cases: [Case; 14] = [
            (LvmType::Linear, 9, &[10, 20], Ok(12), &[10, 17]),
            (LvmType::Linear, 100, &[10, 20], Ok(100), &[5, 0]),
            (LvmType::Linear, 0, &[10, 20], Ok(120), &[0, 0]),
            (LvmType::Linear, 121, &[10, 20], no_room(124, 120), &[10, 20]),
            (LvmType::Linear, 0, &[0, 0], no_room(4, 0), &[0, 0]),
            (LvmType::Striped, 9, &[10, 20], Ok(16), &[8, 18]),
            (LvmType::Striped, 0, &[10, 20], Ok(80), &[0, 10]),
            (LvmType::Striped, 84, &[10, 20], no_room(88, 80), &[10, 20]),
            (LvmType::Striped, 0, &[0, 20], no_room(8, 0), &[0, 20]),
            (LvmType::Raid1, 9, &[10, 20, 15], Ok(12), &[10, 16, 11]),
            (LvmType::Raid1, 0, &[10, 20], Ok(36), &[0, 10]),
            (LvmType::Raid1, 40, &[10, 20], no_room(88, 80), &[10, 20]),
            (LvmType::Raid1, 0, &[1, 20], no_room(16, 8), &[1, 20]),
            (LvmType::Raid1, 4, &[20], no_room(16, 0), &[20]),
        ];
        for (kind, size_mib, free, expected, left) in cases {
            let mut extents = free.to_vec();
            let size = RequestedSize::from(size_mib);
            let found = allocate_extents(kind, size, EXTENT_BYTES, &mut extents).map(|bytes| bytes / MIB);
            assert_eq!((found, extents.as_slice()), (expected, left), "{kind} {size_mib} {free:?}");
        }
    }

    #[test]
    fn minimum_filesystem_size_depends_on_format_options_and_sector() {
        let cases = [
            (FilesystemFormat::Xfs, &[][..], 512, Some(300)),
            (FilesystemFormat::Btrfs, &[], 512, Some(109)),
            (FilesystemFormat::Btrfs, &["--mixed"], 512, None),
            (FilesystemFormat::Ext4, &[], 512, None),
            (FilesystemFormat::Ext3, &[], 512, Some(2)),
            (FilesystemFormat::Vfat, &[], 4096, None),
            (FilesystemFormat::Vfat, &["-F", "32"], 4096, Some(260)),
            (FilesystemFormat::Vfat, &["-F32"], 512, Some(33)),
            (FilesystemFormat::Vfat, &["-F", "16"], 4096, None),
        ];
        for (format, options, sector, expected) in cases {
            let createoptions = options.iter().map(|option| (*option).to_owned()).collect();
            let device = "/dev/sda1".to_owned();
            let filesystem = FilesystemSpec {
                path: None,
                device: device.into(),
                format,
                label: None,
                mountoptions: Vec::new(),
                createoptions,
                reinstall: Default::default(),
                grow: false,
                encrypted: None,
                preserve: false,
            };
            assert_eq!(min_filesystem_mib(&filesystem, sector).map(|(mib, _)| mib), expected, "{format} {options:?}");
        }
    }
}
