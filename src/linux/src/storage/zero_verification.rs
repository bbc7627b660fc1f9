//! Verification that devices contain only zeros. All ranges are read, from all devices in parallel.

use super::aligned_buffer::AlignedBuffer;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::format::format_bytes;
use model::device_name::DevicePath;
use nix::libc::O_DIRECT;
use operations::{ByteRange, ZeroProof};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};
use std::{io, thread};

/// Number of bytes that are read at once.
const READ_BLOCK_BYTES: usize = 4 << 20;

/// Minimum average throughput in bytes per second; slower devices are failing.
const MINIMUM_BYTES_PER_SECOND: u64 = 16 << 20;

/// Additional time for devices that respond with a delay.
const DELAY_ALLOWANCE: Duration = Duration::from_secs(600);

/// Minimum total size of the ranges of a device, in bytes, for which progress is reported.
const REPORTED_BYTES: u64 = 64 << 30;

/// Callback for progress messages.
pub(crate) type ProgressSink<'a> = dyn Fn(&str) + Sync + 'a;

/// Reads all ranges of all devices.
///
/// # Errors
/// Returns a refusal if a device contains nonzero data, cannot be read completely, or is too slow. The refusal lists
/// all such devices. Nothing was written.
pub fn verify_all_zero(proofs: &[ZeroProof], say: &ProgressSink) -> Result<()> {
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let threads: Vec<_> = proofs.iter().map(|proof| scope.spawn(|| verify_device_zero(proof, say))).collect();
        let panicked = || Err(Error::new(Phase::Storage, "a thread of drophammer panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    let failures: Vec<String> = results.into_iter().filter_map(|result| Some(result.err()?.to_string())).collect();
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Error::refusal(Phase::Storage, failures.join("; ")).with_code(ErrorCode::BlankDeviceHasData)),
    }
}

fn verify_device_zero(proof: &ZeroProof, say: &ProgressSink) -> Result<()> {
    let ZeroProof { device, ranges, give_up } = proof;
    let file = open_direct(device).context(Phase::Storage, || format!("open {device} for reading"))?;
    let deadline = DELAY_ALLOWANCE + Duration::from_secs(proof.total_bytes() / MINIMUM_BYTES_PER_SECOND);
    let (total, began) = (proof.total_bytes(), Instant::now());
    let mut reading = ZeroCheck { device, give_up, total, done: 0, began, deadline, say };
    for range in ranges {
        if let Some(offset) = reading.find_first_data(&file, *range)? {
            let found = format!("found data at byte {offset}, although all samples in the inventory are zero");
            return Err(reading.build_refusal(&format!("the device is not blank: {found}")));
        }
    }
    Ok(())
}

/// Opens the device for reading without the page cache, because the page cache may contain outdated data, and reading
/// the whole device would fill the page cache.
fn open_direct(device: &DevicePath) -> io::Result<File> {
    let direct = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(device);
    match direct {
        // The path is a file on a filesystem that does not support direct I/O, such as tmpfs.
        Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => File::open(device),
        opened => opened,
    }
}

/// State of reading one device: deadline and progress.
struct ZeroCheck<'a> {
    device: &'a DevicePath,
    give_up: &'a [String],
    total: u64,
    done: u64,
    began: Instant,
    deadline: Duration,
    say: &'a ProgressSink<'a>,
}

impl ZeroCheck<'_> {
    /// Returns the offset of the first nonzero byte in a range; `None` if the range contains only zeros.
    fn find_first_data(&mut self, file: &File, range: ByteRange) -> Result<Option<u64>> {
        let mut block = AlignedBuffer::new(READ_BLOCK_BYTES);
        let zeros = vec![0_u8; READ_BLOCK_BYTES];
        let end = range.start.saturating_add(range.length);
        let mut offset = range.start;
        while offset < end {
            let length = (end - offset).min(READ_BLOCK_BYTES as u64) as usize;
            let block = &mut block[..length];
            file.read_exact_at(block, offset).map_err(|error| {
                self.build_refusal(&format!("cannot read the whole device: read at byte {offset}: {error}"))
            })?;
            if *block != zeros[..length] {
                let data = block.iter().position(|byte| *byte != 0).unwrap_or_default();
                return Ok(Some(offset + data as u64));
            }
            offset += length as u64;
            self.add_progress(length as u64)?;
        }
        Ok(None)
    }

    fn add_progress(&mut self, length: u64) -> Result<()> {
        let tenth = |done: u64| done / (self.total / 10).max(1);
        let before = tenth(self.done);
        self.done += length;
        let after = tenth(self.done);
        if self.total >= REPORTED_BYTES && after > before {
            (self.say)(&format!(
                "{device}: {done} of {total} were read and are all zero",
                device = self.device,
                done = format_bytes(self.done),
                total = format_bytes(self.total)
            ));
        }
        if self.began.elapsed() <= self.deadline {
            return Ok(());
        }
        let (done, total, minutes) = (format_bytes(self.done), format_bytes(self.total), self.deadline.as_secs() / 60);
        Err(self.build_refusal(&format!(
            "cannot read the whole device: only {done} of its {total} were read within {minutes} minutes"
        )))
    }

    /// Returns a refusal that contains the remedy for the operator.
    fn build_refusal(&self, why: &str) -> Error {
        let remedy = match self.give_up {
            [] => "erase the device by hand if the content of the device is not needed".to_owned(),
            serials => format!(
                "if the content of the device is not needed, order the reinstall again with --give-up {serials}",
                serials = serials.join(" --give-up ")
            ),
        };
        Error::refusal(Phase::Storage, format!("{device}: {why}; nothing was written; {remedy}", device = self.device))
            .with_code(ErrorCode::BlankDeviceHasData)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::test_loop_device::TestLoopDevice;

    const MIB: u64 = 1 << 20;

    fn proof(device: &DevicePath, ranges: &[(u64, u64)]) -> ZeroProof {
        let ranges = ranges.iter().map(|&(start, length)| ByteRange { start, length }).collect();
        ZeroProof { device: device.clone(), ranges, give_up: vec!["A0".to_owned()] }
    }

    fn proven(proofs: &[ZeroProof]) -> std::result::Result<(), String> {
        verify_all_zero(proofs, &|_| {}).map_err(|error| {
            assert!(error.is_refusal(), "{error}");
            error.to_string()
        })
    }

    fn file(size_bytes: u64) -> (tempfile::NamedTempFile, DevicePath) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(size_bytes).unwrap();
        let path = file.path().to_str().unwrap().into();
        (file, path)
    }

    #[test]
    fn one_nonzero_byte_is_found_anywhere() {
        let size = 300 * MIB;
        let (file, path) = file(size);
        proven(&[proof(&path, &[(0, size)])]).unwrap();
        // Some of these offsets are between the samples of the blank detection.
        for offset in [0, 4096, READ_BLOCK_BYTES as u64 - 1, READ_BLOCK_BYTES as u64, 6 * MIB + 17, 149 * MIB, size - 1]
        {
            file.as_file().write_all_at(&[1], offset).unwrap();
            let error = proven(&[proof(&path, &[(0, size)])]).unwrap_err();
            assert!(error.contains(&format!("found data at byte {offset},")), "{error}");
            assert!(error.contains("--give-up A0"), "no remedy: {error}");
            file.as_file().write_all_at(&[0], offset).unwrap();
        }
        let is_blank = |path: &DevicePath| crate::probe::is_blank(path.as_ref()).unwrap();
        file.as_file().write_all_at(&[1], 6 * MIB + 17).unwrap();
        assert!(is_blank(&path), "samples do not detect the data");
        proven(&[proof(&path, &[(0, MIB), (7 * MIB, 10 * MIB)])]).unwrap();
        proven(&[proof(&path, &[(0, MIB), (6 * MIB, MIB)])]).unwrap_err();
    }

    #[test]
    fn all_devices_are_read_and_all_nonzero_ones_named() {
        let devices = [file(8 * MIB), file(8 * MIB), file(8 * MIB)];
        let proofs: Vec<ZeroProof> = devices.iter().map(|(_, path)| proof(path, &[(0, 8 * MIB)])).collect();
        proven(&proofs).unwrap();
        proven(&[]).unwrap();
        for (file, _) in &devices[1..] {
            file.as_file().write_all_at(b"data", 5 * MIB).unwrap();
        }
        let error = proven(&proofs).unwrap_err();
        let named: Vec<bool> = devices.iter().map(|(_, path)| error.contains(path.as_str())).collect();
        assert_eq!(named, [false, true, true], "{error}");
    }

    #[test]
    fn refuses_devices_that_cannot_be_read_completely() {
        let (_file, path) = file(MIB);
        let error = proven(&[proof(&path, &[(0, 2 * MIB)])]).unwrap_err();
        assert!(error.contains("cannot read the whole device: read at byte 0"), "{error}");
        let error = proven(&[proof(&"/dev/no-such-disk".into(), &[(0, MIB)])]).unwrap_err();
        assert!(error.contains("open /dev/no-such-disk for reading"), "{error}");
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_block_device_is_read_to_its_last_sector() {
        for sector_bytes in [512, 4096] {
            let disk = TestLoopDevice::new(64 * MIB + 4096, sector_bytes);
            let all = proof(disk.path(), &[(0, 64 * MIB + 4096)]);
            proven(std::slice::from_ref(&all)).unwrap();
            let image = OpenOptions::new().write(true).open(disk.image()).unwrap();
            image.write_all_at(&[1], 64 * MIB + 4095).unwrap();
            let error = proven(std::slice::from_ref(&all)).unwrap_err();
            assert!(error.contains(&format!("at byte {}", 64 * MIB + 4095)), "{error}");
            // Reads of a loop device fail with EIO if its file was truncated to zero bytes.
            image.set_len(0).unwrap();
            let error = proven(&[all]).unwrap_err();
            assert!(error.contains("cannot read the whole device"), "{error}");
        }
    }
}
