//! Access of the filesystem readers to a disk or partition, and the results of the readers.

use super::used_ranges::UsedRanges;
use super::work_limits::{self, WorkLimits};
use linux::gpt::ReadAt;

/// Separator between the names of two signatures in a description.
pub(super) const SIGNATURE_SEPARATOR: &str = " or ";

/// Result of reading one filesystem.
pub(super) enum FilesystemUsage {
    /// The disk or partition does not contain this filesystem.
    Other,
    /// The disk or partition contains this filesystem, but the filesystem is unclean or has unsupported features. All
    /// blocks are treated as used.
    Doubtful(&'static str),
    /// The disk or partition contains this filesystem, with these used ranges.
    Used(&'static str, UsedRanges),
}

/// Disk or partition that is read. Offsets are relative to the start of the disk or partition.
pub(super) struct DiskView<'d> {
    pub(super) read_at: ReadAt<'d>,
    pub(super) work: &'d WorkLimits,
    pub(super) start: u64,
    pub(super) size: u64,
}

impl DiskView<'_> {
    /// Reads bytes. Returns `None` if the bytes are outside of the disk or partition, cannot be read, or exceed the
    /// limit of a single read.
    pub(super) fn read_bytes(&self, at: u64, length: u64) -> Option<Vec<u8>> {
        let end = at.checked_add(length)?;
        if end > self.size || length > work_limits::MAXIMUM_SINGLE_READ_BYTES {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        (self.read_at)(&mut bytes, self.start.checked_add(at)?).ok()?;
        Some(bytes)
    }

    /// Returns whether the disk contains these bytes at the offset; `false` if the offset is `None`.
    pub(super) fn has_bytes(&self, at: Option<u64>, bytes: &[u8]) -> bool {
        at.and_then(|at| self.read_bytes(at, bytes.len() as u64)).is_some_and(|there| there == bytes)
    }
}

/// Functions that read integers from a block of an on-disk structure. Callers pass a block that contains the integers
/// completely.
pub(super) trait ReadIntegers {
    fn bytes_at<const N: usize>(&self, at: usize) -> [u8; N];

    fn le16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes_at(at))
    }

    fn le32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes_at(at))
    }

    fn le64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes_at(at))
    }

    fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes_at(at))
    }

    fn be32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes_at(at))
    }

    fn be64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes_at(at))
    }
}

impl ReadIntegers for [u8] {
    /// Returns zeros if the bytes are beyond the end of the block.
    fn bytes_at<const N: usize>(&self, at: usize) -> [u8; N] {
        self.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }
}
