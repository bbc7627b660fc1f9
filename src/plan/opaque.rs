//! Objects whose content was not seen, and what an installation may do to them. What a reinstall may do to them is decided in `missing`.

use super::verdict::Deciding;
use super::{Claim, Verdict};
use crate::device::KernelName;
use crate::inventory::{Disk, Inventory, OpaqueObject};
use crate::order::Gather;
use std::collections::BTreeSet;

/// Opaque object with the disks below it.
pub struct OpaqueOnDisks {
    pub object: OpaqueObject,
    pub disks: BTreeSet<KernelName>,
}

/// Returns what a plan lists: objects that stay opaque. What nobody has tried to open is left out: a warning says that the agent looks.
pub fn listed(inventory: &Inventory) -> Vec<OpaqueObject> {
    inventory.opaque_objects().into_iter().filter(|object| !object.untried).collect()
}

impl Deciding<'_> {
    pub fn opaque_on_disks(&self) -> Vec<OpaqueOnDisks> {
        let objects = self.inventory.opaque_objects().into_iter();
        let on_disks = objects.map(|object| {
            let names: Vec<KernelName> = object.devices.iter().map(|device| self.stack.name(device)).collect();
            let disks = self.stack.disks_of(&names);
            OpaqueOnDisks { object, disks }
        });
        on_disks.collect()
    }

    /// The marker of an installation of which the control plane has lost its memory may be in what was not seen.
    ///
    /// | an opaque object lies on | a first installation is |
    /// |---|---|
    /// | disks that are not wiped | allowed: they are never written |
    /// | a disk that is wiped | refused |
    /// | the same, and the operator gives up each such disk | allowed, with a warning |
    /// | the same, and an attempt of this allocation has begun on these disks | allowed: the attempt was allowed, and left it |
    /// | the same, and nothing has tried to open it yet | allowed, with a warning: the agent tries, and decides again |
    pub fn refuse_opaque(&mut self, claim: &Claim) {
        if !claim.begun_on.is_empty() {
            return;
        }
        let mut untried = Vec::new();
        for OpaqueOnDisks { object, disks } in self.opaque_on_disks() {
            let is_wiped = |disk: &&KernelName| matches!(self.verdict(disk), Verdict::Wipe | Verdict::Make);
            let wiped: Vec<KernelName> = disks.iter().filter(is_wiped).cloned().collect();
            let needed: Vec<KernelName> = wiped.iter().filter(|disk| !self.is_given_up(disk)).cloned().collect();
            match (wiped.is_empty(), needed.is_empty(), object.untried) {
                (true, ..) => {}
                (false, true, _) => self.warn(format!(
                    "the content of {object} cannot be seen ({}), and the operator gives up what is on {}; remove give_up from the allocation once it is installed",
                    object.reason,
                    wiped.join(", ")
                )),
                // Each earlier system has filesystems, and they can nearly always be mounted.
                (false, false, true) if !object.may_contain_devices() => {}
                (false, false, true) => untried.push(object.to_string()),
                (false, false, false) => {
                    let message = format!(
                        "{object}: cannot see its content: {}. It may contain an installation, and allocation {} wipes {}; {}; {}",
                        object.reason,
                        claim.allocation,
                        wiped.join(", "),
                        object.remedy,
                        self.how_to_discard(&needed)
                    );
                    self.refuse("disks", message);
                }
            }
        }
        if !untried.is_empty() {
            self.warn(format!(
                "the inventory was read before anything was assembled: the agent looks into {}, and refuses the installation if it cannot or finds a marker",
                untried.join("; ")
            ));
        }
    }

    /// Returns how the operator gives up the content of these disks.
    fn how_to_discard(&self, names: &[KernelName]) -> String {
        let names: BTreeSet<&KernelName> = names.iter().gather();
        let disks = self.inventory.disks.iter().filter(|disk| names.contains(&disk.name));
        let (named, nameless): (Vec<&Disk>, Vec<&Disk>) = disks.partition(|disk| self.give_up_name(disk).is_some());
        if nameless.is_empty() {
            let given: Vec<String> =
                named.iter().filter_map(|disk| self.give_up_name(disk)).map(|name| format!("{name:?}")).collect();
            return format!("or discard it with give_up: [{}] in the allocation", given.join(", "));
        }
        let devices: Vec<&str> = nameless.iter().map(|disk| disk.device.as_str()).collect();
        format!("or erase {} in the rescue shell (wipefs -a)", devices.join(", "))
    }
}
