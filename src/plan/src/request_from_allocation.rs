//! Builds the request for a plan from the allocation that the control plane sends. The module is used by the agent and
//! for offline plans.

pub mod preview;

use crate::{InstallClaim, InstallMode, MarkerWaiver, PlanRequest, PlanSubject};
use common::format;
use model::allocation::{Allocation, AssignedMachine, OrderedReinstall, RecordSource};
use model::deploy_steps::StepList;
use model::install_marker::{AttemptRecord, InstallMarker, RecordedDisk, lineage};
use model::inventory::Inventory;
use model::layout::Layout;
use operations::PlanAssignment;

/// Returns the request for a plan of the machine with this id. `consoles` contains the consoles on the machine's kernel
/// command line.
pub fn build_request(machine: &AssignedMachine, id: &str, allocation: &Allocation, consoles: &[String]) -> PlanRequest {
    let subject = PlanSubject {
        machine: id.to_owned(),
        name: machine.name.clone(),
        image: allocation.image.id.clone(),
        url: format::without_secrets(&allocation.image.url),
    };
    let claim = InstallClaim {
        machine: id.to_owned(),
        allocation: allocation.id.clone(),
        order: allocation.order_id().map(str::to_owned),
        fencing: allocation.fencing.clone(),
        confirmed: allocation.order.as_ref().is_some_and(|order| order.confirmed),
        replace_newer: allocation.order.as_ref().is_some_and(|order| order.replace_newer),
        installed: allocation.installed.clone(),
        succeeded: allocation.succeeded,
        former_machines: allocation.former_machines.clone(),
        waiver: allocation.order.as_ref().and_then(marker_waiver),
        begun_on: started_disks(allocation),
        attempt: started_attempt(allocation),
        change_promise: allocation.order.as_ref().is_some_and(|order| order.change_promise),
        give_up: discarded_disks(allocation),
        memory: if allocation.unremembered { RecordSource::DisksOnly } else { RecordSource::ControlPlane },
    };
    let mode = if allocation.reinstall { InstallMode::Reinstall } else { InstallMode::Install };
    let assigned = PlanAssignment { allocation: allocation.clone(), consoles: consoles.to_vec() };
    PlanRequest { mode, steps: select_steps(allocation), subject, assigned, claim: Some(claim) }
}

/// Returns the steps of the merged templates. Without templates, returns the default steps with the erase method of the
/// allocation.
fn select_steps(allocation: &Allocation) -> StepList {
    match allocation.steps.is_empty() {
        true => StepList::with_erase_mode(allocation.erase),
        false => StepList::from_received(&allocation.steps),
    }
}

/// Returns the disks of the last attempt that passed the point of no return. The attempt was a reinstall or a first
/// installation.
fn started_disks(allocation: &Allocation) -> Vec<RecordedDisk> {
    match &allocation.order {
        Some(order) if order.started => order.disks.clone(),
        Some(_) => Vec::new(),
        None => allocation.begun_on.clone(),
    }
}

/// Returns the record of the last attempt that passed the point of no return.
fn started_attempt(allocation: &Allocation) -> Option<AttemptRecord> {
    match &allocation.order {
        Some(order) if order.started => order.attempt_record.clone(),
        Some(_) => None,
        None => allocation.attempt_record.clone(),
    }
}

/// Returns the disks whose data the operator discards. For a reinstall, these are the disks in the reinstall order.
/// `give_up` in the machine file applies only to first installations: the entry remains in the file, and would
/// otherwise also discard data in later reinstalls.
fn discarded_disks(allocation: &Allocation) -> Vec<String> {
    match (&allocation.order, allocation.reinstall) {
        (Some(order), _) => order.give_up.clone(),
        (None, true) => Vec::new(),
        (None, false) => allocation.give_up.clone(),
    }
}

/// If the old installation is still complete, clears `started` in the order and returns true. In that case, an earlier
/// attempt has announced its start, but has not received the response, and therefore has not written anything.
pub fn clear_begun_if_intact(
    machine: &str,
    allocation: &mut Allocation,
    layout: &Layout,
    inventory: &Inventory,
) -> bool {
    let (machine, id) = (machine.to_owned(), allocation.id.clone());
    let former_machines = allocation.former_machines.clone();
    let order_id = allocation.order_id().map(str::to_owned);
    let Some(order) = allocation.order.as_mut().filter(|order| order.started) else { return false };
    let claim = InstallClaim { machine, former_machines, allocation: id, order: order_id, ..InstallClaim::default() };
    let is_whole = crate::is_intact(layout, inventory, &claim);
    order.started &= !is_whole;
    is_whole
}

/// Returns the reason why the plan may proceed without the marker. A started attempt takes precedence over the
/// operator's waiver: the operator waived the marker before the attempt changed the disks.
pub fn marker_waiver(order: &OrderedReinstall) -> Option<MarkerWaiver> {
    match order {
        OrderedReinstall { started: true, .. } => Some(MarkerWaiver::Begun),
        OrderedReinstall { without_marker: true, .. } => Some(MarkerWaiver::Operator),
        _ => None,
    }
}

/// Returns a marker of this allocation on the disks, if no installation of the allocation was reported to the control
/// plane. In that case, either the control plane has lost its record of the installation, or an earlier owner of the
/// disk has forged the marker; only the operator can decide which of the two is the case. If there are several markers,
/// returns the newest one, or the first one if none is proven to be the newest.
pub fn find_untrusted_marker<'a>(request: &PlanRequest, inventory: &'a Inventory) -> Option<&'a InstallMarker> {
    // A migration target is excluded, because the received system contains the marker of the source machine.
    let is_first = request.mode == InstallMode::Install && request.receiving().is_none();
    let claim = request.claim.as_ref().filter(|claim| is_first && !claim.is_installed())?;
    let markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let markers: Vec<&InstallMarker> = markers.filter(|marker| claim.is_ours(marker)).collect();
    markers.get(lineage::find_newest(&markers).unwrap_or_default()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::FilesystemContents;

    #[test]
    fn untrusted_marker_belongs_to_the_requested_allocation() {
        let marker = |machine: &str, allocation: &str, time: &str| FilesystemContents {
            marker: Some(InstallMarker {
                machine: machine.into(),
                allocation: allocation.into(),
                time: time.into(),
                ..InstallMarker::default()
            }),
            ..FilesystemContents::default()
        };
        let filesystems = vec![
            FilesystemContents::default(),
            marker("m", "a", "2026-01-02"),
            marker("m", "a", "2026-01-01"),
            marker("m", "b", "2026-01-03"),
            marker("n", "a", "2026-01-04"),
        ];
        let inventory = Inventory { filesystems, ..Inventory::default() };
        let found = |allocation: Allocation| {
            let request = build_request(&AssignedMachine::default(), "m", &allocation, &[]);
            find_untrusted_marker(&request, &inventory).map(|marker| marker.time.clone())
        };
        let waits = Allocation { id: "a".into(), ..Allocation::default() };
        assert_eq!(found(waits.clone()).as_deref(), Some("2026-01-02"));
        assert_eq!(found(Allocation { succeeded: true, ..waits.clone() }), None);
        assert_eq!(found(Allocation { reinstall: true, ..waits.clone() }), None);
        assert_eq!(found(Allocation { id: "c".into(), ..waits }), None);
    }
}
