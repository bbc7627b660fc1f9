//! Devices that must contain only zeros before anything is written.

use super::ByteRange;
use crate::device::DevicePath;
use serde::Serialize;

/// Ranges of a device that are read completely and must be zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ZeroProof {
    /// Where it is before the first write.
    pub device: DevicePath,
    pub ranges: Vec<ByteRange>,
    /// Serial numbers of its disks, by which the operator may give them up; empty if one of them has none.
    pub give_up: Vec<String>,
}

impl ZeroProof {
    /// Sum of the ranges, in bytes.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().fold(0, |sum, range| sum.saturating_add(range.length))
    }
}
