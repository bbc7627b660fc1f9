//! The kernel's list of btrfs devices: it remembers every one that it has seen, and takes the one with the latest changes
//! for the filesystem. So nothing of a rehearsal may stay in it, or the disk itself would pass for an old copy.

use super::kernel;
use std::fs::File;

/// While a rehearsal is on.
pub struct Registry(Option<File>);

impl Registry {
    /// Forgets all that is not mounted, and lists these.
    pub fn of<'a>(devices: impl Iterator<Item = &'a String>) -> Registry {
        // Without btrfs in the kernel there is no list.
        let registry = Registry(File::open("/dev/btrfs-control").ok());
        registry.renew(devices);
        registry
    }

    /// Forgets them, and lists the others as they were.
    pub fn restore<'a>(self, devices: impl Iterator<Item = &'a String>) {
        self.renew(devices);
    }

    /// What is no btrfs is not listed, which is no error here.
    fn renew<'a>(&self, devices: impl Iterator<Item = &'a String>) {
        let Some(control) = &self.0 else { return };
        let forgotten = kernel::forget_btrfs(control);
        tracing::debug!(?forgotten, "btrfs devices");
        for device in devices {
            let listed = kernel::list_btrfs(control, device);
            tracing::debug!(device, ?listed, "btrfs devices");
        }
    }
}
