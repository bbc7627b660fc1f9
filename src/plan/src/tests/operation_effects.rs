//! Effect of each operation on devices, for the property tests. The match has no catch-all arm, so a new operation must
//! be added here.

use super::*;
use model::device_name::DevicePath;
use operations::{
    ActivateGroup, AdaptImage, AdaptMoved, AssembleArray, BurnDisk, CreateLuksContainer, DeviceOp, GrowFilesystem,
    LuksContainer, MountFilesystem, MountReadOnly, OpenContainer, Operation, SessionOp,
};
use std::collections::BTreeMap;

/// Effects of an operation on devices. An operation may have several effects.
#[derive(Default)]
pub(super) struct Effect<'a> {
    /// Devices whose content is destroyed or may be destroyed. They must all be recreated by the plan.
    pub destroyed: Vec<&'a DevicePath>,
    /// Devices that are written from now on, and whose content is preserved.
    pub written: Vec<&'a DevicePath>,
    /// Devices that exist from now on, each with the devices that it is on top of.
    pub brought: Vec<(DevicePath, Vec<&'a DevicePath>)>,
    pub mounted: Option<&'a MountFilesystem>,
}

/// Every device that the plan creates or assembles, with the devices that it is on top of.
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

fn on_device(operation: &DeviceOp) -> Effect<'_> {
    match operation {
        DeviceOp::WipeDisk(wipe) => destroying([&wipe.device]),
        DeviceOp::WriteTable(table) => {
            let partitions = table.partitions.iter().map(|new| (new.device.clone(), vec![&table.device]));
            Effect { brought: partitions.collect(), ..destroying([&table.device]) }
        }
        // The ranges outside the preserved volumes are written. The tests of writable extents check them.
        DeviceOp::RemoveVolumes(_) => Effect::default(),
        // Only the parts outside the preserved partitions are destroyed; `assert_clear` checks them.
        DeviceOp::ClearRanges(_) => Effect::default(),
        DeviceOp::EditTable(edit) => {
            let partitions = edit.added.iter().map(|new| (new.device.clone(), vec![&edit.device]));
            Effect { brought: partitions.collect(), ..Effect::default() }
        }
        DeviceOp::CreateArray(array) => Effect {
            destroyed: array.present_devices().collect(),
            brought: vec![(array.device.clone(), array.present_devices().collect())],
            ..Effect::default()
        },
        DeviceOp::CreateGroup(group) => destroying(&group.devices),
        DeviceOp::CreateVolume(volume) => {
            Effect { brought: vec![(volume.device.clone(), all(&volume.physical))], ..destroying(&volume.physical) }
        }
        DeviceOp::CreateContainer(CreateLuksContainer(LuksContainer { device, mapping, .. })) => {
            Effect { brought: vec![(mapping.clone(), vec![device])], ..destroying([device]) }
        }
        DeviceOp::OpenContainer(OpenContainer { container: LuksContainer { device, mapping, .. }, read_only }) => {
            let written = if *read_only { Vec::new() } else { vec![device] };
            Effect { written, brought: vec![(mapping.clone(), vec![device])], ..Effect::default() }
        }
        DeviceOp::MakeFilesystem(make) => destroying([&make.device]),
        // Existing volumes do not change: only free space of the physical volumes is written.
        DeviceOp::CreateK8sVolume(volume) => match &volume.create {
            Some(create) => Effect {
                written: all(&create.physical),
                brought: vec![(create.device.clone(), all(&create.physical))],
                ..Effect::default()
            },
            None => destroying([&volume.device]),
        },
        DeviceOp::AssembleArray(AssembleArray { device, members, .. }) => {
            Effect { written: all(members), brought: vec![(device.clone(), all(members))], ..Effect::default() }
        }
        DeviceOp::ActivateGroup(ActivateGroup { name, devices, volumes }) => {
            let volumes = volumes.iter().map(|volume| (format!("/dev/{name}/{volume}").into(), all(devices)));
            Effect { written: all(devices), brought: volumes.collect(), ..Effect::default() }
        }
        // A device that is stopped at the end was writable since its creation or assembly. A device that is stopped
        // earlier was only inspected.
        DeviceOp::Release(_)
        | DeviceOp::StopInspectedDevices(_)
        | DeviceOp::DeactivateGroup(_)
        | DeviceOp::StopArray(_)
        | DeviceOp::CloseContainer(_) => Effect::default(),
        // Trials run in memory.
        DeviceOp::TryArray(_) | DeviceOp::TryFilesystem(_) => Effect::default(),
        DeviceOp::AssertFree(_) | DeviceOp::ProveZeros(_) => Effect::default(),
    }
}

fn brought_by(burn: &BurnDisk) -> Vec<(DevicePath, Vec<&DevicePath>)> {
    burn.filesystems.iter().map(|filesystem| (filesystem.device.clone(), vec![&burn.device])).collect()
}

fn of_run(operation: &SessionOp) -> Effect<'_> {
    match operation {
        SessionOp::BurnDisk(burn) => Effect { brought: brought_by(burn), ..destroying([&burn.device]) },
        // The create program has access to these disks.
        SessionOp::CreateSystem(create) => Effect { brought: brought_by(&create.onto), ..destroying(&create.disks) },
        // The installer of the image has access to these devices, and may write a boot loader anywhere on them.
        SessionOp::Finish(finishing)
        | SessionOp::AdaptImage(AdaptImage(finishing))
        | SessionOp::AdaptMoved(AdaptMoved(finishing)) => destroying(&finishing.devices),
        SessionOp::Receive(receive) => destroying(receive.devices.iter().map(|received| &received.device)),
        // Growing changes the filesystem itself, so only new filesystems may be grown.
        SessionOp::GrowFilesystem(GrowFilesystem(mount)) => destroying([&mount.device]),
        SessionOp::Mount(mount) => {
            let is_read_only = mount.options.iter().any(|option| option == "ro");
            let written = if is_read_only { Vec::new() } else { vec![&mount.device] };
            Effect { written, mounted: Some(mount), ..Effect::default() }
        }
        SessionOp::MountReadOnly(MountReadOnly(mount)) => Effect { mounted: Some(mount), ..Effect::default() },
        // The rehearsal uses snapshots, whose changes stay in memory.
        SessionOp::Rehearse(_) => Effect::default(),
        // These operations write files of mounted filesystems.
        SessionOp::BurnImage(_)
        | SessionOp::WriteMachineFiles(_)
        | SessionOp::InjectFiles(_)
        | SessionOp::WriteK8sVolumeFiles(_)
        | SessionOp::WriteFstab(_)
        | SessionOp::ExtendFstab(_)
        | SessionOp::WriteCrypttab(_)
        | SessionOp::WriteMarker(_) => Effect::default(),
        // These operations write to no device, or only to devices for which other operations declare an effect.
        SessionOp::ResolveImage(_)
        | SessionOp::VerifyDefinition(_)
        | SessionOp::FindPrograms(_)
        | SessionOp::IdentifyDisk(_)
        | SessionOp::CheckContainers(_)
        | SessionOp::LockDisk(_)
        | SessionOp::UnlockDisk(_)
        | SessionOp::AnnouncePointOfNoReturn(_)
        | SessionOp::CheckMigrationCanceled(_)
        | SessionOp::FindBootLoader
        | SessionOp::RemoveVariables(_)
        | SessionOp::WriteBootEntries(_)
        | SessionOp::LoadKernel(_)
        | SessionOp::ProvePreserved(_)
        | SessionOp::Unmount
        | SessionOp::FlushDisks(_)
        | SessionOp::Report(_)
        | SessionOp::Kexec => Effect::default(),
    }
}
