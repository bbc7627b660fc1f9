//! What an order means for what is on the disks.

use super::super::order::{self, Wish};
use super::refused;
use crate::allocation::{Allocation, Machine};
use crate::assigned;
use crate::error::Result;
use crate::inventory::Inventory;
use crate::layout::Layout;
use crate::marker::Marker;
use crate::ready::remembered;

/// Install or reinstall? The newest marker of this node says which installation a reinstall means. Where an installation would erase
/// what the layout keeps, and the order does not say that it shall, it is refused.
pub fn decide(
    machine: &str,
    wish: Wish,
    layout: &Layout,
    inventory: &Inventory,
    allocation: &mut Allocation,
) -> Result<()> {
    let markers = inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
    let ours = markers.filter(|marker| marker.machine == machine).max_by_key(|marker: &&Marker| &marker.time);
    let keeps =
        layout.disks.iter().any(|disk| !disk.wipeonreinstall) && layout.disks.iter().any(|disk| disk.wipeonreinstall);
    match (wish, ours) {
        (Wish::Reinstall { without_marker }, ours) => {
            let marked = ours.map_or_else(|| allocation.id.clone(), |marker| marker.allocation.clone());
            order::reinstall(allocation, marked, without_marker);
            Ok(())
        }
        (Wish::Unsaid, Some(marker)) if keeps => {
            let message = format!(
                "an installation of this node is on its disks ({}, {}), and the layout keeps disks: say mode: reinstall to keep \
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
