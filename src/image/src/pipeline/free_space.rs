//! Checks for free space, so that a file that is too large is rejected before the filesystem is full.

use nix::sys::statfs::{BTRFS_SUPER_MAGIC, fstatfs};
use std::fs::File;
use std::io;

/// Minimum size of files for which free space is checked, in bytes. Smaller files are not checked: the write fails
/// instead.
const MINIMUM_CHECKED_BYTES: u64 = 1 << 20;

/// Returns the number of free bytes on the filesystem of `file` if this number is less than `bytes`; otherwise `None`.
///
/// # Errors
/// Returns an error if the filesystem cannot be queried.
pub(crate) fn insufficient_space(file: &File, bytes: u64) -> io::Result<Option<u64>> {
    if bytes < MINIMUM_CHECKED_BYTES {
        return Ok(None);
    }
    let filesystem = fstatfs(file)?;
    // The check is skipped for two filesystems: btrfs may compress the file, and only estimates its free space; a tmpfs
    // without a size limit reports no blocks.
    if filesystem.filesystem_type() == BTRFS_SUPER_MAGIC || filesystem.blocks() == 0 {
        return Ok(None);
    }
    let free = filesystem.blocks_free().saturating_mul(filesystem.block_size().unsigned_abs());
    Ok((free < bytes).then_some(free))
}
