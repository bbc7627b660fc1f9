//! Is the installation whole that a reinstall is to renew, although an earlier attempt was announced? Its agent may never
//! have heard the answer.

use super::stack::Stack;
use super::{Claim, find};
use crate::inventory::{self, Inventory};
use crate::layout::{self, Layout};
use std::collections::BTreeSet;

/// | found | |
/// |---|---|
/// | the marker of this installation on the disks of `/`, and every disk that is to be wiped begins as the layout says | whole |
/// | anything else, or a disk of which nobody can tell | perhaps not |
///
/// A disk's beginning goes first when it is wiped, and all disks are wiped before the first one gets something new. With the
/// marker of this very order the installation is not the old one.
pub fn is_whole(layout: &Layout, inventory: &Inventory, claim: &Claim) -> bool {
    let find = |listed: &layout::Disk| find::disk(listed, inventory).ok();
    let wiped = layout.disks.iter().filter(|listed| listed.wipeonreinstall);
    wiped.clone().all(|listed| find(listed).is_some_and(|found| begins_as(listed, found)))
        && is_marked(layout, inventory, claim)
}

fn is_marked(layout: &Layout, inventory: &Inventory, claim: &Claim) -> bool {
    let root = layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/"));
    let below = root.map(|root| layout.below([root.device.as_str()]).disks).unwrap_or_default();
    let below = below.iter().filter_map(|index| find::disk(&layout.disks[*index], inventory).ok());
    let root: BTreeSet<String> = below.map(|disk| disk.name.clone()).collect();
    let stack = Stack::new(inventory);
    let mut marked = inventory.filesystems.iter().filter_map(|is| Some((&is.device, is.marker.as_ref()?)));
    marked.any(|(device, marker)| {
        let disks = stack.disks(stack.name(device));
        let is_ours = marker.machine == claim.machine && marker.allocation == claim.allocation;
        is_ours && marker.order != claim.order && !disks.is_empty() && disks.is_subset(&root)
    })
}

/// Superblocks of arrays may be at the end.
fn begins_as(listed: &layout::Disk, found: &inventory::Disk) -> bool {
    if listed.partitions.is_empty() {
        return found.table.is_some() || found.signatures.iter().any(|is| is.kind != "linux_raid_member");
    }
    let there: Vec<u32> = found.table.iter().flat_map(|table| &table.partitions).map(|is| is.number).collect();
    listed.partitions.iter().all(|partition| there.contains(&partition.number))
}
