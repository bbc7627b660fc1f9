//! Is the installation whole that a reinstall is to renew, although an earlier attempt was announced? Its agent may never
//! have heard the answer.

use super::Claim;
use crate::inventory::{self, Inventory};
use crate::layout::{self, Layout};
use crate::marker::Marker;
use crate::topology::{Match, Stack};

/// | found | |
/// |---|---|
/// | the marker of this installation on the disks of `/`, and every disk that is to be wiped begins as the layout says, with the table that the marker names | whole |
/// | anything else, or a disk of which nobody can tell | perhaps not |
///
/// A disk's beginning goes first when it is wiped, and all disks are wiped before the first one gets something new. The old
/// content of a mirror shines through the one that takes its place, marker and all, but the table below it is another one.
/// With the marker of this very order the installation is not the old one.
pub fn is_whole(layout: &Layout, inventory: &Inventory, claim: &Claim) -> bool {
    let meant = Match::new(layout, inventory);
    let Some(marker) = marker_of(&meant, inventory, claim) else { return false };
    let mut wiped = layout.disks.iter().enumerate().filter(|(_, listed)| listed.wipeonreinstall);
    wiped.all(|(index, listed)| {
        meant.disk(index).is_some_and(|found| begins_as(listed, found) && has_its_table(listed, found, marker))
    })
}

fn marker_of<'a>(meant: &Match, inventory: &'a Inventory, claim: &Claim) -> Option<&'a Marker> {
    let root = meant.root_disks();
    let stack = Stack::new(inventory);
    let mut marked = inventory.filesystems.iter().filter_map(|is| Some((&is.device, is.marker.as_ref()?)));
    let ours = marked.find(|(device, marker)| {
        let disks = stack.disks(&stack.name(device));
        claim.is_ours(marker) && marker.order != claim.order && !disks.is_empty() && disks.is_subset(&root)
    });
    ours.map(|(_, marker)| marker)
}

/// The GPT that was there when the marker was written. A marker of before this was recorded says nothing.
fn has_its_table(listed: &layout::Disk, found: &inventory::Disk, marker: &Marker) -> bool {
    let recorded = marker.disks.iter().find(|disk| disk.device == listed.device);
    let recorded = recorded.map(|disk| disk.guid.as_str()).unwrap_or_default();
    let is = found.table.as_ref().and_then(|table| table.guid).map(|guid| guid.to_string()).unwrap_or_default();
    is == recorded && (listed.partitions.is_empty() || !is.is_empty())
}

/// Superblocks of arrays may be at the end.
fn begins_as(listed: &layout::Disk, found: &inventory::Disk) -> bool {
    if listed.partitions.is_empty() {
        return found.table.is_some() || found.signatures.iter().any(|is| is.kind != "linux_raid_member");
    }
    let there: Vec<u32> = found.table.iter().flat_map(|table| &table.partitions).map(|is| is.number).collect();
    listed.partitions.iter().all(|partition| there.contains(&partition.number))
}
