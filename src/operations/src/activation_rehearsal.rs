//! Rehearsal: activation of preserved objects for a test, without writing to their disks.

use crate::effect::operations;
use crate::operation_lines::operation_lines;
use crate::operation_text::{DeviceSizes, OperationLine, OperationText, join_devices};
use crate::{
    ActivateGroup, AssembleArray, CreateVolume, Effect, MountFilesystem, OpenContainer, PlannedOperation, RemoveVolumes,
};
use model::device_name::DevicePath;
use serde::Serialize;

/// Operation that activates all preserved objects once, and then deactivates them, before anything is wiped. All writes
/// go to in-memory snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActivationRehearsal {
    /// Disks and partitions with preserved objects, and devices to which mount options refer. During the rehearsal, an
    /// in-memory snapshot replaces each of these devices.
    pub over: Vec<DevicePath>,
    /// Operations that assemble the arrays, activate the volume groups and mount the filesystems, in this order. Each
    /// filesystem has its own mount point.
    pub operations: Vec<RestoreOp>,
}

impl PlannedOperation for ActivationRehearsal {
    fn describe(&self, sizes: &DeviceSizes) -> OperationLine<'_> {
        describe_rehearsal(self, sizes).into()
    }

    fn effect(&self) -> Effect<'_> {
        // The rehearsal does not write to any disk. Its devices are nevertheless declared as opened, so that the
        // executor verifies their paths: later operations must assemble the same devices.
        Effect::opening(&self.over)
    }
}

fn describe_rehearsal(rehearsal: &ActivationRehearsal, sizes: &DeviceSizes) -> OperationText {
    let first = OperationText::after(format!(
        "activated on in-memory snapshots of {disks}, and deactivated again:",
        disks = join_devices(&rehearsal.over)
    ));
    first.with(operation_lines(&rehearsal.operations, sizes))
}

operations! {
    /// Operation that activates a preserved object. In a rehearsal, also an operation that removes volumes of a
    /// preserved group, or that adds a volume to such a group.
    RestoreOp {
        AssembleArray(AssembleArray),
        ActivateGroup(ActivateGroup),
        OpenContainer(OpenContainer),
        Mount(MountFilesystem),
        RemoveVolumes(RemoveVolumes),
        CreateVolume(CreateVolume),
    }
}
