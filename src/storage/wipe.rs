//! Makes a disk empty and proves it: discard, zero, read back from the device.

use super::{busy, kernel};
use crate::error::{Context, Error, Phase, Result};
use crate::plan::ByteRange;
use nix::errno::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

const CHUNK_BYTES: u64 = 1024 * 1024;

/// How much of each end of a device holds signatures: superblocks, partition tables, RAID and LVM metadata.
pub const END_BYTES: u64 = 1024 * 1024;

/// What comes before disk signature and partition table in an MBR (UEFI specification 5.2.1).
const BOOT_CODE_BYTES: usize = 440;

/// Discards the whole disk where it can, writes zeros to these ranges and reads them back as zero.
///
/// # Errors
/// The disk is in use (and by whom), cannot be written, or gives back something else than zeros (and where).
pub fn wipe_disk(device: &str, zero: &[ByteRange]) -> Result<()> {
    let disk = open_exclusive(device)?;
    forget_partitions(&disk, device)?;
    let size = kernel::size_bytes(&disk).context(Phase::Storage, || format!("ask {device} for its size"))?;
    discard(&disk, device, size);
    zero_ranges(&disk, device, size, zero)
}

/// Zeros the first and last MiB of a disk or partition, so that nothing recognises what was on it.
///
/// # Errors
/// As [`wipe_disk`].
pub fn wipe_ends(device: &str) -> Result<()> {
    let file = open_exclusive(device)?;
    let size = kernel::size_bytes(&file).context(Phase::Storage, || format!("ask {device} for its size"))?;
    let length = END_BYTES.min(size);
    let ends = [ByteRange { start: 0, length }, ByteRange { start: size - length, length }];
    zero_ranges(&file, device, size, &ends)
}

/// Zeros the boot code that a BIOS would run from the disk's first sector; the partition table behind it stays.
///
/// # Errors
/// The disk is in use or cannot be written.
pub fn wipe_boot_code(device: &str) -> Result<()> {
    let disk = open_exclusive(device)?;
    disk.write_all_at(&[0; BOOT_CODE_BYTES], 0)
        .and_then(|()| disk.sync_data())
        .context(Phase::Storage, || format!("wipe the boot code of {device}"))
}

/// Opens a device for writing, and nobody else may use it meanwhile: with O_EXCL the kernel refuses a device, or a
/// disk with a partition, that is mounted, swapped to or held (open(2), block/bdev.c).
///
/// # Errors
/// It is not there or in use.
pub fn open_exclusive(device: &str) -> Result<File> {
    let open = || {
        let opened = OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_EXCL).open(device);
        opened.map_err(|error| kernel::errno(&error))
    };
    kernel::patiently(Errno::EBUSY, open).map_err(|error| {
        let users = if error == Errno::EBUSY { busy::in_words(&busy::device_users(device)) } else { String::new() };
        Error::with_source(Phase::Storage, format!("open {device} for writing{users}"), error)
    })
}

/// The kernel's idea of the old partitions goes first: their nodes and caches must not outlive them.
pub(super) fn forget_partitions(disk: &File, device: &str) -> Result<()> {
    for partition in kernel::partitions(device)? {
        let delete = || kernel::delete_partition(disk, partition.number);
        kernel::patiently(Errno::EBUSY, delete).map_err(|error| {
            let node = format!("/dev/{}", partition.name);
            let users = busy::in_words(&busy::device_users(&node));
            Error::with_source(Phase::Storage, format!("make the kernel forget {node}{users}"), error)
        })?;
    }
    Ok(())
}

/// Only a help to SSDs: a successful discard guarantees no zeros (Linux 48920ff2a5a9), so no error matters either.
fn discard(disk: &File, device: &str, size: u64) {
    match kernel::discard(disk, 0, size) {
        Ok(()) | Err(Errno::EOPNOTSUPP) => {}
        Err(error) => tracing::warn!("{device} could not be discarded: {error}"),
    }
}

fn zero_ranges(file: &File, device: &str, size: u64, ranges: &[ByteRange]) -> Result<()> {
    for range in ranges {
        if range.start.checked_add(range.length).is_none_or(|end| end > size) {
            let (start, length) = (range.start, range.length);
            let what = format!("{device} has {size} bytes, so {length} bytes at {start} cannot be wiped");
            return Err(Error::new(Phase::Storage, what));
        }
    }
    let zeros = vec![0; CHUNK_BYTES as usize];
    for (offset, length) in ranges.iter().flat_map(chunks) {
        file.write_all_at(&zeros[..length], offset)
            .context(Phase::Storage, || format!("write {length} zeros at byte {offset} of {device}"))?;
    }
    file.sync_data().context(Phase::Storage, || format!("flush the zeros to {device}"))?;
    kernel::flush_buffers(file).context(Phase::Storage, || format!("drop the page cache of {device}"))?;
    match first_nonzero(file, ranges).context(Phase::Storage, || format!("read {device} back after wiping"))? {
        None => Ok(()),
        Some(offset) => {
            let what =
                format!("{device} was wiped, yet byte {offset} is not zero: the disk does not keep what it is given");
            Err(Error::new(Phase::Storage, what))
        }
    }
}

fn first_nonzero(file: &File, ranges: &[ByteRange]) -> io::Result<Option<u64>> {
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    for (offset, length) in ranges.iter().flat_map(chunks) {
        file.read_exact_at(&mut buffer[..length], offset)?;
        if let Some(index) = buffer[..length].iter().position(|byte| *byte != 0) {
            return Ok(Some(offset + index as u64));
        }
    }
    Ok(None)
}

fn chunks(range: &ByteRange) -> impl Iterator<Item = (u64, usize)> {
    let end = range.start + range.length;
    (range.start..end).step_by(CHUNK_BYTES as usize).map(move |offset| (offset, CHUNK_BYTES.min(end - offset) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::loopdev::LoopDevice;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn ranges_are_cut_into_chunks() {
        let range = ByteRange { start: 512, length: 2 * MIB + 1 };
        assert_eq!(
            chunks(&range).collect::<Vec<_>>(),
            [(512, MIB as usize), (512 + MIB, MIB as usize), (512 + 2 * MIB, 1)]
        );
        assert_eq!(chunks(&ByteRange { start: 5, length: 0 }).count(), 0);
    }

    #[test]
    fn the_first_byte_that_is_not_zero_is_found() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * MIB).unwrap();
        let all = [ByteRange { start: 0, length: 3 * MIB }];
        assert_eq!(first_nonzero(&file, &all).unwrap(), None);
        file.write_all_at(&[1], 2 * MIB + 7).unwrap();
        assert_eq!(first_nonzero(&file, &all).unwrap(), Some(2 * MIB + 7));
        assert_eq!(first_nonzero(&file, &[ByteRange { start: 0, length: MIB }]).unwrap(), None);
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_only_the_given_ranges_become_zero() {
        let disk = LoopDevice::new(16 * MIB, 512);
        let file = OpenOptions::new().write(true).read(true).open(disk.path()).unwrap();
        file.write_all_at(&vec![0xaa; 16 * MIB as usize], 0).unwrap();
        file.sync_all().unwrap();
        let ends = [ByteRange { start: 0, length: MIB }, ByteRange { start: 15 * MIB, length: MIB }];
        zero_ranges(&file, disk.path(), 16 * MIB, &ends).unwrap();
        let image = std::fs::read(disk.image()).unwrap();
        assert!(image[..MIB as usize].iter().chain(&image[15 * MIB as usize..]).all(|byte| *byte == 0));
        assert!(image[MIB as usize..15 * MIB as usize].iter().all(|byte| *byte == 0xaa));

        wipe_disk(disk.path(), &ends).unwrap();
        let beyond = [ByteRange { start: 16 * MIB, length: 1 }];
        let error = wipe_disk(disk.path(), &beyond).unwrap_err().to_string();
        assert!(error.contains("has 16777216 bytes, so 1 bytes at 16777216 cannot be wiped"), "{error}");
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_the_boot_code_goes_and_the_table_stays() {
        let disk = LoopDevice::new(16 * MIB, 512);
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
    fn loop_a_disk_in_use_is_refused_and_its_user_named() {
        let disk = LoopDevice::new(16 * MIB, 512);
        crate::command::Command::new("mkfs.ext4").args(["-q", disk.path()]).run().unwrap();
        let point = tempfile::tempdir().unwrap();
        let mount = sys_mount::Mount::builder()
            .fstype("ext4")
            .mount_autodrop(disk.path(), point.path(), sys_mount::UnmountFlags::empty())
            .unwrap();
        for error in [wipe_disk(disk.path(), &[]).unwrap_err(), wipe_ends(disk.path()).unwrap_err()] {
            let expected = format!("is mounted at {}", point.path().display());
            assert!(error.to_string().contains(&expected), "{error}");
        }
        drop(mount);
        wipe_disk(disk.path(), &[ByteRange { start: 0, length: MIB }]).unwrap();
    }

    #[test]
    fn something_that_is_not_there_is_an_error() {
        let error = wipe_disk("/dev/no-such-disk", &[]).unwrap_err().to_string();
        assert!(error.starts_with("open /dev/no-such-disk for writing: ENOENT: No such file"), "{error}");
    }
}
