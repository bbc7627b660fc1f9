//! Memory shared by two processes, to pass the bytes of an image without a copy.
//!
//! The other process may write to the memory at any time. Therefore only file content, which needs no check, is used
//! directly from the memory. All other data is copied before it is checked and used.

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

/// One of the two memory regions shared by the agent and its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SharedRegion {
    /// Image as served. The worker can only read this region.
    Packed,
    /// Output of the worker. The agent can only read this region.
    Plain,
}

impl SharedRegion {
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_number(number: u8) -> Option<SharedRegion> {
        [SharedRegion::Packed, SharedRegion::Plain].into_iter().find(|region| region.number() == number)
    }
}

/// Mapping of a region into this process.
struct MappedMemory {
    region: SharedRegion,
    start: NonNull<c_void>,
    bytes: usize,
    writable: bool,
}

// SAFETY: the mapping stays at its address until it is dropped, and no two spans of it overlap.
unsafe impl Send for MappedMemory {}
// SAFETY: as above.
unsafe impl Sync for MappedMemory {}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this length, and no span of it is left.
        let unmapped = unsafe { munmap(self.start, self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Creates memory for a region. The size of the memory is sealed. Otherwise the other process could shrink the memory,
/// and thereby cause a SIGBUS in this process.
///
/// # Errors
/// Returns the error of the kernel.
pub(crate) fn create_memory(region: SharedRegion, bytes: usize) -> io::Result<OwnedFd> {
    let name = match region {
        SharedRegion::Packed => c"drophammer packed",
        SharedRegion::Plain => c"drophammer plain",
    };
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    ftruncate(&fd, i64::try_from(bytes).map_err(io::Error::other)?)?;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW))?;
    Ok(fd)
}

/// Seals the memory, so that no further writable mapping can be created. Existing writable mappings remain.
///
/// # Errors
/// Returns the error of the kernel. Linux before 5.1 does not support this seal.
pub(crate) fn seal_writes(fd: impl AsFd) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL))?;
    Ok(())
}

/// Contiguous part of a shared region.
#[derive(Clone)]
pub(crate) struct SharedSpan {
    memory: Arc<MappedMemory>,
    at: usize,
    bytes: usize,
}

impl SharedSpan {
    /// Maps the whole memory created by [`create_memory`].
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub(crate) fn map(fd: impl AsFd, region: SharedRegion, bytes: usize, writable: bool) -> io::Result<SharedSpan> {
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let access = if writable { ProtFlags::PROT_READ | ProtFlags::PROT_WRITE } else { ProtFlags::PROT_READ };
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, fd, 0) }?;
        let memory = Arc::new(MappedMemory { region, start, bytes, writable });
        Ok(SharedSpan { memory, at: 0, bytes })
    }

    pub(crate) fn region(&self) -> SharedRegion {
        self.memory.region
    }

    /// Returns the offset of the span in its region, in bytes.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Splits off and returns the first `bytes` bytes, or returns `None` if the span is shorter.
    pub(crate) fn split_front(&mut self, bytes: usize) -> Option<SharedSpan> {
        let left = self.bytes.checked_sub(bytes)?;
        let front = SharedSpan { memory: self.memory.clone(), at: self.at, bytes };
        (self.at, self.bytes) = (self.at + bytes, left);
        Some(front)
    }

    /// Returns the part of the span that begins at offset `at` of the region, or `None` if that offset is outside the
    /// span.
    pub(crate) fn slice_from(&self, at: usize) -> Option<SharedSpan> {
        let skipped = at.checked_sub(self.at)?;
        let bytes = self.bytes.checked_sub(skipped)?;
        Some(SharedSpan { memory: self.memory.clone(), at, bytes })
    }
}

impl Deref for SharedSpan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the span is within the mapping, and the memory cannot shrink.
        unsafe { std::slice::from_raw_parts(self.memory.start.cast::<u8>().as_ptr().add(self.at), self.bytes) }
    }
}

impl DerefMut for SharedSpan {
    fn deref_mut(&mut self) -> &mut [u8] {
        assert!(self.memory.writable, "this memory is mapped read-only");
        // SAFETY: as above; the mapping is writable, and a buffer being filled has one owner.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.cast::<u8>().as_ptr().add(self.at), self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_writable_only_by_its_creator() {
        let fd = create_memory(SharedRegion::Packed, 8192).unwrap();
        let mut here = SharedSpan::map(&fd, SharedRegion::Packed, 8192, true).unwrap();
        seal_writes(&fd).unwrap();
        let there = SharedSpan::map(&fd, SharedRegion::Packed, 8192, false).unwrap();
        here[4096..4100].copy_from_slice(b"both");
        assert_eq!(&there[4096..4100], b"both");
        assert!(SharedSpan::map(&fd, SharedRegion::Packed, 8192, true).is_err());
        assert!(ftruncate(&fd, 0).is_err() && ftruncate(&fd, 1 << 20).is_err());
    }

    #[test]
    fn spans_remain_within_their_memory() {
        let fd = create_memory(SharedRegion::Plain, 10_000).unwrap();
        let mut span = SharedSpan::map(&fd, SharedRegion::Plain, 10_000, true).unwrap();
        let whole = span.clone();
        let cut: Vec<_> = std::iter::from_fn(|| span.split_front(3000)).map(|cut| (cut.at(), cut.len())).collect();
        assert_eq!(cut, [(0, 3000), (3000, 3000), (6000, 3000)]);
        assert_eq!((span.at(), span.len()), (9000, 1000));
        assert_eq!(whole.slice_from(9999).map(|span| span.len()), Some(1));
        assert!(whole.slice_from(10_001).is_none() && span.slice_from(8999).is_none());
        assert_eq!(
            [0, 1, 2].map(SharedRegion::from_number),
            [Some(SharedRegion::Packed), Some(SharedRegion::Plain), None]
        );
    }
}
