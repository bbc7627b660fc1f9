//! Volume groups of LVM.

use serde::{Deserialize, Serialize};

/// A volume group of LVM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeGroup {
    pub name: String,
    /// LVM's own kind of id: `kZ3Wud-…`.
    pub uuid: String,
    pub extent_bytes: u64,
    #[serde(default)]
    pub tags: Vec<String>,
    pub physical: Vec<PhysicalVolume>,
    pub volumes: Vec<LogicalVolume>,
    /// Why LVM lets nobody here have it: it is exported, or another host's.
    #[serde(default, with = "crate::empty", skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhysicalVolume {
    /// `/dev/nvme0n1`; empty when it is missing.
    pub device: String,
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
    /// Kernel name when it is active, or of a read-only mapping that shows its content.
    #[serde(default)]
    pub running: Option<String>,
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
