//! LVM volume groups.

use crate::device_name::{DevicePath, KernelName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

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
    /// Hidden volumes, except the parts of raid1 volumes in `volumes`; empty in older inventories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<LvmHiddenVolume>,
    /// Reason why LVM does not activate the group on this machine (exported, owned by another host); `None` if LVM
    /// activates the group.
    #[serde(default, with = "common::empty_string_as_none", skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
}

impl LvmVolumeGroup {
    /// Returns the devices of the physical volumes that are present.
    pub fn present_devices(&self) -> impl Iterator<Item = &DevicePath> {
        self.physical.iter().filter_map(|physical| physical.device.as_ref())
    }

    /// Returns whether the location of every volume is known, including hidden volumes. This is the case if the ranges
    /// of the volumes and the free space add up to the size of each physical volume. For an older inventory, which
    /// lacks the free space, returns whether each listed volume has ranges.
    pub fn is_located_completely(&self) -> bool {
        let Some(allocation) = &self.allocation else {
            return self.volumes.iter().all(|volume| !volume.ranges.is_empty());
        };
        let visible = self.volumes.iter().flat_map(|volume| &volume.ranges);
        // While a raid1 volume is being created, its parts are visible, and their ranges are also ranges of the raid1
        // volume. The set contains each range only once.
        let ranges: BTreeSet<(&str, u64, u64)> = visible
            .chain(self.hidden.iter().flat_map(|volume| &volume.ranges))
            .map(|range| (range.physical.as_str(), range.start_bytes, range.size_bytes))
            .collect();
        self.physical.iter().all(|physical| {
            let used = ranges.iter().filter(|(on, ..)| *on == physical.uuid).map(|(.., size)| *size);
            let free = allocation.free.iter().filter(|free| free.physical == physical.uuid).map(|free| free.bytes);
            used.chain(free).fold(0, u64::saturating_add) == physical.size_bytes
        })
    }

    /// Returns whether other hosts also use the group.
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
    /// True if the metadata of the group cannot be changed.
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
    /// True if LVM may allocate space on the physical volume (`pvchange --allocatable`).
    pub is_allocatable: bool,
    pub bytes: u64,
    /// Size of the largest contiguous free area, in bytes.
    pub largest_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LvmPhysicalVolume {
    /// Path such as `/dev/nvme0n1`; `None` if the physical volume is missing.
    #[serde(with = "common::empty_string_as_none")]
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
    #[serde(default, skip_serializing_if = "VolumeHealth::has_all_copies")]
    pub health: VolumeHealth,
    /// Reason why activating this volume would affect other volumes, such as `is being moved, and the move would
    /// continue if the volume was activated`. `None` if activating this volume affects no other volume.
    #[serde(default, with = "common::empty_string_as_none", skip_serializing_if = "Option::is_none")]
    pub entangled: Option<String>,
    /// Ranges of the physical volumes that the volume occupies, including the ranges of its hidden parts, such as the
    /// copies of a raid1 volume; empty if the ranges are unknown, and in older inventories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<VolumeRange>,
}

/// Volume that LVM does not list by default: data and metadata of a thin pool or cache (`data_tdata`, `data_tmeta`), or
/// the spare metadata volume of the group (`lvol0_pmspare`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LvmHiddenVolume {
    pub name: String,
    pub uuid: String,
    pub size_bytes: u64,
    /// Ranges of the physical volumes that the volume occupies; empty if the ranges are unknown, or are listed under
    /// other hidden volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<VolumeRange>,
}

/// Returns whether the volume `name` is a copy of the raid1 volume `whole`, or the superblock of a copy:
/// `root_rimage_0`, `root_rmeta_0`. These parts are hidden, except while `lvcreate` clears the superblocks. Volumes of
/// a layout cannot have such names.
pub fn is_raid1_part(name: &str, whole: &str) -> bool {
    let kind = name.strip_prefix(whole);
    let number = kind.and_then(|kind| kind.strip_prefix("_rimage_").or_else(|| kind.strip_prefix("_rmeta_")));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Range of a physical volume that a logical volume occupies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRange {
    /// LVM UUID of the physical volume.
    pub physical: String,
    /// Offset from the start of the physical volume.
    pub start_bytes: u64,
    pub size_bytes: u64,
}

/// Completeness of the data of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeHealth {
    #[default]
    Whole,
    /// A copy of the data is missing, but another copy is present.
    Degraded,
    /// Some of the data is only on a missing physical volume.
    Lost,
}

impl VolumeHealth {
    fn has_all_copies(&self) -> bool {
        *self == VolumeHealth::Whole
    }
}
