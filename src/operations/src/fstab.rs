//! The file `/etc/fstab` of the target.

use crate::operation_text::{DeviceSizes, OperationLine};
use crate::{Effect, PlannedOperation};
use model::layout::FilesystemFormat;
use serde::Serialize;

/// Line of fstab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FstabEntry {
    /// Source of the mount: `UUID=…` or `tmpfs`.
    pub source: String,
    /// Mount point; `none` for swap.
    pub path: String,
    pub format: FilesystemFormat,
    pub options: Vec<String>,
    /// fsck order: 1 for the root filesystem, 2 for other filesystems, 0 for filesystems that are not checked.
    pub pass: u8,
}

/// Operation that writes `/etc/fstab`, with the lines in mount order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WriteFstab(pub Vec<FstabEntry>);

impl PlannedOperation for WriteFstab {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        "/etc/fstab, by filesystem UUID".into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Operation that appends lines to the fstab of the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExtendFstab(pub Vec<FstabEntry>);

impl PlannedOperation for ExtendFstab {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        "/etc/fstab of the image, with lines for filesystems on other disks".into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}
