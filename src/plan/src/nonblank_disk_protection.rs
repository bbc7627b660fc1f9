//! Protection if it is uncertain whether the machine is the one that its machine file describes: only blank disks are
//! erased.

use super::installed_disk_identity::DiskRecords;
use super::{DiskPlan, MarkerWaiver, PlanRequest};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::install_marker::RecordedDisk;
use model::inventory::{Inventory, InventoryDisk};
use std::collections::BTreeSet;

/// Returns a problem for each disk that would be wiped and is not blank, unless a marker of this machine records the
/// disk: the record proves that the disk belongs to the machine. The marker proves nothing about other disks.
///
/// If an attempt was started, that attempt has passed this check, and [`super::installation_identity`] checks its
/// disks.
pub(crate) fn refuse_wiping(request: &PlanRequest, inventory: &Inventory, disks: &[DiskPlan]) -> Vec<Diagnostic> {
    let Some(why) = &request.assigned.allocation.blank_only else { return Vec::new() };
    let claim = request.claim.as_ref();
    let has_begun = claim.is_some_and(|claim| claim.waiver == Some(MarkerWaiver::Begun) || !claim.begun_on.is_empty());
    if has_begun {
        return Vec::new();
    }
    let markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let own = markers.filter(|marker| claim.is_some_and(|claim| claim.is_of_this_machine(marker)));
    let own: Vec<(&[RecordedDisk], DiskRecords)> = own
        .map(|marker| (marker.disks.as_slice(), DiskRecords::new(inventory, &marker.disks, &[], BTreeSet::new())))
        .collect();
    let is_recorded = |disk: &InventoryDisk| {
        own.iter().any(|(records, known)| records.iter().any(|record| known.is_recorded_disk(record, disk)))
    };
    let is_permitted = |disk: &InventoryDisk| is_blank(disk) || is_recorded(disk);
    let wiped = disks.iter().filter(|disk| disk.verdict.is_written());
    let written =
        wiped.filter(|disk| !inventory.disks.iter().any(|found| found.name == disk.name && is_permitted(found)));
    written
        .map(|disk| {
            let text = format!(
                "{disk} is not blank ({contents}) and will not be erased: {why}",
                disk = disk.device,
                contents = disk.now
            );
            Diagnostic::new("blank_only", text).with_code(ErrorCode::DiskNotBlank)
        })
        .collect()
}

fn is_blank(disk: &InventoryDisk) -> bool {
    let is_clean = disk.signatures.is_empty() && disk.uses.is_empty() && disk.table.is_none();
    disk.blank && is_clean && disk.unreadable.is_none()
}
