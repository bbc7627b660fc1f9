//! Failed inspections of objects, and devices that cannot be assigned to an object. The planner needs both,
//! because it refuses a reinstall that may destroy uninspected data.

use crate::device_name::DevicePath;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Object that could not be inspected, and the reason for the failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectionFailure {
    pub tried: InspectionTarget,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InspectionTarget {
    Array(Uuid),
    /// Logical volume, by its LVM UUID.
    Volume(String),
    /// Filesystem on this device. The path of the device is spelled as in [`super::FilesystemContents::device`].
    Filesystem(DevicePath),
    /// LUKS container on this device that is not open, or that the supplied key does not open.
    Container(DevicePath),
    /// LUKS container on this device. The machine's TPM does not unlock the container, but the container's second key
    /// does.
    Sealed(DevicePath),
}

/// Components whose array, group or pool could not be determined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnassignedDevices {
    /// Device paths, spelled as in the entries of the disks, partitions and stacked devices: `/dev/sda1`, `/dev/md127`.
    pub devices: Vec<DevicePath>,
    /// Reason why the components cannot be assigned: the message of mdadm or lvm; empty if the tool printed no message.
    pub reason: String,
}
