//! Byte ranges of each disk that each stage may write, for a monitor of writes.
//!
//! | object | may be written |
//! |---|---|
//! | any object, before the first destructive stage and after the system is complete | not at all |
//! | disks that are wiped or recreated | completely, from the first destructive stage on |
//! | partly kept disks | everything outside the preserved partitions, from the first destructive stage on |
//! | members of a preserved array | from the stage that assembles the array |
//! | physical volumes of a preserved group | from the stage that activates volumes of the group |
//! | physical volumes of a group in which some volumes are renewed, except the preserved volumes | from the stage that removes the volumes |
//! | devices below a preserved LUKS container | from the stage that opens the container for writing |
//! | devices below a preserved filesystem, or below one that is created on a preserved device | from the stage that mounts the filesystem for writing, or creates it |
//! | the blank disk of a Kubernetes volume, or the physical volumes of the volume's group | from the stage that creates or adds the volume |
//! | any other object | not at all |

use super::Plan;
use super::assembly_graph::AssembledMembers;
use super::partly_kept_disks::ranges_outside;
use model::device_name::DevicePath;
use model::inventory::{Inventory, LvmVolumeGroup};
use operations::{
    ByteRange, DeviceOp, DiskExtents, Operation, PlanStage, PlannedOperation, RemoveVolumes, StageExtents,
};
use std::collections::BTreeMap;

/// Returns the extents of all stages of the plan, in order. `inventory` is the inventory from which the plan was made.
pub(crate) fn compute_extents(plan: &Plan, inventory: &Inventory) -> Vec<StageExtents> {
    let ground = ExtentBuilder { plan, inventory, together: collect_members(plan) };
    let mut open = WritableRanges::new();
    let mut extents: Vec<StageExtents> = Vec::new();
    for (index, stage) in plan.stages.iter().enumerate() {
        if index == plan.point_of_no_return {
            ground.open_recreated(&mut open);
        }
        if index >= plan.point_of_no_return {
            ground.open_preserved(stage, &mut open);
        }
        let disks = if stage.name.may_write() { ground.disk_extents(&open) } else { Vec::new() };
        match extents.last_mut().filter(|last| last.disks == disks) {
            Some(last) => last.stages.push(stage.name),
            None => extents.push(StageExtents { stages: vec![stage.name], disks }),
        }
    }
    extents
}

/// Writable byte ranges of each disk, by the path of the disk.
type WritableRanges = BTreeMap<DevicePath, Vec<ByteRange>>;

/// Locations of the plan's devices on the disks, from which the extents of the stages are computed.
struct ExtentBuilder<'a> {
    plan: &'a Plan,
    inventory: &'a Inventory,
    together: AssembledMembers,
}

/// Returns the preserved arrays, groups and containers that the stages activate.
fn collect_members(plan: &Plan) -> AssembledMembers {
    let mut together = AssembledMembers::default();
    for operation in plan.stages.iter().flat_map(|stage| &stage.operations) {
        match operation {
            Operation::Device(DeviceOp::AssembleArray(array)) => together.add_array(array),
            Operation::Device(DeviceOp::ActivateGroup(group)) => together.add_group(group),
            Operation::Device(DeviceOp::OpenContainer(open)) => together.add_container(&open.container),
            Operation::Device(_) | Operation::Run(_) => {}
        }
    }
    together
}

impl ExtentBuilder<'_> {
    fn open_recreated(&self, open: &mut WritableRanges) {
        for disk in self.plan.disks.iter().filter(|disk| disk.verdict.is_written()) {
            open.insert(disk.device.clone(), ranges_outside(&disk.preserved, disk.size_bytes));
        }
    }

    /// Adds the ranges of the devices that are written from this stage on. New devices are on disks that are already
    /// writable.
    fn open_preserved(&self, stage: &PlanStage, open: &mut WritableRanges) {
        for operation in &stage.operations {
            let written = operation.effect().written.into_iter().flat_map(|device| self.locate_device(device));
            let removed = match operation {
                Operation::Device(DeviceOp::RemoveVolumes(remove)) => self.locate_group_space(remove),
                Operation::Device(_) | Operation::Run(_) => Vec::new(),
            };
            for (disk, range) in written.chain(removed) {
                open.entry(disk).or_default().push(range);
            }
        }
    }

    /// Returns the ranges of the physical volumes outside the preserved logical volumes. If the location of a logical
    /// volume is unknown, or a physical volume is an array, returns the whole physical volume.
    fn locate_group_space(&self, remove: &RemoveVolumes) -> Vec<(DevicePath, ByteRange)> {
        let mut groups = self.inventory.groups.iter();
        let group = groups.find(|group| (&group.name, &group.uuid) == (&remove.group, &remove.uuid));
        let is_known = group.is_some_and(LvmVolumeGroup::is_located_completely);
        let space = |physical: &DevicePath| {
            let Some((disk, whole)) = self.locate_bottom(physical) else {
                return self.locate_device(physical.clone());
            };
            let ranges = remove.preserved.iter().chain(&remove.hidden).flat_map(|volume| &volume.ranges);
            let preserved = ranges.filter(|range| is_known && range.physical == *physical).map(|range| range.range);
            let outside = ranges_outside(&preserved.collect::<Vec<_>>(), whole.length);
            let shift = |range: ByteRange| ByteRange { start: whole.start.saturating_add(range.start), ..range };
            outside.into_iter().map(|range| (disk.clone(), shift(range))).collect()
        };
        remove.physical.iter().flat_map(space).collect()
    }

    /// Returns the location of an existing device: a disk, a partition, or a preserved object that a stage activates.
    fn locate_device(&self, device: DevicePath) -> Vec<(DevicePath, ByteRange)> {
        let bottoms = self.together.find_bottoms([device]);
        bottoms.iter().filter_map(|bottom| self.locate_bottom(bottom)).collect()
    }

    fn locate_bottom(&self, device: &DevicePath) -> Option<(DevicePath, ByteRange)> {
        if let Some(disk) = self.inventory.find_disk(device.as_str()) {
            return Some((disk.device.clone(), ByteRange { start: 0, length: disk.size_bytes }));
        }
        self.inventory.disks.iter().find_map(|disk| {
            let mut parts = disk.table.iter().flat_map(|table| &table.partitions);
            let part = parts.find(|part| part.device == *device)?;
            Some((disk.device.clone(), ByteRange { start: part.start_bytes, length: part.size_bytes }))
        })
    }

    fn disk_extents(&self, open: &WritableRanges) -> Vec<DiskExtents> {
        let disks = open.iter().map(|(device, ranges)| DiskExtents {
            device: device.clone(),
            serial: self.inventory.find_disk(device.as_str()).map(|disk| disk.serial.clone()).unwrap_or_default(),
            ranges: merge_ranges(ranges),
        });
        disks.collect()
    }
}

fn merge_ranges(ranges: &[ByteRange]) -> Vec<ByteRange> {
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(|range| range.start);
    let mut merged: Vec<ByteRange> = Vec::new();
    let end = |range: &ByteRange| range.start.saturating_add(range.length);
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= end(last) => last.length = end(last).max(end(&range)) - last.start,
            _ => merged.push(range),
        }
    }
    merged
}
