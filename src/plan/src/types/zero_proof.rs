//! Devices that must contain only zeros before the first write.

use super::ByteRange;
use model::device::DevicePath;
use serde::Serialize;

/// Ranges of a device that are read completely and must be zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ZeroProof {
    /// Device name before the first write.
    pub device: DevicePath,
    pub ranges: Vec<ByteRange>,
    /// Serial numbers of its disks, which the operator may pass to discard their data; empty if one of the disks has none.
    pub give_up: Vec<String>,
}

impl ZeroProof {
    /// Returns the sum of the ranges, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.ranges.iter().fold(0, |sum, range| sum.saturating_add(range.length))
    }
}
