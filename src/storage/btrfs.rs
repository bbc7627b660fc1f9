//! The kernel's list of btrfs devices: it remembers every one that it has seen, and takes the one with the latest changes
//! for the filesystem. So nothing of a rehearsal may stay in it, or the disk itself would pass for an old copy.

use super::kernel;
use std::fs::File;

/// Forgets all that is not mounted, and lists these. What is no btrfs is not listed, which is no error here.
pub fn list_only<'a>(devices: impl Iterator<Item = &'a String>) {
    // Without btrfs in the kernel there is no list.
    let Ok(control) = File::open("/dev/btrfs-control") else { return };
    let forgotten = kernel::forget_btrfs(&control);
    tracing::debug!(?forgotten, "btrfs devices");
    for device in devices {
        let listed = kernel::list_btrfs(&control, device);
        tracing::debug!(device, ?listed, "btrfs devices");
    }
}
