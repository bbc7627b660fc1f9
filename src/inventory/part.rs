//! A part of something that lies on several devices.

use crate::device::DevicePath;
use serde::{Deserialize, Serialize};

/// [`Part::whole`] of an xfs whose log is on another device, and of that log.
pub const XFS_LOG: &str = "xfs and its external log";

/// [`Part::whole`] of an xfs with a realtime device. Nothing on the realtime device tells what it belongs to.
pub const XFS_REALTIME: &str = "xfs and its realtime device";

/// A device that says so itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// `/dev/sda1`: as the disk, partition or stacked device spells it.
    pub device: DevicePath,
    /// libblkid's TYPE of what is on it.
    pub kind: String,
    /// What the parts make together, in words.
    pub whole: String,
    /// Which one of these: the same for all its parts.
    pub id: String,
    pub role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It is nothing without a part that serves it.
    NeedsAnother,
    Serves,
    /// One of several, and it does not say of how many.
    Peer,
    /// One of so many, more than one.
    OneOf(u64),
}
