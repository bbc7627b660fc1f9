//! Operations that start the installed system with kexec.

use crate::operation_text::{DeviceSizes, OperationLine};
use crate::{Effect, PlannedOperation, UndoOperation};
use serde::Serialize;
use uuid::Uuid;

/// Operation that loads the kernel and initrd that `/etc/metal/boot-info.yaml` names, with `kexec_file_load`. If the
/// running kernel does not support kexec, the operation selects the boot entry of the system for the next boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LoadKernel {
    /// GUIDs of the EFI system partitions of a system that an earlier run has installed, by which its boot entry is
    /// found. `None` for a system that this plan installs: its boot entries are those that this plan has written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installed_esps: Option<Vec<Uuid>>,
}

impl PlannedOperation for LoadKernel {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        "kernel and initrd of /etc/metal/boot-info.yaml".into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none().undone_by([UndoOperation::UnloadKernel])
    }
}

/// Operation that starts the loaded kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Kexec;

impl PlannedOperation for Kexec {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        "into the installed system".into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}
