//! Turns what the control plane has assigned into the request for a plan, for the agent or on a desk.

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

/// The request for a plan of the machine with this id. `consoles` are those of its kernel command line.
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

/// The merged list of templates, where there are any, has its word about erasing in it.
fn steps(allocation: &Allocation) -> Steps {
    match allocation.steps.is_empty() {
        true => Steps::erasing(allocation.erase),
        false => Steps::told(&allocation.steps),
    }
}

/// The disks of the last attempt that has passed the point of no return, be it a reinstall or the first installation.
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

/// Returns the disks whose data the operator gives up. Those of a machine's file do not apply to reinstalls, because the file stays.
fn give_up(allocation: &Allocation) -> Vec<String> {
    match (&allocation.order, allocation.reinstall) {
        (Some(order), _) => order.give_up.clone(),
        (None, true) => Vec::new(),
        (None, false) => allocation.give_up.clone(),
    }
}

/// Clears `begun` where the old installation is still whole, and returns true then. An earlier attempt has announced that it
/// begins, but perhaps never received the answer: then it has written nothing.
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

/// Why the plan may do without the marker. A begun attempt comes first: the operator has not seen what it left.
pub fn waiver(order: &Order) -> Option<Waiver> {
    match order {
        Order { begun: true, .. } => Some(Waiver::Begun),
        Order { without_marker: true, .. } => Some(Waiver::Operator),
        _ => None,
    }
}

/// Returns a marker of this very allocation, the newest if that is proven, if the control plane does not know the installation. Either the control plane
/// has forgotten it, or an earlier owner of the disk has written the marker. Only an operator can tell which.
#[cfg(feature = "agent")]
pub fn unbelieved<'a>(request: &Request, inventory: &'a Inventory) -> Option<&'a Marker> {
    // What is received brings the marker of the machine that sends it.
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
