//! Reader of ext2, ext3 and ext4: used blocks are marked in the block bitmap of each group (fs/ext4/ext4.h).

use super::bounded_disk_reads::{DiskView, FilesystemUsage, ReadIntegers};
use super::used_ranges::{UsedRanges, set_bits};
use super::work_limits::{MAXIMUM_READS, VisitedBlocks};

const SUPERBLOCK: u64 = 1024;
const MAGIC: u16 = 0xef53;

/// Offsets in the superblock.
const BLOCKS: usize = 0x04;
const FIRST_BLOCK: usize = 0x14;
const LOG_BLOCK_SIZE: usize = 0x18;
const BLOCKS_PER_GROUP: usize = 0x20;
const INODES_PER_GROUP: usize = 0x28;
const MAGIC_AT: usize = 0x38;
const STATE: usize = 0x3a;
const INODE_SIZE: usize = 0x58;
const INCOMPAT: usize = 0x60;
const RO_COMPAT: usize = 0x64;
const RESERVED_TABLE_BLOCKS: usize = 0xce;
const DESCRIPTOR_SIZE: usize = 0xfe;
const BLOCKS_HIGH: usize = 0x150;

/// Supported incompatible features: filetype, extents, 64bit, MMP, flex_bg, ea_inode, csum_seed, largedir, inline_data,
/// encrypt, casefold. Other features change the meaning of a bitmap, or mark a journal that needs replay.
const KNOWN_INCOMPAT: u32 =
    0x2 | 0x40 | IS_64BIT | 0x100 | 0x200 | 0x400 | 0x2000 | 0x4000 | 0x8000 | 0x1_0000 | 0x2_0000;
const IS_64BIT: u32 = 0x80;

/// Supported read-only compatible features: sparse superblocks, large files, huge files, dir_nlink, extra_isize, quota,
/// read-only, project, verity, orphan file, and both descriptor checksums. Bigalloc (0x200) and shared blocks are not
/// supported.
const KNOWN_RO_COMPAT: u32 = 0x1 | 0x2 | 0x8 | HAS_SUMS | 0x20 | 0x40 | 0x100 | 0x1000 | 0x2000 | 0x8000 | 0x1_0000;
/// Features with which the bitmap of a group may be uninitialized.
const HAS_SUMS: u32 = 0x10 | 0x400;

const STATE_CLEAN: u16 = 1;

/// Flag in a group descriptor: the block bitmap is uninitialized, and the group contains only filesystem metadata.
const BITMAP_MISSING: u16 = 0x2;

/// Number of bytes of group descriptors per read.
const TABLE_STEP_BYTES: u64 = 64 << 10;

pub(crate) fn read_ext(view: &DiskView) -> FilesystemUsage {
    let Some(superblock) = view.read_bytes(SUPERBLOCK, 1024).filter(|block| block.le16(MAGIC_AT) == MAGIC) else {
        return FilesystemUsage::Other;
    };
    match ExtSuperblock::parse_superblock(view, &superblock).and_then(|filesystem| filesystem.used_ranges(view)) {
        Some(ranges) => FilesystemUsage::Used("ext4", ranges),
        None => FilesystemUsage::Doubtful("ext4"),
    }
}

/// Geometry of a filesystem.
struct ExtSuperblock {
    block: u64,
    blocks: u64,
    first: u64,
    per_group: u64,
    /// Number of blocks of a group's inode table.
    inode_blocks: u64,
    /// Number of blocks that the copies of superblock and group descriptors take at the start of a group that contains
    /// such copies.
    front_blocks: u64,
    descriptor: u64,
    groups: u64,
    has_sums: bool,
}

impl ExtSuperblock {
    /// Parses a superblock. Returns `None` if the filesystem is not clean or has unsupported features.
    fn parse_superblock(view: &DiskView, superblock: &[u8]) -> Option<ExtSuperblock> {
        let (incompat, ro_compat) = (superblock.le32(INCOMPAT), superblock.le32(RO_COMPAT));
        let is_known = incompat & !KNOWN_INCOMPAT == 0 && ro_compat & !KNOWN_RO_COMPAT == 0;
        let log = superblock.le32(LOG_BLOCK_SIZE);
        if !is_known || superblock.le16(STATE) != STATE_CLEAN || log > 6 {
            return None;
        }
        let block = 1024 << log;
        let is_64bit = incompat & IS_64BIT != 0;
        let high = if is_64bit { u64::from(superblock.le32(BLOCKS_HIGH)) << 32 } else { 0 };
        let blocks = high | u64::from(superblock.le32(BLOCKS));
        let first = u64::from(superblock.le32(FIRST_BLOCK));
        let per_group = u64::from(superblock.le32(BLOCKS_PER_GROUP));
        let descriptor = if is_64bit { u64::from(superblock.le16(DESCRIPTOR_SIZE)) } else { 32 };
        let is_sane = (1..=8 * block).contains(&per_group)
            && first < blocks
            && blocks.checked_mul(block)? <= view.size
            && (32..=1024).contains(&descriptor);
        if !is_sane {
            return None;
        }
        let groups = (blocks - first).div_ceil(per_group);
        let table_bytes = Some(groups).filter(|groups| *groups <= MAXIMUM_READS)?.checked_mul(descriptor)?;
        let inodes = u64::from(superblock.le32(INODES_PER_GROUP)) * u64::from(superblock.le16(INODE_SIZE));
        let reserved = u64::from(superblock.le16(RESERVED_TABLE_BLOCKS));
        Some(ExtSuperblock {
            block,
            blocks,
            first,
            per_group,
            inode_blocks: inodes.div_ceil(block),
            front_blocks: 1 + table_bytes.div_ceil(block) + reserved,
            descriptor,
            groups,
            has_sums: ro_compat & HAS_SUMS != 0,
        })
    }

    fn used_ranges(&self, view: &DiskView) -> Option<UsedRanges> {
        let mut used = UsedRanges::default();
        let bitmaps = VisitedBlocks::new(view.work, usize::try_from(MAXIMUM_READS).ok()?);
        self.add_blocks(&mut used, 0, self.first + self.front_blocks);
        self.add_blocks(&mut used, self.blocks, view.size.div_ceil(self.block));
        let at_once = TABLE_STEP_BYTES / self.descriptor;
        let mut group = 0;
        while group < self.groups {
            let count = at_once.min(self.groups - group);
            let at = (self.first + 1) * self.block + group * self.descriptor;
            let descriptors = view.read_bytes(at, count * self.descriptor)?;
            for descriptor in descriptors.chunks(self.descriptor as usize) {
                self.add_group(view, group, descriptor, &bitmaps, &mut used)?;
                group += 1;
            }
        }
        Some(used)
    }

    /// Adds a range of block numbers to the used ranges.
    fn add_blocks(&self, used: &mut UsedRanges, start: u64, end: u64) {
        used.add_range(start.saturating_mul(self.block)..end.saturating_mul(self.block));
    }

    fn add_group(
        &self,
        view: &DiskView,
        number: u64,
        descriptor: &[u8],
        bitmaps: &VisitedBlocks,
        used: &mut UsedRanges,
    ) -> Option<()> {
        let place = |low: usize, high: usize| {
            let high = if self.descriptor >= 64 { u64::from(descriptor.le32(high)) << 32 } else { 0 };
            high | u64::from(descriptor.le32(low))
        };
        let (bitmap, inode_bitmap, inodes) = (place(0x00, 0x20), place(0x04, 0x24), place(0x08, 0x28));
        for (place, blocks) in [(bitmap, 1), (inode_bitmap, 1), (inodes, self.inode_blocks)] {
            let end = place.checked_add(blocks).filter(|end| place >= self.first && *end <= self.blocks)?;
            self.add_blocks(used, place, end);
        }
        let start = self.first + number * self.per_group;
        let count = self.per_group.min(self.blocks - start);
        if self.has_sums && descriptor.le16(0x12) & BITMAP_MISSING != 0 {
            self.add_blocks(used, start, start + self.front_blocks.min(count));
            return Some(());
        }
        let high = if self.descriptor >= 64 { u32::from(descriptor.le16(0x2c)) << 16 } else { 0 };
        let free = u64::from(high | u32::from(descriptor.le16(0x0c)));
        bitmaps.visit_block(bitmap)?;
        let bits = view.read_bytes(bitmap * self.block, self.block)?;
        let mut set_count = 0;
        set_bits(&bits, count, |range| {
            set_count += range.end - range.start;
            self.add_blocks(used, start + range.start, start + range.end);
        });
        // If bitmap and descriptor contradict each other, the whole group is treated as used.
        if count - set_count != free {
            self.add_blocks(used, start, start + count);
        }
        Some(())
    }
}
