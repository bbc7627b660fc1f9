//! Operations that create a filesystem, or create it for a test in memory.

use crate::operation_text::{DeviceSizes, OperationLine, describe_size, strip_dev};
use crate::{Effect, PlannedOperation, UndoOperation};
use model::device_name::DevicePath;
use model::layout::FilesystemFormat;
use serde::Serialize;

/// Operation that creates a filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MakeFilesystem {
    pub device: DevicePath,
    pub format: FilesystemFormat,
    pub label: Option<String>,
    /// UUID in the notation of blkid and fstab: `1A2B-3C4D` for vfat, and the notation of RFC 4122 for other formats.
    pub uuid: String,
    pub createoptions: Vec<String>,
}

impl PlannedOperation for MakeFilesystem {
    fn describe(&self, sizes: &DeviceSizes) -> OperationLine<'_> {
        (describe_filesystem(self) + &describe_size(sizes, &self.device)).into()
    }

    fn effect(&self) -> Effect<'_> {
        // With `format: none`, no filesystem is created.
        let (opened, undo) = match self.format {
            FilesystemFormat::None => (None, None),
            _ => (Some(&self.device), Some(UndoOperation::WipeDeviceEnds(self.device.clone()))),
        };
        Effect::opening(opened).writing([self.device.clone()]).undone_by(undo)
    }
}

fn describe_filesystem(make: &MakeFilesystem) -> String {
    let label = make.label.as_deref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
    format!("{}: {}{label}", strip_dev(&make.device), make.format)
}

/// Operation that creates the filesystem in memory and mounts it, before anything is destroyed. If mkfs or the kernel
/// refuses the filesystem, the installation fails before it destroys data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TryFilesystem {
    /// The filesystem to create. It has another UUID than the real filesystem, because the kernel confuses two
    /// filesystems with the same UUID, or refuses to mount both.
    pub make: MakeFilesystem,
    pub size_bytes: u64,
    /// Alternative sizes, for a device whose size is not known before it is created. If `size_bytes` is refused, the
    /// alternatives are tried in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub or_size_bytes: Vec<u64>,
    pub sector_bytes: u32,
    /// Mount options; `None` if the filesystem will not be mounted.
    pub mount: Option<Vec<String>>,
    /// Kernel of the image, which must be able to mount the filesystem; `None` if the manifest of the image lists no
    /// kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mounted_by: Option<MountingKernel>,
}

/// Kernel of the image that will mount a filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MountingKernel {
    /// Version of the kernel, such as `5.14.0-427.el9.x86_64`.
    pub version: String,
    /// Mount point of the filesystem.
    pub path: String,
}

impl PlannedOperation for TryFilesystem {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_filesystem_trial(self).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Describes the test of a filesystem: `try to create ext4 -m 0 for sda2 in memory, mounted with noatime`.
fn describe_filesystem_trial(trial: &TryFilesystem) -> String {
    let MakeFilesystem { device, format, createoptions, .. } = &trial.make;
    let format = std::iter::once(format.name()).chain(createoptions.iter().map(String::as_str));
    let format = format.collect::<Vec<_>>().join(" ");
    let mounted = trial.mount.as_ref().map(|options| match options.is_empty() {
        true => ", mounted".to_owned(),
        false => format!(", mounted with {}", options.join(",")),
    });
    format!(
        "try to create {format} for {device} in memory{mount}",
        device = strip_dev(device),
        mount = mounted.unwrap_or_default()
    )
}
