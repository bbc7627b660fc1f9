//! Loop devices over sparse files for tests. A device is removed when its value is dropped.

#![allow(clippy::unwrap_used)]

use crate::process::ToolCommand;
use model::device_name::DevicePath;
use operations::{DiskIdentity, NewPartition, PartitionTable};
use std::path::Path;
use tempfile::NamedTempFile;
use uuid::Uuid;

pub struct TestLoopDevice {
    file: NamedTempFile,
    device: DevicePath,
}

impl TestLoopDevice {
    pub fn new(size_bytes: u64, sector_bytes: u32) -> TestLoopDevice {
        TestLoopDevice::within(&std::env::temp_dir(), size_bytes, sector_bytes)
    }

    /// Creates the device like [`TestLoopDevice::new`], with its file in this directory.
    pub(crate) fn within(dir: &Path, size_bytes: u64, sector_bytes: u32) -> TestLoopDevice {
        let file = NamedTempFile::new_in(dir).unwrap();
        file.as_file().set_len(size_bytes).unwrap();
        let losetup =
            ToolCommand::new("losetup").args(["--find", "--show", "--sector-size", &sector_bytes.to_string()]);
        let device: DevicePath = losetup.arg(file.path()).run().unwrap().stdout.trim().into();
        // The read-only flag is cleared, because the kernel preserves this flag when a loop device is detached.
        super::block_device::set_read_only(&std::fs::File::open(&device).unwrap(), false).unwrap();
        delete_partitions(&device);
        TestLoopDevice { file, device }
    }

    /// Creates a device, and replaces it with another device of the same size and name. This simulates that a disk is
    /// unplugged and its name is assigned to another disk. Returns the identity of the first device, and the second
    /// device.
    pub fn exchanged(size_bytes: u64) -> (DiskIdentity, TestLoopDevice) {
        loop {
            let mut disk = TestLoopDevice::new(size_bytes, 512);
            let before = disk.identity();
            let file = NamedTempFile::new().unwrap();
            file.as_file().set_len(size_bytes).unwrap();
            ToolCommand::new("losetup").arg("--detach").arg(&disk.device).run().unwrap();
            // If attaching fails, another test has taken this loop device in the meantime, and everything is repeated
            // with another one.
            if ToolCommand::new("losetup").arg(&disk.device).arg(file.path()).run().is_ok() {
                disk.file = file;
                return (before, disk);
            }
            disk.device = DevicePath::default();
        }
    }

    pub fn path(&self) -> &DevicePath {
        &self.device
    }

    pub fn identity(&self) -> DiskIdentity {
        super::disk_identity::read_identity(&std::fs::File::open(&self.device).unwrap(), &self.device).unwrap()
    }

    pub fn image(&self) -> &Path {
        self.file.path()
    }

    /// Returns the device of partition `number`.
    pub fn partition(&self, number: u32) -> DevicePath {
        self.device.partition_path(number)
    }

    /// Returns a partition table with these partitions. Each partition is specified by its number, first LBA and last
    /// LBA.
    pub fn table(&self, sector_bytes: u32, partitions: &[(u32, u64, u64)]) -> PartitionTable {
        let partitions = partitions.iter().map(|&(number, first_lba, last_lba)| NewPartition {
            number,
            device: self.partition(number),
            first_lba,
            last_lba,
            kind: model::layout::PartitionType::Linux.guid(),
            guid: Uuid::new_v4(),
            name: format!("part {number}"),
        });
        PartitionTable {
            device: self.device.clone(),
            identity: self.identity(),
            guid: Uuid::new_v4(),
            sector_bytes,
            partitions: partitions.collect(),
        }
    }
}

impl Drop for TestLoopDevice {
    fn drop(&mut self) {
        delete_partitions(&self.device);
        let _ = ToolCommand::new("losetup").arg("--detach").arg(&self.device).run();
    }
}

/// Deletes the device's partitions from the kernel.
///
/// The kernel preserves partitions when a loop device is detached. Remaining partitions would interfere with the next
/// user of the device; for example, mkfs.vfat refuses a device with partitions.
fn delete_partitions(device: &DevicePath) {
    let Ok(disk) = std::fs::File::open(device) else { return };
    for partition in super::block_device::read_partitions(device).unwrap_or_default() {
        let _ = super::block_device::delete_partition(&disk, partition.number);
    }
}
