//! Source of a transfer: a disk or file, which is opened read-only. A disk is opened exclusively.

use super::destination_disk::loop_devices_on;
use super::protocol::CHUNK_BYTES;
use super::used_blocks;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use linux::storage::aligned_buffer::AlignedBuffer;
use linux::storage::{block_device, busy_device_users};
use model::device_name::DevicePath;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Sector size assumed for a regular file, in bytes.
const FILE_SECTOR_BYTES: u32 = 512;

/// Open disk or file that is sent.
pub(crate) struct TransferSource {
    pub path: PathBuf,
    /// Open file. A disk is opened with O_DIRECT.
    file: File,
    pub size_bytes: u64,
    pub sector_bytes: u32,
    used: used_blocks::UsedBlocks,
}

impl TransferSource {
    /// Opens a disk or file. Unless `whole` is set, also determines which blocks the filesystems on the disk use.
    ///
    /// # Errors
    /// Refuses a path that does not exist, is in use, is empty, or is neither a disk nor a file.
    pub(crate) fn open_source(path: &Path, whole: bool) -> Result<TransferSource> {
        let refuse = |why: String| {
            Error::refusal(Phase::Move, format!("{path} cannot be sent: {why}", path = path.display()))
                .with_code(ErrorCode::TransferDisk)
        };
        let real = fs::canonicalize(path).map_err(|error| refuse(error.to_string()))?;
        let metadata = fs::metadata(&real).map_err(|error| refuse(error.to_string()))?;
        let is_disk = metadata.file_type().is_block_device();
        if !is_disk && !metadata.is_file() {
            return Err(refuse("the path is neither a disk nor a file".to_owned()));
        }
        let users = if is_disk { Vec::new() } else { loop_devices_on(&real) };
        if !users.is_empty() {
            return Err(refuse(users.join(", ")));
        }
        let file = if is_disk { open_disk(&real) } else { File::open(&real) };
        let file = file.map_err(|error| refuse(error.to_string()))?;
        let what = || format!("size of {}", real.display());
        let (size_bytes, sector_bytes) = match is_disk {
            true => {
                let size = block_device::read_size_bytes(&file).context(Phase::Move, what)?;
                (size, block_device::read_sector_bytes(&file).context(Phase::Move, what)?)
            }
            false => (metadata.len(), FILE_SECTOR_BYTES),
        };
        if size_bytes == 0 {
            return Err(refuse("it is empty".to_owned()));
        }
        // The disk is opened without O_DIRECT here, because the small random reads of metadata are faster with the page
        // cache.
        let cached = File::open(&real).context(Phase::Move, || format!("open {}", real.display()))?;
        let sector = u64::from(sector_bytes);
        let used = if whole {
            used_blocks::mark_all_used(size_bytes)
        } else {
            used_blocks::worker::read_in_worker(&cached, size_bytes, sector)
        };
        Ok(TransferSource { path: real, file, size_bytes, sector_bytes, used })
    }

    /// Returns a description of the disk's contents, such as `ext4`.
    pub(crate) fn describe_contents(&self) -> &str {
        &self.used.what
    }

    pub(crate) fn has_table(&self) -> bool {
        self.used.has_table
    }

    /// Reads `length` bytes at `offset`.
    ///
    /// # Errors
    /// Fails if the disk cannot be read.
    pub(crate) fn read_at(&self, offset: u64, buffer: &mut AlignedBuffer, length: usize) -> io::Result<()> {
        self.file.read_exact_at(&mut buffer[..length], offset).map_err(|error| {
            let path = self.path.display();
            io::Error::new(error.kind(), format!("read {length} bytes at byte {offset} of {path}: {error}"))
        })
    }

    /// Returns a reader of the whole disk.
    ///
    /// # Errors
    /// Fails if the disk cannot be opened again.
    pub(crate) fn open_stream(&self) -> io::Result<impl Read> {
        File::open(&self.path).map(|file| file.take(self.size_bytes))
    }
}

/// Opens a disk with O_EXCL, so that it cannot be mounted during the transfer.
fn open_disk(path: &Path) -> io::Result<File> {
    let flags = nix::libc::O_DIRECT | nix::libc::O_EXCL;
    OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| {
        let device = DevicePath::from(&*path.to_string_lossy());
        io::Error::new(
            error.kind(),
            format!("{error}{}", busy_device_users::format_users(&busy_device_users::list_device_users(&device))),
        )
    })
}

/// Contiguous segment of a disk, used or unused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DiskSegment {
    /// Range of used bytes that does not cross a multiple of [`CHUNK_BYTES`].
    Used(Range<u64>),
    Unused(Range<u64>),
}

/// Iterator over all segments of a disk from an offset to the end, in order and without gaps.
pub(crate) struct SegmentIter<'s> {
    used: &'s [Range<u64>],
    position: u64,
    end: u64,
}

impl<'s> SegmentIter<'s> {
    pub(crate) fn from_source(source: &'s TransferSource, position: u64) -> SegmentIter<'s> {
        SegmentIter::from_ranges(&source.used.ranges, position, source.size_bytes)
    }

    fn from_ranges(used: &'s [Range<u64>], position: u64, end: u64) -> SegmentIter<'s> {
        SegmentIter { used, position, end }
    }
}

impl Iterator for SegmentIter<'_> {
    type Item = DiskSegment;

    fn next(&mut self) -> Option<DiskSegment> {
        let (position, end) = (self.position, self.end);
        if position >= end {
            return None;
        }
        while self.used.first().is_some_and(|range| range.end <= position) {
            self.used = &self.used[1..];
        }
        let segment = match self.used.first() {
            Some(range) if range.start <= position => {
                let chunk_end = (position / CHUNK_BYTES + 1) * CHUNK_BYTES;
                DiskSegment::Used(position..range.end.min(chunk_end).min(end))
            }
            Some(range) => DiskSegment::Unused(position..range.start.min(end)),
            None => DiskSegment::Unused(position..end),
        };
        let (DiskSegment::Used(range) | DiskSegment::Unused(range)) = &segment;
        self.position = range.end;
        Some(segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn segments_cover_the_disk_and_end_at_chunk_boundaries() {
        let used = [0..MIB, 2 * MIB + 65536..4 * MIB];
        let of = |position, end| SegmentIter::from_ranges(&used, position, end).collect::<Vec<_>>();
        let all = [
            DiskSegment::Used(0..MIB),
            DiskSegment::Unused(MIB..2 * MIB + 65536),
            DiskSegment::Used(2 * MIB + 65536..3 * MIB),
            DiskSegment::Used(3 * MIB..4 * MIB),
            DiskSegment::Unused(4 * MIB..5 * MIB),
        ];
        assert_eq!(of(0, 5 * MIB), all);
        // Iteration starts in the middle of a segment, and ends at the end of the disk.
        assert_eq!(of(3 * MIB, 4 * MIB), [DiskSegment::Used(3 * MIB..4 * MIB)]);
        assert_eq!(of(MIB + 65536, 2 * MIB), [DiskSegment::Unused(MIB + 65536..2 * MIB)]);
        assert_eq!(of(5 * MIB, 5 * MIB), []);
    }
}
