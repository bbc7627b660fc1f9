//! Devices that a plan erases, derived from its verdicts on disks, its operations, and the disk extents that it writes.
//! The check does not use the layout.

use crate::underlying_devices::{devices_below, find_volume, physical_volumes};
use model::device_name::{DevicePath, KernelName};
use model::inventory::{DiskPartition, Inventory};
use model::layout::FilesystemFormat;
use model::storage_graph::{DeviceStack, StackUnit, all_units, device_references};
use operations::{ByteRange, DeviceOp, Operation, StageName};
use plan::{DiskVerdict, Plan};
use std::collections::BTreeSet;

/// Stages that erase disks and write partition tables. Later stages also write to preserved devices: they
/// assemble arrays and mount filesystems.
const ERASING: [StageName; 2] = [StageName::StorageWipe, StageName::StoragePartition];

/// Effect of a plan on an existing device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceFate {
    Preserved,
    /// The plan erases the device, or at least one device on which its content is stored.
    Erased,
    /// The inventory does not contain the disks of the device.
    Unknown,
}

/// Devices and ranges of disks that a plan erases.
pub(crate) struct PlannedErasure<'a> {
    plan: &'a Plan,
    inventory: &'a Inventory,
    stack: DeviceStack<'a>,
    /// Erased ranges, each with the path of its disk.
    ranges: Vec<(&'a DevicePath, &'a ByteRange)>,
    /// Removed volumes: UUID of the group, and name of the volume.
    removed: BTreeSet<(&'a str, &'a str)>,
    /// Devices on which the plan creates new objects.
    overwritten: BTreeSet<KernelName>,
}

impl<'a> PlannedErasure<'a> {
    pub fn new(plan: &'a Plan, inventory: &'a Inventory) -> PlannedErasure<'a> {
        let stack = DeviceStack::new(inventory);
        let stages = plan.extents.iter().filter(|extents| extents.stages.iter().any(|stage| ERASING.contains(stage)));
        let disks = stages.flat_map(|extents| &extents.disks);
        let ranges = disks.flat_map(|disk| disk.ranges.iter().map(|range| (&disk.device, range))).collect();
        let operations = || {
            let operations = plan.stages.iter().flat_map(|stage| &stage.operations);
            operations.filter_map(|operation| match operation {
                Operation::Device(operation) => Some(operation),
                Operation::Run(_) => None,
            })
        };
        let removals = operations()
            .filter_map(|operation| if let DeviceOp::RemoveVolumes(remove) = operation { Some(remove) } else { None });
        let removed = removals
            .flat_map(|remove| remove.removed.iter().map(|volume| (remove.uuid.as_str(), volume.name.as_str())));
        let overwritten: Vec<&DevicePath> = operations().flat_map(list_overwritten).collect();
        let is_overwritten = |(device, unit): &(&DevicePath, StackUnit)| {
            overwritten.iter().any(|path| device_references::has_name(&stack, device, *unit, path.as_str()))
        };
        let overwritten = all_units(inventory).filter(is_overwritten).map(|(device, _)| stack.kernel_name(device));
        PlannedErasure {
            plan,
            inventory,
            ranges,
            removed: removed.collect(),
            overwritten: overwritten.collect(),
            stack,
        }
    }

    /// Returns the effect of the plan on a device, or on an inactive volume `GROUP/VOLUME`.
    pub fn find_fate(&self, device: &KernelName) -> DeviceFate {
        let mut pending = vec![device.clone()];
        let mut seen = BTreeSet::new();
        let mut fate = DeviceFate::Preserved;
        while let Some(name) = pending.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            match self.find_own_fate(&name) {
                Ok(DeviceFate::Preserved) => {}
                Ok(DeviceFate::Erased) => return DeviceFate::Erased,
                Ok(DeviceFate::Unknown) => fate = DeviceFate::Unknown,
                Err(below) => pending.extend(below),
            }
        }
        fate
    }

    /// Returns the effect of the plan on the device itself. If the effect depends on the devices below the device,
    /// returns these devices as the error.
    fn find_own_fate(&self, name: &KernelName) -> Result<DeviceFate, Vec<KernelName>> {
        let volume = find_volume(self.inventory, &self.stack, name);
        let is_removed =
            volume.is_some_and(|(group, volume)| self.removed.contains(&(group.uuid.as_str(), volume.name.as_str())));
        if self.overwritten.contains(name) || is_removed {
            return Ok(DeviceFate::Erased);
        }
        let whole = |size: u64| ByteRange { start: 0, length: size };
        let of_range = |disk: &DevicePath, range: ByteRange| match self.is_range_erased(disk, &range) {
            true => Ok(DeviceFate::Erased),
            false => Ok(DeviceFate::Preserved),
        };
        let unit = self.stack.find_unit(name);
        if let StackUnit::Disk(disk) = unit {
            return of_range(&disk.device, whole(disk.size_bytes));
        }
        if let StackUnit::Partition(partition) = unit
            && let Some(StackUnit::Disk(disk)) = self.stack.whole_of(&partition.device)
        {
            return of_range(&disk.device, range_of(partition));
        }
        let mut below = devices_below(&self.stack, name);
        below.extend(volume.into_iter().flat_map(|(group, _)| physical_volumes(&self.stack, group)));
        let is_incomplete =
            volume.is_some_and(|(group, _)| group.physical.iter().any(|physical| physical.device.is_none()));
        if below.is_empty() || is_incomplete { Ok(DeviceFate::Unknown) } else { Err(below) }
    }

    /// Returns whether the plan erases a range of a disk. A range is preserved only if both the verdict on the disk and
    /// the extents of the erasing stages preserve it.
    fn is_range_erased(&self, disk: &DevicePath, range: &ByteRange) -> bool {
        let verdicts = self.plan.disks.iter().filter(|planned| planned.device == *disk);
        let mut is_renewed = verdicts.map(|planned| match planned.verdict {
            DiskVerdict::Wipe | DiskVerdict::Make => true,
            DiskVerdict::PartlyKept => !planned.preserved.iter().any(|preserved| contains(preserved, range)),
            DiskVerdict::Keep | DiskVerdict::NotOurs | DiskVerdict::Volumes => false,
        });
        is_renewed.any(|is_renewed| is_renewed)
            || self.ranges.iter().any(|(device, erased)| *device == disk && overlaps(range, erased))
    }
}

/// Returns the devices whose present content the operation replaces.
fn list_overwritten(operation: &DeviceOp) -> Vec<&DevicePath> {
    match operation {
        DeviceOp::CreateArray(array) => array.present_devices().collect(),
        DeviceOp::CreateGroup(group) => group.devices.iter().collect(),
        DeviceOp::CreateContainer(container) => vec![&container.0.device],
        DeviceOp::MakeFilesystem(filesystem) if filesystem.format != FilesystemFormat::None => vec![&filesystem.device],
        DeviceOp::WriteTable(table) => vec![&table.device],
        DeviceOp::Release(_)
        | DeviceOp::AssertFree(_)
        | DeviceOp::ProveZeros(_)
        | DeviceOp::WipeDisk(_)
        | DeviceOp::ClearRanges(_)
        | DeviceOp::EditTable(_)
        | DeviceOp::RemoveVolumes(_)
        | DeviceOp::CreateVolume(_)
        | DeviceOp::MakeFilesystem(_)
        | DeviceOp::OpenContainer(_)
        | DeviceOp::CloseContainer(_)
        | DeviceOp::StopInspectedDevices(_)
        | DeviceOp::AssembleArray(_)
        | DeviceOp::ActivateGroup(_)
        | DeviceOp::TryArray(_)
        | DeviceOp::TryFilesystem(_)
        | DeviceOp::CreateK8sVolume(_)
        | DeviceOp::DeactivateGroup(_)
        | DeviceOp::StopArray(_) => Vec::new(),
    }
}

fn range_of(partition: &DiskPartition) -> ByteRange {
    ByteRange { start: partition.start_bytes, length: partition.size_bytes }
}

fn overlaps(one: &ByteRange, other: &ByteRange) -> bool {
    one.start < other.start.saturating_add(other.length) && other.start < one.start.saturating_add(one.length)
}

fn contains(outer: &ByteRange, inner: &ByteRange) -> bool {
    outer.start <= inner.start && inner.start.saturating_add(inner.length) <= outer.start.saturating_add(outer.length)
}
