//! How much the filesystems below the root can hold. An image that brings more is a mistake or a bomb, and is told so
//! before the disk is full.

use nix::sys::stat::FileStat;
use nix::sys::statfs::fstatfs;
use std::io;
use std::os::fd::AsFd;

/// Above twice the space: what a tar has besides content. A small filesystem full of symlinks needs it.
const MARGIN: u64 = 64 << 20;

/// The filesystems that were met so far.
#[derive(Debug, Default)]
pub struct Space {
    /// By device number, with the bytes that they hold.
    seen: Vec<(u64, u64)>,
}

impl Space {
    /// # Errors
    /// The filesystem does not say its size.
    pub fn see(&mut self, directory: impl AsFd, stat: &FileStat) -> io::Result<()> {
        if self.seen.iter().all(|(device, _)| *device != stat.st_dev) {
            let filesystem = fstatfs(directory)?;
            let bytes = filesystem.blocks().saturating_mul(filesystem.block_size().unsigned_abs());
            // A tmpfs without a size has no blocks.
            self.seen.push((stat.st_dev, if bytes == 0 { u64::MAX } else { bytes }));
        }
        Ok(())
    }

    /// A tar that is longer brings nothing that could be there at its end: files may be replaced by later ones, or be
    /// compressed by the filesystem, but not for ever.
    pub fn longest_tar(&self) -> u64 {
        let sum = self.seen.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        sum.saturating_mul(2).saturating_add(MARGIN)
    }
}

/// What is said when it is longer.
pub fn too_long(longest: u64) -> String {
    format!("the tar has more than {longest} bytes, twice what its filesystems can hold")
}
