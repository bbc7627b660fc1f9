//! Read-only flags of the block layer (BLKROSET), which protect disks that must not be written, in addition to the
//! checks of the plan.

use super::block_device;
use common::error::{Context, Phase, Result};
use model::device_name::DevicePath;
use operations::ByteRange;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Devices that were made read-only, and digests of ranges that must not change.
#[derive(Debug, Default)]
pub struct WriteLocks {
    devices: Vec<DevicePath>,
    untouched: Vec<ProtectedRange>,
}

/// Range of a disk that must not be written, with the digest of the content of the range.
#[derive(Debug)]
struct ProtectedRange {
    disk: DevicePath,
    range: ByteRange,
    digest: [u8; 32],
}

impl WriteLocks {
    /// Makes a disk and its partitions read-only.
    ///
    /// # Errors
    /// Returns an error if the disk is missing, or cannot be made read-only.
    pub fn lock_disk(&mut self, disk: &DevicePath) -> Result<()> {
        set_device_read_only(disk, true)?;
        self.devices.push(disk.clone());
        // A partition has its own read-only flag. Before Linux 5.11, a partition does not inherit the flag of the disk.
        for partition in block_device::read_partitions(disk)? {
            let device = partition.name.device_path();
            set_device_read_only(&device, true)?;
            self.devices.push(device);
        }
        Ok(())
    }

    /// Returns whether this run made the device read-only.
    pub fn contains(&self, device: &DevicePath) -> bool {
        self.devices.contains(device)
    }

    /// Records the digests of these ranges. A range that cannot be read is not checked later, because the disk was
    /// already failing before this run.
    pub fn record_digests(&mut self, disk: &DevicePath, untouched: &[ByteRange]) {
        let read = untouched.iter().filter_map(|range| {
            compute_digest(disk, *range).ok().map(|digest| ProtectedRange { disk: disk.clone(), range: *range, digest })
        });
        self.untouched.extend(read);
    }

    /// Returns a message for each recorded range that has changed.
    pub fn find_changed_ranges(&self) -> Vec<String> {
        let changed = self.untouched.iter().filter_map(|ProtectedRange { disk, range, digest: before }| {
            let what = match compute_digest(disk, *range) {
                Ok(now) if now == *before => return None,
                Ok(_) => "were changed".to_owned(),
                Err(error) => format!("can no longer be read: {error}"),
            };
            Some(format!(
                "{length} protected bytes at offset {start} of {disk} {what}",
                length = range.length,
                start = range.start
            ))
        });
        changed.collect()
    }

    /// Makes one disk and its partitions writable again, starting with the partitions. Partitions with a number in
    /// `others` stay read-only.
    ///
    /// # Errors
    /// Returns an error if a device cannot be made writable.
    pub fn unlock_disk(&mut self, disk: &DevicePath, others: &[u32]) -> Result<()> {
        let partitions =
            block_device::read_partitions(disk)?.into_iter().filter(|partition| !others.contains(&partition.number));
        let partitions: Vec<DevicePath> = partitions.map(|partition| partition.name.device_path()).collect();
        let (mine, others) = self.devices.drain(..).partition(|device| device == disk || partitions.contains(device));
        self.devices = others;
        unlock_devices(mine)
    }

    /// Makes all locked devices writable again, partitions first. Unplugged disks are ignored.
    ///
    /// # Errors
    /// Returns an error if a device cannot be made writable; the error describes the first such device. The other
    /// devices are unlocked in spite of the error.
    pub fn unlock_all(&mut self) -> Result<()> {
        unlock_devices(std::mem::take(&mut self.devices))
    }
}

fn unlock_devices(devices: Vec<DevicePath>) -> Result<()> {
    let unlock = |device: DevicePath| {
        set_device_read_only(&device, false).or_else(|error| if is_gone(&device) { Ok(()) } else { Err(error) })
    };
    let results: Vec<_> = devices.into_iter().rev().map(unlock).collect();
    results.into_iter().collect()
}

/// Computes the digest of a range. The page cache is dropped first, so that the range is read from the disk itself.
fn compute_digest(disk: &DevicePath, range: ByteRange) -> io::Result<[u8; 32]> {
    let file = File::open(disk)?;
    block_device::flush_buffers(&file)?;
    let mut bytes = vec![0; usize::try_from(range.length).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(Sha256::digest(&bytes).into())
}

fn set_device_read_only(device: &DevicePath, read_only: bool) -> Result<()> {
    let what = || format!("make {device} {}", if read_only { "read-only" } else { "writable" });
    let file = File::open(device).context(Phase::Storage, what)?;
    block_device::set_read_only(&file, read_only).context(Phase::Storage, what)
}

fn is_gone(device: &DevicePath) -> bool {
    !Path::new(device).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::test_loop_device::TestLoopDevice;
    use crate::storage::{partition_table, signature_wipe};

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_a_locked_disk_and_its_partitions_refuse_writes_until_unlocked() {
        let disk = TestLoopDevice::new(16 << 20, 512);
        partition_table::write_partition_table(&disk.table(512, &[(3, 2048, 4095)])).unwrap();
        let mut locks = WriteLocks::default();
        locks.lock_disk(disk.path()).unwrap();
        for device in [disk.path(), &disk.partition(3)] {
            let error = signature_wipe::wipe_ends(device).unwrap_err().to_string();
            assert!(error.contains(&format!("zeros at byte 0 of {device}: Operation not permitted")), "{error}");
        }
        locks.unlock_all().unwrap();
        signature_wipe::wipe_ends(&disk.partition(3)).unwrap();
        signature_wipe::wipe_ends(disk.path()).unwrap();
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_partitions_that_are_not_the_layouts_stay_locked_and_what_is_written_is_told() {
        let disk = TestLoopDevice::new(16 << 20, 512);
        partition_table::write_partition_table(&disk.table(512, &[(1, 2048, 8191), (3, 8192, 16383)])).unwrap();
        let mut locks = WriteLocks::default();
        let ranges = [ByteRange { start: 0, length: 1 << 20 }, ByteRange { start: 4 << 20, length: 1 << 20 }];
        locks.lock_disk(disk.path()).unwrap();
        locks.record_digests(disk.path(), &ranges);
        locks.unlock_disk(disk.path(), &[3]).unwrap();
        signature_wipe::wipe_ends(&disk.partition(1)).unwrap();
        let error = signature_wipe::wipe_ends(&disk.partition(3)).unwrap_err().to_string();
        assert!(error.contains("Operation not permitted"), "{error}");
        assert_eq!(locks.find_changed_ranges(), [""; 0]);
        // A write to the disk bypasses the lock of its partition.
        std::fs::OpenOptions::new().write(true).open(disk.path()).unwrap().write_all_at(b"x", 5 << 20).unwrap();
        assert_eq!(locks.find_changed_ranges(), [""; 0]);
        std::fs::OpenOptions::new().write(true).open(disk.path()).unwrap().write_all_at(b"x", (5 << 20) - 1).unwrap();
        let told = format!("1048576 protected bytes at offset 4194304 of {} were changed", disk.path());
        assert_eq!(locks.find_changed_ranges(), [told]);
        locks.unlock_all().unwrap();
        signature_wipe::wipe_ends(&disk.partition(3)).unwrap();
    }

    #[test]
    fn a_disk_that_was_unplugged_is_no_trouble_and_one_that_refuses_is() {
        let locks = |devices: &[&str]| WriteLocks {
            devices: devices.iter().map(|device| (*device).into()).collect(),
            ..WriteLocks::default()
        };
        locks(&["/dev/no-such-disk"]).unlock_all().unwrap();
        let mut locks = locks(&["/dev/null", "/dev/no-such-disk"]);
        let error = locks.unlock_all().unwrap_err().to_string();
        assert!(error.starts_with("make /dev/null writable: "), "{error}");
        assert!(locks.devices.is_empty());
    }

    #[test]
    fn a_disk_that_is_not_there_cannot_be_locked() {
        let error = WriteLocks::default().lock_disk(&"/dev/no-such-disk".into()).unwrap_err().to_string();
        assert!(error.starts_with("make /dev/no-such-disk read-only: "), "{error}");
    }
}
