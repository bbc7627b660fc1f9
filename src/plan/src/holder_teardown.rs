//! Holders that are released before disks are wiped: every active object on the disks, starting with the topmost one.

use model::device_name::{DevicePath, KernelName};
use model::inventory::{DeviceUse, InventoryDisk, StackedDevice, StackedDeviceKind};
use model::storage_graph::DeviceStack;
use operations::DiskHolder;
use std::collections::BTreeSet;

/// Maximum number of unknown holders of one device that are listed.
const MAXIMUM_LISTED_HOLDERS: usize = 16;

/// Collects the holders that must be released, in the order of release and without duplicates.
pub(crate) struct HolderTeardown<'a> {
    stack: &'a DeviceStack<'a>,
    /// Devices that were already examined: released devices, and all devices on top of them.
    pub seen: BTreeSet<KernelName>,
    pub holders: Vec<DiskHolder>,
}

impl<'a> HolderTeardown<'a> {
    pub(crate) fn new(stack: &'a DeviceStack<'a>) -> HolderTeardown<'a> {
        HolderTeardown { stack, seen: BTreeSet::new(), holders: Vec::new() }
    }

    /// Adds the release of everything on this disk. Returns messages about uses that cannot be released.
    pub(crate) fn release_disk(&mut self, disk: &InventoryDisk) -> Vec<String> {
        self.take_down(&disk.name, &disk.device)
    }

    /// Adds the release of this device and everything on it. Returns messages about uses that cannot be released.
    pub(crate) fn release_device(&mut self, device: &StackedDevice) -> Vec<String> {
        self.take_down(&device.name, &device.device)
    }

    fn take_down(&mut self, name: &KernelName, bottom: &DevicePath) -> Vec<String> {
        let mut refused = Vec::new();
        for name in self.stack.topmost_first_except(&self.seen, name) {
            if self.seen.insert(name.clone()) {
                refused.extend(self.release_unit(&name, bottom));
            }
        }
        refused
    }

    /// Adds the release of one disk, partition or stacked device. The releases of all objects on it must already have
    /// been added.
    fn release_unit(&mut self, name: &KernelName, bottom: &DevicePath) -> Vec<String> {
        let unit = self.stack.find_unit(name);
        // A device that the inventory does not contain is reported as an unknown holder of the device below it.
        let Some(device) = unit.device() else { return Vec::new() };
        let mut refused = Vec::new();
        for usage in unit.uses() {
            match usage {
                DeviceUse::Mounted(_) => refused.push(describe_use(device, bottom, usage)),
                DeviceUse::Swap => self.holders.push(DiskHolder::Swap { device: device.clone() }),
                DeviceUse::Holder(_) => {}
            }
        }
        let unknown = self.stack.unknown_holders(name);
        let named = unknown.iter().take(MAXIMUM_LISTED_HOLDERS).map(|holder| (*holder).clone());
        refused.extend(named.map(|holder| describe_use(device, bottom, &DeviceUse::Holder(holder))));
        if unknown.len() > MAXIMUM_LISTED_HOLDERS {
            refused.push(format!(
                "{device} is in use by {count} more devices",
                count = unknown.len() - MAXIMUM_LISTED_HOLDERS
            ));
        }
        self.holders.extend(self.stack.find_stacked(name).map(|stacked| self.holder_of(stacked)));
        refused
    }

    fn holder_of(&self, stacked: &StackedDevice) -> DiskHolder {
        let device = stacked.device.clone();
        match stacked.kind {
            StackedDeviceKind::Array => DiskHolder::Array { device },
            StackedDeviceKind::Bcache => DiskHolder::Bcache { device },
            StackedDeviceKind::Volume => match self.stack.volume_name(stacked) {
                Some(name) => DiskHolder::Volume { device, name },
                None => DiskHolder::Mapping { device },
            },
            StackedDeviceKind::Crypt | StackedDeviceKind::Other => DiskHolder::Mapping { device },
        }
    }
}

fn describe_use(device: &DevicePath, bottom: &DevicePath, usage: &DeviceUse) -> String {
    let on = if device == bottom || device.as_str().starts_with(bottom.as_str()) {
        String::new()
    } else {
        format!(", which is backed by {bottom},")
    };
    format!("{device}{on} is in use ({usage}); unmount or stop it first, because this is not done automatically")
}
