//! Reader of FAT12, FAT16 and FAT32: the file allocation table has one entry per cluster. An entry is zero if its
//! cluster is free.

use super::bounded_disk_reads::{DiskView, FilesystemUsage, ReadIntegers};
use super::used_ranges::UsedRanges;

/// Maximum size of a file allocation table, in bytes.
const MAXIMUM_TABLE_BYTES: u64 = 1 << 30;

/// Number of bytes per read, which is a multiple of every entry size (12, 16 and 32 bits).
const STEP_BYTES: u64 = 3 << 16;

/// Maximum number of clusters of FAT12 and FAT16 (fatgen103, "FAT Type Determination"). FAT32 is not recognized by the
/// number of clusters, since mkfs can create a FAT32 with few clusters. Like Linux, the reader recognizes FAT32 by a
/// FAT16 table size of zero (`fat_fill_super` of fs/fat/inode.c).
const MAXIMUM_FAT12_CLUSTERS: u64 = 4084;
const MAXIMUM_FAT16_CLUSTERS: u64 = 65524;

/// Offset, in the boot sector, of the field with the size of a FAT12 or FAT16 table, in sectors. In a FAT32, this field
/// is zero.
const TABLE_SECTORS: usize = 22;

/// Number of the first cluster. The first two entries of the table are reserved.
const FIRST_CLUSTER: u64 = 2;

pub(crate) fn read_fat(view: &DiskView) -> FilesystemUsage {
    let Some(boot) = view.read_bytes(0, 512).filter(|boot| is_fat(boot)) else { return FilesystemUsage::Other };
    match read_clusters(view, &boot) {
        Some(ranges) => FilesystemUsage::Used("vfat", ranges),
        None => FilesystemUsage::Doubtful("vfat"),
    }
}

fn is_fat(boot: &[u8]) -> bool {
    boot.ends_with(&[0x55, 0xaa]) && (boot[54..].starts_with(b"FAT") || boot[82..].starts_with(b"FAT32"))
}

fn read_clusters(view: &DiskView, boot: &[u8]) -> Option<UsedRanges> {
    let wide = |narrow: u16, wide: u32| if narrow == 0 { u64::from(wide) } else { u64::from(narrow) };
    let (sector, per_cluster) = (u64::from(boot.le16(11)), u64::from(boot[13]));
    let (reserved, copies, root_entries) = (u64::from(boot.le16(14)), u64::from(boot[16]), u64::from(boot.le16(17)));
    let sectors = wide(boot.le16(19), boot.le32(32));
    let table_sectors = wide(boot.le16(TABLE_SECTORS), boot.le32(36));
    let is_sane = (512..=4096).contains(&sector)
        && sector.is_power_of_two()
        && per_cluster.is_power_of_two()
        && reserved > 0
        && (1..=2).contains(&copies)
        && sectors.checked_mul(sector)? <= view.size
        && table_sectors.checked_mul(sector)? <= MAXIMUM_TABLE_BYTES;
    if !is_sane {
        return None;
    }
    let data = reserved + copies * table_sectors + (root_entries * 32).div_ceil(sector);
    let clusters = sectors.checked_sub(data)? / per_cluster;
    let bits = match (boot.le16(TABLE_SECTORS), clusters) {
        (0, _) => 32,
        (_, few) if few <= MAXIMUM_FAT12_CLUSTERS => 12,
        (_, more) if more <= MAXIMUM_FAT16_CLUSTERS => 16,
        _ => return None,
    };
    let (table, table_bytes) = (reserved * sector, table_sectors * sector);
    let last = clusters + FIRST_CLUSTER;
    if (last * bits).div_ceil(8) > table_bytes {
        return None;
    }
    let start = |cluster: u64| (data + (cluster - FIRST_CLUSTER) * per_cluster) * sector;
    let mut used = UsedRanges::default();
    used.add_range(0..data * sector);
    used.add_range(start(last)..view.size);
    let mut at = 0;
    while at < table_bytes {
        let step = STEP_BYTES.min(table_bytes - at);
        let entries = view.read_bytes(table + at, step)?;
        // If the copies of the table differ, the correct copy is unknown, and all clusters are treated as used.
        if (1..copies).any(|copy| view.read_bytes(table + copy * table_bytes + at, step).as_ref() != Some(&entries)) {
            return None;
        }
        let first = at * 8 / bits;
        let in_step = first.max(FIRST_CLUSTER)..last.min((at + step) * 8 / bits);
        for cluster in in_step.filter(|cluster| table_entry(&entries, bits, cluster - first) != 0) {
            used.add_range(start(cluster)..start(cluster + 1));
        }
        at += step;
    }
    Some(used)
}

/// Returns entry `number` of `entries`, a part of the table with entries of `bits` bits.
fn table_entry(entries: &[u8], bits: u64, number: u64) -> u32 {
    let at = (number * bits / 8) as usize;
    match bits {
        12 => u32::from(entries.le16(at) >> (number % 2 * 4)) & 0xfff,
        16 => u32::from(entries.le16(at)),
        _ => entries.le32(at) & 0x0fff_ffff,
    }
}
