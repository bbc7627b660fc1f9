//! Software RAID arrays (md).

use crate::device_name::{DevicePath, KernelName};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// md array as described by the superblocks of its members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MdArray {
    pub uuid: Uuid,
    /// Name without the home host, such as `root` or `1`; empty for metadata 0.90.
    #[serde(default)]
    pub name: String,
    /// RAID level as mdadm prints it: `raid1`.
    pub level: String,
    /// Metadata version: `0.90`, `1.0`, `1.1` or `1.2`. For a firmware RAID, the metadata format: `imsm` or `ddf`.
    pub metadata: String,
    /// Number of members, without counting spares.
    pub raid_devices: u32,
    pub members: Vec<ArrayMember>,
    /// True if the kernel writes more than a bitmap and superblocks when the array starts, even if the array starts
    /// read-only. This is the case for an array with a partial parity log or a journal, and for an array that is being
    /// reshaped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub writes_at_start: bool,
    /// Kernel name of the running array; `None` if it is not running.
    #[serde(default)]
    pub running: Option<KernelName>,
}

/// Formats an array UUID in the notation of mdadm and of udev's links.
pub fn format_array_uuid(uuid: Uuid) -> String {
    let hex = uuid.simple().to_string();
    [&hex[..8], &hex[8..16], &hex[16..24], &hex[24..]].join(":")
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayMember {
    /// Device path of the member, such as `/dev/sda1`.
    pub device: DevicePath,
    pub role: MemberRole,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// Active member, with its slot in the array, from 0.
    Active(u32),
    Spare,
    #[default]
    Faulty,
}
