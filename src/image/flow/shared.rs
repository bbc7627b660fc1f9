//! Memory that two processes have: the bytes of an image go from one to the other without a copy.
//!
//! Whoever is on the other side may write to it at any time. What is read of it is content, which goes to a file as it is, or is
//! copied before anything is decided by it.

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::ftruncate;
use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Which of the two memories that the agent and its worker have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Region {
    /// The image as it comes. The worker reads it only.
    Packed,
    /// What the worker makes of it. The agent reads it only.
    Plain,
}

impl Region {
    pub fn number(self) -> u8 {
        self as u8
    }

    pub fn of(number: u8) -> Option<Region> {
        [Region::Packed, Region::Plain].into_iter().find(|region| region.number() == number)
    }
}

/// A mapping of it.
struct Memory {
    region: Region,
    start: NonNull<c_void>,
    bytes: usize,
    writable: bool,
}

// SAFETY: the mapping stays where it is until it is dropped, and spans of it are handed out once.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and the last span of it has gone.
        let unmapped = unsafe { munmap(self.start, self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// New memory that can neither grow nor shrink: to read it never fails.
///
/// # Errors
/// The kernel's own.
pub fn create(region: Region, bytes: usize) -> io::Result<OwnedFd> {
    let name = match region {
        Region::Packed => c"drophammer packed",
        Region::Plain => c"drophammer plain",
    };
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    ftruncate(&fd, i64::try_from(bytes).map_err(io::Error::other)?)?;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW))?;
    Ok(fd)
}

/// From now on nobody maps it to write to it.
///
/// # Errors
/// The kernel's own: before Linux 5.1 there is none.
pub fn seal(fd: impl AsFd) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL))?;
    Ok(())
}

/// A piece of shared memory.
#[derive(Clone)]
pub struct Span {
    memory: Arc<Memory>,
    at: usize,
    bytes: usize,
}

impl Span {
    /// All of what [`create`] has made.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn map(fd: impl AsFd, region: Region, bytes: usize, writable: bool) -> io::Result<Span> {
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let access = if writable { ProtFlags::PROT_READ | ProtFlags::PROT_WRITE } else { ProtFlags::PROT_READ };
        // SAFETY: the kernel chooses where, so nothing that is there already is replaced.
        let start = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, fd, 0) }?;
        let memory = Arc::new(Memory { region, start, bytes, writable });
        Ok(Span { memory, at: 0, bytes })
    }

    pub fn region(&self) -> Region {
        self.memory.region
    }

    /// Where it begins in its region.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Cuts so many bytes off its front; `None` when it has fewer.
    pub fn split_off(&mut self, bytes: usize) -> Option<Span> {
        let left = self.bytes.checked_sub(bytes)?;
        let front = Span { memory: self.memory.clone(), at: self.at, bytes };
        (self.at, self.bytes) = (self.at + bytes, left);
        Some(front)
    }

    /// From this place of its region to its end; `None` outside of it.
    pub fn from(&self, at: usize) -> Option<Span> {
        let skipped = at.checked_sub(self.at)?;
        let bytes = self.bytes.checked_sub(skipped)?;
        Some(Span { memory: self.memory.clone(), at, bytes })
    }
}

impl Deref for Span {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: it lies within the mapping, which cannot shrink.
        unsafe { std::slice::from_raw_parts(self.memory.start.cast::<u8>().as_ptr().add(self.at), self.bytes) }
    }
}

impl DerefMut for Span {
    fn deref_mut(&mut self) -> &mut [u8] {
        assert!(self.memory.writable, "this memory is only read here");
        // SAFETY: as above; it may be written to, and a buffer that is filled is held once.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.cast::<u8>().as_ptr().add(self.at), self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_on_one_side_is_read_on_the_other_and_nobody_else_writes() {
        let fd = create(Region::Packed, 8192).unwrap();
        let mut here = Span::map(&fd, Region::Packed, 8192, true).unwrap();
        seal(&fd).unwrap();
        let there = Span::map(&fd, Region::Packed, 8192, false).unwrap();
        here[4096..4100].copy_from_slice(b"both");
        assert_eq!(&there[4096..4100], b"both");
        assert!(Span::map(&fd, Region::Packed, 8192, true).is_err());
        assert!(ftruncate(&fd, 0).is_err() && ftruncate(&fd, 1 << 20).is_err());
    }

    #[test]
    fn spans_stay_within_their_memory() {
        let fd = create(Region::Plain, 10_000).unwrap();
        let mut span = Span::map(&fd, Region::Plain, 10_000, true).unwrap();
        let whole = span.clone();
        let cut: Vec<_> = std::iter::from_fn(|| span.split_off(3000)).map(|cut| (cut.at(), cut.len())).collect();
        assert_eq!(cut, [(0, 3000), (3000, 3000), (6000, 3000)]);
        assert_eq!((span.at(), span.len()), (9000, 1000));
        assert_eq!(whole.from(9999).map(|span| span.len()), Some(1));
        assert!(whole.from(10_001).is_none() && span.from(8999).is_none());
        assert_eq!([0, 1, 2].map(Region::of), [Some(Region::Packed), Some(Region::Plain), None]);
    }
}
