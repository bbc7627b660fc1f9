//! The disk that a move fills, or a file in place of one. Its first MiB, where all begins that boots or mounts, is held back until the
//! rest is there: meanwhile it is zero, and neither what was there before nor half of what comes is taken for whole.

use crate::device::DevicePath;
use crate::error::{Context, Error, Phase, Result};
use crate::gpt;
use crate::image::raw::{Aligned, Disk, HEAD_BYTES, Target};
use crate::storage::{busy, fit, kernel};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// Nobody else uses it.
pub struct Onto {
    disk: Disk,
    /// Closed when the disk is whole: the kernel is told of its partitions by who has it alone.
    target: RwLock<Option<Target>>,
    /// A GPT in it is that of a disk, and is made to fit this one.
    fits: bool,
    head: Mutex<Head>,
}

/// What is held back.
struct Head {
    bytes: Aligned,
    /// So much of it has come.
    length: usize,
}

impl Onto {
    /// # Errors
    /// A refusal: it is not there, in use, or neither a disk nor a file of whole sectors. Nothing is written yet.
    pub fn open(path: &Path) -> Result<Onto> {
        let refuse = |why: String| Error::refusal(Phase::Move, format!("{} takes nothing: {why}", path.display()));
        let real = fs::canonicalize(path).map_err(|error| refuse(error.to_string()))?;
        let device = DevicePath::from(real.to_str().ok_or_else(|| refuse("its name is not UTF-8".to_owned()))?);
        let metadata = fs::metadata(&real).map_err(|error| refuse(error.to_string()))?;
        let is_disk = metadata.file_type().is_block_device();
        let users = if is_disk { busy::device_holders(&device) } else { behind(&real) };
        if !users.is_empty() {
            return Err(refuse(users.join(", ")));
        }
        let target = Target::open(&device).map_err(|error| refuse(error.to_string()))?;
        let head = Mutex::new(Head { bytes: Aligned::new(HEAD_BYTES), length: 0 });
        // Elsewhere the kernel knows no partitions, and a table is content as any other.
        let fits = is_disk && kernel::takes_partitions(&device)?;
        Ok(Onto { disk: target.disk.clone(), target: RwLock::new(Some(target)), fits, head })
    }

    /// It becomes what comes, byte by byte: a GPT in it is a guest's.
    pub fn unfitted(self) -> Onto {
        Onto { fits: false, ..self }
    }

    pub fn size_bytes(&self) -> u64 {
        self.disk.size_bytes
    }

    pub fn sector_bytes(&self) -> u32 {
        self.disk.sector_bytes
    }

    /// From here on, what was there before is gone.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin(&self) -> io::Result<()> {
        self.with(|target| {
            target.zero(0..self.size_bytes().min(HEAD_BYTES as u64))?;
            target.sync()
        })
    }

    /// Puts these bytes there, and zeros up to the end of their last sector. They do not lie in the first MiB and behind it too. The
    /// buffer may be longer, and may be changed behind them.
    ///
    /// # Errors
    /// They do not fit, or it cannot be written.
    pub fn put(&self, offset: u64, bytes: &mut Aligned, length: usize) -> io::Result<()> {
        if offset + length as u64 > self.size_bytes() {
            return Err(self.too_small(offset + length as u64));
        }
        if offset < HEAD_BYTES as u64 {
            let (mut head, start) = (self.head(), offset as usize);
            let place = head.bytes.get_mut(start..start + length).ok_or(io::ErrorKind::InvalidInput)?;
            place.copy_from_slice(&bytes[..length]);
            head.length = head.length.max(start + length);
            return Ok(());
        }
        self.with(|target| {
            let whole = target.whole_sectors(length);
            bytes[length..whole].fill(0);
            target.write(offset, &bytes[..whole])
        })
    }

    /// What is there now, as far as the disk goes.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, offset: u64, bytes: &mut Aligned, length: usize) -> io::Result<()> {
        self.with(|target| target.file().read_exact_at(&mut bytes[..target.whole_sectors(length)], offset))
    }

    /// Makes it zero there. It begins and ends at whole sectors, or ends where all that comes ends.
    ///
    /// # Errors
    /// As [`Onto::put`].
    pub fn zero(&self, range: Range<u64>) -> io::Result<()> {
        if range.end > self.size_bytes() {
            return Err(self.too_small(range.end));
        }
        let head_end = HEAD_BYTES as u64;
        if range.start < head_end {
            let mut head = self.head();
            head.length = head.length.max(range.end.min(head_end) as usize);
        }
        let rest = range.start.max(head_end)..self.whole(range.end);
        if rest.is_empty() { Ok(()) } else { self.with(|target| target.zero(rest)) }
    }

    /// Now it is what has come. The backup of a disk's GPT goes to its end.
    ///
    /// # Errors
    /// It cannot be written, or the GPT does not fit it.
    pub fn finish(&self) -> Result<()> {
        let head = self.head();
        let written = self.with(|target| {
            target.sync()?;
            target.write(0, &head.bytes[..target.whole_sectors(head.length)])?;
            target.sync()
        });
        written.context(Phase::Move, || format!("write the end of {}", self.disk.name))?;
        drop(self.target.write().unwrap_or_else(PoisonError::into_inner).take());
        let is_gpt = gpt::claimed_end(&head.bytes, u64::from(self.sector_bytes())).is_some();
        match is_gpt && self.fits {
            true => fit::fit(&self.disk.name, None, None).map(drop),
            false => Ok(()),
        }
    }

    pub fn too_small(&self, bytes: u64) -> io::Error {
        io::Error::other(format!(
            "{} has {} bytes, and what comes has {bytes} or more",
            self.disk.name,
            self.size_bytes()
        ))
    }

    /// With the open disk, as long as it is not whole.
    fn with<T>(&self, work: impl FnOnce(&Target) -> io::Result<T>) -> io::Result<T> {
        let target = self.target.read().unwrap_or_else(PoisonError::into_inner);
        target.as_ref().map_or_else(|| Err(io::Error::other("it is whole already")), work)
    }

    fn whole(&self, end: u64) -> u64 {
        end.next_multiple_of(u64::from(self.sector_bytes()))
    }

    fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Loop devices that have this file behind them, in words.
pub fn behind(file: &Path) -> Vec<String> {
    let loops = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.path());
    let has_it = |device: &PathBuf| {
        let behind = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        Path::new(behind.trim_end()) == file
    };
    let name = |device: PathBuf| device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    loops.filter(has_it).map(|device| format!("it is behind {}", name(device))).collect()
}
