//! The kernel's list of btrfs devices. The kernel remembers every device that it has scanned, and uses the one with
//! the latest generation. Overlays of a rehearsal must therefore not stay on the list, or the disk itself would count
//! as an outdated copy.

use super::kernel;
use crate::device::DevicePath;
use std::fs::File;

/// Makes the kernel forget all unmounted devices, and scan these. Devices without btrfs are ignored.
pub fn list_only<'a>(devices: impl Iterator<Item = &'a DevicePath>) {
    // Without btrfs in the kernel there is no list.
    let Ok(control) = File::open("/dev/btrfs-control") else { return };
    let forgotten = kernel::forget_btrfs(&control);
    tracing::debug!(?forgotten, "btrfs devices");
    for device in devices {
        let listed = kernel::list_btrfs(&control, device);
        tracing::debug!(%device, ?listed, "btrfs devices");
    }
}
