//! Limits the work for one disk, regardless of the contents of its filesystems. The limits count operations instead of
//! time, so that tests can check the counters.

use linux::gpt::ReadAt;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;

/// Maximum size of a single read, in bytes.
pub(crate) const MAXIMUM_SINGLE_READ_BYTES: u64 = 1 << 20;

/// Maximum number of reads per disk. An ext4 with blocks of 4 KiB needs one read per 128 MiB.
pub(crate) const MAXIMUM_READS: u64 = 1 << 20;

/// Maximum number of bytes read per disk. An ext4 of 64 TiB and the log of the largest XFS need 2 GiB each.
pub(crate) const MAXIMUM_READ_BYTES: u64 = 4 << 30;

/// Maximum number of tree nodes visited per filesystem. On btrfs, these nodes contain about twenty million extents.
pub(crate) const MAXIMUM_TREE_NODES: usize = 1 << 16;

/// Counters of the work for one disk, which are checked against the limits.
#[derive(Debug, Default)]
pub(crate) struct WorkLimits {
    reads: Cell<u64>,
    bytes: Cell<u64>,
    nodes: Cell<u64>,
    is_exceeded: Cell<bool>,
}

impl WorkLimits {
    /// Reads bytes if the limits allow it.
    ///
    /// # Errors
    /// Fails if the disk cannot be read or a limit is exceeded. All later reads then also fail, and the whole disk
    /// is treated as used.
    pub(crate) fn read_within(&self, read_at: ReadAt, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.reads.set(self.reads.get() + 1);
        self.bytes.set(self.bytes.get().saturating_add(bytes.len() as u64));
        if self.reads.get() > MAXIMUM_READS || self.bytes.get() > MAXIMUM_READ_BYTES {
            self.is_exceeded.set(true);
        }
        if self.is_exceeded.get() {
            return Err(io::Error::other("the filesystems require more reads than the limit allows, or a read failed"));
        }
        read_at(bytes, at).inspect_err(|_| self.is_exceeded.set(true))
    }

    /// Returns whether a limit was exceeded or a read failed. In this case a signature may have been missed.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded.get()
    }

    #[cfg(test)]
    /// Returns the numbers of reads, bytes and visited nodes.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [self.reads.get(), self.bytes.get(), self.nodes.get()]
    }
}

/// Set of the metadata blocks of one filesystem that were visited.
pub(crate) struct VisitedBlocks<'w> {
    work: &'w WorkLimits,
    seen: RefCell<HashSet<u64>>,
    most: usize,
}

impl<'w> VisitedBlocks<'w> {
    /// Creates an empty set. At most `most` blocks can be visited.
    pub(crate) fn new(work: &'w WorkLimits, most: usize) -> VisitedBlocks<'w> {
        VisitedBlocks { work, seen: RefCell::default(), most }
    }

    /// Records a visit of a block. Returns `None` if the block was visited before, because of a cycle or two parents,
    /// or if the limit is exceeded.
    pub(crate) fn visit_block(&self, at: u64) -> Option<()> {
        self.work.nodes.set(self.work.nodes.get() + 1);
        let mut seen = self.seen.borrow_mut();
        (seen.len() < self.most && seen.insert(at)).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_end_at_limit_or_first_error() {
        let (work, made) = (WorkLimits::default(), Cell::new(0_u64));
        let read_at = |_: &mut [u8], at: u64| {
            made.set(made.get() + 1);
            if at == 7 { Err(io::Error::other("a bad sector")) } else { Ok(()) }
        };
        for _ in 0..MAXIMUM_READS {
            work.read_within(&read_at, &mut [0; 1], 0).unwrap();
        }
        assert!(!work.is_exceeded());
        for _ in 0..3 {
            assert!(work.read_within(&read_at, &mut [0; 1], 0).is_err() && work.is_exceeded());
        }
        assert_eq!(made.get(), MAXIMUM_READS);

        let work = WorkLimits::default();
        let mut piece = vec![0; 64 << 20];
        for _ in 0..MAXIMUM_READ_BYTES >> 26 {
            work.read_within(&read_at, &mut piece, 0).unwrap();
        }
        assert!(work.read_within(&read_at, &mut piece[..1], 0).is_err());

        let work = WorkLimits::default();
        assert!(
            work.read_within(&read_at, &mut [0; 1], 7).is_err() && work.is_exceeded(),
            "an area that was not read may contain a signature"
        );
        assert!(work.read_within(&read_at, &mut [0; 1], 0).is_err());
    }

    #[test]
    fn block_is_visited_once_and_visits_are_limited() {
        let work = WorkLimits::default();
        let visited = VisitedBlocks::new(&work, 2);
        assert_eq!([5, 5, 6, 7].map(|at| visited.visit_block(at).is_some()), [true, false, true, false]);
        assert_eq!(work.counts(), [0, 0, 4]);
    }
}
