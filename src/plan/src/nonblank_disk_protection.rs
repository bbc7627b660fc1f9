//! Protection if it is uncertain whether the machine is the one that its machine file describes: only blank disks are
//! erased.

use super::installed_disk_identity::DiskRecords;
use super::{DiskPlan, PlanRequest};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::install_marker::RecordedDisk;
use model::inventory::{Inventory, InventoryDisk};
use std::collections::BTreeSet;

/// Returns a problem for each disk that would be wiped and is neither blank nor proven to belong to the machine.
///
/// | the disk that would be wiped | result |
/// |---|---|
/// | is blank | permitted: [`super::zero_proofs`] decides whether the disk is read completely |
/// | is proven to be a disk in a marker of this machine | permitted: the disk belongs to the machine |
/// | is proven to be a disk on which an attempt was started | permitted: that attempt has passed this check |
/// | is any other disk, even one that looks like the disk of an attempt and is in the same slot | refused |
pub(crate) fn refuse_wiping(request: &PlanRequest, inventory: &Inventory, disks: &[DiskPlan]) -> Vec<Diagnostic> {
    let Some(why) = &request.assigned.allocation.blank_only else { return Vec::new() };
    let claim = request.claim.as_ref();
    let markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let own = markers.filter(|marker| claim.is_some_and(|claim| claim.is_of_this_machine(marker)));
    let own = own.map(|marker| {
        let disks = marker.disks.as_slice();
        (disks, DiskRecords::new(inventory, disks, &[], BTreeSet::new()))
    });
    let started = claim.map(|claim| {
        let disks = claim.begun_on.as_slice();
        (disks, DiskRecords::new(inventory, &[], disks, BTreeSet::new()))
    });
    let own: Vec<(&[RecordedDisk], DiskRecords)> = own.chain(started).collect();
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
