//! Set of used ranges in bounded memory. If there are too many ranges, small gaps between them are treated as used. The
//! set always contains every block that the filesystem uses.

use std::ops::Range;

/// Minimum size of an unused gap between two ranges, in bytes. Smaller gaps are treated as used, because sending such a
/// gap costs less than starting another piece after it.
pub(super) const GAP_BYTES: u64 = 256 << 10;

/// Maximum number of ranges per disk. This number of ranges takes 16 MiB of memory.
pub(crate) const MAXIMUM_RANGES: usize = 1 << 20;

/// Number of most recent ranges that a new range may extend. More than one recent range is needed, because the copies
/// of an extent, and the metadata before these copies, are added alternately.
const RECENT: usize = 4;

/// Set of used ranges.
#[derive(Debug, Clone)]
pub(crate) struct UsedRanges {
    ranges: Vec<Range<u64>>,
    /// Minimum size of a gap, in bytes; smaller gaps are treated as used. The minimum is increased if there are too
    /// many ranges.
    gap: u64,
    most: usize,
}

impl Default for UsedRanges {
    fn default() -> UsedRanges {
        UsedRanges { ranges: Vec::new(), gap: GAP_BYTES, most: MAXIMUM_RANGES }
    }
}

impl UsedRanges {
    pub(crate) fn all_used(size: u64) -> UsedRanges {
        let mut whole = UsedRanges::default();
        whole.add_range(0..size);
        whole
    }

    pub(crate) fn add_range(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let grows =
            |before: &&mut Range<u64>| before.start <= range.start && range.start < before.end.saturating_add(self.gap);
        if let Some(before) = self.ranges.iter_mut().rev().take(RECENT).find(grows) {
            before.end = before.end.max(range.end);
            return;
        }
        self.ranges.push(range);
        while self.ranges.len() >= self.most {
            self.merge_ranges();
            if self.ranges.len() > self.most / 2 {
                self.gap = self.gap.saturating_mul(2);
            }
        }
    }

    /// Returns the ranges, sorted and disjoint.
    pub(crate) fn into_sorted(mut self) -> Vec<Range<u64>> {
        self.merge_ranges();
        self.ranges
    }

    fn merge_ranges(&mut self) {
        self.ranges.sort_by_key(|range| range.start);
        let gap = self.gap;
        self.ranges.dedup_by(|next, before| {
            let is_near = next.start < before.end.saturating_add(gap);
            if is_near {
                before.end = before.end.max(next.end);
            }
            is_near
        });
    }
}

/// Calls `each` with the ranges of set bits among the first `count` bits of a bitmap, in order. Bits beyond the end of
/// the bitmap are treated as set.
pub(super) fn set_bits(bitmap: &[u8], count: u64, mut each: impl FnMut(Range<u64>)) {
    let mut run: Option<Range<u64>> = None;
    let mut set = |range: Range<u64>| match &mut run {
        Some(run) if run.end == range.start => run.end = range.end,
        _ => {
            if let Some(before) = run.replace(range) {
                each(before);
            }
        }
    };
    for first in (0..count).step_by(8) {
        let last = (first + 8).min(count);
        match bitmap.get((first / 8) as usize).copied().unwrap_or(0xff) {
            0 => {}
            0xff => set(first..last),
            byte => (first..last).filter(|bit| byte >> (bit % 8) & 1 == 1).for_each(|bit| set(bit..bit + 1)),
        }
    }
    run.into_iter().for_each(each);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn too_many_ranges_are_merged() {
        let mut random = fastrand::Rng::with_seed(3);
        for count in [10, 100, 1000] {
            let mut used = UsedRanges { most: 64, ..UsedRanges::default() };
            let added: Vec<Range<u64>> = (0..count).map(|_| random.u64(0..1 << 40)).map(|at| at..at + 4096).collect();
            for range in &added {
                used.add_range(range.clone());
                assert!(used.ranges.len() < 64);
            }
            let ranges = used.into_sorted();
            assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            let holds = |range: &Range<u64>| ranges.iter().any(|is| is.start <= range.start && range.end <= is.end);
            assert!(added.iter().all(holds), "{count}");
        }
    }

    #[test]
    fn near_ranges_are_merged_and_empty_ones_dropped() {
        let mut used = UsedRanges::default();
        for range in
            [MIB..2 * MIB, 5 * MIB..6 * MIB, 2 * MIB..3 * MIB, 6 * MIB + GAP_BYTES - 1..7 * MIB, 9 * MIB..9 * MIB]
        {
            used.add_range(range);
        }
        used.add_range(8 * MIB..u64::MAX);
        assert_eq!(used.into_sorted(), [MIB..3 * MIB, 5 * MIB..7 * MIB, 8 * MIB..u64::MAX]);
    }
}
