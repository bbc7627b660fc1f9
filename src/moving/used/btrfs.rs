//! btrfs: what its chunks have on this device. What is free within a chunk is not looked for: chunks are made when they are needed.
//! Of several devices each one has its own chunks (include/uapi/linux/btrfs_tree.h).

use super::{Found, Numbers, View};
use std::ops::Range;

const SUPERBLOCK: u64 = 64 << 10;
const SUPERBLOCK_BYTES: u64 = 4096;
const COPIES: [u64; 2] = [64 << 20, 256 << 30];
const MAGIC: &[u8] = b"_BHRfS_M";

/// Offsets in the superblock.
const MAGIC_AT: usize = 0x40;
const CHUNK_ROOT: usize = 0x58;
const NODE_SIZE: usize = 0x94;
const SYSTEM_CHUNKS_SIZE: usize = 0xa0;
const INCOMPAT: usize = 0xbc;
const CHUNK_ROOT_LEVEL: usize = 0xc7;
const DEVICE_ID: usize = 0xc9;
const SYSTEM_CHUNKS: usize = 0x32b;
const SYSTEM_CHUNKS_MOST: usize = 2048;

/// All but zones (0x1000), the second extent tree (0x2000) and the tree of stripes (0x4000).
const KNOWN_INCOMPAT: u64 = 0xfff | 0x1_0000;

/// Kinds of items, and how bytes are spread.
const CHUNK_ITEM: u8 = 228;
const RAID0: u64 = 1 << 3;
const RAID10: u64 = 1 << 6;
const STRIPED: u64 = RAID0 | RAID10 | 1 << 7 | 1 << 8;

const NODE_HEAD: usize = 101;
const KEY: usize = 17;
const ITEM: usize = 25;
const POINTER: usize = 33;
const CHUNK_HEAD: usize = 48;
const STRIPE: usize = 32;

/// A tree of chunks with more nodes is not believed.
const MOST_NODES: usize = 1 << 16;

pub fn used(view: &View) -> Found {
    let superblock = view.bytes(SUPERBLOCK, SUPERBLOCK_BYTES);
    let Some(superblock) = superblock.filter(|block| block[MAGIC_AT..].starts_with(MAGIC)) else {
        return Found::Other;
    };
    match chunks(view, &superblock) {
        Some(ranges) => Found::Used("btrfs", ranges),
        None => Found::Doubtful("btrfs"),
    }
}

/// A range of btrfs's own addresses.
struct Chunk {
    start: u64,
    length: u64,
    kind: u64,
    /// On this device: where, and how long at most.
    stripes: Vec<Range<u64>>,
}

fn chunks(view: &View, superblock: &[u8]) -> Option<Vec<Range<u64>>> {
    let (device, node) = (superblock.le64(DEVICE_ID), u64::from(superblock.le32(NODE_SIZE)));
    let is_sane = (4096..=65536).contains(&node) && superblock.le64(INCOMPAT) & !KNOWN_INCOMPAT == 0;
    if !is_sane {
        return None;
    }
    let system = system_chunks(superblock, device)?;
    let mut todo = vec![(superblock.le64(CHUNK_ROOT), superblock[CHUNK_ROOT_LEVEL])];
    let (mut seen, mut used) = (0, Vec::new());
    while let Some((logical, level)) = todo.pop() {
        seen += 1;
        let bytes = view.bytes(physical(&system, logical, node)?, node)?;
        if seen > MOST_NODES || bytes.le64(48) != logical || bytes[100] != level {
            return None;
        }
        let count = bytes.le32(96) as usize;
        match level.checked_sub(1) {
            Some(below) => {
                let pointers = bytes.get(NODE_HEAD..NODE_HEAD + count.checked_mul(POINTER)?)?;
                todo.extend(pointers.chunks(POINTER).map(|pointer| (pointer.le64(KEY), below)));
            }
            None => {
                let items = bytes.get(NODE_HEAD..NODE_HEAD + count.checked_mul(ITEM)?)?;
                for item in items.chunks(ITEM).filter(|item| item[8] == CHUNK_ITEM) {
                    let data = bytes.get(NODE_HEAD + item.le32(KEY) as usize..)?;
                    let (chunk, _) = chunk(item.le64(9), data.get(..item.le32(KEY + 4) as usize)?, device)?;
                    used.extend(chunk.stripes);
                }
            }
        }
    }
    used.extend(COPIES.map(|copy| copy..copy + SUPERBLOCK_BYTES));
    Some(used)
}

/// Those in which the tree of all chunks lies.
fn system_chunks(superblock: &[u8], device: u64) -> Option<Vec<Chunk>> {
    let size = superblock.le32(SYSTEM_CHUNKS_SIZE) as usize;
    let mut rest = superblock.get(SYSTEM_CHUNKS..SYSTEM_CHUNKS + size).filter(|_| size <= SYSTEM_CHUNKS_MOST)?;
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let (found, length) = chunk(rest.get(..KEY)?.le64(9), rest.get(KEY..)?, device)?;
        chunks.push(found);
        rest = rest.get(KEY + length..)?;
    }
    Some(chunks)
}

/// The chunk whose item begins here, and how long that is.
fn chunk(start: u64, item: &[u8], device: u64) -> Option<(Chunk, usize)> {
    let head = item.get(..CHUNK_HEAD)?;
    let (length, kind) = (head.le64(0), head.le64(24));
    let (count, copies) = (u64::from(head.le16(44)), u64::from(head.le16(46)));
    let end = CHUNK_HEAD + count as usize * STRIPE;
    let on_a_device = match kind & STRIPED {
        RAID0 => length.div_ceil(count.max(1)),
        RAID10 => length.checked_mul(copies)?.div_ceil(count.max(1)),
        // With parity less, and not more.
        _ => length,
    };
    let stripes = item.get(CHUNK_HEAD..end)?.chunks(STRIPE).filter(|stripe| stripe.le64(0) == device);
    let stripes = stripes.map(|stripe| Some(stripe.le64(8)..stripe.le64(8).checked_add(on_a_device)?));
    Some((Chunk { start, length, kind, stripes: stripes.collect::<Option<_>>()? }, end))
}

/// Where it lies on this device, if it lies there in one part.
fn physical(chunks: &[Chunk], logical: u64, length: u64) -> Option<u64> {
    let end = logical.checked_add(length)?;
    let holds = |chunk: &&Chunk| {
        chunk.start <= logical && chunk.start.checked_add(chunk.length).is_some_and(|last| end <= last)
    };
    let chunk = chunks.iter().find(holds).filter(|chunk| chunk.kind & STRIPED == 0)?;
    chunk.stripes.first()?.start.checked_add(logical - chunk.start)
}
