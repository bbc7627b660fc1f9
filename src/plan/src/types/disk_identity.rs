//! Identity of the disk that an operation applies to.

use common::serde_empty;
use model::device::DevicePath;
use model::inventory::InventoryDisk;
use serde::{Serialize, Serializer};
use std::num::NonZeroU64;

/// Properties that distinguish a disk from others of the same model. Unknown properties are not compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DiskIdentity {
    pub device: DevicePath,
    pub size_bytes: u64,
    #[serde(with = "common::serde_empty")]
    pub serial: Option<String>,
    #[serde(with = "common::serde_empty")]
    pub wwn: Option<String>,
    /// Sequence number of the disk in the kernel (`diskseq`).
    #[serde(serialize_with = "or_zero")]
    pub diskseq: Option<NonZeroU64>,
}

fn or_zero<S: Serializer>(number: &Option<NonZeroU64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(number.map_or(0, NonZeroU64::get))
}

impl DiskIdentity {
    pub fn from_disk(disk: &InventoryDisk) -> DiskIdentity {
        DiskIdentity {
            device: disk.device.clone(),
            size_bytes: disk.size_bytes,
            serial: serde_empty::non_empty(disk.serial.clone()),
            wwn: serde_empty::non_empty(disk.wwn.clone()),
            diskseq: NonZeroU64::new(disk.diskseq),
        }
    }
}
