//! Volumes of Kubernetes: what becomes of each, and what is done for it.

use super::{CreateVolume, MakeFilesystem};
use crate::device::{DevicePath, KernelName};
use crate::inventory::array_uuid_text;
use crate::plan::sectors::MIB;
use crate::volume::Volume;
use serde::Serialize;
use uuid::Uuid;

/// One volume of the allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PersistentVolume {
    pub name: String,
    pub uid: Uuid,
    /// `rawBlockDevice ext4`.
    pub kind: String,
    /// Where it is while the installation runs. Of a sparse volume: its file in the installed system.
    pub device: DevicePath,
    /// The disks beneath, as they are called now.
    pub disks: Vec<KernelName>,
    pub verdict: PersistentVerdict,
    /// What it is mounted by in Kubernetes; of a logical volume that is made, only LVM tells it.
    #[serde(with = "crate::empty")]
    pub path: Option<String>,
    /// None where nobody can say it before it is made.
    pub size_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PersistentVerdict {
    /// On a blank disk, or on what this plan makes.
    Make,
    /// It is there, and is not written.
    Keep,
    /// In the free space of a kept group, or as a file in a kept filesystem: nothing that is there changes.
    Extend,
    /// It is marked for deletion, and is not there: nothing is prepared for it.
    Leave,
}

/// A volume that gets its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PreparePersistent {
    pub name: String,
    pub uid: Uuid,
    /// A disk, array, partition or logical volume.
    pub device: DevicePath,
    /// The logical volume is made first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create: Option<CreateVolume>,
    /// The layout does not speak of the device: all over it places are read again right before, and all must be zero.
    pub must_be_blank: bool,
    pub filling: Filling,
}

impl PreparePersistent {
    /// What a tool writes, which looks up the paths.
    pub fn written(&self) -> Vec<&DevicePath> {
        match &self.create {
            Some(create) => create.physical.iter().collect(),
            None => vec![&self.device],
        }
    }
}

/// What makes a volume known by its UUID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Filling {
    Filesystem(MakeFilesystem),
    /// One partition over all of the device, with the volume's UUID and name, in a GPT with this GUID.
    Partition {
        guid: Uuid,
    },
    /// A block volume of LVM: LVM's own UUID tells it from others.
    Nothing,
}

/// What the installed system has of volumes: files of sparse ones, units that attach them, and manifests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct WritePersistent {
    pub sparse: Vec<SparseVolume>,
    /// All of the allocation.
    #[serde(skip)]
    pub volumes: Vec<Prepared>,
}

/// A volume in a file of the installed system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SparseVolume {
    pub name: String,
    pub uid: Uuid,
    /// In the installed system.
    pub path: String,
    pub size_bytes: u64,
    /// None: the file is there, and stays.
    pub make: Option<Filling>,
}

/// What the manifest of a volume is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    pub volume: Volume,
    /// While the installation runs.
    pub device: DevicePath,
    /// It is the partition over all of the device.
    pub is_part: bool,
    pub persistent: Persistent,
    pub size_bytes: Option<u64>,
}

impl Prepared {
    /// Its bytes, on a device of so many.
    pub fn bytes_on(&self, device_bytes: u64) -> u64 {
        if self.is_part { partition_bytes(device_bytes) } else { device_bytes }
    }
}

/// Of the partition over all of a device of so many bytes: whole MiB, and one at each end for the table.
pub fn partition_bytes(bytes: u64) -> u64 {
    (bytes / MIB).saturating_sub(2) * MIB
}

/// What a volume is mounted by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Persistent {
    Known(String),
    /// A logical volume that is made: LVM deals out its UUID.
    Made(CreateVolume),
}

impl Persistent {
    pub fn known(&self) -> Option<&str> {
        match self {
            Persistent::Known(path) => Some(path),
            Persistent::Made(_) => None,
        }
    }
}

/// udev's link to a partition of an array. mdadm's rules (63-md-raid-arrays.rules, 4.2 and 4.4) make one by its GUID only when there is
/// a filesystem in it, and udev's own rules for disks (252 and 257) leave arrays alone.
pub fn array_part_path(array: Uuid, number: u32) -> String {
    format!("/dev/disk/by-id/md-uuid-{}-part{number}", array_uuid_text(array))
}

/// udev's link to a logical volume. LVM's UUIDs are of the group and of the volume, as LVM prints them.
pub fn mapping_path(group: &str, volume: &str) -> String {
    format!("/dev/disk/by-id/dm-uuid-LVM-{}{}", group.replace('-', ""), volume.replace('-', ""))
}
