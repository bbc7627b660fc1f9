//! Changes of existing partition tables.

use crate::{DiskIdentity, NewPartition};
use model::device_name::DevicePath;
use serde::Serialize;
use uuid::Uuid;

/// Changes entries of an existing GPT, and preserves its other entries byte for byte.
///
/// Each entry of the table must be preserved or removed. A number that is removed may be added again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableEdit {
    pub device: DevicePath,
    /// Expected identity of the disk, verified on the open file descriptor before the first write.
    pub identity: DiskIdentity,
    /// Expected GUID of the disk.
    pub guid: Uuid,
    pub sector_bytes: u32,
    pub preserved: Vec<ExpectedEntry>,
    /// Numbers of the entries to remove.
    pub removed: Vec<u32>,
    pub added: Vec<NewPartition>,
}

/// Entry of a partition table as the plan expects it on the disk. The attributes of the entry are not compared, but
/// they are preserved too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpectedEntry {
    pub number: u32,
    /// First and last sector, both included.
    pub first_lba: u64,
    pub last_lba: u64,
    pub kind: Uuid,
    pub guid: Uuid,
    pub name: String,
}
