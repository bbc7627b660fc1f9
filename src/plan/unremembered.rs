//! Disks that nothing but the machine itself knows: of a fleet without a server, and of a server whose database was lost. Kernel names
//! move when a disk dies or is added, so a name alone gives no data away.
//!
//! | a disk to be wiped, not proven blank, of a machine that no control plane remembers | |
//! |---|---|
//! | its serial number or WWN is in the layout (a hint, or a link in `/dev/disk/by-id`) | wiped |
//! | the marker of this machine records it | decided as everywhere (`identity`, `recorded`) |
//! | this very installation has begun on it | goes on |
//! | the operator gives it up | wiped, with a warning |
//! | nothing of this | refused |

use super::recorded::Known;
use super::verdict::Deciding;
use super::{Memory, Verdict, display};
use crate::inventory::Disk;
use crate::layout::{self, hints};
use crate::marker::Marker;
use std::collections::BTreeSet;

const BY_ID: &str = "/dev/disk/by-id/";

impl Deciding<'_> {
    /// Refuses to wipe what neither the layout nor a record on the disks identifies.
    pub fn refuse_unremembered(&mut self) {
        let request = self.request;
        let Some(claim) = request.claim.as_ref().filter(|claim| claim.memory == Memory::DisksOnly) else { return };
        let markers = self.inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
        let own: Vec<&Marker> = markers.filter(|marker| claim.is_of_this_machine(marker)).collect();
        let begun = Known::new(self.inventory, &[], &claim.begun_on, BTreeSet::new());
        let own = own.into_iter().map(|marker| Known::new(self.inventory, &marker.disks, &[], BTreeSet::new()));
        let own: Vec<Known> = own.collect();
        let layout = self.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            let Some(found) = self.found.get(&index).copied() else { continue };
            let is_lost = self.verdict(&found.name) == Verdict::Wipe && !found.blank;
            let is_known = is_identified(listed, found) || is_recorded(listed, found, &own, &begun);
            if !is_lost || is_known {
                continue;
            }
            // A record of another disk is refused by `recorded`.
            let place = format!("disks[{index}].device");
            if self.decided.problems.iter().any(|problem| problem.place == place) {
                continue;
            }
            let said = format!(
                "{} would be wiped and is not blank: there is {}. Only its name selects it, and no record of this machine has it, so it may be another disk than the layout means",
                found.device,
                display::contents(found)
            );
            if self.is_given_up(&found.name) {
                self.warn(format!("{said}; the operator gives up what is on it"));
                continue;
            }
            let remedy = self.remedy_of_unremembered(found);
            self.refuse(place, format!("{said}. {remedy}"));
        }
    }

    fn remedy_of_unremembered(&self, found: &Disk) -> String {
        let hint = match (self.identifiers.has_serial(found), self.identifiers.has_wwn(found)) {
            (true, _) => format!("add the hint `serial: {}` to the layout's disk if this disk is meant", found.serial),
            (false, true) => format!("add the hint `wwn: {}` to the layout's disk if this disk is meant", found.wwn),
            (false, false) => "no serial number or WWN identifies this disk".to_owned(),
        };
        match self.give_up_name(found) {
            Some(name) => {
                format!("{hint}; or, if its data are not needed, add `give_up: [\"{name}\"]` to the allocation")
            }
            None => format!(
                "{hint}; if its data are not needed, overwrite it in the rescue shell: dd if=/dev/zero of={} bs=1M",
                found.device
            ),
        }
    }
}

/// Returns whether a record of this machine has the disk under the name that the layout has for it.
fn is_recorded(listed: &layout::Disk, found: &Disk, own: &[Known], begun: &Known) -> bool {
    let has_begun = begun.of(&listed.device).is_some_and(|record| begun.is_still(record, found));
    has_begun || own.iter().any(|known| known.of(&listed.device).is_some_and(|record| known.is(record, found)))
}

/// Returns whether the layout selects the disk by an identifier of its hardware.
fn is_identified(listed: &layout::Disk, found: &Disk) -> bool {
    match listed.hints.is_empty() {
        true => listed.device.as_str().starts_with(BY_ID),
        false => hints::name_hardware(&listed.hints, found),
    }
}
