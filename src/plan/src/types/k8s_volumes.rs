//! Kubernetes volumes: the verdict on each, and the operations for it.

use super::{CreateVolume, MakeFilesystem};
use crate::sectors::MIB;
use model::device::{DevicePath, KernelName};
use model::inventory::format_array_uuid;
use model::k8s_volume::K8sVolume;
use serde::Serialize;
use uuid::Uuid;

/// A Kubernetes volume of the allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PersistentVolume {
    pub name: String,
    pub uid: Uuid,
    /// Type and filesystem, such as `rawBlockDevice ext4`.
    pub kind: String,
    /// Device name during the installation. For a sparse volume, its file in the installed system.
    pub device: DevicePath,
    /// Current names of the disks below it.
    pub disks: Vec<KernelName>,
    pub verdict: PersistentVerdict,
    /// Path that Kubernetes mounts. For a new logical volume it is unknown until LVM has created it.
    #[serde(with = "common::serde_empty")]
    pub path: Option<String>,
    /// Size in bytes; `None` if it is unknown before the volume is created.
    pub size_bytes: Option<u64>,
}

/// Fate of a Kubernetes volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PersistentVerdict {
    /// Created on a blank disk, or on a device that this plan creates.
    Make,
    /// Present, and not written.
    Keep,
    /// Added to the free space of a preserved group, or as a file to a preserved filesystem; existing data does not change.
    Extend,
    /// Marked for deletion and absent; nothing is prepared for it.
    Leave,
}

/// A Kubernetes volume that is initialized.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PreparePersistent {
    pub name: String,
    pub uid: Uuid,
    /// A disk, array, partition or logical volume.
    pub device: DevicePath,
    /// Logical volume that is created first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create: Option<CreateVolume>,
    /// Whether the device must be blank, because the layout does not cover it. Samples from all over it are read again immediately before
    /// the write, and all must be zero.
    pub must_be_blank: bool,
    pub filling: VolumeFilling,
}

impl PreparePersistent {
    /// Returns the devices that a tool writes by path.
    pub fn written_devices(&self) -> Vec<&DevicePath> {
        match &self.create {
            Some(create) => create.physical.iter().collect(),
            None => vec![&self.device],
        }
    }
}

/// Content by which a volume is recognized by its UUID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeFilling {
    Filesystem(MakeFilesystem),
    /// A single partition that spans the device, with the UUID and name of the volume, in a GPT with this GUID.
    Partition {
        guid: Uuid,
    },
    /// No content: an LVM block volume is identified by its LVM UUID.
    Nothing,
}

/// Files of the installed system for Kubernetes volumes: sparse files, units that attach them, and manifests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct WritePersistent {
    pub sparse: Vec<SparseVolume>,
    /// All volumes of the allocation.
    #[serde(skip)]
    pub volumes: Vec<ManifestVolume>,
}

/// A Kubernetes volume in a file of the installed system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SparseVolume {
    pub name: String,
    pub uid: Uuid,
    /// Path in the installed system.
    pub path: String,
    pub size_bytes: u64,
    /// Content of a new file; `None` if the file exists and is preserved.
    pub make: Option<VolumeFilling>,
}

/// Data for the manifest of a Kubernetes volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestVolume {
    pub volume: K8sVolume,
    /// Device name during the installation.
    pub device: DevicePath,
    /// Whether the volume is the partition that spans the device.
    pub is_part: bool,
    pub persistent: VolumePath,
    pub size_bytes: Option<u64>,
}

impl ManifestVolume {
    /// Returns the size of the volume on a device of `device_bytes`.
    pub fn size_on(&self, device_bytes: u64) -> u64 {
        if self.is_part { spanning_partition_bytes(device_bytes) } else { device_bytes }
    }
}

/// Returns the size of the partition that spans a device of `bytes`: whole MiB, less 1 MiB at each end for the partition table.
pub fn spanning_partition_bytes(bytes: u64) -> u64 {
    (bytes / MIB).saturating_sub(2) * MIB
}

/// Path by which a Kubernetes volume is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumePath {
    Known(String),
    /// Path of a logical volume that is created; LVM assigns its UUID.
    Made(CreateVolume),
}

impl VolumePath {
    pub fn as_known(&self) -> Option<&str> {
        match self {
            VolumePath::Known(path) => Some(path),
            VolumePath::Made(_) => None,
        }
    }
}

/// Returns udev's link to a partition of an array. mdadm's rules (63-md-raid-arrays.rules, 4.2 and 4.4) create a link by GUID only if the
/// partition contains a filesystem, and udev's own rules for disks (252 and 257) ignore arrays.
pub fn array_partition_link(array: Uuid, number: u32) -> String {
    format!("/dev/disk/by-id/md-uuid-{}-part{number}", format_array_uuid(array))
}

/// Returns udev's link to a logical volume, from the UUIDs of its group and of the volume, as LVM prints them.
pub fn logical_volume_link(group: &str, volume: &str) -> String {
    format!("/dev/disk/by-id/dm-uuid-LVM-{}{}", group.replace('-', ""), volume.replace('-', ""))
}
