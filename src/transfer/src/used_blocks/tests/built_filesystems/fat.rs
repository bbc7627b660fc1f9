//! FAT12, FAT16 and FAT32 with two FATs.

use super::*;

const LE8: (usize, bool) = (1, false);
const LE16: (usize, bool) = (2, false);
const LE32: (usize, bool) = (4, false);
const SECTOR: u64 = 512;

pub(crate) fn build(random: &mut fastrand::Rng) -> Image {
    let (bits, clusters) = match random.u8(0..3) {
        0 => (12, random.u64(10..4000)),
        1 => (16, random.u64(4085..20_000)),
        _ => (32, random.u64(100..40_000)),
    };
    let (reserved, per_cluster) = (random.u64(1..33), 1 << random.u64(0..4));
    let table_sectors = ((clusters + 2) * bits).div_ceil(8 * SECTOR);
    let root_entries = if bits == 32 { 0 } else { 512 };
    let data = reserved + 2 * table_sectors + root_entries * 32 / SECTOR;
    let sectors = data + clusters * per_cluster;
    let mut image =
        Image { what: "vfat", size: (sectors + random.u64(0..5)) * SECTOR, node_bytes: SECTOR, ..Image::default() };
    let (narrow, wide) = if bits == 32 { (0, table_sectors) } else { (table_sectors, 0) };
    for (at, value, width) in [
        (11, SECTOR, LE16),
        (13, per_cluster, LE8),
        (14, reserved, LE16),
        (16, 2, LE8),
        (17, root_entries, LE16),
        (32, sectors, LE32),
        (22, narrow, LE16),
        (36, wide, LE32),
    ] {
        image.put(at, value, width, Meaning::Defines);
    }
    image.write(if bits == 32 { 82 } else { 54 }, if bits == 32 { b"FAT32   " } else { b"FAT     " });
    image.write(510, &[0x55, 0xaa]);
    let free = free_ranges(random, clusters, &[], 200);
    let mut table = vec![0_u8; (table_sectors * SECTOR) as usize + 8];
    for cluster in rest(&free, clusters).into_iter().flatten() {
        let number = cluster + 2;
        let at = (number * bits / 8) as usize;
        match bits {
            12 => {
                let both = u16::from_le_bytes([table[at], table[at + 1]]) | 0xfff << (number % 2 * 4);
                table[at..at + 2].copy_from_slice(&both.to_le_bytes());
            }
            16 => table[at..at + 2].copy_from_slice(&[0xf8, 0xff]),
            _ => table[at..at + 4].copy_from_slice(&[0xf8, 0xff, 0xff, 0x0f]),
        }
    }
    for copy in 0..2 {
        let at = (reserved + copy * table_sectors) * SECTOR;
        image.write(at, &table[..(table_sectors * SECTOR) as usize]);
        image.nodes.push(at);
        // If only one copy of an entry is changed, the copies contradict each other.
        for _ in 0..8 {
            let entry = random.u64(0..table_sectors * SECTOR / 4) * 4;
            image.fields.push(Field { at: at + entry, width: 4, is_big_endian: false, meaning: Meaning::Generation });
        }
    }
    let start = |cluster: u64| (data + cluster * per_cluster) * SECTOR;
    image.used = rest(&free, clusters).into_iter().map(|range| start(range.start)..start(range.end)).collect();
    let size = image.size;
    image.used.extend([0..data * SECTOR, start(clusters)..size]);
    image
}
