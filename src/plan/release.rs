//! What has to be taken down before disks are wiped: everything that runs on them, the topmost first.

use super::Holder;
use super::stack::{Stack, Unit, disk_units, stacked_units};
use crate::inventory::{Disk, Stacked, StackedKind, Use};
use std::collections::BTreeSet;

/// Collects holders in the order in which they are taken down, each once.
pub struct Release<'a> {
    stack: &'a Stack<'a>,
    /// Kernel names of what is taken down.
    pub seen: BTreeSet<String>,
    pub holders: Vec<Holder>,
}

impl<'a> Release<'a> {
    pub fn new(stack: &'a Stack<'a>) -> Release<'a> {
        Release { stack, seen: BTreeSet::new(), holders: Vec::new() }
    }

    /// Everything on this disk; returns what is not ours to take down.
    pub fn disk(&mut self, disk: &'a Disk) -> Vec<String> {
        disk_units(disk).flat_map(|unit| self.unit(unit, &disk.device)).collect()
    }

    /// This device and everything on it.
    pub fn stacked(&mut self, device: &'a Stacked) -> Vec<String> {
        self.take_down(device, &device.device)
    }

    /// What is on one disk, partition or device, but not that itself.
    fn unit(&mut self, unit: Unit<'a>, bottom: &str) -> Vec<String> {
        let mut refused = Vec::new();
        for usage in unit.uses {
            match usage {
                Use::Mounted(_) => refused.push(in_use(unit.device, bottom, usage)),
                Use::Swap => self.holders.push(Holder::Swap { device: unit.device.to_owned() }),
                Use::Holder(_) => {}
            }
        }
        for holder in self.stack.holders(unit.name) {
            match self.stack.stacked(holder) {
                Some(device) => refused.extend(self.take_down(device, bottom)),
                None => refused.push(in_use(unit.device, bottom, &Use::Holder(holder.to_owned()))),
            }
        }
        refused
    }

    fn take_down(&mut self, device: &'a Stacked, bottom: &str) -> Vec<String> {
        if !self.seen.insert(device.name.clone()) {
            return Vec::new();
        }
        let refused = stacked_units(device).flat_map(|unit| self.unit(unit, bottom)).collect();
        self.holders.push(self.holder(device));
        refused
    }
}

impl Release<'_> {
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

fn in_use(device: &str, bottom: &str, usage: &Use) -> String {
    let on = if device == bottom || device.starts_with(bottom) {
        String::new()
    } else {
        format!(", which lies on {bottom},")
    };
    format!("{device}{on} is in use ({usage}): unmount or stop it first; nothing here does that for you")
}
