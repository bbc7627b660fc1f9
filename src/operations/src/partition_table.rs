//! Operation that writes a partition table.

use crate::operation_text::{DeviceSizes, MIB, OperationLine};
use crate::{DiskIdentity, Effect, PlannedOperation, TableEdit};
use model::device_name::DevicePath;
use serde::Serialize;
use uuid::Uuid;

/// Operation that writes a GPT. The plan contains all sector numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartitionTable {
    pub device: DevicePath,
    /// Expected identity of the disk, verified on the open file descriptor before the first write.
    pub identity: DiskIdentity,
    pub guid: Uuid,
    pub sector_bytes: u32,
    pub partitions: Vec<NewPartition>,
}

/// A partition to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewPartition {
    pub number: u32,
    /// Device name that the kernel will assign, such as `/dev/sda1`.
    pub device: DevicePath,
    /// First and last sector, both inclusive, in sectors of `sector_bytes` bytes.
    pub first_lba: u64,
    pub last_lba: u64,
    pub kind: Uuid,
    pub guid: Uuid,
    pub name: String,
}

impl PlannedOperation for PartitionTable {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        let line = OperationLine::on_device("", self.device.as_str(), ": GPT");
        OperationLine { text: line.text.with(partition_rows(&self.partitions, self.sector_bytes)), ..line }
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

impl PlannedOperation for TableEdit {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        let numbers = |numbers: &mut dyn Iterator<Item = u32>| {
            let mut numbers: Vec<u32> = numbers.collect();
            numbers.sort_unstable();
            match numbers.is_empty() {
                true => "none".to_owned(),
                false => numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
            }
        };
        let preserved = numbers(&mut self.preserved.iter().map(|entry| entry.number));
        let removed = numbers(&mut self.removed.iter().copied());
        let text = format!(": change the GPT: preserve partitions {preserved}; remove {removed}; then create");
        let line = OperationLine::on_device("", self.device.as_str(), text);
        OperationLine { text: line.text.with(partition_rows(&self.added, self.sector_bytes)), ..line }
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

fn partition_rows(partitions: &[NewPartition], sector_bytes: u32) -> Vec<String> {
    let mut partitions: Vec<_> = partitions.iter().collect();
    partitions.sort_by_key(|partition| partition.number);
    let row = |partition: &&NewPartition| {
        let sectors = partition.last_lba + 1 - partition.first_lba;
        let mib = sectors * u64::from(sector_bytes) / MIB;
        let name = if partition.name.is_empty() { String::new() } else { format!(" \"{}\"", partition.name) };
        format!("{}{name}  {mib} MiB  {}", partition.number, describe_partition_type(partition.kind))
    };
    partitions.iter().map(row).collect()
}

fn describe_partition_type(guid: Uuid) -> String {
    let known = model::layout::PartitionType::ALL.iter().find(|kind| kind.guid() == guid);
    known.map(|kind| kind.code().to_owned()).unwrap_or_else(|| guid.to_string())
}
