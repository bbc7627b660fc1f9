//! The kernel's btrfs device list. The kernel remembers every btrfs device that it has scanned. If it has scanned
//! several copies of the same btrfs device, it uses the copy with the latest generation. Overlays of a rehearsal must
//! therefore not stay on the list; otherwise the kernel would treat the disk itself as an outdated copy.

use super::block_device;
use model::device_name::DevicePath;
use std::fs::File;

/// Makes the kernel forget all unmounted btrfs devices, and scan only these devices. Devices without btrfs are ignored.
pub(crate) fn scan_only<'a>(devices: impl Iterator<Item = &'a DevicePath>) {
    // If the control device is missing, the kernel does not support btrfs, and has no list of btrfs devices.
    let Ok(control) = File::open("/dev/btrfs-control") else { return };
    let forgotten = block_device::forget_btrfs_devices(&control);
    tracing::debug!(?forgotten, "btrfs devices");
    for device in devices {
        let listed = block_device::scan_btrfs_device(&control, device);
        tracing::debug!(%device, ?listed, "btrfs devices");
    }
}
