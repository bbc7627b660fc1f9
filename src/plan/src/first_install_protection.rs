//! Protection of preserved data against a first installation, which erases every listed disk.
//!
//! The control plane may request a first installation although the disks contain data that the layout preserves. This
//! happens if another installer has installed the machine and the machine was not adopted, if the records of the
//! control plane were lost together with the disk that contains the marker, or if the disks belong to another machine.

use super::plan_decisions::PlanDecisions;
use super::{DiskPlan, DiskVerdict, InstallClaim, InstallMode, MarkerWaiver, PlanRequest, disks};
use crate::request_from_allocation::preview::placeholder_uuids;
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::allocation::RecordSource;
use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::inventory::{Inventory, InventoryDisk, UniqueIdentifiers};
use model::layout::graph::LayoutGraph;
use model::layout::preserved_objects::PreservedObjects;
use model::layout::{DiskSpec, FilesystemFormat, Layout, PartitionSpec};
use model::storage_graph::{DeviceStack, LayoutMatch};
use std::collections::BTreeSet;

/// Data that a first installation would erase, and that a reinstall with the same layout would preserve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndangeredData {
    /// Disks that contain the data.
    pub disks: Vec<DevicePath>,
    /// First reason why the reinstall would be refused; `None` if it would be possible.
    pub refusal: Option<Diagnostic>,
    /// True if the disks contain an array, group, volume, filesystem or partition that matches the layout, even if it
    /// is damaged or cannot be used at present, or if another disk differs from the layout.
    pub matches_layout: bool,
}

/// Returns the data that a first installation would erase, and that a reinstall with the same layout would preserve.
/// Returns `None` in the cases in which the erasure is intended: the disks of `/` have a marker of this machine,
/// the layout does not support reinstalls, an earlier attempt was started, or the operator discards the disks.
pub fn find_endangered_data(layout: &Layout, inventory: &Inventory, request: &PlanRequest) -> Option<EndangeredData> {
    let claim = request.claim.as_ref().filter(|claim| is_first_install(request, claim))?;
    let supports_reinstall = layout.disks.iter().any(|disk| disk.wipeonreinstall);
    if !supports_reinstall || is_root_marked(layout, inventory, claim) {
        return None;
    }
    let reinstall = reinstall_request(request, claim);
    let meant = reinstall.source().adapt_layout(layout, inventory);
    let trial = crate::decide_with_retry(&meant, inventory, &reinstall, &mut placeholder_uuids());
    let identifiers = UniqueIdentifiers::from_disks(&inventory.disks);
    let is_discarded = |disk: &InventoryDisk| claim.give_up.iter().any(|given| identifiers.is_named_by(disk, given));
    let holds_data = |planned: &&DiskPlan| {
        let mut found = inventory.disks.iter().filter(|disk| disk.name == planned.name);
        matches!(planned.verdict, DiskVerdict::Keep | DiskVerdict::PartlyKept)
            && found.any(|disk| has_contents(disk) && !is_discarded(disk))
    };
    let kept: Vec<&DiskPlan> = trial.disks.iter().filter(holds_data).collect();
    if kept.is_empty() {
        return None;
    }
    let names = kept.iter().map(|disk| disk.name.clone()).collect();
    let matches_layout = trial.problems.iter().any(is_about_matching_object)
        || has_matching_object(&LayoutMatch::new(&meant, inventory), &trial, &names);
    let disks = kept.into_iter().map(|disk| disk.device.clone()).collect();
    let refusal = trial.problems.into_iter().next().map(|problem| problem.with_default_code(ErrorCode::Plan));
    Some(EndangeredData { disks, refusal, matches_layout })
}

/// Returns whether a filesystem on the disks of `/` has a marker of this machine. A marker on another disk proves
/// nothing: the disk may have been left over from an earlier allocation, while the disk with the newest marker was
/// replaced.
fn is_root_marked(layout: &Layout, inventory: &Inventory, claim: &InstallClaim) -> bool {
    let root = LayoutMatch::new(layout, inventory).root_disks();
    let stack = DeviceStack::new(inventory);
    inventory.filesystems.iter().any(|filesystem| {
        let disks = stack.disks_below(&stack.kernel_name(&filesystem.device));
        let is_ours = filesystem.marker.as_ref().is_some_and(|marker| claim.is_of_this_machine(marker));
        is_ours && !disks.is_empty() && disks.is_subset(&root)
    })
}

/// Returns whether one of these disks contains an object that the reinstall would preserve. The reinstall may be
/// refused because of another disk.
fn has_matching_object(meant: &LayoutMatch, trial: &PlanDecisions, disks: &BTreeSet<KernelName>) -> bool {
    let graph = &meant.graph;
    let is_on_disks = |device: &LayoutPath| {
        let bottoms = graph.find_bottoms(graph.find_device(device));
        let mut found = bottoms.into_iter().filter_map(|node| meant.matched_disk(node));
        found.any(|disk| disks.contains(&disk.name))
    };
    let mut raw = meant.graph.layout.disks.iter().enumerate().filter(|(index, listed)| {
        let found = meant.matched_disk(*index).filter(|disk| disks.contains(&disk.name));
        found.is_some_and(|found| has_raw_content(graph, listed, found))
    });
    trial.matching.iter().any(is_on_disks) || raw.next().is_some()
}

/// Returns whether the disk contains data on a preserved device for which the layout does not specify any content. Only
/// the number, size and type of a partition can be compared with the layout.
fn has_raw_content(graph: &LayoutGraph, listed: &DiskSpec, found: &InventoryDisk) -> bool {
    let preserved = PreservedObjects::from_graph(graph);
    let is_kept = |part: &PartitionSpec| preserved.includes_device(&listed.device.partition_path(part.number));
    let format = |device: &LayoutPath| {
        let mut filesystems = graph.layout.filesystems.iter();
        filesystems.find(|filesystem| filesystem.device == *device).map(|filesystem| filesystem.format)
    };
    let is_raw = |device: &LayoutPath| {
        !graph.is_member(device) && format(device).is_none_or(|format| format == FilesystemFormat::None)
    };
    if !disks::keep_disk("", listed, found, &is_kept).is_empty() {
        return false;
    }
    let kept = listed.partitions.iter().filter(|part| is_kept(part));
    let mut raw = kept.filter(|part| is_raw(&listed.device.partition_path(part.number)));
    let has_data = |part: &PartitionSpec| {
        let mut partitions = disks::gpt_partitions(found).iter().filter(|is| is.number == part.number);
        partitions.any(|is| !is.blank || !is.signatures.is_empty())
    };
    // A disk is compared as a whole only if the layout states that its content has no known format.
    let is_raw_disk = listed.partitions.is_empty() && format(&listed.device) == Some(FilesystemFormat::None);
    raw.any(has_data) || is_raw_disk
}

/// Returns whether the problem prevents the reinstall although it is about an object that matches the layout. Problems
/// about objects that differ from the layout have other codes. Problems about members of unknown arrays or groups have
/// the place `disks`, and do not count.
fn is_about_matching_object(problem: &Diagnostic) -> bool {
    match problem.code {
        Some(ErrorCode::PreservedUnusable | ErrorCode::DuplicateObject) => true,
        // One half of a mirror, or of another preserved object, was replaced by a blank disk.
        Some(ErrorCode::IncompleteObject | ErrorCode::BlankDevice) => problem.place != "disks",
        _ => false,
    }
}

/// Returns whether the control plane requests a first installation, and no earlier attempt has changed the disks.
/// Returns false for the target of a migration, because its disks are erased to receive the data of the source machine.
fn is_first_install(request: &PlanRequest, claim: &InstallClaim) -> bool {
    let has_begun = claim.waiver == Some(MarkerWaiver::Begun) || !claim.begun_on.is_empty();
    request.mode == InstallMode::Install && !claim.is_installed() && !has_begun && request.receiving().is_none()
}

/// Converts the request for a first installation into one for a reinstall, as if an operator had ordered the reinstall
/// and waived the marker.
fn reinstall_request(request: &PlanRequest, claim: &InstallClaim) -> PlanRequest {
    let mut reinstall = PlanRequest { mode: InstallMode::Reinstall, ..request.clone() };
    reinstall.claim = Some(InstallClaim {
        waiver: Some(MarkerWaiver::Operator),
        memory: RecordSource::ControlPlane,
        ..claim.clone()
    });
    // An approval refers to the first installation, not to this reinstall.
    reinstall.assigned.allocation.approved = None;
    reinstall
}

/// Refuses a first installation that would erase objects that match the layout and would be preserved by a reinstall. A
/// layout with `preserve` describes the data of an existing machine. With such a layout, no data on preserved disks is
/// erased, even if it does not match the layout.
pub(crate) fn refuse_erasing_data(layout: &Layout, inventory: &Inventory, request: &PlanRequest) -> Option<Diagnostic> {
    let found = find_endangered_data(layout, inventory, request)?;
    if !found.matches_layout && !has_preserved_objects(layout) {
        return None;
    }
    let (is, contains) = if found.disks.len() == 1 { ("is", "contains") } else { ("are", "contain") };
    let (state, first) = match &found.refusal {
        None => ("the data that the layout preserves".to_owned(), ""),
        Some(problem) => (
            format!("data. A reinstall would also be refused at present: {problem}"),
            "first correct this problem, then ",
        ),
    };
    let message = format!(
        "a first installation would erase {disks}, which {is} preserved by this layout and already {contains} {state}. To \
         preserve the data, {first}record the machine as installed (drophammer machine adopt {machine}), and order a reinstall with \
         --without-marker. If the data is not needed, list the serial numbers of these disks in give_up of the \
         allocation, or run wipefs -a on the disks in the rescue shell",
        disks = found.disks.join(", "),
        machine = request.subject.machine
    );
    Some(Diagnostic::new("disks", message).with_code(ErrorCode::PreservedDataLoss))
}

/// Returns whether the layout preserves an object on a disk that a reinstall otherwise wipes.
pub fn has_preserved_objects(layout: &Layout) -> bool {
    layout.disks.iter().flat_map(|disk| &disk.partitions).any(|partition| partition.preserve)
        || layout.raid.iter().any(|array| array.preserve)
        || layout.volumegroups.iter().any(|group| !group.preserve.is_none())
        || layout.logicalvolumes.iter().any(|volume| volume.preserve)
        || layout.filesystems.iter().any(|filesystem| filesystem.preserve)
}

/// Returns whether the disk has a partition table or a signature, is in use, or cannot be read. Other data is ignored,
/// because it remains on a disk even after `wipefs -a`.
pub fn has_contents(disk: &InventoryDisk) -> bool {
    disk.table.is_some() || !disk.signatures.is_empty() || !disk.uses.is_empty() || disk.unreadable.is_some()
}
