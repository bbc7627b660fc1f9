//! Checks whether an old installation is still complete after a failed attempt to replace it. Each attempt announces
//! its start to the control plane, and writes only after it has received the response. Therefore an announced attempt
//! need not have written anything.

use super::recorded_disk::table_guid;
use super::{InstallClaim, InstallMode, MarkerWaiver, PlanRequest};
use model::install_marker::attempt_proof::disks_with_new_tables;
use model::install_marker::{InstallMarker, RecordedDisk};
use model::inventory::{self, Inventory};
use model::layout::graph::LayoutGraph;
use model::layout::preserved_objects::PreservedObjects;
use model::layout::{self, Layout};
use model::storage_graph::{DeviceStack, LayoutMatch};

/// Returns whether the old installation is provably complete.
///
/// | found | the old installation is |
/// |---|---|
/// | the marker of this installation is on the disks of `/`, and each disk that will be wiped has the partitions of the layout and the table GUID of the marker | complete |
/// | any other state, or the state of a disk is unknown | possibly incomplete |
///
/// A wipe first destroys the start of a disk, and all disks are wiped before anything new is written to one of them.
/// Therefore, if the start of every disk is as expected, no wipe was started. The marker alone does not prove this: a
/// new mirror on the same partitions still contains the data of the old mirror, including its marker, although the
/// partition table has changed. A marker of the current reinstall order is ignored: it belongs to the new installation.
///
/// If the layout preserves a part of one of these disks, nothing is proven: the partition table of such a disk retains
/// its GUID, and may even remain unchanged, although the contents of the other partitions are destroyed.
pub(crate) fn is_intact(layout: &Layout, inventory: &Inventory, claim: &InstallClaim) -> bool {
    let meant = LayoutMatch::new(layout, inventory);
    let Some(marker) = find_own_marker(&meant, inventory, claim) else { return false };
    let graph = LayoutGraph::from_layout(layout);
    let preserved = PreservedObjects::from_graph(&graph);
    let mut wiped = layout.disks.iter().enumerate().filter(|(_, listed)| listed.wipeonreinstall);
    wiped.all(|(index, listed)| {
        let is_whole = !preserved.includes_part_of(listed);
        let found = meant.matched_disk(index).filter(|_| is_whole);
        found.is_some_and(|found| starts_as_listed(listed, found) && has_its_table(listed, found, marker))
    })
}

/// Removes a started attempt from the request if the old system may have run since the attempt was announced. Devices
/// that the attempt found empty may then contain data of the old system.
///
/// | found | the attempt counts as |
/// |---|---|
/// | on the disks of `/`, a marker of this installation that is older than the order; no partition table of the attempt | not started |
/// | any other state | started |
///
/// The attempt erases the old system, with its marker, before it creates anything. A new mirror may show the data of
/// the old mirror, including its marker, although an attempt on partly kept disks has started to write. If that
/// attempt then counts as not started, the plan can only be refused, or read more devices.
pub(crate) fn drop_announced_attempt(layout: &Layout, inventory: &Inventory, request: &mut PlanRequest) {
    let is_reinstall = request.mode == InstallMode::Reinstall;
    let started = |claim: &&mut InstallClaim| is_reinstall && claim.waiver == Some(MarkerWaiver::Begun);
    let Some(claim) = request.claim.as_mut().filter(started) else { return };
    let is_written = |new: &RecordedDisk| inventory.disks.iter().any(|disk| table_guid(disk) == new.guid);
    let has_new_table = disks_with_new_tables(&claim.begun_on).any(is_written);
    if !has_new_table && find_own_marker(&LayoutMatch::new(layout, inventory), inventory, claim).is_some() {
        claim.waiver = None;
        claim.attempt = None;
        claim.begun_on.clear();
    }
}

fn find_own_marker<'a>(
    meant: &LayoutMatch,
    inventory: &'a Inventory,
    claim: &InstallClaim,
) -> Option<&'a InstallMarker> {
    let root = meant.root_disks();
    let stack = DeviceStack::bounded(inventory);
    let mut marked =
        inventory.filesystems.iter().filter_map(|filesystem| Some((&filesystem.device, filesystem.marker.as_ref()?)));
    let ours = marked.find(|(device, marker)| {
        let disks = stack.disks_below(&stack.kernel_name(device));
        claim.is_ours(marker) && marker.order != claim.order && !disks.is_empty() && disks.is_subset(&root)
    });
    ours.map(|(_, marker)| marker)
}

/// Returns whether the disk has the GPT that it had when the marker was written. A marker written by an older version
/// of drophammer does not contain the GUID of the GPT, and proves nothing.
fn has_its_table(listed: &layout::DiskSpec, found: &inventory::InventoryDisk, marker: &InstallMarker) -> bool {
    let recorded = marker.disks.iter().find(|disk| disk.device == listed.device);
    let (recorded, is) = (recorded.and_then(|disk| disk.guid.as_ref()), table_guid(found));
    is.as_ref() == recorded && (listed.partitions.is_empty() || is.is_some())
}

/// Returns whether the start of the disk has the content that the layout specifies. The superblock of an array proves
/// nothing, because it may be at the end of the disk.
fn starts_as_listed(listed: &layout::DiskSpec, found: &inventory::InventoryDisk) -> bool {
    if listed.partitions.is_empty() {
        return found.table.is_some() || found.signatures.iter().any(|signature| signature.kind != "linux_raid_member");
    }
    let there: Vec<u32> = found.table.iter().flat_map(|table| &table.partitions).map(|is| is.number).collect();
    listed.partitions.iter().all(|partition| there.contains(&partition.number))
}
