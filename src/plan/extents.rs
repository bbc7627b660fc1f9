//! Which bytes of which disks each stage may write, for whoever watches the writes.
//!
//! | | may be written |
//! |---|---|
//! | before the first stage that destroys, and once the system is complete | nothing |
//! | disks that are wiped or made anew | whole, from that stage on |
//! | a kept array that is assembled | its members, from then on |
//! | a kept group of which volumes are activated | its physical volumes, from then on |
//! | a kept filesystem that is mounted for writing, or made on a kept device | what it lies on, from then on |
//! | anything else | nothing |

use super::{ActivateGroup, AssembleArray, ByteRange, OfRun, OnDevice, Operation, Plan, Stage, StageName, Verdict};
use crate::inventory::Inventory;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Stages that follow each other, and what each of them may write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extents {
    /// `steps` in JSON, as an operator reads it.
    #[serde(rename = "steps")]
    pub stages: Vec<StageName>,
    /// Empty when they write nothing.
    pub disks: Vec<DiskExtents>,
}

/// Parts of a disk, in their order and apart from each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskExtents {
    /// `/dev/sda`.
    pub device: String,
    /// Empty when it has none.
    pub serial: String,
    pub ranges: Vec<ByteRange>,
}

/// All stages of the plan in their order. `inventory` is the one that it was made from.
pub fn of(plan: &Plan, inventory: &Inventory) -> Vec<Extents> {
    let ground = Ground { plan, inventory };
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

/// What may be written, by path of the disk.
type Open = BTreeMap<String, Vec<ByteRange>>;

/// Where the devices of a plan lie.
struct Ground<'a> {
    plan: &'a Plan,
    inventory: &'a Inventory,
}

impl Ground<'_> {
    fn open_made(&self, open: &mut Open) {
        let made = self.plan.disks.iter().filter(|disk| matches!(disk.verdict, Verdict::Wipe | Verdict::Make));
        for disk in made {
            let whole = ByteRange { start: 0, length: disk.size_bytes };
            open.insert(disk.device.clone(), vec![whole]);
        }
    }

    /// What is made anew lies on disks that are open already.
    fn open_kept(&self, stage: &Stage, open: &mut Open) {
        for device in stage.operations.iter().flat_map(Ground::written) {
            for (disk, range) in self.ranges(&device) {
                open.entry(disk).or_default().push(range);
            }
        }
    }

    /// Devices that an operation begins to write, beyond the disks that are made.
    fn written(operation: &Operation) -> Vec<String> {
        match operation {
            Operation::Device(OnDevice::AssembleArray(array)) => array.members.clone(),
            Operation::Device(OnDevice::ActivateGroup(group)) => group.devices.clone(),
            Operation::Device(OnDevice::MakeFilesystem(make)) => vec![make.device.clone()],
            Operation::Device(
                OnDevice::Release(_)
                | OnDevice::AssertFree { .. }
                | OnDevice::TakeDown { .. }
                | OnDevice::WipeDisk(_)
                | OnDevice::WriteTable(_)
                | OnDevice::CreateArray(_)
                | OnDevice::CreateGroup(_)
                | OnDevice::CreateVolume(_)
                | OnDevice::TryArray(_)
                | OnDevice::TryFilesystem(_)
                | OnDevice::DeactivateGroup { .. }
                | OnDevice::StopArray { .. },
            ) => Vec::new(),
            Operation::Run(OfRun::Mount(mount)) if !mount.is_read_only() => {
                mount.devices().map(str::to_owned).collect()
            }
            Operation::Run(
                OfRun::ReachImage { .. }
                | OfRun::IdentifyDisk(_)
                | OfRun::LockDisk { .. }
                | OfRun::UnlockDisk { .. }
                | OfRun::Rehearse(_)
                | OfRun::TellPointOfNoReturn { .. }
                | OfRun::Mount(_)
                | OfRun::MountReadOnly(_)
                | OfRun::BurnDisk(_)
                | OfRun::GrowFilesystem(_)
                | OfRun::BurnImage { .. }
                | OfRun::WriteMachineFiles { .. }
                | OfRun::RunInstaller { .. }
                | OfRun::AdaptImage { .. }
                | OfRun::WriteFstab(_)
                | OfRun::ExtendFstab(_)
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

    /// Where a device lies that was there before: a disk, a partition, or what a stage has put together of kept ones.
    fn ranges(&self, device: &str) -> Vec<(String, ByteRange)> {
        if let Some(disk) = self.inventory.disk(device) {
            return vec![(disk.device.clone(), ByteRange { start: 0, length: disk.size_bytes })];
        }
        for disk in &self.inventory.disks {
            let mut parts = disk.table.iter().flat_map(|table| &table.partitions);
            if let Some(part) = parts.find(|part| part.device == device) {
                return vec![(disk.device.clone(), ByteRange { start: part.start_bytes, length: part.size_bytes })];
            }
        }
        self.below(device).iter().flat_map(|device| self.ranges(device)).collect()
    }

    /// What a kept array or volume is put together of.
    fn below(&self, device: &str) -> &[String] {
        let operations = self.plan.stages.iter().flat_map(|stage| &stage.operations);
        let found = operations.filter_map(|operation| match operation {
            Operation::Device(OnDevice::AssembleArray(AssembleArray { device: array, members, .. }))
                if array == device =>
            {
                Some(members.as_slice())
            }
            Operation::Device(OnDevice::ActivateGroup(ActivateGroup { name, devices, volumes })) => {
                let volume = device.strip_prefix("/dev/")?.strip_prefix(name.as_str())?.strip_prefix('/')?;
                volumes.iter().any(|activated| activated == volume).then_some(devices.as_slice())
            }
            _ => None,
        });
        found.into_iter().next().unwrap_or_default()
    }

    fn disks(&self, open: &Open) -> Vec<DiskExtents> {
        let disks = open.iter().map(|(device, ranges)| DiskExtents {
            device: device.clone(),
            serial: self.inventory.disk(device).map(|disk| disk.serial.clone()).unwrap_or_default(),
            ranges: merged(ranges),
        });
        disks.collect()
    }
}

fn merged(ranges: &[ByteRange]) -> Vec<ByteRange> {
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
