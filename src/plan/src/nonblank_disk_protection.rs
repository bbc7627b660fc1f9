//! Protection if it is uncertain whether the machine is the one that its machine file describes: only blank disks are
//! erased.

use super::{DiskPlan, MarkerWaiver, PlanRequest};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::inventory::{Inventory, InventoryDisk};

/// Returns a problem for each disk that would be wiped and is not blank.
///
/// The check is omitted in two cases. A marker of this machine on the disks proves that they belong to the machine. If
/// an attempt was started, that attempt has passed this check, and [`super::installation_identity`] checks its disks.
pub(crate) fn refuse_wiping(request: &PlanRequest, inventory: &Inventory, disks: &[DiskPlan]) -> Vec<Diagnostic> {
    let Some(why) = &request.assigned.allocation.blank_only else { return Vec::new() };
    let claim = request.claim.as_ref();
    let has_begun = claim.is_some_and(|claim| claim.waiver == Some(MarkerWaiver::Begun) || !claim.begun_on.is_empty());
    let mut markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let is_marked = claim.is_some_and(|claim| markers.any(|marker| claim.is_of_this_machine(marker)));
    if has_begun || is_marked {
        return Vec::new();
    }
    let wiped = disks.iter().filter(|disk| disk.verdict.is_written());
    let written = wiped.filter(|disk| !inventory.disks.iter().any(|found| found.name == disk.name && is_blank(found)));
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
