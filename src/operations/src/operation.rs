//! Enums of all operations.
//!
//! A `match` on operations has no catch-all arm, so a new operation does not compile until each `match` handles it.

use crate::effect::operations;
use crate::operation_text::{DeviceSizes, OperationLine};
use crate::{
    ActivateGroup, ActivationRehearsal, AdaptImage, AdaptMoved, AnnouncePointOfNoReturn, AssembleArray, AssertFree,
    BurnDisk, BurnImage, CheckContainers, CheckMigrationCanceled, ClearRanges, CloseContainer, CreateArray,
    CreateGroup, CreateK8sVolume, CreateLuksContainer, CreateSystem, CreateVolume, DeactivateGroup, DiskIdentity,
    Effect, ExtendFstab, FinalReport, FindBootLoader, FindPrograms, FinishInputs, FlushDisks, GrowFilesystem,
    InjectFiles, Kexec, LoadKernel, LockDisk, MakeFilesystem, MountFilesystem, MountReadOnly, OpenContainer,
    PartitionTable, PlannedOperation, ProvePreserved, ProveZeros, ReceiveMigration, ReleaseDiskHolder, RemoveVariables,
    RemoveVolumes, ResolveImage, RestoreOp, StageName, StopArray, StopInspectedDevices, TableEdit, TryArray,
    TryFilesystem, UnlockDisk, Unmount, VerifyDefinition, WipeDisk, WriteBootEntries, WriteCrypttab, WriteFstab,
    WriteK8sVolumeFiles, WriteMachineFiles, WriteMarker,
};
use serde::Serialize;

/// Single operation that the executor performs.
#[allow(
    clippy::large_enum_variant,
    reason = "a plan contains only few values of this enum, so the size of its largest variant does not matter"
)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Operation {
    Device(DeviceOp),
    Run(SessionOp),
}

impl PlannedOperation for Operation {
    fn describe(&self, sizes: &DeviceSizes) -> OperationLine<'_> {
        match self {
            Operation::Device(operation) => operation.describe(sizes),
            Operation::Run(operation) => operation.describe(sizes),
        }
    }

    fn effect(&self) -> Effect<'_> {
        match self {
            Operation::Device(operation) => operation.effect(),
            Operation::Run(operation) => operation.effect(),
        }
    }
}

operations! {
    /// Operation that requires only devices, and no other results of earlier operations, such as a mounted target.
    DeviceOp {
        Release(ReleaseDiskHolder),
        AssertFree(AssertFree),
        ProveZeros(ProveZeros),
        WipeDisk(WipeDisk),
        ClearRanges(ClearRanges),
        WriteTable(PartitionTable),
        EditTable(TableEdit),
        CreateArray(CreateArray),
        CreateGroup(CreateGroup),
        RemoveVolumes(RemoveVolumes),
        CreateVolume(CreateVolume),
        CreateContainer(CreateLuksContainer),
        OpenContainer(OpenContainer),
        CloseContainer(CloseContainer),
        #[serde(rename = "take_down")]
        StopInspectedDevices(StopInspectedDevices),
        AssembleArray(AssembleArray),
        ActivateGroup(ActivateGroup),
        TryArray(TryArray),
        TryFilesystem(TryFilesystem),
        MakeFilesystem(MakeFilesystem),
        #[serde(rename = "prepare_persistent")]
        CreateK8sVolume(Box<CreateK8sVolume>),
        DeactivateGroup(DeactivateGroup),
        StopArray(StopArray),
    }
}

operations! {
    /// Operation that requires state that belongs to the execution of the plan: the image, the mounted target, locks,
    /// or the control plane.
    SessionOp {
        #[serde(rename = "reach_image")]
        ResolveImage(ResolveImage),
        VerifyDefinition(VerifyDefinition),
        FindPrograms(FindPrograms),
        IdentifyDisk(DiskIdentity),
        CheckContainers(CheckContainers),
        LockDisk(LockDisk),
        UnlockDisk(UnlockDisk),
        Rehearse(ActivationRehearsal),
        #[serde(rename = "tell_point_of_no_return")]
        AnnouncePointOfNoReturn(AnnouncePointOfNoReturn),
        #[serde(rename = "move_stands")]
        CheckMigrationCanceled(CheckMigrationCanceled),
        Mount(MountFilesystem),
        MountReadOnly(MountReadOnly),
        BurnDisk(BurnDisk),
        Receive(ReceiveMigration),
        CreateSystem(Box<CreateSystem>),
        GrowFilesystem(GrowFilesystem),
        BurnImage(BurnImage),
        WriteMachineFiles(WriteMachineFiles),
        InjectFiles(InjectFiles),
        Finish(Box<FinishInputs>),
        AdaptImage(AdaptImage),
        AdaptMoved(AdaptMoved),
        #[serde(rename = "write_persistent")]
        WriteK8sVolumeFiles(WriteK8sVolumeFiles),
        WriteFstab(WriteFstab),
        ExtendFstab(ExtendFstab),
        WriteCrypttab(WriteCrypttab),
        RemoveVariables(RemoveVariables),
        WriteBootEntries(WriteBootEntries),
        LoadKernel(LoadKernel),
        #[serde(rename = "prove_kept")]
        ProvePreserved(ProvePreserved),
        WriteMarker(WriteMarker),
        FlushDisks(FlushDisks),
        Report(FinalReport),
    } {
        #[serde(rename = "find_loader")]
        FindBootLoader,
        Unmount,
        Kexec,
    }
}

impl From<RestoreOp> for Operation {
    fn from(restore: RestoreOp) -> Operation {
        match restore {
            RestoreOp::AssembleArray(array) => Operation::Device(DeviceOp::AssembleArray(array)),
            RestoreOp::ActivateGroup(group) => Operation::Device(DeviceOp::ActivateGroup(group)),
            RestoreOp::OpenContainer(open) => Operation::Device(DeviceOp::OpenContainer(open)),
            RestoreOp::Mount(mount) => Operation::Run(SessionOp::Mount(mount)),
            RestoreOp::RemoveVolumes(remove) => Operation::Device(DeviceOp::RemoveVolumes(remove)),
            RestoreOp::CreateVolume(volume) => Operation::Device(DeviceOp::CreateVolume(volume)),
        }
    }
}

/// A named stage of a plan. The API and the console call a stage a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanStage {
    pub name: StageName,
    pub operations: Vec<Operation>,
}
