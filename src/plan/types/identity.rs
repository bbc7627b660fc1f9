//! Which disk an operation means.

use crate::inventory::Disk;
use serde::Serialize;

/// What tells a disk from another of its kind. Empty fields are unknown and not compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DiskIdentity {
    pub device: String,
    pub size_bytes: u64,
    pub serial: String,
    pub wwn: String,
    /// The kernel's count of disks; 0 when it is not known.
    pub diskseq: u64,
}

impl DiskIdentity {
    pub fn of(disk: &Disk) -> DiskIdentity {
        DiskIdentity {
            device: disk.device.to_string(),
            size_bytes: disk.size_bytes,
            serial: disk.serial.clone(),
            wwn: disk.wwn.clone(),
            diskseq: disk.diskseq,
        }
    }
}
