//! Volume groups of LVM.

use crate::device::{DevicePath, KernelName};
use serde::{Deserialize, Serialize};

/// [`LogicalVolume::entangled`] of the origin of a snapshot. Its content is current, and is visible through a read-only mapping.
pub const HAS_SNAPSHOT: &str = "has a snapshot, which would be activated with it";

/// A volume group of LVM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeGroup {
    pub name: String,
    /// LVM's own kind of id: `kZ3Wud-…`.
    pub uuid: String,
    pub extent_bytes: u64,
    #[serde(default)]
    pub tags: Vec<String>,
    /// Of extents that no volume has; older inventories do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// What LVM allows when a volume is added; older inventories do not contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<GroupAllocation>,
    pub physical: Vec<PhysicalVolume>,
    pub volumes: Vec<LogicalVolume>,
    /// Why LVM lets nobody here have it: it is exported, or another host's.
    #[serde(default, with = "crate::empty", skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
}

impl VolumeGroup {
    /// The physical volumes that are there.
    pub fn devices(&self) -> impl Iterator<Item = &DevicePath> {
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
pub struct PhysicalVolume {
    /// `/dev/nvme0n1`; none when it is missing.
    #[serde(with = "crate::empty")]
    pub device: Option<DevicePath>,
    pub uuid: String,
    pub size_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogicalVolume {
    pub name: String,
    pub uuid: String,
    pub size_bytes: u64,
    /// LVM's segment type: `linear`, `striped`, `raid1`, `thin-pool`.
    pub kind: String,
    pub stripes: u32,
    /// When it is active; or a read-only mapping that shows its content.
    #[serde(default)]
    pub running: Option<KernelName>,
    #[serde(default, skip_serializing_if = "Health::is_whole")]
    pub health: Health,
    /// What its activation would do to others: `is being moved, which would go on`.
    #[serde(default, with = "crate::empty", skip_serializing_if = "Option::is_none")]
    pub entangled: Option<String>,
}

/// Are all the data of a volume there?
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    #[default]
    Whole,
    /// A copy is missing, another one is there.
    Degraded,
    /// Some of it lies on a missing physical volume and nowhere else.
    Lost,
}

impl Health {
    fn is_whole(&self) -> bool {
        *self == Health::Whole
    }
}
