//! Disks that a reinstall wipes except for the partitions with `preserve: true`.
//!
//! | partition | in the layout | result |
//! |---|---|---|
//! | exists | preserved | its entry, GUID and bytes do not change |
//! | missing, or of another size or type | preserved | the plan is refused |
//! | exists | not preserved, or not listed | removed: its signature areas are zeroed |
//! | missing, or removed | not preserved | created in the space outside the preserved partitions |

use super::DiskVerdict;
use super::disks::{explain_read_only, gpt_partitions, keep_disk, kept_partition, new_device};
use super::partition_gap_placement;
use super::partition_placement::{self, SectorExtent};
use super::planned_devices::DeviceFate;
use super::planner_state::PlannerState;
use super::{disk_erasure_plan, plan_decisions::PartlyKeptDisk};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::allocation::FinisherChoice;
use model::deploy_steps::EraseMode;
use model::device_name::KernelName;
use model::inventory::{DiskPartition, InventoryDisk};
use model::layout::preserved_objects::PreservedObjects;
use model::layout::{DiskSpec, PartitionSpec};
use operations::{ByteRange, ClearRanges, DiskIdentity, ExpectedEntry, NewPartition, TableEdit};
use uuid::Uuid;

impl<'a> PlannerState<'a> {
    /// Decides on the partitions of a partly kept disk.
    pub(crate) fn renew_disk(&mut self, place: &str, disk: &DiskSpec, found: &'a InventoryDisk) {
        let preserved = PreservedObjects::from_graph(self.graph);
        let is_preserved = |part: &PartitionSpec| preserved.includes_device(&disk.device.partition_path(part.number));
        let (preserved_partitions, renewed): (Vec<&PartitionSpec>, Vec<&PartitionSpec>) =
            disk.partitions.iter().partition(|part| is_preserved(part));
        let table = gpt_partitions(found);
        for part in table {
            let stays = preserved_partitions.iter().any(|wanted| wanted.number == part.number);
            let verdict = if stays { DiskVerdict::Keep } else { DiskVerdict::Wipe };
            self.parts.insert(part.device.kernel_name(), verdict);
        }
        self.devices
            .insert(disk.device.clone(), new_device(found, DeviceFate::Wiped, found.device.clone(), found.size_bytes));
        for wanted in &preserved_partitions {
            if let Some(part) = table.iter().find(|part| part.number == wanted.number) {
                self.devices.insert(disk.device.partition_path(wanted.number), kept_partition(found, part));
            }
        }
        let mut problems = keep_disk(place, disk, found, &is_preserved);
        problems.extend(explain_read_only(place, found));
        problems.extend(self.explain_unsupported_renewal(place, found));
        if !problems.is_empty() {
            return self.decided.problems.extend(problems);
        }
        let entries: Vec<&DiskPartition> = table
            .iter()
            .filter(|part| preserved_partitions.iter().any(|wanted| wanted.number == part.number))
            .collect();
        match partition_gap_placement::place_between(&renewed, &entries, table, found.size_bytes, found.sector_bytes) {
            Ok(extents) => {
                let new: Vec<(&PartitionSpec, SectorExtent)> = renewed.into_iter().zip(extents).collect();
                self.edit_disk(place, disk, found, &entries, &new);
            }
            Err(small) => {
                self.refuse(ErrorCode::TooSmall, format!("{place}.partitions"), small.explain(&disk.device));
            }
        }
    }

    /// Returns a problem if the request can be fulfilled only by writing the whole disk.
    fn explain_unsupported_renewal(&self, place: &str, found: &InventoryDisk) -> Option<Diagnostic> {
        let why = if self.request.steps.erase_mode() == EraseMode::Secure {
            "the erase mode `secure` erases whole disks; use the erase mode `quick`"
        } else if self.request.assigned.allocation.definition.is_some() {
            "OS definitions write whole disks; install an image instead"
        } else if self.is_bios() && !matches!(self.finisher(), FinisherChoice::Auto | FinisherChoice::Builtin) {
            "on a BIOS machine, only the built-in finisher installs the boot loader without access to the whole disk; set `finish: builtin`"
        } else {
            return None;
        };
        let message = format!("{device} has partitions that must be preserved, but {why}", device = found.device);
        Some(Diagnostic::new(format!("{place}.partitions"), message).with_code(ErrorCode::NotReinstallable))
    }

    fn edit_disk(
        &mut self,
        place: &str,
        disk: &DiskSpec,
        found: &'a InventoryDisk,
        preserved_partitions: &[&DiskPartition],
        new: &[(&PartitionSpec, SectorExtent)],
    ) {
        let entries: Option<Vec<ExpectedEntry>> =
            preserved_partitions.iter().map(|part| expected_entry(part, found.sector_bytes)).collect();
        let guid = found.table.as_ref().and_then(|table| table.guid);
        let (Some(preserved), Some(guid)) = (entries, guid) else {
            let message = format!(
                "the partitions of {device} must be preserved, but its GPT lacks a GUID, or contains an invalid entry",
                device = found.device
            );
            return self.refuse(ErrorCode::PreservedMismatch, format!("{place}.partitions"), message);
        };
        let table = gpt_partitions(found);
        let removed: Vec<&DiskPartition> = table
            .iter()
            .filter(|part| {
                preserved_partitions.iter().all(|preserved_partitions| preserved_partitions.number != part.number)
            })
            .collect();
        let added = self.add_partitions(disk, found, &removed, new);
        let ranges: Vec<ByteRange> = preserved_partitions.iter().map(|part| extent_of(part)).collect();
        let extents: Vec<SectorExtent> = new.iter().map(|(_, extent)| *extent).collect();
        let (first, zero) = disk_erasure_plan::cleared_ranges(found, &removed, &extents, &ranges);
        let (device, identity) = (found.device.clone(), DiskIdentity::from_disk(found));
        let boot_gap = self.boot_gap(&disk.device, found, &ranges, &extents);
        self.decided.clears.push(ClearRanges {
            device: device.clone(),
            identity: identity.clone(),
            preserved: ranges,
            boot_code: self.is_bios(),
            first,
            zero,
        });
        self.decided.partly_kept.push(PartlyKeptDisk {
            name: found.name.clone(),
            preserved: preserved_partitions.iter().map(|part| (*part).clone()).collect(),
        });
        self.decided.edits.push(TableEdit {
            device,
            identity,
            guid,
            sector_bytes: found.sector_bytes,
            preserved,
            removed: removed.iter().map(|part| part.number).collect(),
            added,
            boot_gap,
        });
    }

    /// Registers the new partitions, and returns their entries.
    fn add_partitions(
        &mut self,
        disk: &DiskSpec,
        found: &'a InventoryDisk,
        removed: &[&DiskPartition],
        new: &[(&PartitionSpec, SectorExtent)],
    ) -> Vec<NewPartition> {
        let mut added = Vec::new();
        for (wanted, extent) in new {
            let path = found.device.partition_path(wanted.number);
            let device = new_device(found, DeviceFate::Wiped, path, extent.length_bytes(found.sector_bytes));
            self.devices.insert(disk.device.partition_path(wanted.number), device);
            let mut partition = self.new_partition(&disk.device, wanted, found, *extent);
            // If a new partition would differ from the removed one only in its GUID, the old GUID is reused.
            let same = removed.iter().find(|part| is_same_entry(part, &partition, found.sector_bytes));
            partition.guid = same.and_then(|part| part.guid).unwrap_or(partition.guid);
            added.push(partition);
        }
        added
    }
}

fn extent_of(part: &DiskPartition) -> ByteRange {
    ByteRange { start: part.start_bytes, length: part.size_bytes }
}

fn expected_entry(part: &DiskPartition, sector_bytes: u32) -> Option<ExpectedEntry> {
    let sector = u64::from(sector_bytes.max(1));
    let end = part.start_bytes.checked_add(part.size_bytes)? / sector;
    Some(ExpectedEntry {
        number: part.number,
        first_lba: part.start_bytes / sector,
        last_lba: end.checked_sub(1)?,
        kind: Uuid::parse_str(&part.kind).ok()?,
        guid: part.guid?,
        name: part.label.clone(),
    })
}

fn is_same_entry(part: &DiskPartition, new: &NewPartition, sector_bytes: u32) -> bool {
    expected_entry(part, sector_bytes).is_some_and(|is| {
        (is.number, is.first_lba, is.last_lba, is.kind) == (new.number, new.first_lba, new.last_lba, new.kind)
            && is.name == new.name
    })
}

/// Returns the extents of the preserved partitions of a disk; an empty list unless the disk is partly kept.
pub(crate) fn preserved_extents(disks: &[PartlyKeptDisk], name: &KernelName) -> Vec<ByteRange> {
    let disk = disks.iter().find(|disk| disk.name == *name);
    disk.iter().flat_map(|disk| &disk.preserved).map(extent_of).collect()
}

/// Returns the parts of the disk outside these ranges.
pub(crate) fn ranges_outside(preserved: &[ByteRange], size_bytes: u64) -> Vec<ByteRange> {
    let mut sorted = preserved.to_vec();
    sorted.sort_by_key(|range| range.start);
    let (mut outside, mut next) = (Vec::new(), 0);
    for range in sorted {
        if range.start > next {
            outside.push(ByteRange { start: next, length: range.start.min(size_bytes) - next });
        }
        next = next.max(range.start.saturating_add(range.length)).min(size_bytes);
    }
    if next < size_bytes {
        outside.push(ByteRange { start: next, length: size_bytes - next });
    }
    outside
}

/// Removes these areas from the ranges. Shrinks the remaining ranges to whole blocks, because the page cache writes
/// blocks.
pub(crate) fn subtract_areas(ranges: Vec<ByteRange>, areas: &[ByteRange]) -> Vec<ByteRange> {
    let end = |range: &ByteRange| range.start.saturating_add(range.length);
    let mut left = ranges;
    for area in areas {
        let split = |range: ByteRange| {
            let before = (range.start, end(&range).min(area.start));
            let after = (range.start.max(end(area)), end(&range));
            let is_apart = end(&range) <= area.start || end(area) <= range.start;
            let pieces = if is_apart { vec![(range.start, end(&range))] } else { vec![before, after] };
            pieces
                .into_iter()
                .filter(|(from, to)| from < to)
                .map(|(from, to)| ByteRange { start: from, length: to - from })
        };
        left = left.into_iter().flat_map(split).collect();
    }
    let block = |range: ByteRange| {
        let start = range.start.next_multiple_of(BLOCK_BYTES);
        let length = (end(&range) / BLOCK_BYTES * BLOCK_BYTES).saturating_sub(start);
        ByteRange { start, length }
    };
    left.into_iter().map(block).filter(|range| range.length > 0).collect()
}

/// Size of a page, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// Returns the areas of a disk that contain its partition table.
pub(crate) fn table_areas(size_bytes: u64, sector_bytes: u32) -> [ByteRange; 2] {
    let sector = u64::from(sector_bytes);
    let head = partition_placement::GPT_ENTRIES_BYTES + 2 * sector;
    let tail = partition_placement::GPT_ENTRIES_BYTES + sector;
    let start = size_bytes.saturating_sub(tail);
    [ByteRange { start: 0, length: head }, ByteRange { start, length: size_bytes - start }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_ranges_exclude_subtracted_areas_and_contain_whole_blocks() {
        let range = |start, length| ByteRange { start, length };
        let subtract = |ranges: &[ByteRange], areas: &[ByteRange]| subtract_areas(ranges.to_vec(), areas);
        assert_eq!(subtract(&[range(0, 40960)], &[range(8192, 8192)]), [range(0, 8192), range(16384, 24576)]);
        assert_eq!(subtract(&[range(0, 40960)], &[range(8191, 2)]), [range(0, 4096), range(12288, 28672)]);
        assert_eq!(subtract(&[range(0, 4096)], &[range(0, 4096)]), []);
        assert_eq!(subtract(&[range(4096, 4096)], &[range(0, 4096), range(8192, 4096)]), [range(4096, 4096)]);
        assert_eq!(subtract(&[range(0, u64::MAX)], &[range(4096, u64::MAX)]), [range(0, 4096)]);
    }

    #[test]
    fn ranges_outside_cover_everything_except_preserved_partitions() {
        let range = |start, length| ByteRange { start, length };
        assert_eq!(ranges_outside(&[], 100), [range(0, 100)]);
        assert_eq!(ranges_outside(&[range(50, 10), range(10, 20)], 100), [range(0, 10), range(30, 20), range(60, 40)]);
        assert_eq!(ranges_outside(&[range(0, 10), range(90, 10)], 100), [range(10, 80)]);
        assert_eq!(ranges_outside(&[range(90, u64::MAX)], 100), [range(0, 90)]);
    }
}
