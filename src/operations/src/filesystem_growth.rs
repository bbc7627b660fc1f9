//! Operation that grows a filesystem.

use crate::mounts::MountFilesystem;
use crate::operation_text::{DeviceSizes, OperationLine, strip_dev};
use crate::{Effect, PlannedOperation};
use serde::Serialize;

/// Operation that grows a mounted filesystem to the size of its partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GrowFilesystem(pub MountFilesystem);

impl PlannedOperation for GrowFilesystem {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        let mount = &self.0;
        format!(
            "{device}: grow the {format} filesystem to the size of its partition",
            device = strip_dev(&mount.device),
            format = mount.format
        )
        .into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::opening(self.0.own_devices())
    }
}
