//! The kernel's list of btrfs devices. The kernel remembers every device that it has seen, and takes the one with the
//! latest changes for the filesystem. So nothing of a rehearsal may stay on the list, or the disk itself would pass for
//! an old copy.

use super::kernel;
use std::fs::File;

/// Makes the kernel forget all devices that are not mounted, and list these. A device without btrfs is not listed, and
/// that is no error here.
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
