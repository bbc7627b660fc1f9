//! Reader of XFS: the free space is read from the by-block B-tree of each allocation group
//! (fs/xfs/libxfs/xfs_format.h). The trees are up to date only if the log needs no replay.

mod log;

use super::bounded_disk_reads::{DiskView, FilesystemUsage, ReadIntegers};
use super::used_ranges::UsedRanges;
use super::work_limits::{MAXIMUM_TREE_NODES, VisitedBlocks};
use std::ops::Range;

/// Offsets in the superblock. All integers are big-endian.
const BLOCK_SIZE: usize = 4;
const BLOCKS: usize = 8;
const LOG_START: usize = 48;
const GROUP_BLOCKS: usize = 84;
const GROUP_COUNT_OFFSET: usize = 88;
const LOG_BLOCKS: usize = 96;
const VERSION: usize = 100;
const SECTOR_SIZE: usize = 102;
const GROUP_LOG: usize = 124;
const IN_PROGRESS: usize = 126;
const RO_COMPAT: usize = 212;
const INCOMPAT: usize = 216;

/// Supported incompatible features: ftype, sparse inodes, metadata UUID, bigtime, large extent counts, exchange-range,
/// parent pointers. Needs-repair (0x10) is rejected.
const KNOWN_INCOMPAT: u32 = 0x1 | 0x2 | 0x4 | 0x8 | 0x20 | 0x40 | 0x80;

/// Supported read-only compatible features: free inode B-tree, reverse mapping, reflink, inode B-tree counts. None of
/// them changes the free-space B-tree.
const KNOWN_RO_COMPAT: u32 = 0xf;

/// Offsets in the AGF, the free-space header of an allocation group.
const GROUP_LENGTH: usize = 12;
const ROOT: usize = 16;
const LEVELS: usize = 28;
const FREE: usize = 52;

/// Sibling pointer of a B-tree block that has no sibling.
const NONE: u32 = u32::MAX;

/// Offsets in a B-tree block.
const LEFT_SIBLING_OFFSET: usize = 8;
const RIGHT_SIBLING_OFFSET: usize = 12;

/// Maximum number of tree levels (XFS_BTREE_MAXLEVELS).
const MAXIMUM_LEVELS: u32 = 9;

/// Minimum number of blocks per allocation group (XFS_MIN_AG_BLOCKS).
const FEWEST_GROUP_BLOCKS: u64 = 64;

pub(crate) fn read_xfs(view: &DiskView) -> FilesystemUsage {
    let Some(superblock) = view.read_bytes(0, 512).filter(|block| block.starts_with(b"XFSB")) else {
        return FilesystemUsage::Other;
    };
    match XfsSuperblock::parse_superblock(view, &superblock).and_then(|filesystem| filesystem.used_ranges(view)) {
        Some(ranges) => FilesystemUsage::Used("xfs", ranges),
        None => FilesystemUsage::Doubtful("xfs"),
    }
}

struct XfsSuperblock {
    block: u64,
    blocks: u64,
    sector: u64,
    groups: u64,
    group_blocks: u64,
    /// Whether the filesystem has version 5, in which block headers are longer.
    is_5: bool,
}

impl XfsSuperblock {
    /// Parses a superblock. Returns `None` if the filesystem is not clean or has unsupported features.
    fn parse_superblock(view: &DiskView, superblock: &[u8]) -> Option<XfsSuperblock> {
        let version = superblock.be16(VERSION) & 0xf;
        let filesystem = XfsSuperblock {
            block: u64::from(superblock.be32(BLOCK_SIZE)),
            blocks: superblock.be64(BLOCKS),
            sector: u64::from(superblock.be16(SECTOR_SIZE)),
            groups: u64::from(superblock.be32(GROUP_COUNT_OFFSET)),
            group_blocks: u64::from(superblock.be32(GROUP_BLOCKS)),
            is_5: version == 5,
        };
        let XfsSuperblock { block, blocks, sector, groups, group_blocks, is_5 } = filesystem;
        let unknown = [(INCOMPAT, KNOWN_INCOMPAT), (RO_COMPAT, KNOWN_RO_COMPAT)];
        let is_known =
            version == 4 || is_5 && unknown.iter().all(|(place, known)| superblock.be32(*place) & !known == 0);
        let is_sane = is_known
            && superblock[IN_PROGRESS] == 0
            && (512..=65536).contains(&block)
            && (512..=32768).contains(&sector)
            && group_blocks >= FEWEST_GROUP_BLOCKS
            && blocks.div_ceil(group_blocks) == groups
            && blocks.checked_mul(block)? <= view.size;
        if !is_sane {
            return None;
        }
        let (start, bits) = (superblock.be64(LOG_START), u32::from(superblock[GROUP_LOG]));
        // Such a filesystem is not supported: its log is external (`start` is 0), or its superblock is malformed.
        if start == 0 || bits >= 32 {
            return None;
        }
        let start = (start >> bits).checked_mul(group_blocks)?.checked_add(start & ((1 << bits) - 1))?;
        let length = u64::from(superblock.be32(LOG_BLOCKS)) * block;
        log::is_clean(view, start.checked_mul(block)?, length).then_some(filesystem)
    }

    fn used_ranges(&self, view: &DiskView) -> Option<UsedRanges> {
        let mut used = UsedRanges::default();
        let visited = VisitedBlocks::new(view.work, MAXIMUM_TREE_NODES);
        for group in 0..self.groups {
            let start = group * self.group_blocks;
            let blocks = self.group_blocks.min(self.blocks - start);
            let mut at = 0;
            self.visit_free(view, start, blocks, &visited, |free| {
                used.add_range((start + at) * self.block..(start + free.start) * self.block);
                at = free.end;
            })?;
            used.add_range((start + at) * self.block..(start + blocks) * self.block);
        }
        used.add_range(self.blocks * self.block..view.size);
        Some(used)
    }

    /// Calls `each` with the free ranges of an allocation group, in order. Returns `None` if the group's B-tree is
    /// inconsistent.
    fn visit_free(
        &self,
        view: &DiskView,
        start: u64,
        blocks: u64,
        visited: &VisitedBlocks,
        mut each: impl FnMut(Range<u64>),
    ) -> Option<()> {
        let head =
            view.read_bytes(start * self.block + self.sector, self.sector).filter(|head| head.starts_with(b"XAGF"))?;
        if u64::from(head.be32(GROUP_LENGTH)) != blocks {
            return None;
        }
        let (magic, records): (&[u8], usize) = if self.is_5 { (b"AB3B", 56) } else { (b"ABTB", 16) };
        let read = |number: u32, level: u32| {
            let place = start + Some(u64::from(number)).filter(|number| *number < blocks)?;
            visited.visit_block(place)?;
            let block = view.read_bytes(place * self.block, self.block)?;
            (block.starts_with(magic) && u32::from(block.be16(4)) == level).then_some(block)
        };
        let mut level = head.be32(LEVELS).checked_sub(1).filter(|level| *level < MAXIMUM_LEVELS)?;
        let mut number = head.be32(ROOT);
        let mut block = read(number, level)?;
        while level > 0 {
            // In a block of an inner level, the pointers are stored after the space that is reserved for keys.
            let room = (self.block as usize - records) / 12;
            level -= 1;
            number = block.be32(records + room * 8);
            block = read(number, level)?;
        }
        let (mut left, mut end, mut sum) = (NONE, 0, 0_u64);
        loop {
            let count = usize::from(block.be16(6));
            let leaf = block.get(records..records + count * 8)?;
            let (last, length) = visit_records(leaf, end, blocks, &mut each)?;
            (end, sum) = (last, sum + length);
            if block.be32(LEFT_SIBLING_OFFSET) != left {
                return None;
            }
            let right = block.be32(RIGHT_SIBLING_OFFSET);
            if right == NONE {
                break;
            }
            left = std::mem::replace(&mut number, right);
            // This loop terminates, because each block is visited only once. Only a root may be empty.
            block = read(right, 0).filter(|_| count > 0)?;
        }
        (sum == u64::from(head.be32(FREE))).then_some(())
    }
}

/// Calls `each` with the ranges in a leaf. The ranges must be in ascending order, start at `end` or later, and lie
/// within the `blocks` of the group. Returns the end of the last range, and the sum of the lengths.
fn visit_records(records: &[u8], mut end: u64, blocks: u64, each: &mut impl FnMut(Range<u64>)) -> Option<(u64, u64)> {
    let mut sum = 0;
    for record in records.chunks(8) {
        let from = u64::from(record.be32(0));
        let range = from..from + u64::from(record.be32(4));
        if range.is_empty() || range.start < end || range.end > blocks {
            return None;
        }
        (end, sum) = (range.end, sum + (range.end - range.start));
        each(range);
    }
    Some((end, sum))
}
