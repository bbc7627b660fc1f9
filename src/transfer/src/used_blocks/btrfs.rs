//! Reader of btrfs: the used blocks are the allocated extents on this device, according to the extent tree
//! (include/uapi/linux/btrfs_tree.h). If a filesystem has several devices, each device is read separately. The
//! filesystem need not be unmounted cleanly, because extents of the last committed transaction are not overwritten
//! before the next commit.
//!
//! If the extent tree cannot be read from this device alone, is inconsistent, or is incomplete because of a tree log,
//! whole chunks are treated as used.

use super::bounded_disk_reads::{DiskView, FilesystemUsage, ReadIntegers};
use super::used_ranges::UsedRanges;
use super::work_limits::{MAXIMUM_TREE_NODES, VisitedBlocks};
use std::ops::Range;

const SUPERBLOCK: u64 = 64 << 10;
const SUPERBLOCK_BYTES: u64 = 4096;
const COPIES: [u64; 2] = [64 << 20, 256 << 30];
const MAGIC: &[u8] = b"_BHRfS_M";

// Offsets in the superblock.
const MAGIC_AT: usize = 0x40;
const GENERATION: usize = 0x48;
const ROOT: usize = 0x50;
const CHUNK_ROOT: usize = 0x58;
const LOG_ROOT: usize = 0x60;
const BYTES_USED: usize = 0x78;
const NODE_SIZE: usize = 0x94;
const SYSTEM_CHUNKS_SIZE: usize = 0xa0;
const COMPAT_RO: usize = 0xb4;
const INCOMPAT: usize = 0xbc;
const ROOT_LEVEL: usize = 0xc6;
const CHUNK_ROOT_LEVEL: usize = 0xc7;
const DEVICE_ID: usize = 0xc9;
/// Offset, in the device item, of the field with the number of bytes that are allocated to chunks on this device.
const DEVICE_BYTES_USED: usize = DEVICE_ID + 16;
const SYSTEM_CHUNKS: usize = 0x32b;
const SYSTEM_CHUNKS_MOST: usize = 2048;

/// Supported incompatible features: all except zoned (0x1000), extent tree v2 (0x2000) and the RAID stripe tree
/// (0x4000).
const KNOWN_INCOMPAT: u64 = 0xfff | 0x1_0000;

/// Supported read-only compatible features: free space tree, its validity flag, verity, and block group tree. None of
/// them changes the location of extents.
const KNOWN_COMPAT_RO: u64 = 0xf;

// Types of the items that are read (`BTRFS_…_KEY`).
const ROOT_ITEM: u8 = 132;
const EXTENT_ITEM: u8 = 168;
const METADATA_ITEM: u8 = 169;
const CHUNK_ITEM: u8 = 228;

// Flags of the profiles of block groups (`BTRFS_BLOCK_GROUP_…`).
const RAID0: u64 = 1 << 3;
const RAID10: u64 = 1 << 6;
const PARITY: u64 = 1 << 7 | 1 << 8;
const STRIPED: u64 = RAID0 | RAID10 | PARITY;

const NODE_HEAD: usize = 101;
const KEY: usize = 17;
const ITEM: usize = 25;
const POINTER: usize = 33;
const CHUNK_HEAD: usize = 48;
const STRIPE: usize = 32;

// Ids of the trees that are read (`BTRFS_…_TREE_OBJECTID`).
const ROOT_TREE: u64 = 1;
const EXTENT_TREE: u64 = 2;
const CHUNK_TREE: u64 = 3;

/// Offset of the address of a tree in its root item.
const TREE_AT: usize = 176;
/// Offset of the level of a tree in its root item.
const TREE_LEVEL: usize = 238;

/// Maximum number of tree levels (BTRFS_MAX_LEVEL).
const MAXIMUM_LEVELS: u8 = 8;

/// Maximum number of chunks. This number of chunks takes 24 MiB of memory. Except on tiny devices, a chunk has at least
/// 256 MiB, so this number of chunks describes at least 64 TiB.
const MAXIMUM_CHUNKS: usize = 1 << 18;

/// Maximum number of copies of a chunk on one device (profile DUP).
const MAXIMUM_COPIES: usize = 2;

pub(crate) fn read_btrfs(view: &DiskView) -> FilesystemUsage {
    let superblock = view.read_bytes(SUPERBLOCK, SUPERBLOCK_BYTES);
    let Some(superblock) = superblock.filter(|block| block[MAGIC_AT..].starts_with(MAGIC)) else {
        return FilesystemUsage::Other;
    };
    let visited = VisitedBlocks::new(view.work, MAXIMUM_TREE_NODES);
    let Some(chunks) = read_chunks(view, &superblock, &visited) else { return FilesystemUsage::Doubtful("btrfs") };
    let (name, mut used) = match read_extents(view, &superblock, &chunks, &visited) {
        Some(used) => ("btrfs", used),
        None => {
            let mut used = UsedRanges::default();
            chunks.iter().flat_map(|chunk| &chunk.stripes).for_each(|stripe| used.add_range(stripe.clone()));
            ("btrfs (whole chunks)", used)
        }
    };
    COPIES.into_iter().for_each(|copy| used.add_range(copy..copy + SUPERBLOCK_BYTES));
    FilesystemUsage::Used(name, used)
}

/// Chunk: a range of logical addresses, and its location on this device.
struct BtrfsChunk {
    start: u64,
    length: u64,
    kind: u64,
    /// Ranges of the chunk's stripes on this device. With parity profiles, the length of a range is only an upper
    /// bound.
    stripes: Vec<Range<u64>>,
}

/// Reads all chunks, sorted by address. Returns `None` if the chunk tree is inconsistent or a feature is not supported.
fn read_chunks(view: &DiskView, superblock: &[u8], visited: &VisitedBlocks) -> Option<Vec<BtrfsChunk>> {
    let (device, node) = (superblock.le64(DEVICE_ID), u64::from(superblock.le32(NODE_SIZE)));
    let is_sane = (4096..=65536).contains(&node) && superblock.le64(INCOMPAT) & !KNOWN_INCOMPAT == 0;
    if !is_sane {
        return None;
    }
    let system = sort_chunks(parse_system_chunks(superblock, device)?)?;
    let mut found = Vec::new();
    let tree =
        BtrfsTree { view, visited, chunks: &system, node, newest: superblock.le64(GENERATION), owner: CHUNK_TREE };
    tree.visit_items(superblock.le64(CHUNK_ROOT), superblock[CHUNK_ROOT_LEVEL], &mut |key, data| {
        if key[8] == CHUNK_ITEM {
            found.push(parse_chunk(key.le64(9), data, device)?.0);
        }
        (found.len() <= MAXIMUM_CHUNKS).then_some(())
    })?;
    // The total length of all stripes must match the superblock. With parity profiles, the total is not compared,
    // because the lengths of their stripes are only upper bounds.
    let has_parity = found.iter().any(|chunk| chunk.kind & PARITY != 0);
    let stripes = found.iter().flat_map(|chunk| &chunk.stripes).map(|stripe| stripe.end - stripe.start);
    let on_device = stripes.fold(0, u64::saturating_add);
    if !has_parity && on_device != superblock.le64(DEVICE_BYTES_USED) {
        return None;
    }
    sort_chunks(found)
}

/// Sorts chunks by address. Returns `None` if two overlap.
fn sort_chunks(mut found: Vec<BtrfsChunk>) -> Option<Vec<BtrfsChunk>> {
    found.sort_by_key(|chunk| chunk.start);
    let overlaps =
        |pair: &[BtrfsChunk]| pair[0].start.checked_add(pair[0].length).is_none_or(|end| end > pair[1].start);
    (!found.windows(2).any(overlaps)).then_some(found)
}

/// Returns the ranges of allocated extents on this device. Returns `None` if the extent tree cannot be read from this
/// device alone, or is incomplete.
fn read_extents(
    view: &DiskView,
    superblock: &[u8],
    chunks: &[BtrfsChunk],
    visited: &VisitedBlocks,
) -> Option<UsedRanges> {
    if superblock.le64(LOG_ROOT) != 0 || superblock.le64(COMPAT_RO) & !KNOWN_COMPAT_RO != 0 {
        return None;
    }
    let node = u64::from(superblock.le32(NODE_SIZE));
    let newest = superblock.le64(GENERATION);
    let mut roots = Vec::new();
    let tree = BtrfsTree { view, visited, chunks, node, newest, owner: ROOT_TREE };
    tree.visit_items(superblock.le64(ROOT), superblock[ROOT_LEVEL], &mut |key, data| {
        if key.le64(0) == EXTENT_TREE && key[8] == ROOT_ITEM {
            roots.push((data.get(TREE_AT..TREE_AT + 8)?.le64(0), *data.get(TREE_LEVEL)?));
        }
        (roots.len() <= 1).then_some(())
    })?;
    let [(root, level)] = roots.as_slice() else { return None };
    let (mut used, mut end, mut total) = (UsedRanges::default(), 0, 0_u64);
    BtrfsTree { owner: EXTENT_TREE, ..tree }.visit_items(*root, *level, &mut |key, _| {
        let length = match key[8] {
            EXTENT_ITEM => key.le64(9),
            METADATA_ITEM => node,
            _ => return Some(()),
        };
        let start = key.le64(0);
        if start < end || length == 0 {
            return None;
        }
        end = start.checked_add(length)?;
        total = total.checked_add(length)?;
        add_extent(chunks, start..end, &mut used)
    })?;
    let striped = chunks.iter().filter(|chunk| chunk.kind & STRIPED != 0);
    striped.flat_map(|chunk| &chunk.stripes).for_each(|stripe| used.add_range(stripe.clone()));
    // The total size of the extents must match the number of used bytes in the superblock.
    (total == superblock.le64(BYTES_USED)).then_some(used)
}

/// Adds the locations of an extent on this device. Extents in striped chunks are not added, because these chunks are
/// treated as used entirely.
fn add_extent(chunks: &[BtrfsChunk], extent: Range<u64>, used: &mut UsedRanges) -> Option<()> {
    let chunk = &chunks[chunks.partition_point(|chunk| chunk.start <= extent.start).checked_sub(1)?];
    if extent.end > chunk.start.checked_add(chunk.length)? {
        return None;
    }
    let copies = if chunk.kind & STRIPED == 0 { chunk.stripes.as_slice() } else { &[] };
    for copy in copies {
        let start = copy.start.checked_add(extent.start - chunk.start)?;
        let end = start.checked_add(extent.end - extent.start)?;
        used.add_range(start..end);
    }
    Some(())
}

/// B-tree. The chunks map the logical addresses of its nodes to this device.
struct BtrfsTree<'t> {
    view: &'t DiskView<'t>,
    visited: &'t VisitedBlocks<'t>,
    chunks: &'t [BtrfsChunk],
    /// Size of a node, in bytes.
    node: u64,
    /// Generation of the last transaction.
    newest: u64,
    owner: u64,
}

/// Callback that receives the key and the data of an item, and returns `None` to stop the visit.
type VisitItem<'e> = &'e mut dyn FnMut(&[u8], &[u8]) -> Option<()>;

impl BtrfsTree<'_> {
    /// Visits all items in order. Returns `None` if a node does not match the pointer in its parent, or `each` returns
    /// `None`.
    fn visit_items(&self, root: u64, level: u8, each: VisitItem<'_>) -> Option<()> {
        // The stack contains the right siblings of the current node at each level, at most a few thousand in total.
        let mut todo = vec![(root, Some(level).filter(|level| *level < MAXIMUM_LEVELS)?, None)];
        while let Some((logical, level, generation)) = todo.pop() {
            let place = map_to_device(self.chunks, logical, self.node)?;
            self.visited.visit_block(place)?;
            let bytes = self.view.read_bytes(place, self.node)?;
            let own = bytes.le64(80);
            let is_it = bytes.le64(48) == logical && bytes.le64(88) == self.owner && bytes[100] == level;
            if !is_it || own > self.newest || generation.is_some_and(|generation| generation != own) {
                return None;
            }
            let count = bytes.le32(96) as usize;
            match level.checked_sub(1) {
                Some(below) => {
                    let pointers = bytes.get(NODE_HEAD..NODE_HEAD + count.checked_mul(POINTER)?)?;
                    let pointers = pointers.chunks(POINTER).rev();
                    todo.extend(pointers.map(|pointer| (pointer.le64(KEY), below, Some(pointer.le64(KEY + 8)))));
                }
                None => {
                    let items = bytes.get(NODE_HEAD..NODE_HEAD + count.checked_mul(ITEM)?)?;
                    for item in items.chunks(ITEM) {
                        let data = bytes.get(NODE_HEAD + item.le32(KEY) as usize..)?;
                        each(&item[..KEY], data.get(..item.le32(KEY + 4) as usize)?)?;
                    }
                }
            }
        }
        Some(())
    }
}

/// Parses the list of system chunks in the superblock. These chunks contain the chunk tree.
fn parse_system_chunks(superblock: &[u8], device: u64) -> Option<Vec<BtrfsChunk>> {
    let size = superblock.le32(SYSTEM_CHUNKS_SIZE) as usize;
    let mut rest = superblock.get(SYSTEM_CHUNKS..SYSTEM_CHUNKS + size).filter(|_| size <= SYSTEM_CHUNKS_MOST)?;
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let (found, length) = parse_chunk(rest.get(..KEY)?.le64(9), rest.get(KEY..)?, device)?;
        chunks.push(found);
        rest = rest.get(KEY + length..)?;
    }
    Some(chunks)
}

/// Parses the chunk item at the start of `item`. Returns the chunk and the length of the item.
fn parse_chunk(start: u64, item: &[u8], device: u64) -> Option<(BtrfsChunk, usize)> {
    let head = item.get(..CHUNK_HEAD)?;
    let (length, kind) = (head.le64(0), head.le64(24));
    let (count, copies) = (u64::from(head.le16(44)), u64::from(head.le16(46)));
    let end = CHUNK_HEAD + count as usize * STRIPE;
    let on_a_device = match kind & STRIPED {
        RAID0 => length.div_ceil(count.max(1)),
        RAID10 => length.checked_mul(copies)?.div_ceil(count.max(1)),
        // For parity profiles, this length is an upper bound.
        _ => length,
    };
    let stripes = item.get(CHUNK_HEAD..end)?.chunks(STRIPE).filter(|stripe| stripe.le64(0) == device);
    let stripes = stripes.map(|stripe| Some(stripe.le64(8)..stripe.le64(8).checked_add(on_a_device)?));
    let stripes: Vec<Range<u64>> = stripes.collect::<Option<_>>()?;
    (length > 0 && stripes.len() <= MAXIMUM_COPIES).then_some((BtrfsChunk { start, length, kind, stripes }, end))
}

/// Maps a range of logical addresses to an offset on this device. Returns `None` if the range is not contiguous on this
/// device.
fn map_to_device(chunks: &[BtrfsChunk], logical: u64, length: u64) -> Option<u64> {
    let end = logical.checked_add(length)?;
    let holds = |chunk: &&BtrfsChunk| {
        chunk.start <= logical && chunk.start.checked_add(chunk.length).is_some_and(|last| end <= last)
    };
    let before = chunks.partition_point(|chunk| chunk.start <= logical).checked_sub(1)?;
    let chunk = chunks.get(before).filter(holds).filter(|chunk| chunk.kind & STRIPED == 0)?;
    chunk.stripes.first()?.start.checked_add(logical - chunk.start)
}
