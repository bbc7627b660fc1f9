//! Destination of a transfer: a disk, or a file in place of a disk. The first MiB of the destination, which contains
//! partition table, boot loader and most signatures, is written last. Until then, the first MiB contains zeros, so that
//! old or partial contents cannot be mistaken for a complete disk.

use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::sync::lock_mutex;
use image::raw::{HEAD_BYTES, RawTarget, TargetDisk};
use linux::gpt;
use linux::storage::aligned_buffer::AlignedBuffer;
use linux::storage::{block_device, busy_device_users, image_table_adaptation};
use model::device_name::DevicePath;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};
use std::{fs, io};

/// Exclusively opened destination.
pub(crate) struct TransferDestination {
    disk: TargetDisk,
    /// Open device; `None` when the disk is complete. A complete disk is closed, because the kernel rereads the
    /// partition table only if no process holds the device open.
    target: RwLock<Option<RawTarget>>,
    /// Whether a GPT in the received data is adapted to the size of this disk.
    fits: bool,
    head: Mutex<HeldBackHead>,
}

/// First MiB of the received data, which is held back.
struct HeldBackHead {
    bytes: AlignedBuffer,
    /// Length of the received part of the first MiB, in bytes.
    length: usize,
}

impl TransferDestination {
    /// Opens a destination. Writes nothing.
    ///
    /// # Errors
    /// Refuses a path that does not exist, is in use, or is neither a disk nor a file of whole sectors.
    pub(crate) fn open_destination(path: &Path) -> Result<TransferDestination> {
        let refuse = |why: String| {
            Error::refusal(Phase::Move, format!("{path} cannot be the destination: {why}", path = path.display()))
                .with_code(ErrorCode::TransferDisk)
        };
        let real = fs::canonicalize(path).map_err(|error| refuse(error.to_string()))?;
        let device = DevicePath::from(real.to_str().ok_or_else(|| refuse("the path is not UTF-8".to_owned()))?);
        let metadata = fs::metadata(&real).map_err(|error| refuse(error.to_string()))?;
        let is_disk = metadata.file_type().is_block_device();
        let users = if is_disk { busy_device_users::list_device_holders(&device) } else { loop_devices_on(&real) };
        if !users.is_empty() {
            return Err(refuse(users.join(", ")));
        }
        let target = RawTarget::open(&device).map_err(|error| refuse(error.to_string()))?;
        let head = Mutex::new(HeldBackHead { bytes: AlignedBuffer::new(HEAD_BYTES), length: 0 });
        // A GPT on a device that cannot be partitioned, such as a file, is ordinary content and is not adapted.
        let fits = is_disk && block_device::supports_partitions(&device)?;
        Ok(TransferDestination { disk: target.disk.clone(), target: RwLock::new(Some(target)), fits, head })
    }

    /// Disables the adaptation of a GPT, so that the device is copied byte by byte.
    pub(crate) fn without_gpt_fit(self) -> TransferDestination {
        TransferDestination { fits: false, ..self }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.disk.size_bytes
    }

    pub(crate) fn sector_bytes(&self) -> u32 {
        self.disk.sector_bytes
    }

    /// Erases the first MiB, which makes the old contents unusable.
    ///
    /// # Errors
    /// Fails if the disk cannot be written.
    pub(crate) fn erase_head(&self) -> io::Result<()> {
        self.with_target(|target| {
            target.zero_range(0..self.size_bytes().min(HEAD_BYTES as u64))?;
            target.sync()
        })
    }

    /// Writes `length` bytes at `offset`, padded with zeros to whole sectors. The range must not cross the end of the
    /// first MiB. The buffer may be longer, and its bytes after `length` may be overwritten.
    ///
    /// # Errors
    /// Fails if the range exceeds the disk or the disk cannot be written.
    pub(crate) fn write_piece(&self, offset: u64, bytes: &mut AlignedBuffer, length: usize) -> io::Result<()> {
        if offset + length as u64 > self.size_bytes() {
            return Err(self.too_small_error(offset + length as u64));
        }
        if offset < HEAD_BYTES as u64 {
            let (mut head, start) = (lock_mutex(&self.head), offset as usize);
            let place = head.bytes.get_mut(start..start + length).ok_or(io::ErrorKind::InvalidInput)?;
            place.copy_from_slice(&bytes[..length]);
            head.length = head.length.max(start + length);
            return Ok(());
        }
        self.with_target(|target| {
            let whole = target.round_to_sectors(length);
            bytes[length..whole].fill(0);
            target.write_at(offset, &bytes[..whole])
        })
    }

    /// Reads `length` bytes, rounded up to whole sectors, at `offset` of the disk.
    ///
    /// # Errors
    /// Fails if the disk cannot be read.
    pub(crate) fn read_back(&self, offset: u64, bytes: &mut AlignedBuffer, length: usize) -> io::Result<()> {
        self.with_target(|target| target.file().read_exact_at(&mut bytes[..target.round_to_sectors(length)], offset))
    }

    /// Writes zeros to a range. The start of the range must be aligned to sectors. The end must also be aligned,
    /// except for the last range of a transfer, whose end is rounded up.
    ///
    /// # Errors
    /// Fails for the same reasons as [`TransferDestination::write_piece`].
    pub(crate) fn zero_range(&self, range: Range<u64>) -> io::Result<()> {
        if range.end > self.size_bytes() {
            return Err(self.too_small_error(range.end));
        }
        let head_end = HEAD_BYTES as u64;
        if range.start < head_end {
            let mut head = lock_mutex(&self.head);
            head.length = head.length.max(range.end.min(head_end) as usize);
        }
        let rest = range.start.max(head_end)..self.round_to_sector(range.end);
        if rest.is_empty() { Ok(()) } else { self.with_target(|target| target.zero_range(rest)) }
    }

    /// Writes the first MiB and closes the disk. If a GPT is adapted, also moves the backup GPT to the end of the disk.
    ///
    /// # Errors
    /// Fails if the disk cannot be written, or the GPT does not fit the disk.
    pub(crate) fn write_head(&self) -> Result<()> {
        let head = lock_mutex(&self.head);
        let written = self.with_target(|target| {
            target.sync()?;
            target.write_at(0, &head.bytes[..target.round_to_sectors(head.length)])?;
            target.sync()
        });
        written.context(Phase::Move, || format!("complete {}", self.disk.name))?;
        drop(self.target.write().unwrap_or_else(PoisonError::into_inner).take());
        let is_gpt = gpt::read_claimed_disk_size(&head.bytes, u64::from(self.sector_bytes())).is_some();
        match is_gpt && self.fits {
            true => image_table_adaptation::fit_image_table(&self.disk.name, None, None).map(drop),
            false => Ok(()),
        }
    }

    pub(crate) fn too_small_error(&self, bytes: u64) -> io::Error {
        io::Error::other(format!(
            "{disk} is too small: it is {actual} bytes, but at least {bytes} bytes are required",
            disk = self.disk.name,
            actual = self.size_bytes()
        ))
    }

    /// Calls `work` with the open disk. Fails if the disk is complete and therefore closed.
    fn with_target<T>(&self, work: impl FnOnce(&RawTarget) -> io::Result<T>) -> io::Result<T> {
        let target = self.target.read().unwrap_or_else(PoisonError::into_inner);
        target.as_ref().map_or_else(|| Err(io::Error::other("the disk is already complete")), work)
    }

    fn round_to_sector(&self, end: u64) -> u64 {
        end.next_multiple_of(u64::from(self.sector_bytes()))
    }
}

/// Lists the loop devices that are backed by this file, each as a reason for a refusal.
pub(crate) fn loop_devices_on(file: &Path) -> Vec<String> {
    let loops = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.path());
    let has_it = |device: &PathBuf| {
        let behind = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        Path::new(behind.trim_end()) == file
    };
    let name = |device: PathBuf| device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    loops
        .filter(has_it)
        .map(|device| format!("the file is in use as the backing file of {device}", device = name(device)))
        .collect()
}
