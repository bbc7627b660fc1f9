//! Which disk an operation means.

use crate::empty;
use crate::inventory::Disk;
use serde::{Serialize, Serializer};
use std::num::NonZeroU64;

/// What tells a disk from another of its kind. What is not known is not compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DiskIdentity {
    pub device: String,
    pub size_bytes: u64,
    #[serde(with = "crate::empty")]
    pub serial: Option<String>,
    #[serde(with = "crate::empty")]
    pub wwn: Option<String>,
    /// The kernel's count of disks.
    #[serde(serialize_with = "or_zero")]
    pub diskseq: Option<NonZeroU64>,
}

fn or_zero<S: Serializer>(number: &Option<NonZeroU64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(number.map_or(0, NonZeroU64::get))
}

impl DiskIdentity {
    pub fn of(disk: &Disk) -> DiskIdentity {
        DiskIdentity {
            device: disk.device.clone(),
            size_bytes: disk.size_bytes,
            serial: empty::some(disk.serial.clone()),
            wwn: empty::some(disk.wwn.clone()),
            diskseq: NonZeroU64::new(disk.diskseq),
        }
    }
}
