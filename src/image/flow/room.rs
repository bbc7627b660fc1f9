//! Whether a file has room: what is too large is told so before the disk is full.

use nix::sys::statfs::{BTRFS_SUPER_MAGIC, fstatfs};
use std::fs::File;
use std::io;

/// Smaller files are not asked about: the disk says itself when it is full.
const ASKED_FROM: u64 = 1 << 20;

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
