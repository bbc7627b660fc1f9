//! ext4 with and without the 64bit feature: a superblock, the group descriptors, and a block bitmap for each group.

use super::*;

const LE16: (usize, bool) = (2, false);
const LE32: (usize, bool) = (4, false);

pub(crate) fn build(random: &mut fastrand::Rng) -> Image {
    let log = random.u64(0..3);
    let block = 1024 << log;
    let first = u64::from(log == 0);
    let (per_group, groups, is_64bit) = (random.u64(16..64) * 8, random.u64(1..30), random.bool());
    let descriptor: u64 = if is_64bit { 64 } else { 32 };
    let blocks = first + (groups - 1) * per_group + random.u64(64..=per_group);
    let mut image =
        Image { what: "ext4", size: blocks * block + random.u64(0..3) * 512, node_bytes: block, ..Image::default() };
    for (at, value, width, meaning) in [
        (0x04, blocks, LE32, Meaning::Defines),
        (0x14, first, LE32, Meaning::Defines),
        (0x18, log, LE32, Meaning::Defines),
        (0x20, per_group, LE32, Meaning::Defines),
        (0x28, 8, LE32, Meaning::Defines),
        (0x38, 0xef53, LE16, Meaning::Defines),
        (0x3a, 1, LE16, Meaning::Defines),
        (0x58, 256, LE16, Meaning::Defines),
        (0x60, if is_64bit { 0x80 } else { 0 }, LE32, Meaning::Defines),
        (0xfe, descriptor, LE16, Meaning::Defines),
    ] {
        image.put(1024 + at, value, width, meaning);
    }
    let inode_blocks = (8 * 256_u64).div_ceil(block);
    let front = 1 + (groups * descriptor).div_ceil(block);
    for group in 0..groups {
        let start = first + group * per_group;
        let count = per_group.min(blocks - start);
        // The tables are in the group itself. In the first group, they follow superblock and descriptors.
        let tables = start + if group == 0 { front } else { random.u64(0..8) };
        let taken = [0..(tables - start) + 2 + inode_blocks];
        let free = free_ranges(random, count, &taken, random.clone().usize(0..60));
        describe(&mut image, (first + 1) * block + group * descriptor, tables, &free);
        let used = rest(&free, count);
        let mut bitmap = vec![0; block as usize];
        for bit in used.iter().cloned().flatten() {
            bitmap[(bit / 8) as usize] |= 1 << (bit % 8);
        }
        image.write(tables * block, &bitmap);
        image.nodes.push(tables * block);
        image.pointers.extend([tables, tables + 1, tables + 2]);
        image.used.extend(used.into_iter().map(|range| (start + range.start) * block..(start + range.end) * block));
    }
    let size = image.size;
    image.used.extend([0..(first + front) * block, blocks * block..size]);
    image
}

fn describe(image: &mut Image, at: u64, tables: u64, free: &[Range<u64>]) {
    image.put(at, tables, LE32, Meaning::Pointer);
    image.put(at + 4, tables + 1, LE32, Meaning::Pointer);
    image.put(at + 8, tables + 2, LE32, Meaning::Pointer);
    let free: u64 = free.iter().map(|range| range.end - range.start).sum();
    image.put(at + 0x0c, free, LE16, Meaning::Count);
    image.put(at + 0x12, 0, LE16, Meaning::Generation);
}
