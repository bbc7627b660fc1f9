//! Copies of LVM raid1 volumes. LVM's metadata contains the location of each copy and of its dm-raid superblock
//! (`struct dm_raid_superblock` in the kernel's drivers/md/dm-raid.c). The superblocks show which copies are complete.

use super::sysfs::ProbeRoots;
use super::volume_groups::{LvmReportRow, LvmReportSegment, parse_number};
use std::cmp::Reverse;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Range of a block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceRange {
    /// Device path as printed by lvm: `/dev/sda1`.
    pub device: String,
    pub start_bytes: u64,
    pub size_bytes: u64,
}

/// One of the copies of a raid1 volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct VolumeCopy {
    /// Ranges that contain the data, in order; `None` if a range or its device is missing.
    pub data: Option<Vec<DeviceRange>>,
    /// Range that begins with the dm-raid superblock of the copy.
    superblock: Option<DeviceRange>,
}

/// dm-raid superblock of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DmRaidSuperblock {
    /// Event count: the copy with the highest count is current.
    events: u64,
    /// Bit set of the copies that had failed when this superblock was written, with one bit for each slot.
    failed: u64,
    /// True if this copy is completely recovered and therefore contains all data.
    recovered: bool,
}

impl DmRaidSuperblock {
    /// Parses a little-endian superblock. Magic, features, number of copies and slot of this copy precede the fields
    /// that this type contains.
    fn parse(bytes: &[u8; 64]) -> Option<DmRaidSuperblock> {
        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        (bytes.starts_with(b"DmRd")).then_some(())?;
        Some(DmRaidSuperblock { events: word(16)?, failed: word(24)?, recovered: word(32)? == u64::MAX })
    }
}

/// Result of reading the superblock of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopySuperblock {
    Found(DmRaidSuperblock),
    /// The copy was read, and has no superblock.
    Absent,
    /// The location of the superblock is unknown, or cannot be read.
    Unreadable,
}

impl CopySuperblock {
    fn found(self) -> Option<DmRaidSuperblock> {
        match self {
            CopySuperblock::Found(superblock) => Some(superblock),
            CopySuperblock::Absent | CopySuperblock::Unreadable => None,
        }
    }
}

/// Returns the number of complete copies. If no copy of a raid1 volume has a superblock, the volume was never activated
/// and does not contain data yet, so all its copies count as complete. A superblock that cannot be read may exist.
pub(super) fn count_complete_copies(legs: &[VolumeCopy], superblocks: &[CopySuperblock]) -> usize {
    let is_new = superblocks.iter().all(|found| *found == CopySuperblock::Absent);
    match is_new && legs.iter().all(|leg| leg.data.is_some()) {
        true => legs.len(),
        false => find_complete_copies(legs, superblocks).len(),
    }
}

/// Returns the copies of the raid1 volume `name` of the group in `row`.
pub(super) fn find_copies(row: &LvmReportRow, name: &str) -> Vec<VolumeCopy> {
    let images = find_segments(row, name).next().map(|segment| segment.devices.clone()).unwrap_or_default();
    let images: Vec<&str> = images.split(',').filter_map(|image| Some(image.rsplit_once('(')?.0)).collect();
    let leg = |image: &&str| VolumeCopy {
        data: find_linear_ranges(row, image),
        superblock: find_linear_ranges(row, &image.replace("_rimage_", "_rmeta_"))
            .and_then(|pieces| pieces.into_iter().next()),
    };
    images.iter().map(leg).collect()
}

/// Returns the slots of the copies that have the volume's current data, the best copy first. If the two copies have
/// diverged, because each of them was used without the other, both are omitted: the operator must decide which copy is
/// correct.
pub(super) fn find_complete_copies(legs: &[VolumeCopy], superblocks: &[CopySuperblock]) -> Vec<usize> {
    // One bit for each slot; LVM supports fewer than 64 copies.
    let known = || (0..64).zip(superblocks).filter_map(|(place, found)| Some((place, found.found()?)));
    let latest = known().map(|(_, superblock)| superblock.events).max().unwrap_or_default();
    let failed = known().fold(0, |failed, (_, superblock)| failed | superblock.failed);
    let good = known().filter(|(place, own)| {
        // A difference of one event is accepted, because the last event, the deactivation of the volume, may have been
        // written to only one of the copies.
        let up_to_date = own.recovered && own.events.saturating_add(1) >= latest;
        up_to_date && failed >> place & 1 == 0 && legs.get(*place).is_some_and(|leg| leg.data.is_some())
    });
    let mut good: Vec<(usize, u64)> = good.map(|(place, own)| (place, own.events)).collect();
    // The copy with the highest event count comes first. If several copies have this count, the one in the lowest slot
    // comes first, because the kernel would resynchronize the others from it.
    good.sort_by_key(|(place, events)| (Reverse(*events), *place));
    good.into_iter().map(|(place, _)| place).collect()
}

/// Returns the superblocks of these copies, in the same order.
pub(super) fn read_superblocks(roots: &ProbeRoots, legs: &[VolumeCopy]) -> Vec<CopySuperblock> {
    let read = |leg: &VolumeCopy| {
        let piece = leg.superblock.as_ref()?;
        let mut bytes = [0; 64];
        let file = File::open(roots.dev.join(piece.device.strip_prefix("/dev/")?));
        match file.and_then(|file| file.read_exact_at(&mut bytes, piece.start_bytes)) {
            Ok(()) => Some(DmRaidSuperblock::parse(&bytes).map_or(CopySuperblock::Absent, CopySuperblock::Found)),
            Err(error) => {
                tracing::warn!(device = piece.device, "cannot read the superblock of a raid1 logical volume: {error}");
                None
            }
        }
    };
    legs.iter().map(|leg| read(leg).unwrap_or(CopySuperblock::Unreadable)).collect()
}

/// Returns the segments of the volume with this name, in order. The volume may be hidden; lvm's report contains the
/// name of a hidden volume in brackets.
pub(super) fn find_segments<'a>(row: &'a LvmReportRow, name: &str) -> impl Iterator<Item = &'a LvmReportSegment> {
    let is = |found: &str| found == name || found.strip_prefix('[').and_then(|it| it.strip_suffix(']')) == Some(name);
    let uuid = row.lv.iter().find(|volume| is(&volume.lv_name)).map(|volume| volume.lv_uuid.as_str());
    let mut segments: Vec<&LvmReportSegment> =
        row.seg.iter().filter(|segment| Some(segment.lv_uuid.as_str()) == uuid).collect();
    segments.sort_by_key(|segment| parse_number::<u64>(&segment.seg_start_pe));
    segments.into_iter()
}

/// Returns the data ranges of a linear volume; `None` if a range is missing, or the volume is not linear.
pub(super) fn find_linear_ranges(row: &LvmReportRow, name: &str) -> Option<Vec<DeviceRange>> {
    let extent: u64 = parse_number(&row.vg.first()?.vg_extent_size);
    let piece = |segment: &LvmReportSegment| {
        let (device, first) = segment.devices.strip_suffix(')')?.rsplit_once('(')?;
        let physical = row.pv.iter().find(|physical| physical.pv_name == device)?;
        let linear = segment.segtype == "linear" && device.starts_with("/dev/");
        Some(DeviceRange {
            device: linear.then(|| device.to_owned())?,
            start_bytes: first
                .parse::<u64>()
                .ok()?
                .checked_mul(extent)?
                .checked_add(parse_number(&physical.pe_start))?,
            size_bytes: parse_number::<u64>(&segment.seg_size_pe).checked_mul(extent).filter(|size| *size > 0)?,
        })
    };
    let pieces: Option<Vec<DeviceRange>> = find_segments(row, name).map(piece).collect();
    pieces.filter(|pieces| !pieces.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::simulated_machine::FakeMachine;
    use super::*;

    const NEW: DmRaidSuperblock = DmRaidSuperblock { events: 30, failed: 0, recovered: true };

    fn leg(there: bool) -> VolumeCopy {
        let piece = DeviceRange { device: "/dev/sda".into(), start_bytes: 0, size_bytes: 1 };
        VolumeCopy { data: there.then(|| vec![piece]), superblock: None }
    }

    #[test]
    fn only_present_and_current_raid1_copies_are_complete() {
        let all = [leg(true), leg(true)];
        let old = |events| Some(DmRaidSuperblock { events, ..NEW });
        let without = |place: u64, events| Some(DmRaidSuperblock { events, failed: 1 << place, ..NEW });
        let filling = Some(DmRaidSuperblock { recovered: false, ..NEW });
        let cases: [([Option<DmRaidSuperblock>; 2], &[usize]); 10] = [
            ([Some(NEW), Some(NEW)], &[0, 1]),
            ([old(29), Some(NEW)], &[1, 0]),
            ([old(28), Some(NEW)], &[1]),
            ([Some(NEW), None], &[0]),
            ([None, Some(NEW)], &[1]),
            ([None, None], &[]),
            ([without(1, 31), Some(NEW)], &[0]),
            ([old(30), without(0, 31)], &[1]),
            ([without(1, 31), without(0, 40)], &[]),
            ([Some(NEW), filling], &[0]),
        ];
        for (superblocks, expected) in cases {
            let superblocks = superblocks.map(|found| found.map_or(CopySuperblock::Unreadable, CopySuperblock::Found));
            assert_eq!(find_complete_copies(&all, &superblocks), expected, "{superblocks:?}");
        }
        assert_eq!(find_complete_copies(&[leg(false), leg(true)], &[CopySuperblock::Found(NEW); 2]), [1]);
        assert_eq!(find_complete_copies(&[], &[]), Vec::<usize>::new());
    }

    #[test]
    fn unreadable_superblocks_do_not_make_a_volume_new() {
        let tree = FakeMachine::new();
        tree.write("dev/sda", [0; 4096]);
        tree.write("dev/sdb", [0; 32]);
        tree.write("dev/sdd", [&b"DmRd\x01\0\0\0"[..], &[0; 24], &[0xff; 32]].concat());
        let on = |device: &str| {
            let range = DeviceRange { device: format!("/dev/{device}"), start_bytes: 0, size_bytes: 4096 };
            VolumeCopy { data: Some(vec![range.clone()]), superblock: Some(range) }
        };
        let complete = |devices: [&str; 2]| {
            let legs = devices.map(on);
            count_complete_copies(&legs, &read_superblocks(&tree.roots(), &legs))
        };
        // The superblock of sdb is cut off, and sdc does not exist.
        assert_eq!(complete(["sda", "sda"]), 2);
        assert_eq!(["sdb", "sdc"].map(|device| complete([device, device])), [0, 0]);
        assert_eq!(["sdb", "sdc"].map(|device| complete(["sda", device])), [0, 0]);
        assert_eq!(["sdb", "sdc", "sdd"].map(|device| complete(["sdd", device])), [1, 1, 2]);
        let unknown = VolumeCopy { superblock: None, ..on("sda") };
        assert_eq!(read_superblocks(&tree.roots(), &[unknown]), [CopySuperblock::Unreadable]);
    }

    #[test]
    fn parses_dm_raid_superblocks_of_the_kernel() {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(b"DmRd\x01\0\0\0");
        bytes[16] = 0x20;
        bytes[24] = 2;
        bytes[32..48].fill(0xff);
        assert_eq!(DmRaidSuperblock::parse(&bytes), Some(DmRaidSuperblock { events: 32, failed: 2, recovered: true }));
        bytes[39] = 0;
        assert!(!DmRaidSuperblock::parse(&bytes).unwrap().recovered);
        assert_eq!(DmRaidSuperblock::parse(&[0; 64]), None);
    }
}
