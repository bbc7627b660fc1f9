//! Disk to which a raw image is written, bypassing the page cache.

use super::disk_writer::{BUFFER_BYTES, ZEROS_BYTES};
use common::error::{Context, Phase, Result};
use linux::storage::aligned_buffer::AlignedBuffer;
use linux::storage::block_device;
use model::device_name::DevicePath;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering};

/// Sector size assumed for a regular file, in bytes.
const FILE_SECTOR_BYTES: u32 = 512;

/// Disk that an image must fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetDisk {
    pub name: DevicePath,
    pub size_bytes: u64,
    pub sector_bytes: u32,
}

/// Disk that is opened exclusively, or a regular file that takes the place of a disk.
pub struct RawTarget {
    file: File,
    pub disk: TargetDisk,
    /// Offset up to which data has been written, in this attempt or an earlier attempt to write the image.
    written_to: AtomicU64,
}

impl RawTarget {
    /// Opens the disk with O_EXCL. The kernel then rejects a disk that is mounted, used as swap, or has holders.
    ///
    /// # Errors
    /// Returns an error if the path does not exist, is in use, or is neither a disk nor a file of whole sectors.
    pub fn open(path: &DevicePath) -> Result<RawTarget> {
        let what = || format!("open {path} to write the raw image");
        let metadata = std::fs::metadata(path).context(Phase::Image, what)?;
        if metadata.file_type().is_block_device() {
            // `open_exclusive` waits until the disk is no longer in use. The error of a failed wait names the users of
            // the disk.
            drop(linux::storage::signature_wipe::open_exclusive(path)?);
            let file = open_disk(path, nix::libc::O_DIRECT | nix::libc::O_EXCL).context(Phase::Image, what)?;
            let size_bytes =
                block_device::read_size_bytes(&file).context(Phase::Image, || format!("get the size of {path}"))?;
            let sector_bytes = block_device::read_sector_bytes(&file).context(Phase::Image, || {
                format!(
                    "get the sector size of \
                                                                                             {path}"
                )
            })?;
            return Ok(RawTarget::new(file, TargetDisk { name: path.clone(), size_bytes, sector_bytes }));
        }
        let (size_bytes, sector_bytes) = (metadata.len(), FILE_SECTOR_BYTES);
        if !metadata.is_file() || !size_bytes.is_multiple_of(u64::from(sector_bytes)) {
            let why = "the path is neither a disk nor a file whose length is a multiple of 512 bytes";
            return Err(io::Error::other(why)).context(Phase::Image, what);
        }
        // A file is opened without O_DIRECT: some filesystems do not support direct I/O, or require larger sectors than
        // [`FILE_SECTOR_BYTES`].
        let file = open_disk(path, 0).context(Phase::Image, what)?;
        Ok(RawTarget::new(file, TargetDisk { name: path.clone(), size_bytes, sector_bytes }))
    }

    /// Returns the open file of the disk.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn new(file: File, disk: TargetDisk) -> RawTarget {
        RawTarget { file, disk, written_to: AtomicU64::new(0) }
    }

    /// Rounds a number of bytes up to whole sectors.
    pub fn round_to_sectors(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.disk.sector_bytes as usize)
    }

    /// Returns the byte range of the disk's last sector, which contains the header of a backup GPT.
    pub(crate) fn last_sector_range(&self) -> Range<u64> {
        let TargetDisk { size_bytes, sector_bytes, .. } = self.disk;
        size_bytes.saturating_sub(u64::from(sector_bytes))..size_bytes
    }

    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.written_to.fetch_max(offset + bytes.len() as u64, Ordering::Relaxed);
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| self.io_error("write", bytes.len() as u64, offset, &error))
    }

    /// Zeroes unverified data after the end of the current image (`image_bytes`), which an earlier attempt has written.
    pub(crate) fn zero_after_image(&self, image_bytes: u64) -> io::Result<()> {
        let end = self.written_to.load(Ordering::Relaxed);
        let mut at = image_bytes.next_multiple_of(u64::from(self.disk.sector_bytes));
        while at < end {
            let next = end.min(at + ZEROS_BYTES);
            self.zero_range(at..next)?;
            at = next;
        }
        Ok(())
    }

    /// Zeroes a range of whole sectors, with a zeroing command if the disk supports one, and otherwise by writing
    /// zeros.
    pub fn zero_range(&self, range: Range<u64>) -> io::Result<()> {
        let length = range.end - range.start;
        let zeroed = block_device::zero_range(&self.file, range.start, length).or_else(|error| match error {
            Errno::ENOTTY => punch_hole(&self.file, &range),
            other => Err(other),
        });
        match zeroed {
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => self.write_zeros(range.clone()),
            other => other.map_err(io::Error::from),
        }
        .map_err(|error| self.io_error("zero", length, range.start, &error))
    }

    fn write_zeros(&self, range: Range<u64>) -> io::Result<()> {
        let zeros = AlignedBuffer::new(BUFFER_BYTES);
        for offset in range.clone().step_by(zeros.len()) {
            let length = (range.end - offset).min(zeros.len() as u64) as usize;
            self.file.write_all_at(&zeros[..length], offset)?;
        }
        Ok(())
    }

    /// Flushes all written data, including the disk's write cache.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all().map_err(|error| io::Error::new(error.kind(), format!("flush {}: {error}", self.disk.name)))
    }

    fn io_error(&self, verb: &str, length: u64, offset: u64, error: &io::Error) -> io::Error {
        io::Error::new(
            error.kind(),
            format!("{verb} {length} bytes at byte {offset} of {disk}: {error}", disk = self.disk.name),
        )
    }
}

fn open_disk(path: &DevicePath, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

fn punch_hole(file: &File, range: &Range<u64>) -> nix::Result<()> {
    let (start, length) = (i64::try_from(range.start), i64::try_from(range.end - range.start));
    let (Ok(start), Ok(length)) = (start, length) else { return Err(Errno::EOVERFLOW) };
    fallocate(file, FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE, start, length)
}

#[cfg(test)]
impl RawTarget {
    /// Reopens the disk read-only, so that a test can provoke write errors.
    pub(crate) fn reopen_read_only(&mut self) {
        self.file = File::open(&self.disk.name).expect("reopen the disk");
    }
}
