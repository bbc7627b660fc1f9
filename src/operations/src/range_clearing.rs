//! Operation that zeroes ranges of a disk on which some partitions are preserved.

use crate::operation_text::{DeviceSizes, OperationLine};
use crate::{ByteRange, DiskIdentity, Effect, PlannedOperation, UndoOperation};
use common::format::format_bytes;
use model::device_name::DevicePath;
use serde::Serialize;

/// Operation that zeroes the signature areas of removed and new partitions of a disk. It does not write any byte of the
/// preserved partitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClearRanges {
    pub device: DevicePath,
    /// Expected identity of the disk, verified on the open file descriptor before the first write.
    pub identity: DiskIdentity,
    /// Extents of the preserved partitions. If a range to zero overlaps one of them, the operation fails before its
    /// first write.
    pub preserved: Vec<ByteRange>,
    /// True if the boot code in the first sector is zeroed before all ranges, so that a BIOS does not boot the disk.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub boot_code: bool,
    /// Ranges that are zeroed first, one after the other. Afterwards, no firmware boots from the removed partitions.
    pub first: Vec<ByteRange>,
    /// Ranges that are zeroed afterwards and read back.
    pub zero: Vec<ByteRange>,
}

impl ClearRanges {
    /// Returns the first range to zero that overlaps a preserved partition, and the extent of that partition.
    pub fn find_overlap(&self) -> Option<(ByteRange, ByteRange)> {
        let end = |range: &ByteRange| range.start.saturating_add(range.length);
        let zeroed = self.first.iter().chain(&self.zero);
        zeroed
            .flat_map(|range| self.preserved.iter().map(move |preserved| (*range, *preserved)))
            .find(|(range, preserved)| range.start < end(preserved) && preserved.start < end(range))
    }
}

impl PlannedOperation for ClearRanges {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        let bytes = self.preserved.iter().fold(0, |sum: u64, range| sum.saturating_add(range.length));
        let text = format!(
            ": zero and read back signature areas of removed and new partitions; {count} preserved, with {size}, are not written",
            count = self.preserved.len(),
            size = format_bytes(bytes)
        );
        OperationLine::on_device("", self.device.as_str(), text)
    }

    fn effect(&self) -> Effect<'_> {
        // The disk is declared as opened, so that its path is verified before the first write, as for the wipe of a
        // whole disk.
        Effect::opening([&self.device]).undone_by([UndoOperation::Clearing(Box::new(self.clone()))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_do_not_overlap_a_preserved_partition() {
        let range = |start, length| ByteRange { start, length };
        let clear = |zero| ClearRanges {
            device: "/dev/sda".into(),
            identity: DiskIdentity::default(),
            preserved: vec![range(100, 50)],
            boot_code: false,
            first: vec![],
            zero: vec![zero],
        };
        for (zero, overlaps) in [
            (range(0, 100), false),
            (range(150, 10), false),
            (range(0, 101), true),
            (range(149, 10), true),
            (range(120, 1), true),
            (range(0, u64::MAX), true),
        ] {
            assert_eq!(clear(zero).find_overlap().is_some(), overlaps, "{zero:?}");
        }
    }
}
