//! Operations that check the identity of disks, and protect disks against writes.

use crate::operation_text::{DeviceSizes, OperationLine, join_devices};
use crate::{ByteRange, Effect, PlannedOperation, UndoOperation};
use common::empty_string_as_none;
use model::device_name::DevicePath;
use model::inventory::InventoryDisk;
use serde::{Serialize, Serializer};
use std::num::NonZeroU64;

/// Properties that distinguish a disk from other disks of the same model. Unknown properties are not compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DiskIdentity {
    pub device: DevicePath,
    pub size_bytes: u64,
    #[serde(with = "common::empty_string_as_none")]
    pub serial: Option<String>,
    #[serde(with = "common::empty_string_as_none")]
    pub wwn: Option<String>,
    /// Sequence number that the kernel has assigned to the disk (`diskseq`).
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
            serial: empty_string_as_none::non_empty(disk.serial.clone()),
            wwn: empty_string_as_none::non_empty(disk.wwn.clone()),
            diskseq: NonZeroU64::new(disk.diskseq),
        }
    }
}

/// Operation that checks that the device is still the disk for which the plan was made, because device names can
/// change. Keeps the device open.
impl PlannedOperation for DiskIdentity {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        OperationLine::on_device("", self.device.as_str(), ": size, serial and WWN as planned")
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Operation that makes the disk read-only at the block layer. The disk stays read-only until `UnlockDisk` or the
/// last `FlushDisks` makes it writable again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LockDisk {
    pub device: DevicePath,
    /// Ranges that must not be written while the plan runs. This operation reads their content, and `ProvePreserved`
    /// compares the content after all other stages.
    pub untouched: Vec<ByteRange>,
}

impl PlannedOperation for LockDisk {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        OperationLine::on_device("", self.device.as_str(), " read-only")
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none().undone_by([UndoOperation::Unlock])
    }
}

/// Operation that makes a preserved disk writable again, after the last destructive operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnlockDisk {
    pub device: DevicePath,
    /// Numbers of the partitions that stay read-only because the layout does not list them.
    pub others: Vec<u32>,
}

impl PlannedOperation for UnlockDisk {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        OperationLine::on_device("", self.device.as_str(), describe_unlock(&self.others))
    }

    fn effect(&self) -> Effect<'_> {
        Effect::opening([&self.device])
    }
}

fn describe_unlock(others: &[u32]) -> String {
    let numbers = others.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match others {
        [] => " writable again".to_owned(),
        [_] => format!(" writable again, except partition {numbers}, which is not in the layout"),
        _ => format!(" writable again, except partitions {numbers}, which are not in the layout"),
    }
}

/// Operation that flushes the write caches of the disks. Also makes all locked disks writable again, unless
/// `keep_locks` is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FlushDisks {
    pub disks: Vec<DevicePath>,
    /// True if the locked disks stay read-only, because arrays or groups on the disks are still active.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_locks: bool,
}

impl PlannedOperation for FlushDisks {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        format!("flush {}", join_devices(&self.disks)).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}
