//! Failed inspections and unassigned devices. A reinstall is refused if they may cost data.

use crate::device::DevicePath;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Failed attempt, with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedAttempt {
    pub tried: AttemptTarget,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptTarget {
    Array(Uuid),
    /// Logical volume, by LVM's UUID.
    Volume(String),
    /// Filesystem on this device, as in [`super::FilesystemContents::device`].
    Filesystem(DevicePath),
    /// LUKS container on this device, which is not open, or not with the given key.
    Container(DevicePath),
    /// LUKS container on this device, which the machine's TPM does not unlock. Its second key does.
    Sealed(DevicePath),
}

/// Components of an unknown object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnassignedDevices {
    /// Paths as spelled by the disk, partition or stacked device: `/dev/sda1`, `/dev/md127`.
    pub devices: Vec<DevicePath>,
    /// Reason, quoted from mdadm or lvm if available.
    pub reason: String,
}
