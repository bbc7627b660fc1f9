//! Read-only flags of the block layer (BLKROSET), which protect disks that must not be written, in addition to the
//! checks of the plan.

use super::block_device;
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use nix::errno::Errno;
use operations::ByteRange;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
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
        self.lock_device(disk)?;
        // The partitions are also locked: each partition has its own read-only flag, which does not follow the flag of
        // the disk before Linux 5.11.
        let partitions = block_device::read_partitions(disk)?;
        partitions.into_iter().try_for_each(|partition| self.lock_device(&partition.name.device_path()))
    }

    /// Makes a single partition, array or logical volume read-only, and verifies that the kernel refuses writes to it.
    /// Writes to the devices beneath it are not refused.
    ///
    /// # Errors
    /// Returns an error if the device is missing, cannot be made read-only, or still accepts writes.
    pub fn lock_device(&mut self, device: &DevicePath) -> Result<()> {
        set_device_read_only(device, true)?;
        self.devices.push(device.clone());
        verify_writes_refused(device)
    }

    /// Returns whether the device was made read-only by these locks.
    pub fn contains(&self, device: &DevicePath) -> bool {
        self.devices.contains(device)
    }

    /// Verifies that the kernel still refuses writes to every device that these locks made read-only. The kernel
    /// discards the flag of a partition if it registers the partition again. Unplugged devices are ignored.
    ///
    /// # Errors
    /// Returns an error that lists the devices that accept writes.
    pub fn verify_locks(&self) -> Result<()> {
        let writable: Vec<&str> =
            self.devices.iter().filter(|device| try_empty_write(device).is_ok()).map(DevicePath::as_str).collect();
        if writable.is_empty() {
            return Ok(());
        }
        let message = format!(
            "{} no longer read-only, although this run has not made them writable: another program has changed their \
             flags or partition tables; boot the machine again",
            writable.join(", ")
        );
        Err(Error::new(Phase::Storage, message))
    }

    /// Records the digests of these ranges. A range that cannot be read is not checked later, because the disk was
    /// already failing before anything was written.
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

/// Writes 0 bytes to a device. Such a write is refused like any other, and changes nothing if it is not refused.
fn try_empty_write(device: &DevicePath) -> io::Result<usize> {
    OpenOptions::new().write(true).open(device).and_then(|file| file.write_at(&[], 0))
}

/// Verifies that the kernel refuses writes to the device.
fn verify_writes_refused(device: &DevicePath) -> Result<()> {
    let is_refusal = |error: &io::Error| {
        let code = Errno::from_raw(error.raw_os_error().unwrap_or_default());
        // EBUSY means that the device is mounted, and that the kernel allows no other writers of mounted devices
        // (CONFIG_BLK_DEV_WRITE_MOUNTED).
        [Errno::EPERM, Errno::EACCES, Errno::EROFS, Errno::EBUSY].contains(&code)
    };
    match try_empty_write(device) {
        Err(error) if is_refusal(&error) => Ok(()),
        Err(error) => Err(error).context(Phase::Storage, || format!("verify that {device} is read-only")),
        Ok(_) => Err(Error::new(
            Phase::Storage,
            format!(
                "{device} accepts writes, although it was made read-only; update the kernel or the device's driver"
            ),
        )),
    }
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
    fn loop_locked_disk_and_partitions_refuse_writes_until_unlocked() {
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
    fn loop_only_the_locked_partition_refuses_writes() {
        let disk = TestLoopDevice::new(16 << 20, 512);
        partition_table::write_partition_table(&disk.table(512, &[(1, 2048, 8191), (3, 8192, 16383)])).unwrap();
        assert!(verify_writes_refused(&disk.partition(3)).unwrap_err().to_string().contains("accepts writes"));
        let mut locks = WriteLocks::default();
        locks.lock_device(&disk.partition(3)).unwrap();
        assert!(locks.contains(&disk.partition(3)) && !locks.contains(disk.path()));
        let error = signature_wipe::wipe_ends(&disk.partition(3)).unwrap_err().to_string();
        assert!(error.contains("Operation not permitted"), "{error}");
        signature_wipe::wipe_ends(&disk.partition(1)).unwrap();
        locks.unlock_all().unwrap();
        signature_wipe::wipe_ends(&disk.partition(3)).unwrap();
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_a_lock_that_was_lost_is_found() {
        let disk = TestLoopDevice::new(16 << 20, 512);
        partition_table::write_partition_table(&disk.table(512, &[(1, 2048, 8191), (3, 8192, 16383)])).unwrap();
        let mut locks = WriteLocks::default();
        locks.lock_device(&disk.partition(1)).unwrap();
        locks.lock_device(&disk.partition(3)).unwrap();
        locks.verify_locks().unwrap();
        // The kernel registers the partition again, for example because another program changed the table.
        let file = File::open(disk.path()).unwrap();
        block_device::delete_partition(&file, 3).unwrap();
        locks.verify_locks().unwrap();
        block_device::add_partition(&file, 3, 8192 * 512, 8192 * 512).unwrap();
        let error = locks.verify_locks().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{} no longer read-only", disk.partition(3))), "{error}");
        locks.unlock_all().unwrap();
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_foreign_partitions_remain_locked_and_changes_are_reported() {
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
    fn absent_disk_is_ignored_and_unlock_failure_reported() {
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
    fn absent_disk_cannot_be_locked() {
        let error = WriteLocks::default().lock_disk(&"/dev/no-such-disk".into()).unwrap_err().to_string();
        assert!(error.starts_with("make /dev/no-such-disk read-only: "), "{error}");
    }
}
