//! Zeroes ranges and whole disks, and discards whole disks. The kernel offloads the work to the disk if possible.

use super::EraseDeadline;
use crate::storage::block_device;
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use nix::errno::Errno;
use operations::ByteRange;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Buffer size in bytes. The buffer is small, so that even a machine with little memory can write to sixty disks in
/// parallel.
const BUFFER_BYTES: u64 = 256 * 1024;

/// Size of a discard request, in bytes. On most disks, the duration of a request hardly depends on its size. On
/// thin-provisioned disks with much allocated space, larger requests take longer.
const DISCARD_CHUNK_BYTES: u64 = 32 << 30;

/// Size of a single request in which the disk zeroes a range, in bytes. A disk without an efficient zeroing command
/// takes some seconds for such a request, which the kernel cannot interrupt.
const ZERO_CHUNK_BYTES: u64 = 1 << 30;

/// Interval of progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);

/// Zeroes these ranges and verifies them by reading from the device.
///
/// # Errors
/// Returns an error if a range extends beyond the device (in which case nothing is written), a write fails, or the
/// device does not return zeros afterwards (the error contains the offset).
pub(crate) fn zero_ranges(file: &File, device: &DevicePath, size: u64, ranges: &[ByteRange]) -> Result<()> {
    check_ranges(device, size, ranges)?;
    let zeroed = |zero: fn(&File, u64, u64) -> io::Result<()>| {
        for &ByteRange { start, length } in ranges {
            zero(file, start, length)
                .context(Phase::Storage, || format!("write {length} zeros at byte {start} of {device}"))?;
        }
        file.sync_data().context(Phase::Storage, || format!("flush the zeros to {device}"))?;
        find_remaining_data(file, ranges).context(Phase::Storage, || format!("read back {device} after wiping"))
    };
    let mut left = zeroed(zero_range)?;
    if left.is_some() {
        // If a range is not zero after the zeroing command of the disk, zeros are written as data.
        left = zeroed(write_zeros)?;
    }
    let Some(offset) = left else { return Ok(()) };
    let what = format!("{device}: byte {offset} is not zero after wiping: the disk did not store the written data");
    Err(Error::new(Phase::Storage, what))
}

/// Returns the offset of the first nonzero byte in these ranges. The ranges are read from the device, bypassing the
/// page cache.
fn find_remaining_data(file: &File, ranges: &[ByteRange]) -> io::Result<Option<u64>> {
    block_device::flush_buffers(file)?;
    let mut buffer = allocate_buffer();
    for range in ranges {
        if let Some(offset) = find_first_nonzero(file, range, &mut buffer)? {
            return Ok(Some(offset));
        }
    }
    Ok(None)
}

/// Checks that these ranges are within the device.
///
/// # Errors
/// Returns an error if a range extends beyond the device.
pub(crate) fn check_ranges(device: &DevicePath, size: u64, ranges: &[ByteRange]) -> Result<()> {
    for range in ranges {
        if range.start.checked_add(range.length).is_none_or(|end| end > size) {
            let (start, length) = (range.start, range.length);
            let what = format!("{device}: cannot wipe {length} bytes at byte {start}: the device is only {size} bytes");
            return Err(Error::new(Phase::Storage, what));
        }
    }
    Ok(())
}

/// Discards the whole disk.
///
/// # Errors
/// Returns an error if the disk does not support discarding, or the deadline is exceeded.
pub(super) fn discard_disk(file: &File, size: u64, deadline: EraseDeadline) -> Result<(), String> {
    process_chunks(size, DISCARD_CHUNK_BYTES, deadline, |start, length| {
        block_device::discard_range(file, start, length)
    })
}

/// Writes zeros to the whole disk.
///
/// # Errors
/// Returns an error if a write fails, or the deadline is exceeded.
pub(super) fn zero_disk(file: &File, device: &DevicePath, size: u64, deadline: EraseDeadline) -> Result<(), String> {
    let began = Instant::now();
    let mut told = began;
    process_chunks(size, ZERO_CHUNK_BYTES, deadline, |start, length| {
        zero_range(file, start, length).map_err(|error| block_device::to_errno(&error))?;
        if told.elapsed() > PROGRESS_INTERVAL {
            told = Instant::now();
            let (done, seconds) = (start + length, began.elapsed().as_secs());
            tracing::info!("{device}: {percent} % zeroed after {seconds} s", percent = done * 100 / size);
        }
        Ok(())
    })?;
    file.sync_data().map_err(|error| format!("flush: {error}"))
}

/// Calls `work` for each chunk of the disk. Fails as soon as the time limit is exceeded, or will clearly be exceeded.
fn process_chunks(
    size: u64,
    chunk: u64,
    deadline: EraseDeadline,
    mut work: impl FnMut(u64, u64) -> nix::Result<()>,
) -> Result<(), String> {
    let began = Instant::now();
    for start in (0..size).step_by(chunk as usize) {
        let left = deadline
            .time_left()
            .map_err(|error| format!("{error}, at {percent} % of the disk", percent = start * 100 / size))?;
        if let Some(needed) = estimate_excessive_time(began.elapsed(), start, size, left) {
            return Err(format!(
                "the operation needs about {needed} more minutes, but only {left} min are left",
                needed = to_minutes(needed),
                left = to_minutes(left)
            ));
        }
        work(start, chunk.min(size - start)).map_err(|error| format!("at byte {start}: {}", error.desc()))?;
    }
    Ok(())
}

/// Returns the estimated time for the rest of the disk, if this time is more than twice the time left until the
/// deadline. A slow disk is therefore detected after minutes instead of hours.
fn estimate_excessive_time(elapsed: Duration, done: u64, size: u64, left: Duration) -> Option<Duration> {
    if done == 0 || elapsed < left / 20 {
        return None;
    }
    let needed = elapsed.mul_f64((size - done) as f64 / done as f64);
    (needed > left * 2).then_some(needed)
}

fn to_minutes(duration: Duration) -> u64 {
    duration.as_secs().div_ceil(60)
}

/// Zeroes a range with BLKZEROOUT, for which the kernel uses a command of the disk if possible. BLKZEROOUT requires
/// whole sectors and a block device; otherwise zeros are written from a buffer.
fn zero_range(file: &File, start: u64, length: u64) -> io::Result<()> {
    match block_device::zero_range(file, start, length) {
        Err(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOTTY) => write_zeros(file, start, length),
        done => Ok(done?),
    }
}

fn write_zeros(file: &File, start: u64, length: u64) -> io::Result<()> {
    let zeros = vec![0; BUFFER_BYTES as usize];
    split_into_chunks(&ByteRange { start, length })
        .try_for_each(|(offset, length)| file.write_all_at(&zeros[..length], offset))
}

/// Returns the offset of the first nonzero byte.
pub(super) fn find_first_nonzero(file: &File, range: &ByteRange, buffer: &mut [u8]) -> io::Result<Option<u64>> {
    for (offset, length) in split_into_chunks(range) {
        file.read_exact_at(&mut buffer[..length], offset)?;
        if let Some(index) = buffer[..length].iter().position(|byte| *byte != 0) {
            return Ok(Some(offset + index as u64));
        }
    }
    Ok(None)
}

/// Returns a buffer for [`find_first_nonzero`].
pub(super) fn allocate_buffer() -> Vec<u8> {
    vec![0; BUFFER_BYTES as usize]
}

fn split_into_chunks(range: &ByteRange) -> impl Iterator<Item = (u64, usize)> {
    let end = range.start + range.length;
    let starts = (range.start..end).step_by(BUFFER_BYTES as usize);
    starts.map(move |offset| (offset, BUFFER_BYTES.min(end - offset) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn ranges_are_split_into_chunks() {
        let range = ByteRange { start: 512, length: 2 * BUFFER_BYTES + 1 };
        let length = BUFFER_BYTES as usize;
        let expected = [(512, length), (512 + BUFFER_BYTES, length), (512 + 2 * BUFFER_BYTES, 1)];
        assert_eq!(split_into_chunks(&range).collect::<Vec<_>>(), expected);
        assert_eq!(split_into_chunks(&ByteRange { start: 5, length: 0 }).count(), 0);
    }

    #[test]
    fn first_nonzero_byte_is_found() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * MIB).unwrap();
        let found =
            |start, length| find_first_nonzero(&file, &ByteRange { start, length }, &mut allocate_buffer()).unwrap();
        assert_eq!(found(0, 3 * MIB), None);
        file.write_all_at(&[1], 2 * MIB + 7).unwrap();
        assert_eq!(found(0, 3 * MIB), Some(2 * MIB + 7));
        assert_eq!(found(0, 2 * MIB), None);
    }

    #[test]
    fn zeros_are_written_if_the_kernel_does_not_zero() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[0xaa; 1000], 0).unwrap();
        zero_range(&file, 7, 900).unwrap();
        let mut content = [0; 1000];
        file.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(content.iter().position(|byte| *byte == 0), Some(7));
        assert_eq!(content.iter().filter(|byte| **byte == 0).count(), 900);
    }

    #[test]
    fn chunks_cover_the_disk_and_end_at_the_deadline() {
        let mut seen = Vec::new();
        let all = process_chunks(10, 4, EraseDeadline::after_budget(LONG), |start, length| {
            seen.push((start, length));
            Ok(())
        });
        assert_eq!((all, seen), (Ok(()), vec![(0, 4), (4, 4), (8, 2)]));

        // The deadline has passed before the first chunk, so the result does not depend on the speed of this machine.
        let error = process_chunks(1000, 100, EraseDeadline::after_budget(Duration::ZERO), |_, _| Ok(())).unwrap_err();
        assert!(error.ends_with(", at 0 % of the disk"), "{error}");

        let error = process_chunks(10, 4, EraseDeadline::after_budget(LONG), |_, _| Err(Errno::EIO)).unwrap_err();
        assert_eq!(error, "at byte 0: I/O error");
    }

    #[test]
    fn excessive_duration_is_estimated_early() {
        let seconds = Duration::from_secs;
        let cases = [
            // 20 TB at 200 MB/s, 15 minutes after the start, with a limit of 4 hours.
            (900, 180, 20_000, 13_500, Some(99_100)),
            (600, 120, 20_000, 13_800, None),
            // Half of the disk is done in half of the time limit.
            (7200, 500, 1000, 7200, None),
            (10, 0, 1000, 100, None),
        ];
        for (elapsed, done, size, left, expected) in cases {
            let found = estimate_excessive_time(seconds(elapsed), done, size, seconds(left));
            assert_eq!(found.map(|needed| needed.as_secs()), expected, "{elapsed}");
        }
    }
}
