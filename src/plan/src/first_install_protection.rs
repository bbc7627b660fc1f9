//! Protection of preserved data against a first installation, which erases every listed disk.
//!
//! The control plane may request a first installation although the disks contain data that the layout preserves. This
//! happens if another installer has installed the machine and the machine was not adopted, if the records of the
//! control plane were lost together with the disk that contains the marker, or if the disks belong to another machine.

use super::{DiskPlan, DiskVerdict, InstallClaim, InstallMode, MarkerWaiver, ObjectFate, PlanRequest};
use crate::request_from_allocation::preview::placeholder_uuids;
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::allocation::RecordSource;
use model::device_name::DevicePath;
use model::inventory::{Inventory, InventoryDisk, UniqueIdentifiers};
use model::layout::Layout;

/// Data that a first installation would erase, and that a reinstall with the same layout would preserve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndangeredData {
    /// Disks that contain the data.
    pub disks: Vec<DevicePath>,
    /// First reason why the reinstall would be refused; `None` if it would be possible.
    pub refusal: Option<Diagnostic>,
    /// True if the disks contain an array, group, volume or filesystem that matches the layout, even if it is damaged or
    /// cannot be used at present.
    pub matches_layout: bool,
}

/// Returns the data that a first installation would erase, and that a reinstall with the same layout would preserve.
/// Returns `None` in the cases in which the erasure is intended: the disks have a marker of this machine, the
/// layout does not support reinstalls, an earlier attempt was started, or the operator discards the disks.
pub fn find_endangered_data(layout: &Layout, inventory: &Inventory, request: &PlanRequest) -> Option<EndangeredData> {
    let claim = request.claim.as_ref().filter(|claim| is_first_install(request, claim))?;
    let mut markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let supports_reinstall = layout.disks.iter().any(|disk| disk.wipeonreinstall);
    if !supports_reinstall || markers.any(|marker| claim.is_of_this_machine(marker)) {
        return None;
    }
    let reinstall = reinstall_request(request, claim);
    let (disks, refusal, matches_layout) =
        match crate::make_plan(layout, inventory, reinstall, &mut placeholder_uuids()) {
            Ok(plan) => {
                let objects = plan.verdicts.map(|verdicts| verdicts.things).unwrap_or_default();
                (plan.disks, None, objects.iter().any(|object| object.fate == ObjectFate::Kept))
            }
            Err(refusal) => {
                let matches_layout = refusal.problems.iter().any(is_about_matching_object);
                (refusal.disks, refusal.problems.into_iter().next(), matches_layout)
            }
        };
    let identifiers = UniqueIdentifiers::from_disks(&inventory.disks);
    let is_discarded = |disk: &InventoryDisk| claim.give_up.iter().any(|given| identifiers.is_named_by(disk, given));
    let holds_data = |planned: &DiskPlan| {
        let mut found = inventory.disks.iter().filter(|disk| disk.name == planned.name);
        found.any(|disk| has_contents(disk) && !is_discarded(disk))
    };
    let preserved =
        disks.into_iter().filter(|disk| matches!(disk.verdict, DiskVerdict::Keep | DiskVerdict::PartlyKept));
    let disks: Vec<DevicePath> = preserved.filter(holds_data).map(|disk| disk.device).collect();
    (!disks.is_empty()).then_some(EndangeredData { disks, refusal, matches_layout })
}

/// Returns whether the problem prevents the reinstall although it is about an object that matches the layout. Problems
/// about objects that differ from the layout have other codes. Problems about members of unknown arrays or groups have
/// the place `disks`, and do not count.
fn is_about_matching_object(problem: &Diagnostic) -> bool {
    match problem.code {
        Some(ErrorCode::PreservedUnusable | ErrorCode::DuplicateObject) => true,
        Some(ErrorCode::IncompleteObject) => problem.place != "disks",
        _ => false,
    }
}

/// Returns whether the control plane requests a first installation, and no earlier attempt has changed the disks.
/// Returns false for the target of a migration, because its disks are erased to receive the data of the source machine.
fn is_first_install(request: &PlanRequest, claim: &InstallClaim) -> bool {
    let has_begun = claim.waiver == Some(MarkerWaiver::Begun) || !claim.begun_on.is_empty();
    request.mode == InstallMode::Install && !claim.is_installed() && !has_begun && request.receiving().is_none()
}

/// Converts the request for a first installation into one for a reinstall, as if an operator had ordered the reinstall
/// and waived the marker.
fn reinstall_request(request: &PlanRequest, claim: &InstallClaim) -> PlanRequest {
    let mut reinstall = PlanRequest { mode: InstallMode::Reinstall, ..request.clone() };
    reinstall.claim = Some(InstallClaim {
        waiver: Some(MarkerWaiver::Operator),
        memory: RecordSource::ControlPlane,
        ..claim.clone()
    });
    // An approval refers to the first installation, not to this reinstall.
    reinstall.assigned.allocation.approved = None;
    reinstall
}

/// Refuses a first installation that would erase objects that match the layout and would be preserved by a reinstall. A
/// layout with `preserve` describes the data of an existing machine. With such a layout, objects that do not match the
/// layout, and therefore prevent the reinstall, are not erased either.
pub(crate) fn refuse_erasing_data(layout: &Layout, inventory: &Inventory, request: &PlanRequest) -> Option<Diagnostic> {
    let found = find_endangered_data(layout, inventory, request)?;
    let is_refused = found.refusal.is_some() && has_preserved_objects(layout);
    if !found.matches_layout && !is_refused {
        return None;
    }
    let (is, contains) = if found.disks.len() == 1 { ("is", "contains") } else { ("are", "contain") };
    let (state, first) = match &found.refusal {
        None => ("the data that the layout preserves".to_owned(), ""),
        Some(problem) => (
            format!("data. A reinstall would also be refused at present: {problem}"),
            "first correct this problem, then ",
        ),
    };
    let message = format!(
        "a first installation would erase {disks}, which {is} preserved by this layout and already {contains} {state}. To \
         preserve the data, {first}record the machine as installed (drophammer machine adopt {machine}), and order a reinstall with \
         --without-marker. If the data is not needed, list the serial numbers of these disks in give_up of the \
         allocation, or run wipefs -a on the disks in the rescue shell",
        disks = found.disks.join(", "),
        machine = request.subject.machine
    );
    Some(Diagnostic::new("disks", message).with_code(ErrorCode::PreservedDataLoss))
}

fn has_preserved_objects(layout: &Layout) -> bool {
    layout.disks.iter().flat_map(|disk| &disk.partitions).any(|partition| partition.preserve)
        || layout.raid.iter().any(|array| array.preserve)
        || layout.volumegroups.iter().any(|group| !group.preserve.is_none())
        || layout.logicalvolumes.iter().any(|volume| volume.preserve)
        || layout.filesystems.iter().any(|filesystem| filesystem.preserve)
}

/// Returns whether the disk has a partition table or a signature, is in use, or cannot be read. Other data is ignored,
/// because it remains on a disk even after `wipefs -a`.
pub fn has_contents(disk: &InventoryDisk) -> bool {
    disk.table.is_some() || !disk.signatures.is_empty() || !disk.uses.is_empty() || disk.unreadable.is_some()
}
