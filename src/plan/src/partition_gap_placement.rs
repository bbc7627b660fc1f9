//! Placement of new partitions between preserved ones.
//!
//! A partition that exists with the same number and size stays where it is, unless it overlaps a preserved partition.
//! All other partitions are placed in the order of their numbers, each in the first gap that is large enough. The
//! partition that takes the remaining space gets the largest gap.

use super::partition_placement::{MIB, SectorExtent, usable_end_mib};
use model::device_name::LayoutPath;
use model::inventory::DiskPartition;
use model::layout::{PartitionSpec, RequestedSize};

/// Error for a partition that does not fit between the preserved partitions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GapTooSmall {
    /// Number of the partition.
    pub number: u32,
    pub required_mib: u64,
    /// Size of the largest remaining gap.
    pub largest_mib: u64,
}

impl GapTooSmall {
    /// Returns the message for a disk of the layout.
    pub(crate) fn explain(&self, disk: &LayoutPath) -> String {
        format!(
            "device:{device} is not big enough required:{required_mib}MiB, existing:{largest_mib}MiB (largest contiguous space outside the preserved partitions of {disk}; preserved partitions are neither moved nor shrunk)",
            device = disk.partition_path(self.number),
            required_mib = self.required_mib,
            largest_mib = self.largest_mib
        )
    }
}

/// Free space of a disk, in MiB: starts and ends of gaps, in order.
struct FreeSpace(Vec<(u64, u64)>);

impl FreeSpace {
    /// Removes a range of bytes from the free space. The remaining gaps start and end at whole MiB.
    fn occupy(&mut self, start: u64, end: u64) {
        let (start, end) = (start / MIB, end.div_ceil(MIB));
        let gaps = std::mem::take(&mut self.0).into_iter();
        let rest = gaps.flat_map(|(from, to)| [(from, to.min(start)), (from.max(end), to)]);
        self.0 = rest.filter(|(from, to)| from < to).collect();
        // A gap that the occupied range does not touch is now twice in the list, so duplicates are removed.
        self.0.dedup();
    }

    fn largest(&self) -> Option<(u64, u64)> {
        // If several gaps are equally large, the first one is used.
        self.0.iter().rev().max_by_key(|(from, to)| to - from).copied()
    }

    /// Occupies the first gap of at least this size, and returns its start.
    fn take(&mut self, mib: u64) -> Option<u64> {
        let (start, _) = self.0.iter().find(|(from, to)| to - from >= mib).copied()?;
        self.occupy(start * MIB, start.saturating_add(mib).saturating_mul(MIB));
        Some(start)
    }
}

/// Places the partitions `wanted` around the partitions `preserved`, which keep their positions. `existing` contains
/// all current partitions of the disk. The result is in the order of `wanted`.
///
/// # Errors
/// Returns the first partition that does not fit into any gap.
pub(crate) fn place_between(
    wanted: &[&PartitionSpec],
    preserved: &[&DiskPartition],
    existing: &[DiskPartition],
    size_bytes: u64,
    sector_bytes: u32,
) -> Result<Vec<SectorExtent>, GapTooSmall> {
    let mut free = FreeSpace(vec![(1, usable_end_mib(size_bytes, sector_bytes))]);
    free.0.retain(|(from, to)| from < to);
    for part in preserved {
        free.occupy(part.start_bytes, part.start_bytes.saturating_add(part.size_bytes));
    }
    let sector = u64::from(sector_bytes);
    let mut placed: Vec<Option<SectorExtent>> = vec![None; wanted.len()];
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|&index| wanted[index].number);
    for &index in &order {
        let Some(mib) = wanted[index].size.as_mib() else { continue };
        let stays = existing.iter().find(|part| part.number == wanted[index].number && is_free(&free, part, mib));
        if let Some(part) = stays {
            let end = part.start_bytes + part.size_bytes;
            placed[index] = Some(SectorExtent { first_lba: part.start_bytes / sector, last_lba: end / sector - 1 });
            free.occupy(part.start_bytes, end);
        }
    }
    order.sort_by_key(|&index| wanted[index].size == RequestedSize::Rest);
    for index in order.into_iter().filter(|index| placed[*index].is_none()).collect::<Vec<_>>() {
        let largest = free.largest().map_or(0, |(from, to)| to - from);
        let mib = wanted[index].size.as_mib().unwrap_or(largest);
        let too_small = GapTooSmall { number: wanted[index].number, required_mib: mib.max(1), largest_mib: largest };
        if mib == 0 {
            return Err(too_small);
        }
        let start = free.take(mib).ok_or(too_small)?;
        placed[index] =
            Some(SectorExtent { first_lba: start * MIB / sector, last_lba: (start + mib) * MIB / sector - 1 });
    }
    Ok(placed.into_iter().flatten().collect())
}

/// Returns whether the partition has this size, and all of it is free space.
fn is_free(free: &FreeSpace, part: &DiskPartition, mib: u64) -> bool {
    let is_aligned = part.start_bytes.is_multiple_of(MIB) && part.size_bytes == mib.saturating_mul(MIB);
    let (start, end) = (part.start_bytes / MIB, (part.start_bytes / MIB).saturating_add(mib));
    is_aligned && free.0.iter().any(|(from, to)| *from <= start && end <= *to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(number: u32, size_mib: u64) -> PartitionSpec {
        PartitionSpec { number, label: None, size: size_mib.into(), kind: None, preserve: false }
    }

    fn part(number: u32, start_mib: u64, size_mib: u64) -> DiskPartition {
        DiskPartition { number, start_bytes: start_mib * MIB, size_bytes: size_mib * MIB, ..DiskPartition::default() }
    }

    /// Places partitions on a disk of 1000 MiB. Returns the first and last MiB of each.
    fn place(
        wanted: &[(u32, u64)],
        preserved: &[u32],
        existing: &[DiskPartition],
    ) -> Result<Vec<(u64, u64)>, GapTooSmall> {
        let specs: Vec<PartitionSpec> = wanted.iter().map(|(number, mib)| spec(*number, *mib)).collect();
        let preserved_partitions: Vec<&DiskPartition> =
            existing.iter().filter(|part| preserved.contains(&part.number)).collect();
        let placed =
            place_between(&specs.iter().collect::<Vec<_>>(), &preserved_partitions, existing, 1000 * MIB, 512)?;
        Ok(placed.iter().map(|is| (is.first_lba / 2048, (is.last_lba + 1) / 2048)).collect())
    }

    #[test]
    fn new_partitions_are_placed_around_preserved_ones() {
        let existing = [part(1, 1, 100), part(2, 101, 300), part(3, 401, 400)];
        for (wanted, preserved, expected) in [
            // Partitions with the same numbers and sizes keep their positions.
            (&[(1, 100), (2, 300)][..], &[3][..], &[(1, 101), (101, 401)][..]),
            // The root partition may grow up to the start of the preserved partition.
            (&[(1, 50), (2, 350)], &[3], &[(1, 51), (51, 401)]),
            (&[(1, 50), (2, 0)], &[3], &[(1, 51), (51, 401)]),
            // The space after the preserved partition is also used.
            (&[(1, 100), (3, 500)], &[2], &[(1, 101), (401, 901)]),
            (&[(1, 100), (3, 0)], &[2], &[(1, 101), (401, 999)]),
            (&[(4, 150)], &[1, 2, 3], &[(801, 951)]),
            (&[], &[2], &[]),
        ] {
            assert_eq!(place(wanted, preserved, &existing).unwrap(), expected, "{wanted:?} {preserved:?}");
        }
    }

    #[test]
    fn refuses_partition_that_would_overlap_a_preserved_one() {
        let existing = [part(1, 1, 100), part(2, 101, 300), part(3, 401, 598)];
        for (wanted, preserved, number, required_mib, largest_mib) in [
            (&[(1, 100), (2, 301)][..], &[3][..], 2, 301, 300),
            (&[(1, 101), (2, 300)], &[3], 1, 101, 100),
            (&[(4, 0)], &[1, 2, 3], 4, 1, 0),
            (&[(4, u64::MAX)], &[3], 4, u64::MAX, 400),
        ] {
            let expected = GapTooSmall { number, required_mib, largest_mib };
            assert_eq!(place(wanted, preserved, &existing), Err(expected), "{wanted:?}");
        }
    }

    #[test]
    fn unaligned_preserved_partition_is_not_moved() {
        let existing = [DiskPartition { start_bytes: 63 * 512, size_bytes: 100 * MIB, ..part(1, 0, 0) }];
        assert_eq!(place(&[(2, 0)], &[1], &existing).unwrap(), [(101, 999)]);
    }
}
