//! LVM volume groups.

use crate::device_name::{DevicePath, KernelName};
use serde::{Deserialize, Serialize};

/// Value of [`LvmLogicalVolume::entangled`] for the origin of a snapshot. The content of the origin is current, and can
/// be read through a read-only mapping.
pub const HAS_SNAPSHOT: &str = "has a snapshot, and LVM would activate the snapshot together with the volume";

/// Prefix of [`LvmVolumeGroup::closed`] for a group that several hosts share through a lock manager.
pub const SHARED_GROUP: &str = "the volume group is shared with other hosts";

/// LVM volume group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LvmVolumeGroup {
    pub name: String,
    /// UUID in LVM's format: `kZ3Wud-…`.
    pub uuid: String,
    pub extent_bytes: u64,
    #[serde(default)]
    pub tags: Vec<String>,
    /// Size of all unallocated extents, in bytes; `None` in older inventories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Limits for adding a volume; `None` in older inventories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<GroupAllocation>,
    pub physical: Vec<LvmPhysicalVolume>,
    pub volumes: Vec<LvmLogicalVolume>,
    /// Reason why LVM does not activate the group on this machine: it is exported, or belongs to another host. `None` if LVM activates it.
    #[serde(default, with = "common::serde_empty", skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
}

impl LvmVolumeGroup {
    /// Returns the devices of the physical volumes that are present.
    pub fn present_devices(&self) -> impl Iterator<Item = &DevicePath> {
        self.physical.iter().filter_map(|physical| physical.device.as_ref())
    }

    /// Returns whether other hosts use the group too.
    pub fn is_shared(&self) -> bool {
        self.closed.as_ref().is_some_and(|why| why.starts_with(SHARED_GROUP))
    }
}

/// Limits and free space of a group that restrict the creation of a new volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupAllocation {
    /// Allocation policy of LVM: `normal`, `contiguous`, `cling`, `cling_by_tags`, `anywhere`.
    pub policy: String,
    /// Maximum number of volumes (`vgchange --maxlogicalvolumes`); 0 if there is no limit.
    pub max_volumes: u64,
    /// Number of existing volumes that count towards [`GroupAllocation::max_volumes`].
    pub volumes: u64,
    /// Whether the metadata of the group cannot be changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Free space of each physical volume.
    pub free: Vec<FreeSpace>,
}

/// Free space of a physical volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeSpace {
    /// LVM UUID of the physical volume.
    pub physical: String,
    /// Whether LVM may allocate space on the physical volume (`pvchange --allocatable`).
    pub is_allocatable: bool,
    pub bytes: u64,
    /// Size of the largest contiguous free area, in bytes.
    pub largest_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LvmPhysicalVolume {
    /// Path such as `/dev/nvme0n1`; `None` if the physical volume is missing.
    #[serde(with = "common::serde_empty")]
    pub device: Option<DevicePath>,
    pub uuid: String,
    pub size_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LvmLogicalVolume {
    pub name: String,
    pub uuid: String,
    pub size_bytes: u64,
    /// LVM segment type: `linear`, `striped`, `raid1`, `thin-pool`.
    pub kind: String,
    pub stripes: u32,
    /// Kernel name of the active volume, or of a read-only mapping with its content; `None` if there is neither.
    #[serde(default)]
    pub running: Option<KernelName>,
    #[serde(default, skip_serializing_if = "VolumeHealth::is_whole")]
    pub health: VolumeHealth,
    /// Reason why activating this volume would affect other volumes, such as `is being moved, and the move would
    /// continue if the volume was activated`. `None` if activating this volume affects no other volume.
    #[serde(default, with = "common::serde_empty", skip_serializing_if = "Option::is_none")]
    pub entangled: Option<String>,
}

/// Whether the data of a volume are complete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeHealth {
    #[default]
    Whole,
    /// A copy of the data is missing, but another copy is present.
    Degraded,
    /// Some of the data are only on a missing physical volume.
    Lost,
}

impl VolumeHealth {
    fn is_whole(&self) -> bool {
        *self == VolumeHealth::Whole
    }
}
