//! Ranges in which superblocks and signatures may be located.

use super::partition_placement::MIB;
use operations::{ByteRange, label_copy_ranges};

/// Size of the range that is zeroed at the start of an area, in bytes. The most distant signatures near the start
/// that libblkid recognizes are the second header of LUKS2 at 4 MiB, and VMFS at 1 and 2 MiB.
const HEAD_BYTES: u64 = 5 * MIB;

/// Size of the range that is zeroed at the end of an area, in bytes. md 0.90 and 1.0, ZFS and the backup GPT are in
/// the last MiB. The metadata of the firmware RAIDs that libblkid recognizes starts at most 3087 sectors before the
/// end.
const TAIL_BYTES: u64 = 2 * MIB;

/// Returns the ranges of these areas in which superblocks may be located: both ends of each area, and the copies of
/// BlueStore labels. Overlapping ranges are merged.
pub(crate) fn signature_ranges(areas: impl IntoIterator<Item = ByteRange>, size_bytes: u64) -> Vec<ByteRange> {
    let mut pieces: Vec<(u64, u64)> = Vec::new();
    for area in areas {
        let start = area.start.min(size_bytes);
        let end = area.start.saturating_add(area.length).min(size_bytes);
        pieces.push((start, end.min(start + HEAD_BYTES)));
        pieces.push((end.saturating_sub(TAIL_BYTES).max(start), end));
        let copies = label_copy_ranges(ByteRange { start, length: end.saturating_sub(start) });
        pieces.extend(copies.map(|copy| (copy.start, copy.start + copy.length)));
    }
    pieces.retain(|(start, end)| start < end);
    pieces.sort();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in pieces {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged.into_iter().map(|(start, end)| ByteRange { start, length: end - start }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_ranges_merge_and_do_not_exceed_the_disk() {
        let range = |start, length| ByteRange { start, length };
        let whole = range(0, 100 * MIB);
        assert_eq!(signature_ranges([whole], 100 * MIB), [range(0, 5 * MIB), range(98 * MIB, 2 * MIB)]);
        assert_eq!(
            signature_ranges([whole, range(MIB, 30 * MIB), range(31 * MIB, 500 * MIB)], 100 * MIB),
            [range(0, 6 * MIB), range(29 * MIB, 7 * MIB), range(98 * MIB, 2 * MIB)]
        );
        assert_eq!(signature_ranges([range(0, 1000)], 1000), [range(0, 1000)]);
        assert_eq!(signature_ranges([range(5000, 10)], 1000), []);
    }

    #[test]
    fn zeroes_bluestore_label_copies_in_every_large_area() {
        const GIB: u64 = 1 << 30;
        let size = 4000 * GIB;
        let copies = |areas: &[(u64, u64)]| {
            let areas = areas.iter().map(|&(start, length)| ByteRange { start, length });
            let ranges = signature_ranges(areas, size).into_iter().filter(|range| range.length == 4096);
            ranges.map(|range| range.start).collect::<Vec<u64>>()
        };
        let none: [u64; 0] = [];
        assert_eq!(copies(&[(0, size)]), [GIB, 10 * GIB, 100 * GIB, 1000 * GIB]);
        let part = (MIB, 20 * GIB);
        assert_eq!(copies(&[part]), [MIB + GIB, MIB + 10 * GIB]);
        let both = [GIB, MIB + GIB, 10 * GIB, MIB + 10 * GIB, 100 * GIB, 1000 * GIB];
        assert_eq!(copies(&[(0, size), part]), both);
        // A label copy near the end is covered by the range at the end. An area that is too small has no label copy.
        assert_eq!(copies(&[(0, GIB + 4096)]), none);
        assert_eq!(signature_ranges([ByteRange { start: 0, length: GIB + 4096 }], size).len(), 2);
        assert_eq!(copies(&[(0, GIB + 4 * MIB)]), [GIB]);
        assert_eq!(copies(&[(0, GIB + 2048), (0, GIB)]), none);
        assert_eq!(copies(&[(3999 * GIB, 4000 * GIB)]), none);
    }
}
