//! Reads a disk to verify that it was erased. Reports of success from the disk itself are not trusted.

use super::zeroing;
use crate::storage::block_device;
use operations::ByteRange;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 1 << 20;

/// Length of each sample of old content, in bytes. All samples are kept in memory.
pub(super) const PIECE_BYTES: u64 = 4096;

/// Verifies that samples from the whole disk, including both ends, contain only zeros.
///
/// # Errors
/// Returns a message with the offset of a byte that is not zero.
pub(crate) fn verify_zeros(file: &File, size: u64) -> Result<String, String> {
    block_device::flush_buffers(file).map_err(|error| format!("drop the page cache: {error}", error = error.desc()))?;
    verify_samples(file, size)
}

fn verify_samples(file: &File, size: u64) -> Result<String, String> {
    let whole = size <= SAMPLES * SAMPLE_BYTES;
    let ranges: Vec<ByteRange> = match whole {
        true => vec![ByteRange { start: 0, length: size }],
        false => sample_offsets(size, SAMPLE_BYTES).map(|start| ByteRange { start, length: SAMPLE_BYTES }).collect(),
    };
    let mut buffer = zeroing::allocate_buffer();
    for range in ranges {
        let found = zeroing::find_first_nonzero(file, &range, &mut buffer);
        if let Some(offset) = found.map_err(|error| format!("cannot read the disk after the erase: {error}"))? {
            return Err(format!("the disk does not contain zeros at byte {offset}"));
        }
    }
    Ok(match whole {
        true => "the whole disk reads back as zero".to_owned(),
        false => format!("{SAMPLES} samples of 1 MiB, including both ends, read back as zero"),
    })
}

/// Samples of the disk's old content. They are used to verify erase methods that do not leave zeros.
pub(crate) struct ContentSamples(Vec<(u64, Vec<u8>)>);

impl ContentSamples {
    /// Reads evenly distributed samples of the disk, and in addition the start of each of the `ranges`, because most
    /// evenly distributed samples are blank on a disk with few files. Blank and unreadable samples prove nothing and
    /// are omitted.
    pub(crate) fn read_samples(file: &File, size: u64, ranges: &[ByteRange]) -> ContentSamples {
        let read = |start| {
            let mut content = vec![0; PIECE_BYTES.min(size) as usize];
            file.read_exact_at(&mut content, start).ok()?;
            let blank = content.iter().all(|byte| *byte == content[0]);
            (!blank).then_some((start, content))
        };
        let starts: BTreeSet<u64> =
            sample_offsets(size, PIECE_BYTES).chain(ranges.iter().map(|range| range.start)).collect();
        ContentSamples(starts.into_iter().filter_map(read).collect())
    }

    /// Verifies that no sample still has its old content.
    ///
    /// # Errors
    /// Returns a message with the offset of an unchanged sample.
    pub(crate) fn verify_overwritten(&self, file: &File) -> Result<String, String> {
        block_device::flush_buffers(file)
            .map_err(|error| format!("drop the page cache: {error}", error = error.desc()))?;
        self.verify_changed(file)
    }

    fn verify_changed(&self, file: &File) -> Result<String, String> {
        for (start, old) in &self.0 {
            let mut now = vec![0; old.len()];
            file.read_exact_at(&mut now, *start)
                .map_err(|error| format!("cannot read the disk after the erase: {error}"))?;
            if now == *old {
                return Err(format!("the old content is still there at byte {start}"));
            }
        }
        Ok(match self.0.len() {
            0 => "all samples of 4 KiB were blank before the erase".to_owned(),
            count => format!("{count} samples of 4 KiB that contained data were overwritten"),
        })
    }
}

/// Returns the offsets of samples of this length. The samples are evenly distributed over the disk, and include both
/// ends.
pub(super) fn sample_offsets(size: u64, length: u64) -> impl Iterator<Item = u64> {
    let last = size.saturating_sub(length);
    // The offsets are aligned to pages. The division precedes the multiplication, which would otherwise overflow on
    // disks of more than 256 PiB.
    (0..SAMPLES).map(move |index| match index {
        _ if index == SAMPLES - 1 => last,
        _ => last / (SAMPLES - 1) * index / PIECE_BYTES * PIECE_BYTES,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn samples_cover_the_disk_including_both_ends() {
        for size in [GIB, GIB + 512, 20_000_588_955_648, u64::MAX / 2] {
            let starts: Vec<u64> = sample_offsets(size, SAMPLE_BYTES).collect();
            assert_eq!(starts.len(), 64);
            assert_eq!((starts[0], starts[63]), (0, size - SAMPLE_BYTES));
            assert!(starts.windows(2).all(|pair| pair[0] < pair[1] && pair[1] - pair[0] <= size / 62), "{size}");
            assert!(starts[..63].iter().all(|start| start % 4096 == 0));
        }
        assert!(sample_offsets(512, PIECE_BYTES).all(|start| start == 0));
    }

    #[test]
    fn one_nonzero_byte_at_either_end_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(GIB).unwrap();
        assert_eq!(verify_samples(&file, GIB).unwrap(), "64 samples of 1 MiB, including both ends, read back as zero");
        for offset in [0, GIB - 1] {
            file.write_all_at(&[1], offset).unwrap();
            assert_eq!(
                verify_samples(&file, GIB).unwrap_err(),
                format!("the disk does not contain zeros at byte {offset}")
            );
            file.write_all_at(&[0], offset).unwrap();
        }
        // A small disk is read completely.
        file.set_len(3 << 20).unwrap();
        assert_eq!(verify_samples(&file, 3 << 20).unwrap(), "the whole disk reads back as zero");
        file.write_all_at(&[1], 1_234_567).unwrap();
        assert_eq!(verify_samples(&file, 3 << 20).unwrap_err(), "the disk does not contain zeros at byte 1234567");
        assert!(verify_samples(&file, GIB).unwrap_err().starts_with("cannot read the disk after the erase: "));
    }

    #[test]
    fn old_content_must_have_changed_in_every_sample() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(GIB).unwrap();
        let blank = ContentSamples::read_samples(&file, GIB, &[]);
        assert_eq!(blank.verify_changed(&file).unwrap(), "all samples of 4 KiB were blank before the erase");

        let text: Vec<u8> = (0..4096u32).map(|index| index as u8).collect();
        let last = GIB - PIECE_BYTES;
        for start in [0, 3 << 20, last] {
            file.write_all_at(&text, start).unwrap();
        }
        let before = ContentSamples::read_samples(&file, GIB, &[]);
        // The signature is between two of the evenly spread samples.
        let signature = ByteRange { start: 3 << 20, length: 1 };
        let with_signature = ContentSamples::read_samples(&file, GIB, &[signature]);
        file.write_all_at(&[0; 4096], 0).unwrap();
        let error = before.verify_changed(&file).unwrap_err();
        assert_eq!(error, format!("the old content is still there at byte {last}"));
        // After a cryptographic erase, reads return noise instead of zeros.
        file.write_all_at(&[0x5a; 4096], last).unwrap();
        assert_eq!(before.verify_changed(&file).unwrap(), "2 samples of 4 KiB that contained data were overwritten");
        let error = with_signature.verify_changed(&file).unwrap_err();
        assert_eq!(error, format!("the old content is still there at byte {}", 3 << 20));
        file.set_len(4096).unwrap();
        assert!(before.verify_changed(&file).unwrap_err().starts_with("cannot read the disk after the erase: "));
    }
}
