//! Disks whose data the operator gives up, and how the operator names them.

use super::verdict::Deciding;
use crate::device::KernelName;
use crate::inventory::Disk;

impl Deciding<'_> {
    /// Returns whether the operator gives up the disk with this kernel name: by its serial number, WWN or `by-path` link. What is a
    /// placeholder, or what two disks share, names neither.
    pub fn is_given_up(&self, name: &KernelName) -> bool {
        let Some(claim) = &self.request.claim else { return false };
        if claim.give_up.is_empty() {
            return false;
        }
        let Some(disk) = self.inventory.disks.iter().find(|disk| disk.name == *name) else { return false };
        claim.give_up.iter().any(|given| self.identifiers.is_named_by(disk, given))
    }

    /// Returns what names the disk in a list of disks that are given up; `None` if nothing does.
    pub fn give_up_name<'d>(&self, disk: &'d Disk) -> Option<&'d str> {
        let known = [disk.serial.as_str(), disk.wwn.as_str(), disk.by_path.as_str()];
        known.into_iter().find(|given| self.identifiers.is_named_by(disk, given))
    }
}
