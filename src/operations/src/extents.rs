//! Byte ranges of disks, and the ranges that each stage may write.

use crate::StageName;
use model::device_name::DevicePath;
use serde::{Deserialize, Serialize};

/// A range of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    pub start: u64,
    pub length: u64,
}

/// Consecutive stages that may write the same extents, together with these extents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageExtents {
    /// Names of the stages. The JSON field is called `steps`, because texts for operators call stages steps.
    #[serde(rename = "steps")]
    pub stages: Vec<StageName>,
    /// Writable ranges by disk; empty if the stages write nothing.
    pub disks: Vec<DiskExtents>,
}

/// Byte ranges of a disk, which are sorted and do not overlap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskExtents {
    /// Device path, such as `/dev/sda`.
    pub device: DevicePath,
    /// Serial number of the disk; empty if it has none.
    pub serial: String,
    pub ranges: Vec<ByteRange>,
}
