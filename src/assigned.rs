//! The request for a plan, from the allocation of the control plane; used by the agent and for offline plans.

#[cfg(any(feature = "desk", feature = "serve"))]
pub mod preview;

use crate::allocation::{Allocation, Machine, Order};
use crate::inventory::Inventory;
use crate::layout::Layout;
use crate::marker::{AttemptRecord, MarkedDisk};
#[cfg(feature = "agent")]
use crate::marker::{Marker, lineage};
use crate::plan::{self, Assigned, Claim, Memory, Mode, Request, Subject, Waiver};
use crate::steps::Steps;
use crate::text;

/// Returns the request for a plan of the machine with this id. `consoles` are those on its kernel command line.
pub fn request(machine: &Machine, id: &str, allocation: &Allocation, consoles: &[String]) -> Request {
    let subject = Subject {
        machine: id.to_owned(),
        name: machine.name.clone(),
        image: allocation.image.id.clone(),
        url: text::without_secrets(&allocation.image.url),
    };
    let claim = Claim {
        machine: id.to_owned(),
        allocation: allocation.id.clone(),
        order: allocation.order_id().map(str::to_owned),
        fencing: allocation.fencing.clone(),
        confirmed: allocation.order.as_ref().is_some_and(|order| order.confirmed),
        replace_newer: allocation.order.as_ref().is_some_and(|order| order.replace_newer),
        installed: allocation.installed.clone(),
        succeeded: allocation.succeeded,
        former_machines: allocation.former_machines.clone(),
        waiver: allocation.order.as_ref().and_then(waiver),
        begun_on: begun_on(allocation),
        attempt: attempt(allocation),
        change_promise: allocation.order.as_ref().is_some_and(|order| order.change_promise),
        give_up: give_up(allocation),
        memory: if allocation.unremembered { Memory::DisksOnly } else { Memory::ControlPlane },
    };
    let mode = if allocation.reinstall { Mode::Reinstall } else { Mode::Install };
    let assigned = Assigned { allocation: allocation.clone(), consoles: consoles.to_vec() };
    Request { mode, steps: steps(allocation), subject, assigned, claim: Some(claim) }
}

/// Returns the steps of the merged templates, which include the erase method; without templates, the default steps.
fn steps(allocation: &Allocation) -> Steps {
    match allocation.steps.is_empty() {
        true => Steps::erasing(allocation.erase),
        false => Steps::told(&allocation.steps),
    }
}

/// Returns the disks of the last attempt that passed the point of no return, whether reinstall or first installation.
fn begun_on(allocation: &Allocation) -> Vec<MarkedDisk> {
    match &allocation.order {
        Some(order) if order.begun => order.disks.clone(),
        Some(_) => Vec::new(),
        None => allocation.begun_on.clone(),
    }
}

/// Returns the record of that attempt.
fn attempt(allocation: &Allocation) -> Option<AttemptRecord> {
    match &allocation.order {
        Some(order) if order.begun => order.attempt_record.clone(),
        Some(_) => None,
        None => allocation.attempt_record.clone(),
    }
}

/// Returns the disks whose data the operator discards. Those in the machine's file do not apply to reinstalls, because the file is
/// permanent.
fn give_up(allocation: &Allocation) -> Vec<String> {
    match (&allocation.order, allocation.reinstall) {
        (Some(order), _) => order.give_up.clone(),
        (None, true) => Vec::new(),
        (None, false) => allocation.give_up.clone(),
    }
}

/// Clears `begun` and returns true if the old installation is still complete. An earlier attempt has announced its start, but may not have
/// received the response: then it has written nothing.
pub fn correct_begun(machine: &str, allocation: &mut Allocation, layout: &Layout, inventory: &Inventory) -> bool {
    let (machine, id) = (machine.to_owned(), allocation.id.clone());
    let former_machines = allocation.former_machines.clone();
    let order_id = allocation.order_id().map(str::to_owned);
    let Some(order) = allocation.order.as_mut().filter(|order| order.begun) else { return false };
    let claim = Claim { machine, former_machines, allocation: id, order: order_id, ..Claim::default() };
    let is_whole = plan::is_whole(layout, inventory, &claim);
    order.begun &= !is_whole;
    is_whole
}

/// Returns why the plan may proceed without the marker. A started attempt takes precedence, because the operator has not seen its results.
pub fn waiver(order: &Order) -> Option<Waiver> {
    match order {
        Order { begun: true, .. } => Some(Waiver::Begun),
        Order { without_marker: true, .. } => Some(Waiver::Operator),
        _ => None,
    }
}

/// Returns a marker of this very allocation if the control plane does not know of the installation: the newest one, if that is proven.
/// Either the control plane has lost its record, or an earlier owner of the disk has written the marker. Only an operator can decide which.
#[cfg(feature = "agent")]
pub fn unbelieved<'a>(request: &Request, inventory: &'a Inventory) -> Option<&'a Marker> {
    // A received system contains the marker of the source machine.
    let is_first = request.mode == Mode::Install && request.receiving().is_none();
    let claim = request.claim.as_ref().filter(|claim| is_first && !claim.is_installed())?;
    let markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let markers: Vec<&Marker> = markers.filter(|marker| claim.is_ours(marker)).collect();
    markers.get(lineage::find_newest(&markers).unwrap_or_default()).copied()
}

#[cfg(all(test, feature = "agent"))]
mod tests {
    use super::*;
    use crate::inventory::Filesystem;

    #[test]
    fn a_marker_that_is_not_believed_is_one_of_this_very_allocation() {
        let marker = |machine: &str, allocation: &str, time: &str| Filesystem {
            marker: Some(Marker {
                machine: machine.into(),
                allocation: allocation.into(),
                time: time.into(),
                ..Marker::default()
            }),
            ..Filesystem::default()
        };
        let filesystems = vec![
            Filesystem::default(),
            marker("m", "a", "2026-01-02"),
            marker("m", "a", "2026-01-01"),
            marker("m", "b", "2026-01-03"),
            marker("n", "a", "2026-01-04"),
        ];
        let inventory = Inventory { filesystems, ..Inventory::default() };
        let found = |allocation: Allocation| {
            let request = request(&Machine::default(), "m", &allocation, &[]);
            unbelieved(&request, &inventory).map(|marker| marker.time.clone())
        };
        let waits = Allocation { id: "a".into(), ..Allocation::default() };
        assert_eq!(found(waits.clone()).as_deref(), Some("2026-01-02"));
        assert_eq!(found(Allocation { succeeded: true, ..waits.clone() }), None);
        assert_eq!(found(Allocation { reinstall: true, ..waits.clone() }), None);
        assert_eq!(found(Allocation { id: "c".into(), ..waits }), None);
    }
}
