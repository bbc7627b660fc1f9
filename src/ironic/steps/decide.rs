//! Decision between installation and reinstall.

use super::super::order::{self, Wish};
use super::refused;
use crate::allocation::{Allocation, Machine};
use crate::assigned;
use crate::error::Result;
use crate::inventory::Inventory;
use crate::layout::Layout;
use crate::marker::{Marker, lineage};
use crate::ready::remembered;

/// Decides between installation and reinstall. The newest marker of this node specifies the installation to reinstall. Refuses to erase
/// disks that the layout preserves unless this was requested.
pub fn decide(
    machine: &str,
    wish: Wish,
    layout: &Layout,
    inventory: &Inventory,
    allocation: &mut Allocation,
) -> Result<()> {
    let markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let ours: Vec<&Marker> = markers.filter(|marker| marker.machine == machine).collect();
    let newest = lineage::find_newest(&ours).map(|newest| ours[newest]);
    let keeps =
        layout.disks.iter().any(|disk| !disk.wipeonreinstall) && layout.disks.iter().any(|disk| disk.wipeonreinstall);
    match (wish, ours.first().copied()) {
        (Wish::Reinstall { .. }, Some(_)) if newest.is_none() => {
            let found: Vec<&str> = ours.iter().map(|marker| marker.image.as_str()).collect();
            let message = format!(
                "the disks contain several installations of this node ({}), and none lists the others as replaced; erase those that are \
                 not needed",
                found.join(", ")
            );
            Err(refused(&message))
        }
        (Wish::Reinstall { without_marker }, _) => {
            let marked = newest.map_or_else(|| allocation.id.clone(), |marker| marker.allocation.clone());
            order::reinstall(allocation, marked, without_marker);
            Ok(())
        }
        (Wish::Unsaid, Some(marker)) if keeps => {
            let message = format!(
                "an installation of this node is on its disks ({}, {}), and the layout preserves disks; use mode: reinstall to preserve \
                 them, or mode: install to erase them",
                marker.image, marker.time
            );
            Err(refused(&message))
        }
        (Wish::Unsaid, _) => {
            let request = assigned::request(&Machine::default(), machine, allocation, &[]);
            remembered::nothing_is_orphaned(layout, inventory, &request)
        }
        (Wish::Install, _) => Ok(()),
    }
}
