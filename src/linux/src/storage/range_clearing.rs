//! Zeroes ranges of a disk between preserved partitions.

use super::disk_erase::zeroing;
use super::{block_device, disk_identity, signature_wipe};
use common::error::{Context, Error, Phase, Result};
use operations::ClearRanges;
use std::fs::File;
use std::slice;

/// Zeroes the ranges and reads them back. The disk stays open exclusively, so that none of its partitions can be
/// mounted or assembled meanwhile.
///
/// # Errors
/// Returns an error, before anything is written, if the disk is in use or is not the planned one, or if a range
/// overlaps a preserved partition or extends beyond the disk. Also returns an error if a write fails, or does not
/// persist.
pub fn clear_ranges(clear: &ClearRanges) -> Result<()> {
    let (file, size) = open_checked(clear)?;
    clear_boot_areas(clear, &file, size)?;
    zeroing::zero_ranges(&file, &clear.device, size, &clear.zero)
}

/// Zeroes only the ranges from which firmware could still boot the removed partitions. Called after [`clear_ranges`]
/// has failed.
///
/// # Errors
/// The same errors as for [`clear_ranges`].
pub fn clear_boot_ranges(clear: &ClearRanges) -> Result<()> {
    let (file, size) = open_checked(&ClearRanges { zero: Vec::new(), ..clear.clone() })?;
    clear_boot_areas(clear, &file, size)
}

fn clear_boot_areas(clear: &ClearRanges, file: &File, size: u64) -> Result<()> {
    if clear.boot_code {
        signature_wipe::zero_boot_code(file, &clear.device)?;
    }
    clear.first.iter().try_for_each(|range| zeroing::zero_ranges(file, &clear.device, size, slice::from_ref(range)))
}

/// Opens the disk exclusively, and returns it with its size in bytes. Nothing is written.
fn open_checked(clear: &ClearRanges) -> Result<(File, u64)> {
    let device = &clear.device;
    if let Some((range, preserved)) = clear.find_overlap() {
        let what = format!(
            "clear {length} bytes at byte {start} of {device}: the range overlaps a preserved partition of {kept_length} bytes at byte {kept_start} (nothing was written)",
            length = range.length,
            start = range.start,
            kept_length = preserved.length,
            kept_start = preserved.start
        );
        return Err(Error::new(Phase::Storage, what));
    }
    let file = signature_wipe::open_exclusive(device)?;
    disk_identity::verify_identity(&file, &clear.identity)?;
    let size = block_device::read_size_bytes(&file).context(Phase::Storage, || format!("read the size of {device}"))?;
    zeroing::check_ranges(device, size, &clear.first)?;
    zeroing::check_ranges(device, size, &clear.zero)?;
    Ok((file, size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::test_loop_device::TestLoopDevice;
    use operations::ByteRange;

    #[test]
    fn loop_ranges_are_zeroed_only_outside_preserved_partitions() {
        let disk = TestLoopDevice::new(64 << 20, 512);
        let fill = vec![0xa5; 64 << 20];
        std::fs::write(disk.path(), &fill).unwrap();
        let range = |start: u64, length: u64| ByteRange { start: start << 20, length: length << 20 };
        let clear = ClearRanges {
            device: disk.path().clone(),
            identity: disk.identity(),
            preserved: vec![range(20, 10)],
            boot_code: true,
            first: vec![range(1, 1)],
            zero: vec![range(18, 2), range(30, 1)],
        };
        let overlapping = ClearRanges { zero: vec![range(29, 2)], ..clear.clone() };
        let refused = clear_ranges(&overlapping).unwrap_err().to_string();
        assert!(refused.contains("overlaps a preserved partition"), "{refused}");
        assert!(std::fs::read(disk.path()).unwrap() == fill, "nothing was written");
        clear_ranges(&clear).unwrap();
        let after = std::fs::read(disk.path()).unwrap();
        for (mib, block) in after.chunks(1 << 20).enumerate() {
            let expected = if [1, 18, 19, 30].contains(&mib) { 0 } else { 0xa5 };
            let (code, block) = if mib == 0 { block.split_at(440) } else { (&[][..], block) };
            assert!(code.iter().all(|byte| *byte == 0), "the boot code");
            assert!(block.iter().all(|byte| *byte == expected), "MiB {mib}");
        }
    }
}
