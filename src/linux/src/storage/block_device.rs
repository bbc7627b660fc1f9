//! Block device ioctls, and properties of disks and partitions in sysfs. This module works without udev.

use crate::probe::format_device_number;
use common::error::{Context, Phase, Result};
use model::device_name::{DevicePath, KernelName};
use nix::errno::Errno;
use nix::libc::{c_int, c_longlong, c_void};
use std::fs::{self, File};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Unit of `start` and `size` in sysfs, regardless of the disk's sector size.
pub(crate) const SYSFS_SECTOR_BYTES: u64 = 512;

const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Request codes and structures of linux/fs.h and linux/blkpg.h.
mod ioctl {
    use nix::libc::{c_char, c_int, c_longlong, c_void};

    pub(crate) const BLKPG_ADD_PARTITION: c_int = 1;
    pub(crate) const BLKPG_DEL_PARTITION: c_int = 2;

    /// `struct blkpg_ioctl_arg`.
    #[repr(C)]
    pub(crate) struct BlkpgArg {
        pub op: c_int,
        pub flags: c_int,
        pub datalen: c_int,
        pub data: *mut c_void,
    }

    /// `struct blkpg_partition`; start and length in bytes.
    #[repr(C)]
    pub(crate) struct BlkpgPartition {
        pub start: c_longlong,
        pub length: c_longlong,
        pub pno: c_int,
        pub devname: [c_char; 64],
        pub volname: [c_char; 64],
    }

    nix::ioctl_write_ptr_bad!(blkroset, nix::request_code_none!(0x12, 93), c_int);
    nix::ioctl_none!(blkflsbuf, 0x12, 97);
    nix::ioctl_read_bad!(blksszget, nix::request_code_none!(0x12, 104), c_int);
    nix::ioctl_write_ptr_bad!(blkpg, nix::request_code_none!(0x12, 105), BlkpgArg);
    nix::ioctl_read!(blkgetsize64, 0x12, 114, u64);
    nix::ioctl_read!(blkgetdiskseq, 0x12, 128, u64);
    nix::ioctl_write_ptr_bad!(blkdiscard, nix::request_code_none!(0x12, 119), [u64; 2]);
    nix::ioctl_write_ptr_bad!(blkzeroout, nix::request_code_none!(0x12, 127), [u64; 2]);
    nix::ioctl_readwrite!(fifreeze, b'X', 119, c_int);
    nix::ioctl_readwrite!(fithaw, b'X', 120, c_int);

    // Request code of linux/ext4.h.
    nix::ioctl_write_ptr!(ext4_resize_fs, b'f', 16, u64);

    /// `struct xfs_fsop_geom_v1` of xfs_fs.h, in which the fields not used here are combined.
    #[repr(C)]
    pub(crate) struct XfsGeometry {
        pub block_bytes: u32,
        pub others: [u32; 6],
        pub inode_percent: u32,
        pub data_blocks: u64,
        pub rest: [u64; 9],
    }

    /// `struct xfs_growfs_data` of xfs_fs.h.
    #[repr(C)]
    pub(crate) struct XfsGrow {
        pub blocks: u64,
        pub inode_percent: u32,
    }

    nix::ioctl_read!(xfs_geometry, b'X', 100, XfsGeometry);
    nix::ioctl_write_ptr!(xfs_grow, b'X', 110, XfsGrow);

    /// `struct btrfs_ioctl_vol_args` of linux/btrfs.h.
    #[repr(C)]
    pub(crate) struct BtrfsArgs {
        pub fd: i64,
        pub name: [u8; 4088],
    }

    nix::ioctl_write_ptr!(btrfs_resize, 0x94, 3, BtrfsArgs);
    nix::ioctl_write_ptr!(btrfs_scan_dev, 0x94, 4, BtrfsArgs);
    nix::ioctl_write_ptr!(btrfs_forget_dev, 0x94, 5, BtrfsArgs);
}

/// Partition that is registered with the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelPartition {
    pub number: u32,
    /// Name in `/sys/class/block`.
    pub name: KernelName,
    pub start_bytes: u64,
    pub size_bytes: u64,
}

/// Retries for two seconds while the kernel returns `busy`. Some users release a device after a short time, for example
/// a process that was just killed, udev on a developer's machine, or a child process forked by another thread. Such a
/// child holds all open descriptors until exec, even those with O_CLOEXEC.
pub(crate) fn retry_while_busy<T>(busy: Errno, mut attempt: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    let end = Instant::now() + BUSY_TIMEOUT;
    loop {
        match attempt() {
            Err(error) if error == busy && Instant::now() < end => thread::sleep(Duration::from_millis(50)),
            result => return result,
        }
    }
}

/// Converts an I/O error to the error type of [`retry_while_busy`].
pub(crate) fn to_errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Returns the size of the device in bytes.
pub fn read_size_bytes(device: &File) -> nix::Result<u64> {
    let mut bytes = 0;
    // SAFETY: BLKGETSIZE64 writes one u64 to the address that it gets.
    unsafe { ioctl::blkgetsize64(device.as_raw_fd(), &mut bytes) }?;
    Ok(bytes)
}

/// Returns the logical sector size in bytes, the unit of LBAs in a partition table.
pub fn read_sector_bytes(device: &File) -> nix::Result<u32> {
    let mut bytes: c_int = 0;
    // SAFETY: BLKSSZGET writes one int to the address that it gets.
    unsafe { ioctl::blksszget(device.as_raw_fd(), &mut bytes) }?;
    Ok(bytes.unsigned_abs())
}

/// Writes the device's page cache back and drops it, so that the next read is served by the device.
pub(crate) fn flush_buffers(device: &File) -> nix::Result<()> {
    // SAFETY: BLKFLSBUF takes no argument.
    unsafe { ioctl::blkflsbuf(device.as_raw_fd()) }.map(drop)
}

/// Discards this range of the device. The content of the range is undefined afterwards.
pub(crate) fn discard_range(device: &File, start: u64, length: u64) -> nix::Result<()> {
    // SAFETY: BLKDISCARD reads two u64 from the address that it gets.
    unsafe { ioctl::blkdiscard(device.as_raw_fd(), &[start, length]) }.map(drop)
}

/// Zeroes this range of whole sectors. The kernel uses a zeroing command of the disk if the disk supports such a
/// command, and otherwise writes zeros.
pub fn zero_range(device: &File, start: u64, length: u64) -> nix::Result<()> {
    // SAFETY: BLKZEROOUT reads two u64 from the address that it gets.
    unsafe { ioctl::blkzeroout(device.as_raw_fd(), &[start, length]) }.map(drop)
}

/// Writes all data of a mounted filesystem to its final location and empties the journal, so that no replay is
/// necessary. syncfs(2) is not sufficient, because it may leave data in the journal.
pub(crate) fn flush_journal(filesystem: &File) -> nix::Result<()> {
    // SAFETY: both ioctls ignore their argument.
    match unsafe { ioctl::fifreeze(filesystem.as_raw_fd(), &mut 0) } {
        Ok(_) => unsafe { ioctl::fithaw(filesystem.as_raw_fd(), &mut 0) }.map(drop),
        // vfat does not support freezing, and has no journal to empty.
        Err(Errno::EOPNOTSUPP) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Grows a mounted ext3 or ext4 to `blocks` blocks, like resize2fs.
pub(crate) fn grow_ext4(filesystem: &File, blocks: u64) -> nix::Result<()> {
    // SAFETY: EXT4_IOC_RESIZE_FS reads one u64 from the address that it gets.
    unsafe { ioctl::ext4_resize_fs(filesystem.as_raw_fd(), &blocks) }.map(drop)
}

/// Grows a mounted xfs to the end of its device, like xfs_growfs.
pub(crate) fn grow_xfs(filesystem: &File, device_bytes: u64) -> nix::Result<()> {
    let mut is = ioctl::XfsGeometry { block_bytes: 0, others: [0; 6], inode_percent: 0, data_blocks: 0, rest: [0; 9] };
    // SAFETY: XFS_IOC_FSGEOMETRY_V1 writes one such structure to the address that it gets.
    unsafe { ioctl::xfs_geometry(filesystem.as_raw_fd(), &mut is) }?;
    let blocks = device_bytes / u64::from(is.block_bytes.max(1));
    if blocks <= is.data_blocks {
        return Ok(());
    }
    let wanted = ioctl::XfsGrow { blocks, inode_percent: is.inode_percent };
    // SAFETY: XFS_IOC_FSGROWFSDATA reads one such structure from the address that it gets.
    unsafe { ioctl::xfs_grow(filesystem.as_raw_fd(), &wanted) }.map(drop)
}

/// Grows a mounted btrfs on a single device to the end of that device, like `btrfs filesystem resize max`.
pub(crate) fn grow_btrfs(filesystem: &File) -> nix::Result<()> {
    // SAFETY: BTRFS_IOC_RESIZE reads one such structure from the address that it gets; the name ends in NUL.
    unsafe { ioctl::btrfs_resize(filesystem.as_raw_fd(), &build_btrfs_args("max")?) }.map(drop)
}

/// Registers a btrfs device with the kernel; `control` is `/dev/btrfs-control`.
pub(crate) fn scan_btrfs_device(control: &File, device: &DevicePath) -> nix::Result<()> {
    // SAFETY: BTRFS_IOC_SCAN_DEV reads one such structure from the address that it gets; the name ends in NUL.
    unsafe { ioctl::btrfs_scan_dev(control.as_raw_fd(), &build_btrfs_args(device.as_str())?) }.map(drop)
}

/// Unregisters all btrfs devices that are not mounted.
pub(crate) fn forget_btrfs_devices(control: &File) -> nix::Result<()> {
    // SAFETY: BTRFS_IOC_FORGET_DEV reads one such structure from the address that it gets; an empty name means all
    // devices.
    unsafe { ioctl::btrfs_forget_dev(control.as_raw_fd(), &build_btrfs_args("")?) }.map(drop)
}

fn build_btrfs_args(name: &str) -> nix::Result<ioctl::BtrfsArgs> {
    let mut args = ioctl::BtrfsArgs { fd: 0, name: [0; 4088] };
    let room = args.name.get_mut(..name.len()).filter(|_| name.len() < 4088).ok_or(Errno::ENAMETOOLONG)?;
    room.copy_from_slice(name.as_bytes());
    Ok(args)
}

/// Sets or clears the block layer's read-only flag.
pub(crate) fn set_read_only(device: &File, read_only: bool) -> nix::Result<()> {
    // SAFETY: BLKROSET reads one int from the address that it gets.
    unsafe { ioctl::blkroset(device.as_raw_fd(), &c_int::from(read_only)) }.map(drop)
}

/// Returns the disk sequence number, which is unique while the kernel runs; `None` for kernels before 5.15.
pub(crate) fn read_diskseq(device: &File) -> nix::Result<Option<NonZeroU64>> {
    let mut number = 0u64;
    // SAFETY: BLKGETDISKSEQ writes one u64 to the address that it gets.
    match unsafe { ioctl::blkgetdiskseq(device.as_raw_fd(), &raw mut number) } {
        Ok(_) => Ok(NonZeroU64::new(number)),
        Err(Errno::ENOTTY | Errno::EINVAL) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Registers partition `number` with the kernel.
pub fn add_partition(disk: &File, number: u32, start: u64, length: u64) -> nix::Result<()> {
    run_blkpg(disk, ioctl::BLKPG_ADD_PARTITION, number, start, length)
}

/// Unregisters partition `number` from the kernel. Retries if the partition is in use, because the user may be a
/// program that reads the signatures of all devices, and opens the partition only for a moment. Returns EBUSY if the
/// partition remains in use.
pub(crate) fn delete_partition(disk: &File, number: u32) -> nix::Result<()> {
    retry_while_busy(Errno::EBUSY, || run_blkpg(disk, ioctl::BLKPG_DEL_PARTITION, number, 0, 0))
}

fn run_blkpg(disk: &File, op: c_int, number: u32, start: u64, length: u64) -> nix::Result<()> {
    let mut partition = ioctl::BlkpgPartition {
        start: c_longlong::try_from(start).map_err(|_| Errno::EOVERFLOW)?,
        length: c_longlong::try_from(length).map_err(|_| Errno::EOVERFLOW)?,
        pno: c_int::try_from(number).map_err(|_| Errno::EOVERFLOW)?,
        devname: [0; 64],
        volname: [0; 64],
    };
    let arg = ioctl::BlkpgArg {
        op,
        flags: 0,
        datalen: size_of::<ioctl::BlkpgPartition>() as c_int,
        data: (&raw mut partition).cast::<c_void>(),
    };
    // SAFETY: BLKPG reads `arg` and the `blkpg_partition` that it points to; both live until it returns.
    unsafe { ioctl::blkpg(disk.as_raw_fd(), &arg) }.map(drop)
}

/// Returns the sysfs directory of a device, such as `/sys/devices/…/block/sda`. The directory is found by the device
/// number, because the path may be a link.
///
/// # Errors
/// Returns an error if the path is not a block device, or sysfs is not mounted.
pub fn sysfs_path(device: &DevicePath) -> Result<PathBuf> {
    sysfs_path_from_metadata(device, fs::metadata(device))
}

/// Returns the sysfs directory of an open device, even if the path of the device has changed.
///
/// # Errors
/// The same errors as for [`sysfs_path`].
pub(crate) fn sysfs_path_of_open(file: &File, device: &DevicePath) -> Result<PathBuf> {
    sysfs_path_from_metadata(device, file.metadata())
}

fn sysfs_path_from_metadata(device: &DevicePath, metadata: std::io::Result<fs::Metadata>) -> Result<PathBuf> {
    let what = || format!("find {device} in /sys");
    let metadata = metadata.context(Phase::Storage, what)?;
    if !metadata.file_type().is_block_device() {
        return Err(std::io::Error::other("not a block device")).context(Phase::Storage, what);
    }
    fs::canonicalize(format!("/sys/dev/block/{}", format_device_number(metadata.rdev()))).context(Phase::Storage, what)
}

/// Returns the partitions of a disk that are registered with the kernel, by number.
///
/// # Errors
/// The same errors as for [`sysfs_path`].
pub fn read_partitions(disk: &DevicePath) -> Result<Vec<KernelPartition>> {
    let what = || format!("list the partitions of {disk}");
    let mut found = Vec::new();
    for entry in fs::read_dir(sysfs_path(disk)?).context(Phase::Storage, what)? {
        let path = entry.context(Phase::Storage, what)?.path();
        // Only the directories of partitions contain the file `partition`.
        let Ok(number) = read_number(&path.join("partition")) else { continue };
        let sectors = |file| read_number(&path.join(file)).context(Phase::Storage, what);
        found.push(KernelPartition {
            number: u32::try_from(number).context(Phase::Storage, what)?,
            name: path.file_name().unwrap_or_default().to_string_lossy().as_ref().into(),
            start_bytes: sectors("start")? * SYSFS_SECTOR_BYTES,
            size_bytes: sectors("size")? * SYSFS_SECTOR_BYTES,
        });
    }
    found.sort_by_key(|partition| partition.number);
    Ok(found)
}

/// Returns whether partitions of the device can be registered with the kernel. Returns false for partitions and
/// device-mapper devices.
///
/// # Errors
/// The same errors as for [`sysfs_path`].
pub fn supports_partitions(device: &DevicePath) -> Result<bool> {
    // `ext_range` is the number of minors, including the minor of the device itself. The directory of a partition does
    // not contain this file.
    Ok(read_number(&sysfs_path(device)?.join("ext_range")).is_ok_and(|most| most > 1))
}

fn read_number(path: &Path) -> std::io::Result<u64> {
    fs::read_to_string(path)?.trim().parse().map_err(std::io::Error::other)
}
