//! Capacity of the filesystems below the root. An image that exceeds this capacity is a mistake or a decompression
//! bomb, and is rejected before the filesystems are full.

use nix::sys::stat::FileStat;
use nix::sys::statfs::fstatfs;
use std::io;
use std::os::fd::AsFd;

/// Number of bytes that a tar may have in addition to twice the capacity. The margin is for headers, which may be
/// larger than the files, for example if a small filesystem is full of symlinks.
const HEADER_MARGIN_BYTES: u64 = 64 << 20;

/// Capacity of the filesystems found so far.
#[derive(Debug, Default)]
pub(crate) struct TargetCapacity {
    /// Device number and capacity in bytes of each filesystem.
    seen: Vec<(u64, u64)>,
}

impl TargetCapacity {
    /// Adds the filesystem that contains a directory, unless this filesystem was already added.
    ///
    /// # Errors
    /// Returns an error if the size of the filesystem cannot be determined.
    pub(crate) fn add_filesystem(&mut self, directory: impl AsFd, stat: &FileStat) -> io::Result<()> {
        if self.seen.iter().all(|(device, _)| *device != stat.st_dev) {
            let filesystem = fstatfs(directory)?;
            let bytes = filesystem.blocks().saturating_mul(filesystem.block_size().unsigned_abs());
            // A tmpfs without a size limit reports zero blocks, and counts as unlimited.
            self.seen.push((stat.st_dev, if bytes == 0 { u64::MAX } else { bytes }));
        }
        Ok(())
    }

    /// Returns the maximum length of a tar, in bytes: twice the capacity, plus [`HEADER_MARGIN_BYTES`]. A tar may be
    /// longer than the capacity, because later files may replace earlier ones, and filesystems may compress.
    pub(crate) fn max_tar_bytes(&self) -> u64 {
        let sum = self.seen.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        sum.saturating_mul(2).saturating_add(HEADER_MARGIN_BYTES)
    }
}

/// Returns the error message for a tar that exceeds the maximum length.
pub(crate) fn too_long_message(longest: u64) -> String {
    format!(
        "the tar archive has more than {longest} bytes, which exceeds the limit for target filesystems of this size"
    )
}
