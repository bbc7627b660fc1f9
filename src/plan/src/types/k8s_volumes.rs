//! Kubernetes volumes, and whether each of them is created, preserved, added to a preserved object, or not prepared.

use model::device_name::{DevicePath, KernelName};
use serde::Serialize;
use uuid::Uuid;

/// A Kubernetes volume of the allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PersistentVolume {
    pub name: String,
    pub uid: Uuid,
    /// Type and filesystem of the volume, such as `rawBlockDevice ext4`.
    pub kind: String,
    /// Device name during the installation; for a sparse volume, the path of its file in the installed system.
    pub device: DevicePath,
    /// Current names of the disks below the device.
    pub disks: Vec<KernelName>,
    pub verdict: PersistentVerdict,
    /// Path that Kubernetes mounts. For a new logical volume, the path is unknown until LVM has created the volume.
    #[serde(with = "common::empty_string_as_none")]
    pub path: Option<String>,
    /// Size in bytes; `None` if it is unknown before the volume is created.
    pub size_bytes: Option<u64>,
}

/// Decision whether a Kubernetes volume is created, preserved, added to a preserved object, or not prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PersistentVerdict {
    /// The volume is created on a blank disk, or on a device that this plan creates.
    Make,
    /// The volume exists, and is preserved unchanged.
    Keep,
    /// The volume is added to the free space of a preserved group, or as a file to a preserved filesystem; existing
    /// data does not change.
    Extend,
    /// The volume is marked for deletion and does not exist; nothing is prepared for it.
    Leave,
}
