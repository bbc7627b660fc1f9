//! Operation that changes an existing partition table.

use crate::{ByteRange, DiskIdentity, NewPartition};
use model::device_name::DevicePath;
use serde::Serialize;
use uuid::Uuid;

/// Operation that changes entries of an existing GPT, and preserves all other entries byte for byte.
///
/// Each entry of the table must be listed as preserved or removed. A removed number may be added again.
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
    /// Space for the boot loader of a BIOS machine; `None` if the disk needs none. The operation fails if the partition
    /// table overlaps this space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_gap: Option<ByteRange>,
}

/// Entry that the plan expects in the partition table. The attributes of the entry are preserved, but not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpectedEntry {
    pub number: u32,
    /// First and last sector, both inclusive.
    pub first_lba: u64,
    pub last_lba: u64,
    pub kind: Uuid,
    pub guid: Uuid,
    pub name: String,
}
