//! Filesystems of the layout: the device and the fate of each filesystem.

use super::planned_devices::DeviceSize;
use model::device_name::DevicePath;
use model::layout::FilesystemSpec;
use operations::MakeFilesystem;

/// A filesystem of the layout and its fate.
pub(crate) type PlacedFilesystem<'a> = (&'a FilesystemSpec, &'a FilesystemFate);

/// Fate of a filesystem of the layout. Device paths are the paths during the installation, because a path in the layout
/// may be a link.
pub(crate) enum FilesystemFate {
    /// The filesystem is created on a new device.
    Made(NewFilesystem),
    /// The filesystem is created on a preserved device. The device is blank, or contains a filesystem that an
    /// interrupted attempt has left unfinished.
    Filled(NewFilesystem),
    /// The filesystem is preserved. The UUID may be absent if the filesystem can be found without it.
    Kept { device: DevicePath, uuid: Option<String> },
    /// The filesystem is in a raw image, in the partition with this number.
    InImage { device: DevicePath, number: u32 },
    /// A filesystem in memory.
    Tmpfs,
    /// A device with `format: none`, on which no filesystem is created or mounted. `is_kept` is set if the device is preserved.
    Unformatted { device: DevicePath, is_kept: bool },
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
            FilesystemFate::Made(NewFilesystem { device, .. })
            | FilesystemFate::Filled(NewFilesystem { device, .. })
            | FilesystemFate::Kept { device, .. }
            | FilesystemFate::InImage { device, .. }
            | FilesystemFate::Unformatted { device, .. } => Some(device),
            FilesystemFate::Tmpfs => None,
        }
    }

    /// Returns the UUID of the filesystem; `None` if the plan neither contains nor needs the UUID.
    pub(crate) fn uuid(&self) -> Option<&str> {
        match self {
            FilesystemFate::Made(new) | FilesystemFate::Filled(new) => Some(&new.uuid),
            FilesystemFate::Kept { uuid, .. } => uuid.as_deref(),
            FilesystemFate::InImage { .. } | FilesystemFate::Tmpfs | FilesystemFate::Unformatted { .. } => None,
        }
    }

    pub(crate) fn as_made(&self) -> Option<&NewFilesystem> {
        match self {
            FilesystemFate::Made(new) => Some(new),
            FilesystemFate::Filled(_)
            | FilesystemFate::Kept { .. }
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => None,
        }
    }

    pub(crate) fn as_filled(&self) -> Option<&NewFilesystem> {
        match self {
            FilesystemFate::Filled(new) => Some(new),
            FilesystemFate::Made(_)
            | FilesystemFate::Kept { .. }
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => None,
        }
    }

    /// Returns whether the filesystem exists and is preserved.
    pub(crate) fn is_kept(&self) -> bool {
        match self {
            FilesystemFate::Kept { .. } => true,
            FilesystemFate::Made(_)
            | FilesystemFate::Filled(_)
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => false,
        }
    }

    /// Returns whether the filesystem is on a preserved device. Such a filesystem is mounted together with preserved
    /// filesystems, even if it is new.
    pub(crate) fn is_restored(&self) -> bool {
        match self {
            FilesystemFate::Kept { .. } | FilesystemFate::Filled(_) => true,
            FilesystemFate::Made(_)
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => false,
        }
    }

    /// Returns the device and number of a partition of a raw image.
    pub(crate) fn as_in_image(&self) -> Option<(&DevicePath, u32)> {
        match self {
            FilesystemFate::InImage { device, number } => Some((device, *number)),
            FilesystemFate::Made(_)
            | FilesystemFate::Filled(_)
            | FilesystemFate::Kept { .. }
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
