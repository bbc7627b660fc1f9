//! Protection of disks for which the control plane has lost its records or, in a fleet without a server, never had
//! any, and of disks that a reinstall without a marker would wipe although no disk of the machine is recorded. Kernel
//! names change if a disk fails or is added, so a name alone does not justify a wipe.
//!
//! | a disk that would be wiped, is not proven blank, and is not recorded by the control plane | the disk is |
//! |---|---|
//! | its serial number or WWN is in the layout (a hint, or a link in `/dev/disk/by-id`) | wiped |
//! | a marker of this machine contains a record of it | checked by `installation_identity` and `installed_disk_identity` |
//! | an earlier attempt of this installation was started on it | wiped: the installation continues |
//! | the operator discards it | wiped, with a warning |
//! | none of these conditions applies | refused |

use super::installed_disk_identity::DiskRecords;
use super::planner_state::PlannerState;
use super::{InstallClaim, InstallMode, MarkerWaiver};
use crate::content_descriptions;
use common::error_code::ErrorCode;
use model::allocation::RecordSource;
use model::install_marker::InstallMarker;
use model::inventory::InventoryDisk;
use model::layout::{self, root_device_hints};
use std::collections::BTreeSet;

const BY_ID_DIRECTORY: &str = "/dev/disk/by-id/";

impl PlannerState<'_> {
    /// Refuses to wipe a disk that neither the layout nor a record on the disks identifies.
    pub(crate) fn refuse_unrecorded(&mut self) {
        let request = self.request;
        let Some(claim) = &request.claim else { return };
        let markers = self.inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
        let own: Vec<&InstallMarker> = markers.filter(|marker| claim.is_of_this_machine(marker)).collect();
        if claim.memory != RecordSource::DisksOnly && !self.is_unrecorded_reinstall(claim, &own) {
            return;
        }
        let started = DiskRecords::new(self.inventory, &[], &claim.begun_on, BTreeSet::new());
        let own = own.into_iter().map(|marker| DiskRecords::new(self.inventory, &marker.disks, &[], BTreeSet::new()));
        let own: Vec<DiskRecords> = own.collect();
        let layout = self.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            let Some(found) = self.found.get(&index).copied() else { continue };
            let is_lost = self.verdict(&found.name).loses_data() && !found.blank;
            let is_known = is_identified(listed, found) || is_recorded(listed, found, &own, &started);
            if !is_lost || is_known {
                continue;
            }
            // A disk that contradicts its record is already refused by `installed_disk_identity`.
            let place = format!("disks[{index}].device");
            if self.decided.problems.iter().any(|problem| problem.place == place) {
                continue;
            }
            let said = format!(
                "{disk} would be wiped and is not blank: it contains {contents}. The layout selects the disk only by \
                its name, and no record about this machine lists the disk, so this may be a disk other than the intended one",
                disk = found.device,
                contents = content_descriptions::describe_contents(found)
            );
            if self.is_discarded(&found.name) {
                self.warn(format!("{said}; its data will be discarded, as requested by the operator"));
                continue;
            }
            let remedy = self.unrecorded_remedy(found);
            self.refuse(ErrorCode::DiskNotBlank, place, format!("{said}. {remedy}"));
        }
    }

    /// Returns whether this is a reinstall whose marker was waived by the operator, and neither the markers in `own`
    /// nor the control plane have a record of any disk. The waiver confirms that the marker is missing, but
    /// identifies no disk. A plan without an order, such as the preview of an adoption, is made on the machine as it
    /// is, so its names are valid.
    fn is_unrecorded_reinstall(&self, claim: &InstallClaim, own: &[&InstallMarker]) -> bool {
        let is_waived = claim.order.is_some() && claim.waiver == Some(MarkerWaiver::Operator);
        let mut finished = own.iter().copied().chain(&claim.installed);
        let is_recorded = !claim.begun_on.is_empty() || finished.any(|marker| !marker.disks.is_empty());
        self.request.mode == InstallMode::Reinstall && is_waived && !is_recorded
    }

    fn unrecorded_remedy(&self, found: &InventoryDisk) -> String {
        let hint = match (self.identifiers.has_serial(found), self.identifiers.has_wwn(found)) {
            (true, _) => {
                format!(
                    "If this is the right disk, add the hint `serial: {serial}` to this disk in the layout",
                    serial = found.serial
                )
            }
            (false, true) => {
                format!(
                    "If this is the right disk, add the hint `wwn: {wwn}` to this disk in the layout",
                    wwn = found.wwn
                )
            }
            (false, false) => {
                "The disk cannot be identified, because it has neither a serial number nor a WWN".to_owned()
            }
        };
        let is_ordered = self.request.claim.as_ref().is_some_and(|claim| claim.memory == RecordSource::ControlPlane);
        match self.discard_name(found) {
            Some(name) if is_ordered => {
                format!("{hint}; or, if you do not need its data, order the reinstall again with --give-up {name}")
            }
            Some(name) => {
                format!("{hint}; or, if you do not need its data, add `give_up: [\"{name}\"]` to the allocation")
            }
            None => format!(
                "{hint}; if you do not need its data, overwrite it in the rescue shell: dd if=/dev/zero of={disk} bs=1M",
                disk = found.device
            ),
        }
    }
}

/// Returns whether a marker of this machine, or the record of the started attempt, contains the disk under its name in
/// the layout.
fn is_recorded(listed: &layout::DiskSpec, found: &InventoryDisk, own: &[DiskRecords], started: &DiskRecords) -> bool {
    let has_begun = started.record_of(&listed.device).is_some_and(|record| started.is_attempt_disk(record, found));
    has_begun
        || own
            .iter()
            .any(|known| known.record_of(&listed.device).is_some_and(|record| known.is_recorded_disk(record, found)))
}

/// Returns whether the layout selects the disk by an identifier of its hardware.
pub(crate) fn is_identified(listed: &layout::DiskSpec, found: &InventoryDisk) -> bool {
    match listed.hints.is_empty() {
        true => listed.device.as_str().starts_with(BY_ID_DIRECTORY),
        false => root_device_hints::identify_hardware(&listed.hints, found),
    }
}
