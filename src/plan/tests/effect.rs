//! What each operation does to devices, as the properties judge it. There is no catch-all arm: a new operation does not compile
//! until it has an answer here.

use super::*;
use crate::device::DevicePath;
use std::collections::BTreeMap;

/// An operation may do several of these.
#[derive(Default)]
pub(super) struct Effect<'a> {
    /// Devices that lose what is on them, or may: only what is made anew may be among them.
    pub destroyed: Vec<&'a DevicePath>,
    /// Devices that are written from now on, and keep what is on them.
    pub written: Vec<&'a DevicePath>,
    /// Devices that are there from now on, and what each lies on.
    pub brought: Vec<(DevicePath, Vec<&'a DevicePath>)>,
    pub mounted: Option<&'a MountFilesystem>,
}

/// Every device that the plan makes or puts together, and what it lies on.
pub(super) type Brought<'a> = BTreeMap<DevicePath, Vec<&'a DevicePath>>;

pub(super) fn brought(plan: &Plan) -> Brought<'_> {
    plan.stages.iter().flat_map(|stage| &stage.operations).flat_map(|operation| effect(operation).brought).collect()
}

pub(super) fn effect(operation: &Operation) -> Effect<'_> {
    match operation {
        Operation::Device(operation) => on_device(operation),
        Operation::Run(operation) => of_run(operation),
    }
}

fn destroying<'a>(devices: impl IntoIterator<Item = &'a DevicePath>) -> Effect<'a> {
    Effect { destroyed: all(devices), ..Effect::default() }
}

fn all<'a>(devices: impl IntoIterator<Item = &'a DevicePath>) -> Vec<&'a DevicePath> {
    devices.into_iter().collect()
}

fn on_device(operation: &OnDevice) -> Effect<'_> {
    match operation {
        OnDevice::WipeDisk(wipe) => destroying([&wipe.device]),
        OnDevice::WriteTable(table) => {
            let partitions = table.partitions.iter().map(|new| (new.device.clone(), vec![&table.device]));
            Effect { brought: partitions.collect(), ..destroying([&table.device]) }
        }
        OnDevice::CreateArray(array) => Effect {
            destroyed: array.there().collect(),
            brought: vec![(array.device.clone(), array.there().collect())],
            ..Effect::default()
        },
        OnDevice::CreateGroup(group) => destroying(&group.devices),
        OnDevice::CreateVolume(volume) => {
            Effect { brought: vec![(volume.device.clone(), all(&volume.physical))], ..destroying(&volume.physical) }
        }
        OnDevice::CreateContainer(Container { device, mapping, .. }) => {
            Effect { brought: vec![(mapping.clone(), vec![device])], ..destroying([device]) }
        }
        OnDevice::OpenContainer(OpenContainer { container: Container { device, mapping, .. }, read_only }) => {
            let written = if *read_only { Vec::new() } else { vec![device] };
            Effect { written, brought: vec![(mapping.clone(), vec![device])], ..Effect::default() }
        }
        OnDevice::MakeFilesystem(make) => destroying([&make.device]),
        // What lies on the physical volumes stays: only free space of theirs is written.
        OnDevice::PreparePersistent(volume) => match &volume.create {
            Some(create) => Effect {
                written: all(&create.physical),
                brought: vec![(create.device.clone(), all(&create.physical))],
                ..Effect::default()
            },
            None => destroying([&volume.device]),
        },
        OnDevice::AssembleArray(AssembleArray { device, members, .. }) => {
            Effect { written: all(members), brought: vec![(device.clone(), all(members))], ..Effect::default() }
        }
        OnDevice::ActivateGroup(ActivateGroup { name, devices, volumes }) => {
            let volumes = volumes.iter().map(|volume| (format!("/dev/{name}/{volume}").into(), all(devices)));
            Effect { written: all(devices), brought: volumes.collect(), ..Effect::default() }
        }
        // What is taken down at the end was written since it was made or assembled. What is taken down before was only looked at.
        OnDevice::Release(_)
        | OnDevice::TakeDown { .. }
        | OnDevice::DeactivateGroup { .. }
        | OnDevice::StopArray { .. }
        | OnDevice::CloseContainer { .. } => Effect::default(),
        // In memory.
        OnDevice::TryArray(_) | OnDevice::TryFilesystem(_) => Effect::default(),
        OnDevice::AssertFree { .. } | OnDevice::ProveZeros(_) => Effect::default(),
    }
}

fn brought_by(burn: &BurnDisk) -> Vec<(DevicePath, Vec<&DevicePath>)> {
    burn.filesystems.iter().map(|is| (is.device.clone(), vec![&burn.device])).collect()
}

fn of_run(operation: &OfRun) -> Effect<'_> {
    match operation {
        OfRun::BurnDisk(burn) => Effect { brought: brought_by(burn), ..destroying([&burn.device]) },
        // It gets the nodes of these.
        OfRun::CreateSystem(create) => Effect { brought: brought_by(&create.onto), ..destroying(&create.disks) },
        // The image's own program gets the nodes of these, and may write a boot loader anywhere on them.
        OfRun::Finish(finishing) | OfRun::AdaptImage(finishing) | OfRun::AdaptMoved(finishing) => {
            destroying(&finishing.devices)
        }
        OfRun::Receive(receive) => destroying(receive.devices.iter().map(|received| &received.device)),
        // More than files are written: what is kept must keep its size.
        OfRun::GrowFilesystem(mount) => destroying([&mount.device]),
        OfRun::Mount(mount) => {
            let is_read_only = mount.options.iter().any(|option| option == "ro");
            let written = if is_read_only { Vec::new() } else { vec![&mount.device] };
            Effect { written, mounted: Some(mount), ..Effect::default() }
        }
        OfRun::MountReadOnly(mount) => Effect { mounted: Some(mount), ..Effect::default() },
        // Over snapshots, whose changes live in memory.
        OfRun::Rehearse(_) => Effect::default(),
        // Files of what is mounted.
        OfRun::BurnImage { .. }
        | OfRun::WriteMachineFiles { .. }
        | OfRun::InjectFiles(_)
        | OfRun::WritePersistent(_)
        | OfRun::WriteFstab(_)
        | OfRun::ExtendFstab(_)
        | OfRun::WriteCrypttab(_)
        | OfRun::WriteMarker(_) => Effect::default(),
        // Nothing is written, or only what was to be written anyway.
        OfRun::ReachImage { .. }
        | OfRun::VerifyDefinition { .. }
        | OfRun::FindPrograms { .. }
        | OfRun::IdentifyDisk(_)
        | OfRun::CheckContainers(_)
        | OfRun::LockDisk { .. }
        | OfRun::UnlockDisk { .. }
        | OfRun::TellPointOfNoReturn { .. }
        | OfRun::MoveStands { .. }
        | OfRun::FindLoader
        | OfRun::RemoveVariables(_)
        | OfRun::WriteBootEntries(_)
        | OfRun::LoadKernel
        | OfRun::ProveKept(_)
        | OfRun::Unmount
        | OfRun::FlushDisks { .. }
        | OfRun::Report(_)
        | OfRun::Kexec => Effect::default(),
    }
}
