//! Holders that are released before disks are wiped: everything active on them, the topmost first.

use super::Holder;
use crate::device::{DevicePath, KernelName};
use crate::inventory::{Disk, Stacked, StackedKind, Use};
use crate::topology::Stack;
use std::collections::BTreeSet;

/// Maximum number of unknown holders of one device that are listed.
const MAXIMUM_NAMED: usize = 16;

/// Collects holders in the order in which they are released, each once.
pub struct Release<'a> {
    stack: &'a Stack<'a>,
    /// Devices that were examined: those that are released, and devices in them.
    pub seen: BTreeSet<KernelName>,
    pub holders: Vec<Holder>,
}

impl<'a> Release<'a> {
    pub fn new(stack: &'a Stack<'a>) -> Release<'a> {
        Release { stack, seen: BTreeSet::new(), holders: Vec::new() }
    }

    /// Releases everything on this disk. Returns the uses that cannot be released.
    pub fn disk(&mut self, disk: &Disk) -> Vec<String> {
        self.take_down(&disk.name, &disk.device)
    }

    /// Releases this device and everything on it.
    pub fn stacked(&mut self, device: &Stacked) -> Vec<String> {
        self.take_down(&device.name, &device.device)
    }

    fn take_down(&mut self, name: &KernelName, bottom: &DevicePath) -> Vec<String> {
        let mut refused = Vec::new();
        for name in self.stack.topmost_first_but(&self.seen, name) {
            if self.seen.insert(name.clone()) {
                refused.extend(self.unit(&name, bottom));
            }
        }
        refused
    }

    /// Releases one disk, partition or device, after everything above it was released.
    fn unit(&mut self, name: &KernelName, bottom: &DevicePath) -> Vec<String> {
        let unit = self.stack.unit(name);
        // The holder of an unknown device was checked before.
        let Some(device) = unit.device() else { return Vec::new() };
        let mut refused = Vec::new();
        for usage in unit.uses() {
            match usage {
                Use::Mounted(_) => refused.push(in_use(device, bottom, usage)),
                Use::Swap => self.holders.push(Holder::Swap { device: device.clone() }),
                Use::Holder(_) => {}
            }
        }
        let unknown = self.stack.unknown_holders(name);
        let named = unknown.iter().take(MAXIMUM_NAMED).map(|holder| (*holder).clone());
        refused.extend(named.map(|holder| in_use(device, bottom, &Use::Holder(holder))));
        if unknown.len() > MAXIMUM_NAMED {
            refused.push(format!("{device} is in use by {} more devices", unknown.len() - MAXIMUM_NAMED));
        }
        self.holders.extend(self.stack.stacked(name).map(|stacked| self.holder(stacked)));
        refused
    }

    fn holder(&self, stacked: &Stacked) -> Holder {
        let device = stacked.device.clone();
        match stacked.kind {
            StackedKind::Array => Holder::Array { device },
            StackedKind::Bcache => Holder::Bcache { device },
            StackedKind::Volume => match self.stack.volume_name(stacked) {
                Some(name) => Holder::Volume { device, name },
                None => Holder::Mapping { device },
            },
            StackedKind::Crypt | StackedKind::Other => Holder::Mapping { device },
        }
    }
}

fn in_use(device: &DevicePath, bottom: &DevicePath, usage: &Use) -> String {
    let on = if device == bottom || device.as_str().starts_with(bottom.as_str()) {
        String::new()
    } else {
        format!(", which lies on {bottom},")
    };
    format!("{device}{on} is in use ({usage}); unmount or stop it first, because this is not done automatically")
}
