//! Byte ranges of each disk that each stage may write, for a monitor of writes.
//!
//! | | may be written | |---|---| | before the first destructive stage, and once the system is complete | nothing | | disks that are wiped
//! or recreated | whole, from that stage on | | a preserved array that is assembled | its members, from then on | | a preserved group of
//! which volumes are activated | its physical volumes, from then on | | a preserved LUKS container that is opened for writing | its
//! underlying devices, from then on | | a preserved filesystem that is mounted for writing, or created on a preserved device | its
//! underlying devices, from then on | | a Kubernetes volume that is created or added | the blank disk that it takes, or the physical
//! volumes of its group, from then on | | anything else | nothing |

use super::together::Together;
use super::{ByteRange, OfRun, OnDevice, Operation, Plan, Stage, StageName, Verdict};
use crate::device::DevicePath;
use crate::inventory::Inventory;
use crate::order;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Consecutive stages with the extents that each of them may write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extents {
    /// The JSON field is `steps`, the word that operators read.
    #[serde(rename = "steps")]
    pub stages: Vec<StageName>,
    /// Writable ranges by disk; empty if the stages write nothing.
    pub disks: Vec<DiskExtents>,
}

/// Byte ranges of a disk, in order and disjoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskExtents {
    /// `/dev/sda`.
    pub device: DevicePath,
    /// Serial number of the disk; empty if it has none.
    pub serial: String,
    pub ranges: Vec<ByteRange>,
}

/// Returns the extents of all stages of the plan, in order. `inventory` is the one that the plan was made from.
pub fn of(plan: &Plan, inventory: &Inventory) -> Vec<Extents> {
    let ground = Ground { plan, inventory, together: together(plan) };
    let mut open = Open::new();
    let mut extents: Vec<Extents> = Vec::new();
    for (index, stage) in plan.stages.iter().enumerate() {
        if index == plan.point_of_no_return {
            ground.open_made(&mut open);
        }
        if index >= plan.point_of_no_return {
            ground.open_kept(stage, &mut open);
        }
        let disks = if stage.name.leaves().complete() { Vec::new() } else { ground.disks(&open) };
        match extents.last_mut().filter(|last| last.disks == disks) {
            Some(last) => last.stages.push(stage.name),
            None => extents.push(Extents { stages: vec![stage.name], disks }),
        }
    }
    extents
}

/// Writable ranges by path of the disk.
type Open = BTreeMap<DevicePath, Vec<ByteRange>>;

/// Locations of the plan's devices on the disks.
struct Ground<'a> {
    plan: &'a Plan,
    inventory: &'a Inventory,
    together: Together,
}

/// Returns the preserved arrays, groups and containers that the stages activate.
fn together(plan: &Plan) -> Together {
    let mut together = Together::default();
    for operation in plan.stages.iter().flat_map(|stage| &stage.operations) {
        match operation {
            Operation::Device(OnDevice::AssembleArray(array)) => together.array(array),
            Operation::Device(OnDevice::ActivateGroup(group)) => together.group(group),
            Operation::Device(OnDevice::OpenContainer(open)) => together.container(&open.container),
            Operation::Device(_) | Operation::Run(_) => {}
        }
    }
    together
}

impl Ground<'_> {
    fn open_made(&self, open: &mut Open) {
        let made = self.plan.disks.iter().filter(|disk| matches!(disk.verdict, Verdict::Wipe | Verdict::Make));
        for disk in made {
            let whole = ByteRange { start: 0, length: disk.size_bytes };
            open.insert(disk.device.clone(), vec![whole]);
        }
    }

    /// Opens the devices that the stage writes. New devices lie on disks that are open already.
    fn open_kept(&self, stage: &Stage, open: &mut Open) {
        for device in stage.operations.iter().flat_map(Ground::written) {
            for (disk, range) in self.ranges(device) {
                open.entry(disk).or_default().push(range);
            }
        }
    }

    /// Returns the devices, outside of recreated disks, that an operation starts to write.
    fn written(operation: &Operation) -> Vec<DevicePath> {
        match operation {
            Operation::Device(OnDevice::AssembleArray(array)) => array.members.clone(),
            Operation::Device(OnDevice::ActivateGroup(group)) => group.devices.clone(),
            // cryptsetup repairs a damaged header when it opens the container for writing.
            Operation::Device(OnDevice::OpenContainer(open)) if !open.read_only => vec![open.container.device.clone()],
            Operation::Device(OnDevice::MakeFilesystem(make)) => vec![make.device.clone()],
            Operation::Device(OnDevice::PreparePersistent(volume)) => volume.written().into_iter().cloned().collect(),
            Operation::Device(
                OnDevice::Release(_)
                | OnDevice::AssertFree { .. }
                | OnDevice::TakeDown { .. }
                | OnDevice::ProveZeros(_)
                | OnDevice::WipeDisk(_)
                | OnDevice::WriteTable(_)
                | OnDevice::CreateArray(_)
                | OnDevice::CreateGroup(_)
                | OnDevice::CreateVolume(_)
                | OnDevice::CreateContainer(_)
                | OnDevice::OpenContainer(_)
                | OnDevice::CloseContainer { .. }
                | OnDevice::TryArray(_)
                | OnDevice::TryFilesystem(_)
                | OnDevice::DeactivateGroup { .. }
                | OnDevice::StopArray { .. },
            ) => Vec::new(),
            Operation::Run(OfRun::Mount(mount)) if !mount.is_read_only() => mount.devices().collect(),
            Operation::Run(
                OfRun::ReachImage { .. }
                | OfRun::VerifyDefinition { .. }
                | OfRun::FindPrograms { .. }
                | OfRun::IdentifyDisk(_)
                | OfRun::CheckContainers(_)
                | OfRun::LockDisk { .. }
                | OfRun::UnlockDisk { .. }
                | OfRun::Rehearse(_)
                | OfRun::TellPointOfNoReturn { .. }
                | OfRun::MoveStands { .. }
                | OfRun::Mount(_)
                | OfRun::MountReadOnly(_)
                | OfRun::BurnDisk(_)
                | OfRun::Receive(_)
                | OfRun::AdaptMoved(_)
                | OfRun::CreateSystem(_)
                | OfRun::GrowFilesystem(_)
                | OfRun::BurnImage { .. }
                | OfRun::WriteMachineFiles { .. }
                | OfRun::InjectFiles(_)
                | OfRun::Finish(_)
                | OfRun::AdaptImage(_)
                | OfRun::WritePersistent(_)
                | OfRun::WriteFstab(_)
                | OfRun::ExtendFstab(_)
                | OfRun::WriteCrypttab(_)
                | OfRun::FindLoader
                | OfRun::RemoveVariables(_)
                | OfRun::WriteBootEntries(_)
                | OfRun::LoadKernel
                | OfRun::ProveKept(_)
                | OfRun::WriteMarker(_)
                | OfRun::Unmount
                | OfRun::FlushDisks { .. }
                | OfRun::Report(_)
                | OfRun::Kexec,
            ) => Vec::new(),
        }
    }

    /// Returns the location of an existing device: a disk, a partition, or an object that a stage activates from preserved ones.
    fn ranges(&self, device: DevicePath) -> Vec<(DevicePath, ByteRange)> {
        let bottoms = self.together.bottoms([device]);
        bottoms.iter().filter_map(|bottom| self.range(bottom)).collect()
    }

    fn range(&self, device: &DevicePath) -> Option<(DevicePath, ByteRange)> {
        if let Some(disk) = self.inventory.disk(device.as_str()) {
            return Some((disk.device.clone(), ByteRange { start: 0, length: disk.size_bytes }));
        }
        self.inventory.disks.iter().find_map(|disk| {
            let mut parts = disk.table.iter().flat_map(|table| &table.partitions);
            let part = parts.find(|part| part.device == *device)?;
            Some((disk.device.clone(), ByteRange { start: part.start_bytes, length: part.size_bytes }))
        })
    }

    fn disks(&self, open: &Open) -> Vec<DiskExtents> {
        let disks = open.iter().map(|(device, ranges)| DiskExtents {
            device: device.clone(),
            serial: self.inventory.disk(device.as_str()).map(|disk| disk.serial.clone()).unwrap_or_default(),
            ranges: merged(ranges),
        });
        disks.collect()
    }
}

fn merged(ranges: &[ByteRange]) -> Vec<ByteRange> {
    let mut sorted = ranges.to_vec();
    order::by_key(&mut sorted, |range| range.start);
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
