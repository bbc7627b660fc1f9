//! How much the filesystems below the root can hold. An image that brings more is a mistake or a bomb, and is told so
//! before the disk is full.

use nix::sys::stat::FileStat;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, fstatfs};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// Smaller files are not asked about: the disk says itself when it is full.
const ASKED_FROM: u64 = 1 << 20;

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

/// The free bytes for what `file` is to hold, when `bytes` are more.
///
/// # Errors
/// The filesystem does not say.
pub fn too_little_for(file: &File, bytes: u64) -> io::Result<Option<u64>> {
    if bytes < ASKED_FROM {
        return Ok(None);
    }
    let filesystem = fstatfs(file)?;
    // Btrfs compresses and only estimates. A tmpfs without a size has no blocks.
    if filesystem.filesystem_type() == BTRFS_SUPER_MAGIC || filesystem.blocks() == 0 {
        return Ok(None);
    }
    let free = filesystem.blocks_free().saturating_mul(filesystem.block_size().unsigned_abs());
    Ok((free < bytes).then_some(free))
}
