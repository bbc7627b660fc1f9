//! Wiping of signatures at the ends of a disk or partition, of boot code, and of the kernel's partitions.

use super::block_device::{self, KernelPartition};
use super::busy_device_users;
use super::disk_erase::zeroing;
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use nix::errno::Errno;
use operations::ByteRange;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Size in bytes of the area at each end of a device that may contain signatures: superblocks, partition tables, RAID
/// and LVM metadata.
pub(crate) const END_BYTES: u64 = 1024 * 1024;

/// Size of the boot code in an MBR, in bytes. The boot code precedes the disk signature and the partition table (UEFI
/// specification 5.2.1).
pub(super) const BOOT_CODE_BYTES: usize = 440;

/// Zeroes the first and last MiB of a disk or partition, so that its old content is no longer recognized.
///
/// # Errors
/// Returns an error if the device is in use (the error lists the users), cannot be written, or does not return zeros
/// afterwards (the error contains the offset).
pub fn wipe_ends(device: &DevicePath) -> Result<()> {
    wipe_ranges(device, |_| Vec::new())
}

/// Zeroes both ends of a device like [`wipe_ends`], and the ranges in which BlueStore stores copies of its label.
/// Called before new content is written to the device.
///
/// # Errors
/// The same errors as for [`wipe_ends`].
pub fn wipe_signatures(device: &DevicePath) -> Result<()> {
    wipe_ranges(device, |size| operations::label_copy_ranges(ByteRange { start: 0, length: size }).collect())
}

fn wipe_ranges(device: &DevicePath, more: impl FnOnce(u64) -> Vec<ByteRange>) -> Result<()> {
    let file = open_exclusive(device)?;
    let size = block_device::read_size_bytes(&file).context(Phase::Storage, || format!("read the size of {device}"))?;
    let length = END_BYTES.min(size);
    let mut ranges = vec![ByteRange { start: 0, length }, ByteRange { start: size - length, length }];
    ranges.extend(more(size));
    zeroing::zero_ranges(&file, device, size, &ranges)
}

/// Zeroes the boot code that a BIOS would run from the disk's first sector, and preserves the partition table.
///
/// # Errors
/// Returns an error if the disk is in use or cannot be written.
pub fn wipe_boot_code(device: &DevicePath) -> Result<()> {
    zero_boot_code(&open_exclusive(device)?, device)
}

/// Zeroes the boot code like [`wipe_boot_code`], on an open disk.
pub(super) fn zero_boot_code(disk: &File, device: &DevicePath) -> Result<()> {
    disk.write_all_at(&[0; BOOT_CODE_BYTES], 0)
        .and_then(|()| disk.sync_data())
        .context(Phase::Storage, || format!("wipe the boot code of {device}"))
}

/// Opens a device for writing if it is unused. With O_EXCL, the kernel refuses to open a device that is mounted, is
/// used as swap or has a holder. It also refuses a disk if one of its partitions is in use (open(2), block/bdev.c).
///
/// # Errors
/// Returns an error if the device is missing or in use.
pub fn open_exclusive(device: &DevicePath) -> Result<File> {
    let open = || {
        let opened = OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_EXCL).open(device);
        opened.map_err(|error| block_device::to_errno(&error))
    };
    block_device::retry_while_busy(Errno::EBUSY, open).map_err(|error| {
        let users = if error == Errno::EBUSY {
            busy_device_users::format_users(&busy_device_users::list_device_users(device))
        } else {
            String::new()
        };
        Error::with_source(Phase::Storage, format!("open {device} for writing{users}"), error)
    })
}

/// Unregisters the old partitions of a disk from the kernel, so that their device nodes and page caches are removed.
pub(super) fn unregister_partitions(disk: &File, device: &DevicePath) -> Result<()> {
    block_device::read_partitions(device)?.iter().try_for_each(|partition| unregister_partition(disk, partition))
}

/// Unregisters a partition from the kernel.
pub(super) fn unregister_partition(disk: &File, partition: &KernelPartition) -> Result<()> {
    block_device::delete_partition(disk, partition.number).map_err(|error| {
        let node = partition.name.device_path();
        let users = busy_device_users::format_users(&busy_device_users::list_device_users(&node));
        Error::with_source(Phase::Storage, format!("unregister {node} from the kernel{users}"), error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::test_loop_device::TestLoopDevice;
    use std::time::{Duration, Instant};

    const MIB: u64 = 1024 * 1024;

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_boot_code_is_erased_and_the_table_preserved() {
        let disk = TestLoopDevice::new(16 * MIB, 512);
        let file = OpenOptions::new().write(true).read(true).open(disk.path()).unwrap();
        file.write_all_at(&[0xaa; 1024], 0).unwrap();
        file.sync_all().unwrap();
        wipe_boot_code(disk.path()).unwrap();
        let image = std::fs::read(disk.image()).unwrap();
        assert!(image[..440].iter().all(|byte| *byte == 0));
        assert!(image[440..1024].iter().all(|byte| *byte == 0xaa));
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_disk_in_use_is_refused_and_its_user_named() {
        let disk = TestLoopDevice::new(16 * MIB, 512);
        crate::process::ToolCommand::new("mkfs.ext4").args(["-q", disk.path().as_str()]).run().unwrap();
        let point = tempfile::tempdir().unwrap();
        let mount = sys_mount::Mount::builder()
            .fstype("ext4")
            .mount_autodrop(disk.path(), point.path(), sys_mount::UnmountFlags::empty())
            .unwrap();
        let error = wipe_ends(disk.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("is mounted at {}", point.path().display())), "{error}");
        drop(mount);
        // The mount namespace of an installer that a concurrent test runs contains a copy of this mount until the
        // installer exits.
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(error) = wipe_ends(disk.path()) {
            assert!(Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_bluestore_label_copies_are_wiped_with_all_signatures() {
        const GIB: u64 = 1024 * MIB;
        let disk = TestLoopDevice::new(12 * GIB, 4096);
        let copies = [GIB, 10 * GIB];
        let image = OpenOptions::new().write(true).read(true).open(disk.image()).unwrap();
        let write = |at: u64| image.write_all_at(b"bluestore block device\n", at).unwrap();
        let is_zero = |at: u64| {
            let mut label = [0; 4096];
            image.read_exact_at(&mut label, at).unwrap();
            label == [0; 4096]
        };
        copies.into_iter().chain([2 * GIB]).for_each(write);
        wipe_ends(disk.path()).unwrap();
        assert!(copies.iter().all(|at| !is_zero(*at)));
        assert!(!crate::probe::is_blank(disk.path().as_ref()).unwrap(), "a copy of the label counts as content");
        wipe_signatures(disk.path()).unwrap();
        assert!(copies.iter().all(|at| is_zero(*at)) && !is_zero(2 * GIB));
    }

    #[test]
    fn missing_device_is_an_error() {
        let error = wipe_ends(&"/dev/no-such-disk".into()).unwrap_err().to_string();
        assert!(error.starts_with("open /dev/no-such-disk for writing: ENOENT: No such file"), "{error}");
    }
}
