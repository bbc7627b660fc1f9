//! Objects whose content could not be inspected, and the conditions under which a first installation may wipe these
//! objects. The conditions for a reinstall are in `missing_component_protection`.

use super::InstallClaim;
use super::planner_state::PlannerState;
use common::error_code::ErrorCode;
use model::device_name::KernelName;
use model::inventory::{Inventory, InventoryDisk, OpaqueObject};
use std::collections::BTreeSet;

/// An opaque object, and the disks below it.
pub(crate) struct OpaqueOnDisks {
    pub object: OpaqueObject,
    pub disks: BTreeSet<KernelName>,
}

/// Returns the opaque objects that a plan lists. Objects that the agent has not tried to open yet are omitted: a
/// warning announces that the agent will inspect them.
pub(crate) fn listed_objects(inventory: &Inventory) -> Vec<OpaqueObject> {
    inventory.find_opaque_objects().into_iter().filter(|object| !object.untried).collect()
}

impl PlannerState<'_> {
    pub(crate) fn opaque_on_disks(&self) -> Vec<OpaqueOnDisks> {
        let objects = self.inventory.find_opaque_objects().into_iter();
        let on_disks = objects.map(|object| {
            let names: Vec<KernelName> = object.devices.iter().map(|device| self.stack.kernel_name(device)).collect();
            let disks = self.stack.disks_below_all(&names);
            OpaqueOnDisks { object, disks }
        });
        on_disks.collect()
    }

    /// Refuses an installation that would wipe an object that could not be inspected. The object may contain the marker
    /// of an installation that is missing from the control plane's records.
    ///
    /// | an opaque object is on | a first installation is |
    /// |---|---|
    /// | disks that are not wiped | allowed: these disks are never written |
    /// | a disk that is wiped | refused |
    /// | a disk that is wiped and that the operator discards | allowed, with a warning |
    /// | a disk that is wiped, after an attempt of this allocation was started | allowed: the attempt has passed this check, and may have left the object unfinished |
    /// | a disk that is wiped, before the agent has tried to open the object | allowed, with a warning: the agent will try to open the object, and then make a new plan |
    pub(crate) fn refuse_opaque(&mut self, claim: &InstallClaim) {
        if !claim.begun_on.is_empty() {
            return;
        }
        let mut untried = Vec::new();
        for OpaqueOnDisks { object, disks } in self.opaque_on_disks() {
            let is_wiped = |disk: &&KernelName| self.verdict(disk).is_written();
            let wiped: Vec<KernelName> = disks.iter().filter(is_wiped).cloned().collect();
            let needed: Vec<KernelName> = wiped.iter().filter(|disk| !self.is_discarded(disk)).cloned().collect();
            match (wiped.is_empty(), needed.is_empty(), object.untried) {
                (true, ..) => {}
                (false, true, _) => self.warn(format!(
                    "the content of {object} cannot be inspected ({}), and the content of {} will be discarded, as \
                        requested by the operator; remove `give_up` from the allocation once the allocation is installed",
                    object.reason,
                    wiped.join(", ")
                )),
                // A filesystem that was not mounted yet does not trigger a warning, because the agent can nearly
                // always mount it later.
                (false, false, true) if !object.may_contain_devices() => {}
                (false, false, true) => untried.push(object.to_string()),
                (false, false, false) => {
                    let message = format!(
                        "cannot inspect the content of {object}: {}. The object may contain an installation, but allocation {} would wipe {}; {}; {}",
                        object.reason,
                        claim.allocation,
                        wiped.join(", "),
                        object.remedy,
                        self.how_to_discard(&needed)
                    );
                    self.refuse(ErrorCode::ObjectNotInspected, "disks", message);
                }
            }
        }
        if !untried.is_empty() {
            self.warn(format!(
                "the inventory was read before arrays and volumes were assembled: the agent will inspect {objects}, and refuse the installation if the inspection fails or a marker is found", objects = untried.join("; ")));
        }
    }

    /// Returns a description of how the operator can discard the content of these disks.
    fn how_to_discard(&self, names: &[KernelName]) -> String {
        let names: BTreeSet<&KernelName> = names.iter().collect();
        let disks = self.inventory.disks.iter().filter(|disk| names.contains(&disk.name));
        let (named, nameless): (Vec<&InventoryDisk>, Vec<&InventoryDisk>) =
            disks.partition(|disk| self.discard_name(disk).is_some());
        if nameless.is_empty() {
            let given: Vec<String> =
                named.iter().filter_map(|disk| self.discard_name(disk)).map(|name| format!("{name:?}")).collect();
            return format!(
                "or discard the disk contents with give_up: [{names}] in the allocation",
                names = given.join(", ")
            );
        }
        let devices: Vec<&str> = nameless.iter().map(|disk| disk.device.as_str()).collect();
        format!("or erase {devices} in the rescue shell (wipefs -a)", devices = devices.join(", "))
    }
}
