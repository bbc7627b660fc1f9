//! btrfs on one device: a superblock, a system chunk, a metadata chunk in two copies, a data chunk, a chunk tree, a
//! root tree, and an extent tree of one to three levels.

use super::*;

const LE8: (usize, bool) = (1, false);
const LE16: (usize, bool) = (2, false);
const LE32: (usize, bool) = (4, false);
const LE64: (usize, bool) = (8, false);
const MIB: u64 = 1 << 20;
const SUPERBLOCK: u64 = 64 << 10;
const GENERATION: u64 = 77;
const HEAD: u64 = 101;

/// Type, logical start and length of a chunk, and the offsets of its copies on the device.
type Chunk = (u64, u64, u64, &'static [u64]);
const DUP: u64 = 1 << 5;
const CHUNKS: [Chunk; 3] = [
    (2, MIB, 4 * MIB, &[2 * MIB]),
    (4 | DUP, 16 * MIB, 8 * MIB, &[32 * MIB, 48 * MIB]),
    (1, 64 * MIB, 64 * MIB, &[100 * MIB]),
];

/// Item of a tree: key and data.
struct Item {
    key: (u64, u8, u64),
    data: Vec<u8>,
    /// Fields of the data, which mutations may change.
    fields: Vec<(u64, (usize, bool), Meaning)>,
}

fn physical(logical: u64) -> Vec<u64> {
    let (_, start, _, copies) =
        CHUNKS.iter().find(|(_, start, length, _)| (*start..start + length).contains(&logical)).unwrap();
    copies.iter().map(|copy| copy + logical - start).collect()
}

pub(crate) fn build(random: &mut fastrand::Rng) -> Image {
    let node = *random.choice(&[4096, 16384]).unwrap();
    let mut image = Image { what: "btrfs", size: 256 * MIB, node_bytes: node, ..Image::default() };
    let data = free_ranges(random, 16384, &[], random.clone().usize(0..120));
    let data: Vec<Range<u64>> =
        data.iter().map(|range| 64 * MIB + range.start * 4096..64 * MIB + range.end * 4096).collect();
    let fill = random.usize(3..12);
    let (chunk_root, tree_root) = (MIB, 16 * MIB);
    let first = tree_root + node;
    // The extent tree contains an item for each of its own nodes. `count` becomes the smallest sufficient number of
    // nodes.
    let mut count = 1;
    while nodes_for(2 + count + data.len(), fill) > count {
        count += 1;
    }
    let metadata = [chunk_root, tree_root].into_iter().chain((0..count as u64).map(|index| first + index * node));
    let mut items: Vec<Item> = metadata.clone().map(|at| plain((at, 169, 0))).collect();
    items.extend(data.iter().map(|range| plain((range.start, 168, range.end - range.start))));
    let (root, level) = tree(&mut image, 2, &items, (first, count as u64), fill);
    let mut root_item = Item { key: (2, 132, 0), data: vec![0; 439], fields: Vec::new() };
    root_item.data[176..184].copy_from_slice(&root.to_le_bytes());
    root_item.data[238] = level;
    root_item.fields = vec![(176, LE64, Meaning::Pointer), (238, LE8, Meaning::Level)];
    write_node(&mut image, tree_root, 1, 0, &[root_item]);
    let chunks: Vec<Item> = CHUNKS.iter().map(chunk_item).collect();
    write_node(&mut image, chunk_root, 3, 0, &chunks);
    image.pointers = metadata.clone().collect();
    image.nodes = metadata.clone().map(|at| physical(at)[0]).collect();
    let lengths = metadata.map(|at| at..at + node).chain(data);
    let mut total = 0;
    for range in lengths {
        total += range.end - range.start;
        image.used.extend(physical(range.start).into_iter().map(|at| at..at + (range.end - range.start)));
    }
    image.used.push(64 * MIB..64 * MIB + 4096);
    superblock(&mut image, node, total, [chunk_root, tree_root]);
    image
}

fn superblock(image: &mut Image, node: u64, total: u64, [chunk_root, tree_root]: [u64; 2]) {
    image.write(SUPERBLOCK + 0x40, b"_BHRfS_M");
    let on_device: u64 = CHUNKS.iter().map(|(_, _, length, copies)| length * copies.len() as u64).sum();
    let system = chunk_item(&CHUNKS[0]);
    for (at, value, width, meaning) in [
        (0x48, GENERATION, LE64, Meaning::Defines),
        (0x50, tree_root, LE64, Meaning::Pointer),
        (0x58, chunk_root, LE64, Meaning::Pointer),
        (0x78, total, LE64, Meaning::Length),
        (0x94, node, LE32, Meaning::Defines),
        (0xa0, 17 + system.data.len() as u64, LE32, Meaning::Length),
        (0xc6, 0, LE8, Meaning::Level),
        (0xc7, 0, LE8, Meaning::Level),
        (0xc9, 1, LE64, Meaning::Defines),
        (0xc9 + 16, on_device, LE64, Meaning::Length),
    ] {
        image.put(SUPERBLOCK + at, value, width, meaning);
    }
    write_item(image, SUPERBLOCK + 0x32b, SUPERBLOCK + 0x32b + 17, &system, Meaning::Defines);
}

fn nodes_for(items: usize, fill: usize) -> usize {
    let mut level = items.div_ceil(fill);
    let mut all = level;
    while level > 1 {
        level = level.div_ceil(fill);
        all += level;
    }
    all
}

fn plain(key: (u64, u8, u64)) -> Item {
    Item { key, data: Vec::new(), fields: Vec::new() }
}

fn chunk_item((kind, start, length, copies): &Chunk) -> Item {
    let mut data = vec![0; 48];
    let mut fields = vec![(0, LE64, Meaning::Defines), (24, LE64, Meaning::Defines), (44, LE16, Meaning::Defines)];
    data[..8].copy_from_slice(&length.to_le_bytes());
    data[24..32].copy_from_slice(&kind.to_le_bytes());
    data[44..46].copy_from_slice(&(copies.len() as u16).to_le_bytes());
    for copy in *copies {
        let at = data.len() as u64;
        fields.extend([(at, LE64, Meaning::Defines), (at + 8, LE64, Meaning::Defines)]);
        data.extend([1_u64.to_le_bytes(), copy.to_le_bytes(), [0; 8], [0; 8]].concat());
    }
    Item { key: (256, 228, *start), data, fields }
}

/// Writes the leaves and the nodes above them, one after another. Returns the root and its level.
fn tree(image: &mut Image, owner: u64, items: &[Item], (first, count): (u64, u64), fill: usize) -> (u64, u8) {
    let node = image.node_bytes;
    let (mut next, mut level) = (first, 0);
    let mut below: Vec<(u64, (u64, u8, u64))> = Vec::new();
    for leaf in items.chunks(fill) {
        write_node(image, next, owner, 0, leaf);
        below.push((next, leaf[0].key));
        next += node;
    }
    while below.len() > 1 {
        level += 1;
        let mut nodes = Vec::new();
        for children in below.chunks(fill) {
            write_head(image, next, owner, level, children.len() as u64);
            for (index, (child, key)) in (0..).zip(children) {
                for copy in physical(next) {
                    let at = copy + HEAD + index * 33;
                    write_key(image, at, *key, Meaning::Defines);
                    image.put(at + 17, *child, LE64, Meaning::Pointer);
                    image.put(at + 25, GENERATION, LE64, Meaning::Generation);
                }
            }
            nodes.push((next, children[0].1));
            next += node;
        }
        below = nodes;
    }
    assert!(next <= first + count * node);
    (below[0].0, level)
}

fn write_head(image: &mut Image, logical: u64, owner: u64, level: u8, count: u64) {
    for copy in physical(logical) {
        for (at, value, width, meaning) in [
            (48, logical, LE64, Meaning::Owner),
            (80, GENERATION, LE64, Meaning::Generation),
            (88, owner, LE64, Meaning::Owner),
            (96, count, LE32, Meaning::Count),
            (100, u64::from(level), LE8, Meaning::Level),
        ] {
            image.put(copy + at, value, width, meaning);
        }
    }
}

fn write_node(image: &mut Image, logical: u64, owner: u64, level: u8, items: &[Item]) {
    write_head(image, logical, owner, level, items.len() as u64);
    for copy in physical(logical) {
        let mut end = image.node_bytes - HEAD;
        for (index, item) in (0..).zip(items) {
            let at = copy + HEAD + index * 25;
            end -= item.data.len() as u64;
            image.put(at + 17, end, LE32, Meaning::Defines);
            image.put(at + 21, item.data.len() as u64, LE32, Meaning::Defines);
            write_item(image, at, copy + HEAD + end, item, Meaning::Defines);
        }
    }
}

fn write_item(image: &mut Image, key: u64, data: u64, item: &Item, meaning: Meaning) {
    write_key(image, key, item.key, meaning);
    image.write(data, &item.data);
    for (at, (width, is_big_endian), meaning) in &item.fields {
        image.fields.push(Field { at: data + at, width: *width, is_big_endian: *is_big_endian, meaning: *meaning });
    }
}

fn write_key(image: &mut Image, at: u64, (object, kind, offset): (u64, u8, u64), meaning: Meaning) {
    image.put(at, object, LE64, meaning);
    image.put(at + 8, kind.into(), LE8, meaning);
    image.put(at + 9, offset, LE64, meaning);
}

/// Writes an extent tree with the maximum number of levels. All pointers of a node refer to the same child, and the
/// leaf is empty. Without a limit on visits, their number would be `fill` to the power of the levels.
pub(crate) fn with_one_child_many_times(image: &mut Image, fill: u64) {
    let (node, tree_root) = (image.node_bytes, 16 * MIB);
    let first = tree_root + node;
    write_head(image, first, 2, 0, 0);
    for level in 1..8 {
        let (own, child) = (first + u64::from(level) * node, first + u64::from(level - 1) * node);
        write_head(image, own, 2, level, fill);
        for at in physical(own).into_iter().flat_map(|copy| (0..fill).map(move |index| copy + HEAD + index * 33)) {
            image.write(at + 17, &[child, GENERATION].map(u64::to_le_bytes).concat());
        }
    }
    let mut root_item = Item { key: (2, 132, 0), data: vec![0; 439], fields: Vec::new() };
    root_item.data[176..184].copy_from_slice(&(first + 7 * node).to_le_bytes());
    root_item.data[238] = 7;
    write_node(image, tree_root, 1, 0, &[root_item]);
}

/// Gives the data chunk this number of stripes, all on this device, so that each extent has as many ranges.
pub(crate) fn with_copies_of_copies(image: &mut Image, copies: u64) {
    let mut chunks: Vec<Item> = CHUNKS.iter().map(chunk_item).collect();
    let data = &mut chunks[2].data;
    data[44..46].copy_from_slice(&(copies as u16).to_le_bytes());
    for copy in 1..copies {
        data.extend([1, (100 << 20) + copy * 300 * 1024, 0, 0].map(u64::to_le_bytes).concat());
    }
    write_node(image, MIB, 3, 0, &chunks);
    let of_others: u64 = CHUNKS[..2].iter().map(|(_, _, length, copies)| length * copies.len() as u64).sum();
    image.write(SUPERBLOCK + 0xc9 + 16, &(of_others + CHUNKS[2].2 * copies).to_le_bytes());
}
