//! Filesystems of the layout: the device of each filesystem, and the decision whether the filesystem is created,
//! preserved, or part of a raw image.

use super::planned_devices::DeviceSize;
use model::device_name::DevicePath;
use model::layout::FilesystemSpec;
use operations::MakeFilesystem;

/// A filesystem of the layout, and the decision on it.
pub(crate) type PlacedFilesystem<'a> = (&'a FilesystemSpec, &'a FilesystemFate);

/// Decision on a filesystem of the layout, such as that it is created, preserved, or part of a raw image. Device paths
/// are the paths during the installation, because a path in the layout may be a link.
pub(crate) enum FilesystemFate {
    /// The filesystem is created on a new device.
    Created(NewFilesystem),
    /// The filesystem is created on a preserved device. The device is blank, or contains a filesystem that an
    /// interrupted attempt has left unfinished.
    Filled(NewFilesystem),
    /// The filesystem is preserved. The UUID may be absent if the filesystem can be found without it.
    Preserved { device: DevicePath, uuid: Option<String> },
    /// The filesystem is in a raw image, in the partition with this number.
    InImage { device: DevicePath, number: u32 },
    /// A filesystem in memory.
    Tmpfs,
    /// A device with `format: none`: no filesystem is created or mounted. `is_preserved` is true if the device is
    /// preserved.
    Unformatted { device: DevicePath, is_preserved: bool },
}

/// A filesystem that is created.
pub(crate) struct NewFilesystem {
    pub device: DevicePath,
    pub uuid: String,
    /// Size of the device on which the filesystem is created.
    pub size: DeviceSize,
    pub sector_bytes: u32,
}

impl FilesystemFate {
    /// Returns the device; `None` for a filesystem in memory.
    pub(crate) fn device(&self) -> Option<&DevicePath> {
        match self {
            FilesystemFate::Created(NewFilesystem { device, .. })
            | FilesystemFate::Filled(NewFilesystem { device, .. })
            | FilesystemFate::Preserved { device, .. }
            | FilesystemFate::InImage { device, .. }
            | FilesystemFate::Unformatted { device, .. } => Some(device),
            FilesystemFate::Tmpfs => None,
        }
    }

    /// Returns the UUID of the filesystem; `None` if the plan neither contains nor needs the UUID.
    pub(crate) fn uuid(&self) -> Option<&str> {
        match self {
            FilesystemFate::Created(new) | FilesystemFate::Filled(new) => Some(&new.uuid),
            FilesystemFate::Preserved { uuid, .. } => uuid.as_deref(),
            FilesystemFate::InImage { .. } | FilesystemFate::Tmpfs | FilesystemFate::Unformatted { .. } => None,
        }
    }

    pub(crate) fn created_filesystem(&self) -> Option<&NewFilesystem> {
        match self {
            FilesystemFate::Created(new) => Some(new),
            FilesystemFate::Filled(_)
            | FilesystemFate::Preserved { .. }
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => None,
        }
    }

    pub(crate) fn as_filled(&self) -> Option<&NewFilesystem> {
        match self {
            FilesystemFate::Filled(new) => Some(new),
            FilesystemFate::Created(_)
            | FilesystemFate::Preserved { .. }
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => None,
        }
    }

    /// Returns whether the filesystem exists and is preserved.
    pub(crate) fn is_preserved(&self) -> bool {
        match self {
            FilesystemFate::Preserved { .. } => true,
            FilesystemFate::Created(_)
            | FilesystemFate::Filled(_)
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => false,
        }
    }

    /// Returns whether the filesystem is on a preserved device. Such a filesystem is mounted together with preserved
    /// filesystems, even if it is new.
    pub(crate) fn is_on_preserved_device(&self) -> bool {
        match self {
            FilesystemFate::Preserved { .. } | FilesystemFate::Filled(_) => true,
            FilesystemFate::Created(_)
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => false,
        }
    }

    /// Returns the device and partition number of a filesystem in a raw image; `None` for any other filesystem.
    pub(crate) fn as_in_image(&self) -> Option<(&DevicePath, u32)> {
        match self {
            FilesystemFate::InImage { device, number } => Some((device, *number)),
            FilesystemFate::Created(_)
            | FilesystemFate::Filled(_)
            | FilesystemFate::Preserved { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => None,
        }
    }
}

pub(crate) fn new_filesystem(filesystem: &FilesystemSpec, new: &NewFilesystem) -> MakeFilesystem {
    MakeFilesystem {
        device: new.device.clone(),
        format: filesystem.format,
        label: filesystem.label.clone(),
        uuid: new.uuid.clone(),
        createoptions: filesystem.createoptions.clone(),
    }
}
