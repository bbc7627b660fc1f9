//! Is the installation still whole that a reinstall is to renew? An earlier attempt has announced that it begins to
//! destroy, but perhaps it never heard the answer.

use super::marking::table_guid;
use super::stack::Stack;
use super::{Claim, find};
use crate::inventory::{self, Inventory};
use crate::layout::{self, Layout};
use crate::marker::Marker;
use std::collections::BTreeSet;

/// | found | |
/// |---|---|
/// | the marker of this installation on the disks of `/`, and every disk that is to be wiped begins as the layout says, with the table that the marker names | whole |
/// | anything else, or a disk of which nobody can tell | perhaps not |
///
/// A wipe destroys the beginning of a disk first, and all disks are wiped before one of them gets anything new. So
/// where every disk still begins as it should, no wipe had begun. The marker alone proves nothing: a new mirror shows
/// the content of the old one, with its marker. But the table below the new mirror is another one. And with the marker
/// of this very order, the installation is not the old one.
pub fn is_whole(layout: &Layout, inventory: &Inventory, claim: &Claim) -> bool {
    let Some(marker) = marker_of(layout, inventory, claim) else { return false };
    let mut wiped = layout.disks.iter().filter(|listed| listed.wipeonreinstall);
    wiped.all(|listed| {
        let found = find::disk(listed, inventory);
        found.is_ok_and(|found| begins_as(listed, found) && has_its_table(listed, found, marker))
    })
}

fn marker_of<'a>(layout: &Layout, inventory: &'a Inventory, claim: &Claim) -> Option<&'a Marker> {
    let root = layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/"));
    let below = root.map(|root| layout.below([root.device.as_str()]).disks).unwrap_or_default();
    let below = below.iter().filter_map(|index| find::disk(&layout.disks[*index], inventory).ok());
    let root: BTreeSet<String> = below.map(|disk| disk.name.clone()).collect();
    let stack = Stack::new(inventory);
    let mut marked = inventory.filesystems.iter().filter_map(|is| Some((&is.device, is.marker.as_ref()?)));
    let ours = marked.find(|(device, marker)| {
        let disks = stack.disks(stack.name(device));
        claim.is_ours(marker) && marker.order != claim.order && !disks.is_empty() && disks.is_subset(&root)
    });
    ours.map(|(_, marker)| marker)
}

/// Is this the GPT that was there when the marker was written? An older marker does not name the GPT, and proves
/// nothing.
fn has_its_table(listed: &layout::Disk, found: &inventory::Disk, marker: &Marker) -> bool {
    let recorded = marker.disks.iter().find(|disk| disk.device == listed.device);
    let (recorded, is) = (recorded.and_then(|disk| disk.guid.as_ref()), table_guid(found));
    is.as_ref() == recorded && (listed.partitions.is_empty() || is.is_some())
}

/// The superblock of an array proves nothing about the beginning: it may be at the end.
fn begins_as(listed: &layout::Disk, found: &inventory::Disk) -> bool {
    if listed.partitions.is_empty() {
        return found.table.is_some() || found.signatures.iter().any(|is| is.kind != "linux_raid_member");
    }
    let there: Vec<u32> = found.table.iter().flat_map(|table| &table.partitions).map(|is| is.number).collect();
    listed.partitions.iter().all(|partition| there.contains(&partition.number))
}
