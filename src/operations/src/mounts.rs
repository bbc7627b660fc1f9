//! Operations that mount and unmount filesystems.

use crate::operation_text::{DeviceSizes, OperationLine, strip_dev};
use crate::{Effect, PlannedOperation, UndoOperation};
use model::device_name::DevicePath;
use model::layout::FilesystemFormat;
use serde::Serialize;

/// Operation that mounts a filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MountFilesystem {
    /// Device to mount. For a tmpfs, this is the word `tmpfs`, because mount(2) requires a source.
    pub device: DevicePath,
    /// Mount point in the target, such as `/` or `/boot/efi`.
    pub path: String,
    pub format: FilesystemFormat,
    pub options: Vec<String>,
    /// Other devices of a preserved btrfs with several devices: disks and partitions, even on disks that the layout
    /// does not list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<DevicePath>,
}

impl MountFilesystem {
    fn options(&self) -> impl Iterator<Item = &str> {
        self.options.iter().flat_map(|option| option.split(',')).map(str::trim)
    }

    /// Returns all devices that the kernel writes when it mounts the filesystem: the main device, the devices in the
    /// mount options, and the other devices of a btrfs filesystem.
    pub fn devices(&self) -> impl Iterator<Item = DevicePath> {
        let values = self.options().filter_map(|option| Some(option.split_once('=')?.1.trim()));
        let named = values.filter(|value| value.starts_with("/dev/")).map(DevicePath::from);
        std::iter::once(self.device.clone()).chain(named).chain(self.others.iter().cloned())
    }

    /// Returns whether the filesystem is mounted read-only. If the options contain both `ro` and `rw`, the last one
    /// applies.
    pub(crate) fn is_read_only(&self) -> bool {
        self.options().filter(|option| ["ro", "rw"].contains(option)).last() == Some("ro")
    }

    /// Returns the devices that contain the filesystem. They include the other devices of a btrfs filesystem, because
    /// the kernel opens each of these devices by a path that the kernel has recorded.
    pub(crate) fn own_devices(&self) -> Vec<&DevicePath> {
        match self.format {
            FilesystemFormat::Tmpfs => Vec::new(),
            _ => std::iter::once(&self.device).chain(&self.others).collect(),
        }
    }
}

impl PlannedOperation for MountFilesystem {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_mount(self).into()
    }

    fn effect(&self) -> Effect<'_> {
        let written = if self.is_read_only() { Vec::new() } else { self.devices().collect() };
        Effect::opening(self.own_devices()).writing(written).undone_by([UndoOperation::Unmount])
    }
}

fn describe_mount(mount: &MountFilesystem) -> String {
    let mut options = mount.options.iter().flat_map(|option| option.split(','));
    let read_only = if options.any(|option| option == "ro") { " read-only" } else { "" };
    format!("{} at {}{read_only}", strip_dev(&mount.device), mount.path)
}

/// Operation that mounts a filesystem of the installed system read-only, even if the mount options contain `rw`. The
/// operation is used if the installed system will be booted unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MountReadOnly(pub MountFilesystem);

impl PlannedOperation for MountReadOnly {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_mount(&self.0).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none().undone_by([UndoOperation::Unmount])
    }
}

/// Operation that unmounts all filesystems, and fails if a filesystem remains mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unmount;

impl PlannedOperation for Unmount {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        "everything".into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}
