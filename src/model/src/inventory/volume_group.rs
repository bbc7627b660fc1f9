//! LVM volume groups.

use crate::device::{DevicePath, KernelName};
use serde::{Deserialize, Serialize};

/// Value of [`LvmLogicalVolume::entangled`] for the origin of a snapshot. Its content is current, and visible through a
/// read-only mapping.
pub const HAS_SNAPSHOT: &str = "has a snapshot, which would be activated with it";

/// LVM volume group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LvmVolumeGroup {
    pub name: String,
    /// UUID in LVM's format: `kZ3Wud-…`.
    pub uuid: String,
    pub extent_bytes: u64,
    #[serde(default)]
    pub tags: Vec<String>,
    /// Size of unallocated extents, in bytes; absent from older inventories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Limits for adding a volume; absent from older inventories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<GroupAllocation>,
    pub physical: Vec<LvmPhysicalVolume>,
    pub volumes: Vec<LvmLogicalVolume>,
    /// Reason why LVM does not activate the group here: it is exported, or belongs to another host.
    #[serde(default, with = "common::serde_empty", skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
}

impl LvmVolumeGroup {
    /// Returns the physical volumes that are present.
    pub fn present_devices(&self) -> impl Iterator<Item = &DevicePath> {
        self.physical.iter().filter_map(|physical| physical.device.as_ref())
    }
}

/// Limits and free space of a group, as they apply to a new volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupAllocation {
    /// Allocation policy of LVM: `normal`, `contiguous`, `cling`, `cling_by_tags`, `anywhere`.
    pub policy: String,
    /// Largest number of volumes (`vgchange --maxlogicalvolumes`); 0 without a limit.
    pub max_volumes: u64,
    /// Number of volumes that count against the limit.
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
    /// Whether LVM may allocate it (`pvchange --allocatable`).
    pub is_allocatable: bool,
    pub bytes: u64,
    /// Size of the largest contiguous area.
    pub largest_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LvmPhysicalVolume {
    /// Path such as `/dev/nvme0n1`; none if missing.
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
    /// Kernel name while it is active, or of a read-only mapping that shows its content.
    #[serde(default)]
    pub running: Option<KernelName>,
    #[serde(default, skip_serializing_if = "VolumeHealth::is_whole")]
    pub health: VolumeHealth,
    /// Side effect of its activation on other volumes: `is being moved, which would continue`.
    #[serde(default, with = "common::serde_empty", skip_serializing_if = "Option::is_none")]
    pub entangled: Option<String>,
}

/// Completeness of a volume's data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeHealth {
    #[default]
    Whole,
    /// A copy is missing, but another one is present.
    Degraded,
    /// Some data is only on a missing physical volume.
    Lost,
}

impl VolumeHealth {
    fn is_whole(&self) -> bool {
        *self == VolumeHealth::Whole
    }
}
