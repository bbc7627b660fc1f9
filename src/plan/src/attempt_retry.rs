//! Second planning pass after an interrupted attempt. If the first pass has problems with disks that the attempt was
//! recreating when it was interrupted, the second pass recreates these disks once more. The result of the second pass
//! is used only if it has no problems, and if only the verdicts of these disks differ.
//!
//! | a problem of the first pass | result |
//! |---|---|
//! | concerns only disks that the attempt was recreating, and the attempt created all objects on them | the second pass recreates these disks |
//! | has the path `disks`, because it concerns several disks | the second pass recreates all disks that the attempt was recreating, and on which the attempt created all objects |
//! | concerns any other disk, or does not concern a disk | there is no second pass |
//! | concerns a disk with an object that the attempt did not record | there is no second pass |

use super::earlier_attempt::AttemptDevices;
use super::plan_decisions::PlanDecisions;
use super::recorded_disk::table_guid;
use super::{DiskPlan, PlanRequest};
use common::diagnostic::Diagnostic;
use model::device_name::{DevicePath, LayoutPath};
use model::install_marker::PendingCreation;
use model::inventory::{DeviceSignature, Inventory, InventoryDisk, LvmVolumeGroup, MdArray};
use model::k8s_volume::VolumeSource;
use model::layout::Layout;
use model::layout::graph::LayoutGraph;
use model::storage_graph::{DeviceStack, LayoutMatch, all_units, disk_lookup};
use std::collections::BTreeSet;

/// Returns the listed disks whose recreation may solve these problems. Returns an empty list if some of the problems
/// cannot be solved in this way.
pub(crate) fn disks_to_remake(
    layout: &Layout,
    inventory: &Inventory,
    request: &PlanRequest,
    problems: &[Diagnostic],
) -> BTreeSet<LayoutPath> {
    let (attempt, graph) = (AttemptDevices::new(request, inventory), LayoutGraph::from_layout(layout));
    let mut candidates = BTreeSet::new();
    for (index, listed) in layout.disks.iter().enumerate() {
        let Ok(found) = disk_lookup::find_disk(listed, inventory) else { continue };
        let remade = attempt.remade_disk(&listed.device, found);
        if remade.is_some_and(|making| holds_only_recorded(inventory, found, making)) {
            candidates.insert(index);
        }
    }
    let mut remade = BTreeSet::new();
    for problem in problems {
        match concerned_disks(&graph, request, &problem.place) {
            Some(disks) if !disks.is_empty() && disks.is_subset(&candidates) => remade.extend(disks),
            Some(_) => return BTreeSet::new(),
            None => remade.extend(candidates.iter().copied()),
        }
    }
    remade.into_iter().map(|index| layout.disks[index].device.clone()).collect()
}

/// Returns whether all disks except the recreated ones have the same verdict in both passes.
pub(crate) fn changes_only(
    meant: &LayoutMatch,
    remade: &BTreeSet<LayoutPath>,
    first: &PlanDecisions,
    second: &PlanDecisions,
) -> bool {
    let listed = meant.graph.layout.disks.iter().enumerate().filter(|(_, listed)| remade.contains(&listed.device));
    let found: Vec<&InventoryDisk> = listed.filter_map(|(index, _)| meant.matched_disk(index)).collect();
    let is_remade = |disk: &DiskPlan| found.iter().any(|found| found.name == disk.name);
    let mut pairs = first.disks.iter().zip(&second.disks);
    pairs.all(|(before, after)| before.verdict == after.verdict || is_remade(after))
}

/// Returns the indices in `Layout::disks` of the disks that a problem concerns, according to the path of the problem in
/// the layout. Returns `None` for paths such as `disks`, which do not refer to particular disks.
fn concerned_disks(graph: &LayoutGraph, request: &PlanRequest, place: &str) -> Option<BTreeSet<usize>> {
    let layout = graph.layout;
    if place == "disks" {
        return None;
    }
    let (list, rest) = place.split_once('[')?;
    let entry = rest.split(']').next().unwrap_or_default();
    let index = entry.parse::<usize>().unwrap_or(usize::MAX);
    let devices: Vec<LayoutPath> = match list {
        "disks" => return Some([index].into()),
        "raid" => layout.raid.get(index).map(|raid| raid.arrayname.clone()).into_iter().collect(),
        "volumegroups" => layout.volumegroups.get(index).map(|group| group.devices.clone()).unwrap_or_default(),
        "logicalvolumes" => layout.logicalvolumes.get(index).map(|volume| volume.device_path()).into_iter().collect(),
        "filesystems" => layout.filesystems.get(index).map(|is| is.device.clone()).into_iter().collect(),
        "volumes" => devices_of_volume(layout, request, entry),
        _ => Vec::new(),
    };
    Some(graph.objects_below(&devices).disks)
}

/// Returns the devices of the layout that contain this Kubernetes volume.
fn devices_of_volume(layout: &Layout, request: &PlanRequest, name: &str) -> Vec<LayoutPath> {
    let volumes = request.assigned.allocation.parse_volumes().unwrap_or_default();
    match volumes.into_iter().find(|volume| volume.name == name).map(|volume| volume.source) {
        Some(VolumeSource::Raw(path)) => vec![path],
        Some(VolumeSource::Logical { group, .. }) => {
            let group = layout.volumegroups.iter().find(|listed| listed.name == group);
            group.map(|group| group.devices.clone()).unwrap_or_default()
        }
        Some(VolumeSource::Discover(_) | VolumeSource::Sparse { .. }) | None => Vec::new(),
    }
}

/// Returns whether the attempt created everything that is recognized on the disk: partition table, partitions, arrays,
/// groups, containers and filesystems. Returns false if the disk or a device on it cannot be read completely, or if an
/// array, volume or mapping on the disk has a partition table: the attempt writes partition tables only to disks.
fn holds_only_recorded(inventory: &Inventory, disk: &InventoryDisk, making: &PendingCreation) -> bool {
    let is_recorded = |id: &str| making.contents.iter().any(|recorded| recorded.eq_ignore_ascii_case(id));
    let stack = DeviceStack::new(inventory);
    let below = stack.combine_values(|name| u8::from(*name == disk.name));
    let is_on_it = |device: &DevicePath| {
        let name = stack.kernel_name(device);
        stack.combined_value(&below, &name).map_or(name == disk.name, |value| value != 0)
    };
    let has_recorded_table = disk.table.is_none() || table_guid(disk).is_some_and(|guid| is_recorded(&guid));
    let mut stacked = inventory.stacked.iter().filter(|device| is_on_it(&device.device));
    let mut partitions = disk.table.iter().flat_map(|table| &table.partitions);
    let mut signatures =
        all_units(inventory).filter(|(device, _)| is_on_it(device)).flat_map(|(_, unit)| unit.signatures());
    let mut arrays =
        inventory.arrays.iter().filter(|array| array.members.iter().any(|member| is_on_it(&member.device)));
    let mut groups = inventory.groups.iter().filter(|group| group.present_devices().any(is_on_it));
    disk.unreadable.is_none()
        && stacked.all(|device| device.unreadable.is_none() && device.table.is_none())
        && has_recorded_table
        && partitions.all(|part| part.guid.is_some_and(|guid| is_recorded(&guid.to_string())))
        && signatures.all(|signature| is_recorded_content(signature, &is_recorded))
        && arrays.all(|array: &MdArray| is_recorded(&array.uuid.to_string()))
        && groups.all(|group: &LvmVolumeGroup| {
            let mut volumes = group.volumes.iter();
            is_recorded(&group.name) && volumes.all(|volume| is_recorded(&format!("{}/{}", group.name, volume.name)))
        })
}

/// Returns whether the attempt created the object to which a signature belongs. Always true for members of arrays and
/// groups, because the array or group is checked instead.
fn is_recorded_content(signature: &DeviceSignature, is_recorded: &impl Fn(&str) -> bool) -> bool {
    match signature.kind.as_str() {
        "linux_raid_member" | "LVM2_member" => true,
        _ => is_recorded(&signature.uuid),
    }
}
