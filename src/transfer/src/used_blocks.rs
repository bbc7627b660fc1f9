//! Determines the used blocks of a disk from the free-space maps of its filesystems. If a filesystem is not clean, not
//! supported, or inconsistent, all of its blocks are treated as used.
//!
//! The filesystem readers ([`read_used_blocks`]) run in a sandboxed process ([`worker`]), which cannot access the disk
//! itself: its parent process reads the disk on request. Each metadata block is visited only once, and the numbers of
//! reads, visits and ranges are limited ([`work_limits`], [`used_ranges`]). If a limit is exceeded, more blocks are
//! treated as used, up to the whole disk.

mod bounded_disk_reads;
mod btrfs;
mod ext;
mod fat;
mod foreign_signatures;
mod swap;
pub(crate) mod used_ranges;
pub(crate) mod work_limits;
pub(crate) mod worker;
mod xfs;

use super::protocol::GRANULE_BYTES;
use bounded_disk_reads::{DiskView, FilesystemUsage, SIGNATURE_SEPARATOR};
use linux::gpt::{Gpt, ReadAt};
use std::ops::Range;
use used_ranges::{GAP_BYTES, UsedRanges};
use work_limits::WorkLimits;

/// Size of the areas at both ends of a disk or partition, in bytes. These areas are always treated as used, because
/// they may contain signatures of earlier contents.
const ENDS_BYTES: u64 = 1 << 20;

/// Used ranges of a disk, with a description of its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UsedBlocks {
    /// Used ranges, sorted and not adjacent. The ranges are aligned to [`GRANULE_BYTES`]; only the end of the disk may
    /// be unaligned.
    pub ranges: Vec<Range<u64>>,
    /// Description of the contents, such as `ext4` or `GPT with vfat, ext4 (the whole disk)`. The suffix `(the whole
    /// disk)` means that all blocks of the filesystem are treated as used.
    pub what: String,
    pub has_table: bool,
}

/// Returns the whole disk as one used range.
pub(crate) fn mark_all_used(size: u64) -> UsedBlocks {
    UsedBlocks { ranges: std::iter::once(0..size).collect(), what: "the whole disk".to_owned(), has_table: false }
}

/// Returns the used blocks of a disk. Returns the whole disk if the disk cannot be read or its filesystems exceed the
/// limits in `work`.
pub(crate) fn read_used_blocks(read_at: ReadAt, size: u64, sector: u64, work: &WorkLimits) -> UsedBlocks {
    let counted = |bytes: &mut [u8], at: u64| work.read_within(read_at, bytes, at);
    let used = read_disk(&counted, size, sector, work);
    match work.is_exceeded() {
        false => used,
        true => UsedBlocks { has_table: true, ..mark_all_used(size) },
    }
}

fn read_disk(read_at: ReadAt, size: u64, sector: u64, work: &WorkLimits) -> UsedBlocks {
    let disk = DiskView { read_at, work, start: 0, size };
    match Gpt::read(read_at, sector, 1) {
        // A GPT is used only if there is no signature at the end of the disk. Otherwise the disk may be a member of an
        // array, and the offsets in the table are relative to the array. A GPT without a protective MBR is ignored, as
        // by Linux.
        Ok(Some(table))
            if foreign_signatures::find_end_signature(&disk).is_none() && foreign_signatures::is_protected(&disk) =>
        {
            read_partitions(&disk, &table)
        }
        Ok(Some(_)) | Err(_) => UsedBlocks { has_table: true, ..mark_all_used(size) },
        Ok(None) => {
            let (what, ranges) = read_filesystem(&disk);
            let mut head = [0; 512];
            let has_mbr = read_at(&mut head, 0).is_ok() && head.ends_with(&[0x55, 0xaa]);
            // The signature of an MBR does not prove that there is a partition table, because a boot loader before a
            // filesystem has the same signature. A vfat also has this signature. It is treated like a partition table,
            // because the structures of both depend on the sector size.
            let is_alone =
                |name: &&str| what.strip_prefix(*name).is_some_and(|rest| !rest.starts_with(SIGNATURE_SEPARATOR));
            let is_loader = ["ext4", "xfs", "btrfs"].iter().any(is_alone);
            UsedBlocks { ranges: round_ranges(ranges.into_sorted(), size), what, has_table: has_mbr && !is_loader }
        }
    }
}

/// Returns the used blocks of all partitions. Space outside of partitions is treated as used.
fn read_partitions(disk: &DiskView, table: &Gpt) -> UsedBlocks {
    let (size, sector) = (disk.size, table.sector_bytes());
    let mut entries: Vec<Range<u64>> = table
        .entries()
        .map(|entry| entry.sectors.start.saturating_mul(sector)..entry.sectors.end.saturating_mul(sector))
        .collect();
    entries.sort_by_key(|range| range.start);
    let (mut ranges, mut names, mut end) = (UsedRanges::default(), Vec::new(), 0);
    for entry in entries {
        if entry.start < end || entry.end > size || entry.is_empty() {
            return UsedBlocks { has_table: true, ..mark_all_used(size) };
        }
        ranges.add_range(end..entry.start);
        let view = DiskView { start: entry.start, size: entry.end - entry.start, ..*disk };
        let (name, used) = read_filesystem(&view);
        for range in round_ranges(used.into_sorted(), view.size) {
            ranges.add_range(entry.start + range.start..entry.start + range.end);
        }
        names.push(name);
        end = entry.end;
    }
    ranges.add_range(end..size);
    UsedBlocks {
        ranges: round_ranges(ranges.into_sorted(), size),
        what: format!("GPT with {}", names.join(", ")),
        has_table: true,
    }
}

/// Returns the description and the used ranges of the filesystem on a disk or partition.
fn read_filesystem(view: &DiskView) -> (String, UsedRanges) {
    let whole = || UsedRanges::all_used(view.size);
    let found =
        [ext::read_ext(view), xfs::read_xfs(view), btrfs::read_btrfs(view), fat::read_fat(view), swap::read_swap(view)];
    let mut found = found.into_iter().filter(|found| !matches!(found, FilesystemUsage::Other));
    match (found.next(), found.next(), foreign_signatures::find_signature(view)) {
        (Some(FilesystemUsage::Used(name, ranges)), None, None) => (name.to_owned(), ranges),
        (Some(FilesystemUsage::Doubtful(name)), None, None) => (format!("{name} (the whole disk)"), whole()),
        (None, _, None) => ("the whole disk".to_owned(), whole()),
        (None, _, Some(other)) => (format!("{other} (the whole disk)"), whole()),
        // The device has two signatures. One of them is stale, but it is unknown which one.
        (Some(FilesystemUsage::Used(name, _) | FilesystemUsage::Doubtful(name)), None, Some(other)) => {
            (format!("{name}{SIGNATURE_SEPARATOR}{other} (the whole disk)"), whole())
        }
        _ => ("two filesystems (the whole disk)".to_owned(), whole()),
    }
}

/// Adds the areas at both ends of the disk or partition to the used ranges, rounds ranges to granules, and merges
/// ranges with small gaps between them.
fn round_ranges(mut ranges: Vec<Range<u64>>, size: u64) -> Vec<Range<u64>> {
    ranges.push(0..size.min(ENDS_BYTES));
    ranges.push(size.saturating_sub(ENDS_BYTES)..size);
    ranges.retain(|range| range.start < range.end && range.start < size);
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let start = range.start / GRANULE_BYTES * GRANULE_BYTES;
        let end = range.end.min(size).next_multiple_of(GRANULE_BYTES).min(size);
        match merged.last_mut() {
            Some(before) if start < before.end + GAP_BYTES => before.end = before.end.max(end),
            _ => merged.push(start..end),
        }
    }
    merged
}

#[cfg(test)]
mod tests;
