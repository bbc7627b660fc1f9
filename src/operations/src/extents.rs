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

/// Consecutive stages, and the extents that these stages may write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageExtents {
    /// Names of the stages. The JSON field is named `steps`, because messages to operators use the word step for a
    /// stage.
    #[serde(rename = "steps")]
    pub stages: Vec<StageName>,
    /// Writable ranges by disk; empty if the stages write nothing.
    pub disks: Vec<DiskExtents>,
}

/// Byte ranges of a disk, sorted and without overlaps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskExtents {
    /// Device path, such as `/dev/sda`.
    pub device: DevicePath,
    /// Serial number of the disk; empty if it has none.
    pub serial: String,
    pub ranges: Vec<ByteRange>,
}
