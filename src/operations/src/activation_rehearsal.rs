//! Trial activation of preserved objects.

use crate::effect::operations;
use crate::operation_lines::operation_lines;
use crate::operation_text::{DeviceSizes, OperationLine, OperationText, join_devices};
use crate::{ActivateGroup, AssembleArray, CreateVolume, Effect, MountFilesystem, OpenContainer, PlannedOperation};
use model::device_name::DevicePath;
use serde::Serialize;

/// Activates all preserved objects once before anything is wiped, and then deactivates them. All changes are written to
/// in-memory snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rehearsal {
    /// Disks and partitions with preserved objects, and devices to which mount options refer. During the rehearsal,
    /// each of these devices is replaced by an in-memory snapshot.
    pub over: Vec<DevicePath>,
    /// Operations that assemble the arrays, activate the volume groups and mount the filesystems, in this order. Each
    /// filesystem has its own mount point.
    pub operations: Vec<RestoreOp>,
}

impl PlannedOperation for Rehearsal {
    fn describe(&self, sizes: &DeviceSizes) -> OperationLine<'_> {
        describe_rehearsal(self, sizes).into()
    }

    fn effect(&self) -> Effect<'_> {
        // The rehearsal writes nothing, but later operations must assemble the same devices.
        Effect::opening(&self.over)
    }
}

fn describe_rehearsal(rehearsal: &Rehearsal, sizes: &DeviceSizes) -> OperationText {
    let first = OperationText::after(format!(
        "on in-memory snapshots of {disks}, and deactivated again:",
        disks = join_devices(&rehearsal.over)
    ));
    first.with(operation_lines(&rehearsal.operations, sizes))
}

operations! {
    /// Operation that activates a preserved object or, in the rehearsal, adds a volume to a preserved group.
    RestoreOp {
        AssembleArray(AssembleArray),
        ActivateGroup(ActivateGroup),
        OpenContainer(OpenContainer),
        Mount(MountFilesystem),
        CreateVolume(CreateVolume),
    }
}
