//! Arrays of md.

use crate::device::{DevicePath, KernelName};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// An md array as its members' superblocks describe it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Array {
    pub uuid: Uuid,
    /// Without the home host: `root`, `1`; empty for metadata 0.90.
    #[serde(default)]
    pub name: String,
    /// As mdadm names it: `raid1`.
    pub level: String,
    /// `0.90`, `1.0`, `1.1`, `1.2`, or that of a firmware (`imsm`, `ddf`).
    pub metadata: String,
    /// How many members it is made for, spares apart.
    pub raid_devices: u32,
    pub members: Vec<ArrayMember>,
    /// The kernel writes more than a bitmap and superblocks to it whenever it starts, read-only or not: it has a partial parity log
    /// or a journal, or is reshaped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub writes_at_start: bool,
    /// When it is running.
    #[serde(default)]
    pub running: Option<KernelName>,
}

/// The UUID of an array as mdadm writes it, and udev in its links.
pub fn array_uuid_text(uuid: Uuid) -> String {
    let hex = uuid.simple().to_string();
    [&hex[..8], &hex[8..16], &hex[16..24], &hex[24..]].join(":")
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayMember {
    /// `/dev/sda1`.
    pub device: DevicePath,
    pub role: MemberRole,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// Its place in the array, from 0.
    Active(u32),
    Spare,
    #[default]
    Faulty,
}
