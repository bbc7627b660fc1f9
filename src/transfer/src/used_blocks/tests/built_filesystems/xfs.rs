//! XFS of versions 4 and 5: superblock, clean log, and the free-space B-tree of each group, with one to three levels.

use super::*;

const BE16: (usize, bool) = (2, true);
const BE32: (usize, bool) = (4, true);
const BE64: (usize, bool) = (8, true);
const NONE: u64 = u32::MAX as u64;
const LOG_BLOCKS: u64 = 16;
/// First block and maximum number of blocks of the tree in each group.
const TREE: u64 = 4;
const TREE_BLOCKS: u64 = 60;

struct Shape {
    block: u64,
    records: u64,
    magic: &'static [u8],
    /// Maximum number of records of a leaf, and of children of a node.
    fill: usize,
}

pub(crate) fn build(random: &mut fastrand::Rng) -> Image {
    let block = *random.choice(&[512, 1024, 4096]).unwrap();
    let (is_5, groups, group_blocks) = (random.bool(), random.u64(1..5), random.u64(256..4096));
    let last_group = random.u64(256..=group_blocks);
    let blocks = (groups - 1) * group_blocks + last_group;
    let mut image =
        Image { what: "xfs", size: blocks * block + random.u64(0..9) * 512, node_bytes: block, ..Image::default() };
    image.write(0, b"XFSB");
    let bits = u64::from(group_blocks.next_power_of_two().trailing_zeros());
    for (at, value, width, meaning) in [
        (4, block, BE32, Meaning::Defines),
        (8, blocks, BE64, Meaning::Defines),
        (84, group_blocks, BE32, Meaning::Defines),
        (88, groups, BE32, Meaning::Defines),
        (96, LOG_BLOCKS, BE32, Meaning::Length),
        (100, if is_5 { 5 } else { 4 }, BE16, Meaning::Defines),
        (102, 512, BE16, Meaning::Defines),
        (124, bits, (1, true), Meaning::Defines),
        (48, TREE + TREE_BLOCKS, BE64, Meaning::Pointer),
    ] {
        image.put(at, value, width, meaning);
    }
    log(&mut image, (TREE + TREE_BLOCKS) * block);
    let (magic, records): (&[u8], u64) = if is_5 { (b"AB3B", 56) } else { (b"ABTB", 16) };
    let shape = Shape { block, records, magic, fill: random.usize(2..9) };
    for group in 0..groups {
        let in_group = if group + 1 == groups { last_group } else { group_blocks };
        let taken = [0..TREE + TREE_BLOCKS + LOG_BLOCKS];
        let most = random.usize(0..shape.fill * 14);
        let free = free_ranges(random, in_group, &taken, most);
        tree(&mut image, &shape, group * group_blocks, in_group, &free);
        let start = group * group_blocks;
        let used = rest(&free, in_group).into_iter();
        image.used.extend(used.map(|range| (start + range.start) * block..(start + range.end) * block));
    }
    let size = image.size;
    image.used.push(blocks * block..size);
    image
}

/// Writes a log that ends with an unmount record.
fn log(image: &mut Image, at: u64) {
    for (offset, value) in [(0, 0xfeed_babe), (4, 2), (8, 1), (12, 512), (40, 1), (512, 2)] {
        image.put(at + offset, value, BE32, Meaning::Length);
    }
    image.write(at + 512 + 9, &[0x20]);
    for sector in 2..LOG_BLOCKS * image.node_bytes / 512 {
        image.write(at + sector * 512, &1_u32.to_be_bytes());
    }
}

fn tree(image: &mut Image, shape: &Shape, start: u64, blocks: u64, free: &[Range<u64>]) {
    let (block, place) = (shape.block, |number: u64| (start + number) * shape.block);
    let mut leaves: Vec<&[Range<u64>]> = free.chunks(shape.fill).collect();
    if leaves.is_empty() {
        leaves.push(&[]);
    }
    let mut next = TREE;
    let numbers: Vec<u64> = (0..leaves.len() as u64).map(|leaf| next + leaf).collect();
    next += numbers.len() as u64;
    for (index, records) in leaves.iter().enumerate() {
        let at = place(numbers[index]);
        let sibling = |index: Option<usize>| index.and_then(|index| numbers.get(index)).copied().unwrap_or(NONE);
        head(image, shape, at, 0, records.len() as u64, [sibling(index.checked_sub(1)), sibling(Some(index + 1))]);
        for (record, range) in (0..).zip(records.iter()) {
            let at = at + shape.records + record * 8;
            image.put(at, range.start, BE32, Meaning::Defines);
            image.put(at + 4, range.end - range.start, BE32, Meaning::Length);
        }
    }
    let (mut level, mut below) = (0, numbers);
    while below.len() > 1 {
        level += 1;
        let mut nodes = Vec::new();
        for children in below.chunks(shape.fill) {
            let at = place(next);
            head(image, shape, at, level, children.len() as u64, [NONE; 2]);
            let room = (block - shape.records) / 12;
            for (index, child) in (0..).zip(children) {
                image.put(at + shape.records + room * 8 + index * 4, *child, BE32, Meaning::Pointer);
            }
            nodes.push(next);
            next += 1;
        }
        below = nodes;
    }
    assert!(next <= TREE + TREE_BLOCKS, "the tree has {next} blocks");
    image.nodes.extend((TREE..next).map(place));
    image.pointers.extend(TREE..next);
    let header = start * block + 512;
    image.write(header, b"XAGF");
    image.put(header + 12, blocks, BE32, Meaning::Length);
    image.put(header + 16, below[0], BE32, Meaning::Pointer);
    image.put(header + 28, level + 1, BE32, Meaning::Level);
    image.put(header + 52, free.iter().map(|range| range.end - range.start).sum(), BE32, Meaning::Length);
}

fn head(image: &mut Image, shape: &Shape, at: u64, level: u64, count: u64, siblings: [u64; 2]) {
    image.write(at, shape.magic);
    image.put(at + 4, level, BE16, Meaning::Level);
    // The reader follows only the first child of an inner node, and then the sibling pointers of the leaves. Another
    // number of children is therefore not a contradiction.
    let meaning = if level == 0 { Meaning::Count } else { Meaning::Defines };
    image.put(at + 6, count, BE16, meaning);
    for (offset, sibling) in [(8, siblings[0]), (12, siblings[1])] {
        image.put(at + offset, sibling, BE32, Meaning::Pointer);
    }
}
