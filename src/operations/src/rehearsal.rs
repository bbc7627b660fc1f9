//! Trial activation of preserved objects.

use crate::text::OperationLine;
use crate::text::{DeviceSizes, OperationText, join_devices, operation_lines};
use crate::{
    ActivateGroup, AssembleArray, CreateVolume, DeviceOp, MountFilesystem, OpenContainer, Operation, SessionOp,
};
use crate::{Effect, PlannedOperation};
use model::device::DevicePath;
use serde::Serialize;

/// Activates all preserved objects before anything is wiped, and deactivates them again. Snapshots keep all changes in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rehearsal {
    /// Disks, partitions and devices of mount options, each of which is replaced by a snapshot in memory.
    pub over: Vec<DevicePath>,
    /// Arrays, groups and mounts in order. Each filesystem is mounted separately.
    pub operations: Vec<RestoreOp>,
}

impl PlannedOperation for Rehearsal {
    fn describe(&self, sizes: &DeviceSizes) -> OperationLine<'_> {
        describe_rehearsal(self, sizes).into()
    }

    fn effect(&self) -> Effect<'_> {
        // Nothing is written, but the same devices must be assembled later.
        Effect::opening(&self.over)
    }
}

fn describe_rehearsal(rehearsal: &Rehearsal, sizes: &DeviceSizes) -> OperationText {
    let first = OperationText::after(format!(
        "on in-memory snapshots of {}, and deactivated again:",
        join_devices(&rehearsal.over)
    ));
    let operations: Vec<Operation> = rehearsal.operations.iter().cloned().map(Operation::from).collect();
    first.with(operation_lines(&operations, sizes))
}

/// Activates or extends a preserved object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoreOp {
    AssembleArray(AssembleArray),
    ActivateGroup(ActivateGroup),
    OpenContainer(OpenContainer),
    Mount(MountFilesystem),
    /// Adds a volume to a preserved group. Used only in the rehearsal.
    CreateVolume(CreateVolume),
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
