//! Decision between installation and reinstall.

use super::super::deploy_args::RequestedMode;
use super::step_refusal;
use crate::preflight::state_from_markers;
use common::error::Result;
use model::allocation::{Allocation, AssignedMachine, OrderedReinstall};
use model::install_marker::{InstallMarker, lineage};
use model::inventory::Inventory;
use model::layout::Layout;
use plan::{has_preserved_objects, request_from_allocation};

/// Decides between installation and reinstall. A reinstall replaces the installation that has the newest marker of this
/// node. Unless an installation was requested explicitly, fails if data that the layout preserves would be erased.
pub(crate) fn decide_install_mode(
    machine: &str,
    wish: RequestedMode,
    layout: &Layout,
    inventory: &Inventory,
    allocation: &mut Allocation,
) -> Result<()> {
    let markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let ours: Vec<&InstallMarker> = markers.filter(|marker| marker.machine == machine).collect();
    let newest = lineage::find_newest(&ours).map(|newest| ours[newest]);
    match (wish, ours.first().copied()) {
        (RequestedMode::Reinstall { .. }, Some(_)) if newest.is_none() => {
            let found: Vec<&str> = ours.iter().map(|marker| marker.image.as_str()).collect();
            let message = format!(
                "the disks contain several installations of this node ({}), and it is unknown which one is the newest; erase the \
                 installations that are not needed",
                found.join(", ")
            );
            Err(step_refusal(&message))
        }
        (RequestedMode::Reinstall { without_marker, leave_locked }, _) => {
            let marked = newest.map_or_else(|| allocation.id.clone(), |marker| marker.allocation.clone());
            let overrides = OrderedReinstall { without_marker, leave_locked, ..OrderedReinstall::default() };
            make_reinstall(allocation, marked, overrides);
            Ok(())
        }
        (RequestedMode::Unspecified, Some(marker)) if preserves_data(layout) => {
            let message = format!(
                "the disks contain an installation of this node ({}, {}), and the layout preserves disks or objects on them; use \
                 `mode: reinstall` to preserve them, or `mode: install` to erase them",
                marker.image, marker.time
            );
            Err(step_refusal(&message))
        }
        (RequestedMode::Unspecified, _) => {
            let request = request_from_allocation::build_request(&AssignedMachine::default(), machine, allocation, &[]);
            state_from_markers::refuse_orphaning(layout, inventory, &request)
        }
        (RequestedMode::Install, _) => Ok(()),
    }
}

/// Returns whether a reinstall with this layout preserves a disk, or an object on a disk that is otherwise wiped.
fn preserves_data(layout: &Layout) -> bool {
    let is_disk_wiped = |wiped: bool| layout.disks.iter().any(|disk| disk.wipeonreinstall == wiped);
    has_preserved_objects(layout) || (is_disk_wiped(true) && is_disk_wiped(false))
}

/// Converts the allocation to a reinstall of the installation whose marker is on the disks. `overrides` contains the
/// overrides that the operator has specified.
fn make_reinstall(allocation: &mut Allocation, marked: String, overrides: OrderedReinstall) {
    let id = std::mem::replace(&mut allocation.id, marked);
    allocation.reinstall = true;
    allocation.order = Some(OrderedReinstall { id, attempt: 1, attempts: 1, ..overrides });
}
