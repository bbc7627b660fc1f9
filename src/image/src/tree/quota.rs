//! Capacity of the filesystems below the root. An image that is larger is a mistake or a decompression bomb, and is
//! rejected before the disk is full.

use nix::sys::stat::FileStat;
use nix::sys::statfs::fstatfs;
use std::io;
use std::os::fd::AsFd;

/// Allowance above twice the capacity, in bytes, for the parts of a tar besides content: a small filesystem full of
/// symlinks needs it.
const MARGIN: u64 = 64 << 20;

/// The filesystems found so far.
#[derive(Debug, Default)]
pub(crate) struct TargetCapacity {
    /// Device number and capacity of each, in bytes.
    seen: Vec<(u64, u64)>,
}

impl TargetCapacity {
    /// Adds the filesystem of a directory.
    ///
    /// # Errors
    /// Returns an error if its size cannot be determined.
    pub(crate) fn add_filesystem(&mut self, directory: impl AsFd, stat: &FileStat) -> io::Result<()> {
        if self.seen.iter().all(|(device, _)| *device != stat.st_dev) {
            let filesystem = fstatfs(directory)?;
            let bytes = filesystem.blocks().saturating_mul(filesystem.block_size().unsigned_abs());
            // A tmpfs without a size limit has no blocks.
            self.seen.push((stat.st_dev, if bytes == 0 { u64::MAX } else { bytes }));
        }
        Ok(())
    }

    /// Returns the maximum length of a tar. Later files may replace earlier ones, and the filesystem may compress, but
    /// a longer tar cannot fit in the end.
    pub(crate) fn max_tar_bytes(&self) -> u64 {
        let sum = self.seen.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        sum.saturating_mul(2).saturating_add(MARGIN)
    }
}

/// Returns the error message for a tar that is longer.
pub(crate) fn too_long_message(longest: u64) -> String {
    format!("the tar is longer than {longest} bytes, twice the size of the target filesystems")
}
