//! Detection of blank devices by samples. A device without a signature is not necessarily blank: a database may use a
//! disk without a filesystem, and a damaged disk may have lost its signatures. Therefore a device is considered blank
//! only if samples from the whole device are zero.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::blkid::DeviceArea;
use operations::{ByteRange, label_copy_ranges};

/// Size in bytes of the area at each end of a device that is read completely. Most programs that write to a disk store
/// data at its beginning or end.
const END_BYTES: u64 = 4 << 20;

/// Number of bytes that are read at once.
const SAMPLE_BYTES: u64 = 64 << 10;

/// Number of evenly spread samples between the ends. A hard disk needs about 10 ms to read each sample.
const SAMPLES: u64 = 64;

/// Returns whether a whole block device or file is blank.
///
/// # Errors
/// Returns an error if the device cannot be read; whether it is blank is then unknown.
pub(crate) fn is_whole_device_blank(path: &Path) -> io::Result<bool> {
    let size_bytes = File::open(path)?.seek(SeekFrom::End(0))?;
    is_area_blank(path, DeviceArea { start_bytes: 0, size_bytes })
}

/// Returns whether all samples of an area are zero. Stops at the first sample that is not zero; on most devices with
/// data, this is the first sample that is read.
///
/// # Errors
/// Returns an error if a sample cannot be read; whether the area is blank is then unknown.
pub(super) fn is_area_blank(path: &Path, area: DeviceArea) -> io::Result<bool> {
    let file = File::open(path)?;
    let mut buffer = vec![0; SAMPLE_BYTES as usize];
    let zeros = buffer.clone();
    for (start, length) in sample_ranges(area.size_bytes) {
        let sample = &mut buffer[..length as usize];
        file.read_exact_at(sample, area.start_bytes + start)?;
        if *sample != zeros[..sample.len()] {
            return Ok(false);
        }
    }
    Ok(area.size_bytes > 0)
}

/// Returns the start and length of each read, in this order: both ends, the copies of BlueStore labels, the samples
/// between the ends. A small area is read completely.
fn sample_ranges(size_bytes: u64) -> Vec<(u64, u64)> {
    let pieces = |start: u64, end: u64| {
        let starts = (start..end).step_by(SAMPLE_BYTES as usize);
        starts.map(move |start| (start, SAMPLE_BYTES.min(end - start)))
    };
    let inside = size_bytes.saturating_sub(2 * END_BYTES);
    if inside <= SAMPLES * SAMPLE_BYTES {
        return pieces(0, size_bytes).collect();
    }
    // The area between the two ends is divided into equal sections. Each sample is in the middle of its section,
    // aligned to the size of a sample.
    let share = inside / SAMPLES;
    let sample = |number: u64| {
        let middle = END_BYTES + number * share + share / 2;
        ((middle - SAMPLE_BYTES / 2) / SAMPLE_BYTES * SAMPLE_BYTES, SAMPLE_BYTES)
    };
    let ends = pieces(0, END_BYTES).chain(pieces(size_bytes - END_BYTES, size_bytes));
    let copies = label_copy_ranges(ByteRange { start: 0, length: size_bytes }).map(|copy| (copy.start, copy.length));
    ends.chain(copies).chain((0..SAMPLES).map(sample)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn samples_cover_both_ends_and_the_whole_device() {
        for size in [0, 512, 100_000, 12 * MIB, 12 * MIB + 512, 100 * MIB, 22_000_969_973_760] {
            let mut places = sample_ranges(size);
            assert!(places.iter().all(|(start, length)| *length > 0 && start + length <= size), "{size}");
            let read: u64 = places.iter().map(|(_, length)| length).sum();
            let copies = label_copy_ranges(ByteRange { start: 0, length: size }).map(|copy| copy.length).sum::<u64>();
            assert_eq!(read, size.min(2 * END_BYTES + SAMPLES * SAMPLE_BYTES + copies), "{size}");
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{size}: some overlap");
            let gaps = places.windows(2).map(|pair| pair[1].0 - pair[0].0 - pair[0].1);
            assert!(gaps.max().unwrap_or_default() <= size / SAMPLES + SAMPLE_BYTES, "{size}: too wide a gap");
        }
    }

    #[test]
    fn one_nonzero_byte_in_a_sample_is_detected() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let size = 300 * MIB;
        file.as_file().set_len(size).unwrap();
        let blank =
            |start, size| is_area_blank(file.path(), DeviceArea { start_bytes: start, size_bytes: size }).unwrap();
        assert!(blank(0, size) && blank(5 * MIB, 7 * MIB));
        assert!(!blank(0, 0), "an empty area is not considered blank");
        let sample = sample_ranges(size)[2 * 64 + 30].0;
        for at in [0, END_BYTES - 1, size - END_BYTES, size - 1, sample, sample + SAMPLE_BYTES - 1] {
            file.as_file().write_all_at(&[1], at).unwrap();
            assert!(!blank(0, size), "{at}");
            file.as_file().write_all_at(&[0], at).unwrap();
        }
        file.as_file().write_all_at(&[1], 100 * MIB).unwrap();
        assert!(blank(50 * MIB, 50 * MIB) && !blank(100 * MIB, 50 * MIB), "only the area itself is examined");
    }

    #[test]
    fn bluestore_label_copy_makes_a_device_nonblank() {
        const GIB: u64 = 1024 * MIB;
        let file = tempfile::NamedTempFile::new().unwrap();
        let (start_bytes, size_bytes) = (3 * MIB, 1500 * GIB);
        file.as_file().set_len(start_bytes + size_bytes).unwrap();
        let blank = || is_area_blank(file.path(), DeviceArea { start_bytes, size_bytes }).unwrap();
        assert!(blank());
        for copy in [GIB, 10 * GIB, 100 * GIB, 1000 * GIB] {
            file.as_file().write_all_at(b"bluestore block device\n", start_bytes + copy).unwrap();
            assert!(!blank(), "{copy}");
            file.as_file().write_all_at(&[0; 23], start_bytes + copy).unwrap();
        }
        assert!(blank());
    }

    #[test]
    fn unreadable_device_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MIB).unwrap();
        assert!(
            is_area_blank(file.path(), DeviceArea { start_bytes: 0, size_bytes: 2 * MIB }).is_err(),
            "shorter than it should be"
        );
        assert!(is_area_blank(Path::new("/dev/no-such-disk"), DeviceArea { start_bytes: 0, size_bytes: MIB }).is_err());
    }
}
