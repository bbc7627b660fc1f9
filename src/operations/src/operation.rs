//! The enums of all operations.
//!
//! Matches on operations have no catch-all arm: a new operation does not compile until every match handles it.

use crate::effect::operations;
use crate::operation_text::{DeviceSizes, OperationLine};
use crate::{
    ActivateGroup, AdaptImage, AdaptMoved, AssembleArray, AssertFree, BootEntries, BurnDisk, BurnImage,
    CheckContainers, ClearRanges, CloseContainer, CreateArray, CreateGroup, CreateSystem, CreateVolume,
    DeactivateGroup, DiskIdentity, Effect, ExtendFstab, FinalReport, FindLoader, FindPrograms, FinishInputs,
    FlushDisks, GrowFilesystem, Holder, InjectFiles, Kexec, LoadKernel, LockDisk, LuksContainer, MakeFilesystem,
    MountFilesystem, MountReadOnly, MoveStands, OpenContainer, PartitionTable, PlannedOperation, PreparePersistent,
    ProveKept, ProveZeros, ReachImage, ReceiveMigration, Rehearsal, RemoveVariables, RestoreOp, StageName, StopArray,
    TableEdit, TakeDown, TellPointOfNoReturn, TryArray, TryFilesystem, UnlockDisk, Unmount, VerifyDefinition, WipeDisk,
    WriteCrypttab, WriteFstab, WriteMachineFiles, WriteMarker, WritePersistent,
};
use serde::Serialize;

/// A single operation of the executor.
#[allow(
    clippy::large_enum_variant,
    reason = "a plan has at most a few dozen operations, so the size of the largest variant does not matter"
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
    /// An operation that needs only devices, and no state that earlier operations left in the session.
    DeviceOp {
        Release(Holder),
        AssertFree(AssertFree),
        ProveZeros(ProveZeros),
        WipeDisk(WipeDisk),
        ClearRanges(ClearRanges),
        WriteTable(PartitionTable),
        EditTable(TableEdit),
        CreateArray(CreateArray),
        CreateGroup(CreateGroup),
        CreateVolume(CreateVolume),
        CreateContainer(LuksContainer),
        OpenContainer(OpenContainer),
        CloseContainer(CloseContainer),
        TakeDown(TakeDown),
        AssembleArray(AssembleArray),
        ActivateGroup(ActivateGroup),
        TryArray(TryArray),
        TryFilesystem(TryFilesystem),
        MakeFilesystem(MakeFilesystem),
        PreparePersistent(Box<PreparePersistent>),
        DeactivateGroup(DeactivateGroup),
        StopArray(StopArray),
    }
}

operations! {
    /// An operation that needs state of the session: the image, the mounted target, locks, the control plane.
    SessionOp {
        ReachImage(ReachImage),
        VerifyDefinition(VerifyDefinition),
        FindPrograms(FindPrograms),
        IdentifyDisk(DiskIdentity),
        CheckContainers(CheckContainers),
        LockDisk(LockDisk),
        UnlockDisk(UnlockDisk),
        Rehearse(Rehearsal),
        TellPointOfNoReturn(TellPointOfNoReturn),
        MoveStands(MoveStands),
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
        WritePersistent(WritePersistent),
        WriteFstab(WriteFstab),
        ExtendFstab(ExtendFstab),
        WriteCrypttab(WriteCrypttab),
        RemoveVariables(RemoveVariables),
        WriteBootEntries(BootEntries),
        ProveKept(ProveKept),
        WriteMarker(WriteMarker),
        FlushDisks(FlushDisks),
        Report(FinalReport),
    } {
        FindLoader,
        LoadKernel,
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
            RestoreOp::CreateVolume(volume) => Operation::Device(DeviceOp::CreateVolume(volume)),
        }
    }
}

/// A named stage of the run. The API and the console call it a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanStage {
    pub name: StageName,
    pub operations: Vec<Operation>,
}
