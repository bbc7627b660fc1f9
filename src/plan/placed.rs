//! A filesystem of the layout: where it lies, and what becomes of it.

use super::devices::Size;
use crate::layout::Filesystem;

/// A filesystem of the layout and its fate.
pub type Placed<'a> = (&'a Filesystem, &'a FilesystemFate);

/// A device has the path by which it is found while the installation runs: the layout's path may be a link.
pub enum FilesystemFate {
    /// The filesystem is made on a device that is made as well.
    Made(New),
    /// The filesystem is made on a kept device: the device is blank, or an earlier attempt was cut off while it made the
    /// filesystem.
    Filled(New),
    /// The filesystem is there, and stays. It may have no UUID, if nothing has to find it by one.
    Kept { device: String, uuid: Option<String> },
    /// A raw image brings it, in the partition with this number.
    InImage { device: String, number: u32 },
    /// It lives in memory.
    Tmpfs,
    /// `format: none`: nobody makes or mounts a filesystem on the device. Is the device kept?
    Unformatted { device: String, is_kept: bool },
}

/// A filesystem that is made.
pub struct New {
    pub device: String,
    pub uuid: String,
    /// Of the device.
    pub size: Size,
    pub sector_bytes: u32,
}

impl FilesystemFate {
    /// `None`: it lies on none.
    pub fn device(&self) -> Option<&str> {
        match self {
            FilesystemFate::Made(New { device, .. })
            | FilesystemFate::Filled(New { device, .. })
            | FilesystemFate::Kept { device, .. }
            | FilesystemFate::InImage { device, .. }
            | FilesystemFate::Unformatted { device, .. } => Some(device),
            FilesystemFate::Tmpfs => None,
        }
    }

    /// `None`: the plan knows none, and nothing has to find it by one.
    pub fn uuid(&self) -> Option<&str> {
        match self {
            FilesystemFate::Made(new) | FilesystemFate::Filled(new) => Some(&new.uuid),
            FilesystemFate::Kept { uuid, .. } => uuid.as_deref(),
            FilesystemFate::InImage { .. } | FilesystemFate::Tmpfs | FilesystemFate::Unformatted { .. } => None,
        }
    }

    pub fn made(&self) -> Option<&New> {
        match self {
            FilesystemFate::Made(new) => Some(new),
            FilesystemFate::Filled(_)
            | FilesystemFate::Kept { .. }
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => None,
        }
    }

    pub fn filled(&self) -> Option<&New> {
        match self {
            FilesystemFate::Filled(new) => Some(new),
            FilesystemFate::Made(_)
            | FilesystemFate::Kept { .. }
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => None,
        }
    }

    /// Is it there, and does it stay?
    pub fn is_kept(&self) -> bool {
        match self {
            FilesystemFate::Kept { .. } => true,
            FilesystemFate::Made(_)
            | FilesystemFate::Filled(_)
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => false,
        }
    }

    /// Is it on a kept device, and mounted as what is kept?
    pub fn comes_back(&self) -> bool {
        match self {
            FilesystemFate::Kept { .. } | FilesystemFate::Filled(_) => true,
            FilesystemFate::Made(_)
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { .. } => false,
        }
    }

    /// The device and the number of a partition that a raw image brings.
    pub fn in_image(&self) -> Option<(&str, u32)> {
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
