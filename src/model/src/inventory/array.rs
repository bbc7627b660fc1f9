//! Software RAID arrays (md).

use crate::device::{DevicePath, KernelName};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// md array as described by its members' superblocks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MdArray {
    pub uuid: Uuid,
    /// Name without the home host: `root`, `1`; empty for metadata 0.90.
    #[serde(default)]
    pub name: String,
    /// RAID level as mdadm prints it: `raid1`.
    pub level: String,
    /// Metadata version: `0.90`, `1.0`, `1.1`, `1.2`, or that of a firmware RAID (`imsm`, `ddf`).
    pub metadata: String,
    /// Number of members without spares.
    pub raid_devices: u32,
    pub members: Vec<ArrayMember>,
    /// Whether the kernel writes more than a bitmap and superblocks whenever the array starts, even read-only: it has
    /// a partial parity log or a journal, or is being reshaped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub writes_at_start: bool,
    /// Kernel name while it is running.
    #[serde(default)]
    pub running: Option<KernelName>,
}

/// Formats the UUID of an array as mdadm and udev's links do.
pub fn format_array_uuid(uuid: Uuid) -> String {
    let hex = uuid.simple().to_string();
    [&hex[..8], &hex[8..16], &hex[16..24], &hex[24..]].join(":")
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayMember {
    /// Path such as `/dev/sda1`.
    pub device: DevicePath,
    pub role: MemberRole,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// Slot in the array, from 0.
    Active(u32),
    Spare,
    #[default]
    Faulty,
}
