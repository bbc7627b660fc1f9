//! Disks whose data the operator gives up, and how the operator names them.

use super::verdict::Deciding;
use crate::device::KernelName;
use crate::device::identifiers::{is_same_serial, is_same_wwn};
use crate::inventory::Disk;

impl Deciding<'_> {
    /// Returns whether the operator gives up the disk with this kernel name: by its serial number, WWN or `by-path` link. What is a
    /// placeholder, or what two disks share, names neither.
    pub fn is_given_up(&self, name: &KernelName) -> bool {
        let Some(claim) = &self.request.claim else { return false };
        let Some(disk) = self.inventory.disks.iter().find(|disk| disk.name == *name) else { return false };
        claim.give_up.iter().any(|given| names(given, disk, &self.inventory.disks))
    }

    /// Returns what names the disk in a list of disks that are given up; `None` if nothing does.
    pub fn give_up_name<'d>(&self, disk: &'d Disk) -> Option<&'d str> {
        let known = [disk.serial.as_str(), disk.wwn.as_str(), disk.by_path.as_str()];
        known.into_iter().find(|given| names(given, disk, &self.inventory.disks))
    }
}

fn names(given: &str, disk: &Disk, disks: &[Disk]) -> bool {
    let is_serial = is_same_serial(given, &disk.serial) == Some(true) && disk.has_own_serial(disks);
    let is_wwn = is_same_wwn(given, &disk.wwn) == Some(true) && disk.has_own_wwn(disks);
    let with_path = disks.iter().filter(|other| !given.is_empty() && other.by_path == given).count();
    is_serial || is_wwn || (with_path == 1 && disk.by_path == given)
}
