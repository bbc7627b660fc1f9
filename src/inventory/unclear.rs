//! What could not be found out, and why: a reinstall refuses where that may cost data.

use crate::device::DevicePath;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Something that does not come up, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub tried: Tried,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tried {
    Array(Uuid),
    /// Logical volume, by LVM's UUID.
    Volume(String),
    /// On this device, as [`super::Filesystem::device`].
    Filesystem(DevicePath),
    /// LUKS on this device. It is not open, or not with the key that was given.
    Container(DevicePath),
    /// LUKS on this device, which the machine's TPM does not open. Its second key does.
    Sealed(DevicePath),
}

/// Parts of something that is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unknown {
    /// `/dev/sda1`, `/dev/md127`: as the disk, partition or stacked device spells it.
    pub devices: Vec<DevicePath>,
    /// In the words of mdadm or lvm where it has any.
    pub reason: String,
}
