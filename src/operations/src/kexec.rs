//! Operations that start the installed system with kexec.

use crate::operation_text::{DeviceSizes, OperationLine};
use crate::{Effect, PlannedOperation, UndoOperation};
use serde::Serialize;

/// Operation that loads the kernel and initrd that `/etc/metal/boot-info.yaml` names, with `kexec_file_load`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LoadKernel;

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
