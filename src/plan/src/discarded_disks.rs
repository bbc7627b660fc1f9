//! Disks whose data the operator discards, and their identification.

use super::planner_state::PlannerState;
use model::device_name::KernelName;
use model::inventory::InventoryDisk;

impl PlannerState<'_> {
    /// Returns whether the operator discards the disk with this kernel name. The operator identifies a disk by its
    /// serial number, WWN or `by-path` link. A placeholder, or a value that two disks share, does not identify a disk.
    pub(crate) fn is_discarded(&self, name: &KernelName) -> bool {
        let Some(claim) = &self.request.claim else { return false };
        if claim.give_up.is_empty() {
            return false;
        }
        let Some(disk) = self.inventory.disks.iter().find(|disk| disk.name == *name) else { return false };
        claim.give_up.iter().any(|given| self.identifiers.is_named_by(disk, given))
    }

    /// Returns an identifier with which the operator can discard the disk; `None` if no identifier of the disk is
    /// unique.
    pub(crate) fn discard_name<'d>(&self, disk: &'d InventoryDisk) -> Option<&'d str> {
        let known = [disk.serial.as_str(), disk.wwn.as_str(), disk.by_path.as_str()];
        known.into_iter().find(|given| self.identifiers.is_named_by(disk, given))
    }
}
