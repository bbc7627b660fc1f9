//! Ranges of disks that must not change during an installation: partition tables, and both ends of disks and
//! partitions, where superblocks are located. The ranges are small, so that they can be read and compared before and
//! after the installation.

use super::partition_placement::MIB;
use super::{DiskPlan, DiskVerdict};
use model::inventory::{DiskPartition, InventoryDisk};
use model::storage_graph::LayoutMatch;
use operations::ByteRange;

/// Size of the backup GPT (entries and header) at the end of a disk, in sectors.
const BACKUP_GPT_SECTORS: u64 = 33;

/// Returns the ranges that must not change on a disk that is preserved or unlisted. On a preserved disk, the ranges of
/// partitions that the layout lists are omitted, because the installation writes to these partitions when it mounts
/// them.
pub(crate) fn guarded_ranges(meant: &LayoutMatch, plan: &DiskPlan) -> Vec<ByteRange> {
    let Some(disk) = meant.inventory.find_disk(plan.device.as_str()) else { return Vec::new() };
    let foreign = matches!(plan.verdict, DiskVerdict::NotOurs | DiskVerdict::Volumes);
    let others = foreign_partitions(meant, disk);
    let partitions = disk.table.iter().flat_map(|table| &table.partitions);
    let partitions = partitions.filter(|part| foreign || others.contains(&part.number));
    let parts = partitions.flat_map(|part| end_ranges(part.start_bytes, part.size_bytes));
    let whole = if foreign { end_ranges(0, disk.size_bytes) } else { table_ranges(disk) };
    let mut ranges: Vec<ByteRange> = whole.into_iter().chain(parts).filter(|range| range.length > 0).collect();
    ranges.retain(|range| range.start.saturating_add(range.length) <= disk.size_bytes);
    ranges
}

/// Returns both ends of a preserved partition that the layout uses neither for a filesystem nor for an array or group.
/// The offsets are relative to the partition.
pub(crate) fn unused_ends(meant: &LayoutMatch, part: &DiskPartition) -> Vec<ByteRange> {
    let layout = meant.graph.layout;
    let is_used = layout.disks.iter().enumerate().any(|(index, listed)| {
        let found = meant.matched_disk(index);
        let is_here = found.is_some_and(|found| found.device.partition_path(part.number) == part.device);
        let node = meant.graph.find_device(&listed.device.partition_path(part.number));
        is_here && node.is_some_and(|node| !meant.graph.nodes[node].above.is_empty())
    });
    if is_used { Vec::new() } else { end_ranges(0, part.size_bytes) }
}

/// Returns the numbers of the partitions that the layout does not list.
pub(crate) fn foreign_partitions(meant: &LayoutMatch, disk: &InventoryDisk) -> Vec<u32> {
    let listed = meant.layout_entry(&disk.name);
    let is_listed =
        |number: u32| listed.is_some_and(|listed| listed.partitions.iter().any(|part| part.number == number));
    let partitions = disk.table.iter().flat_map(|table| &table.partitions);
    partitions.map(|part| part.number).filter(|number| !is_listed(*number)).collect()
}

pub(crate) fn end_ranges(start: u64, size: u64) -> Vec<ByteRange> {
    let length = MIB.min(size);
    let last = ByteRange { start: start.saturating_add(size - length), length };
    let first = ByteRange { start, length };
    if first == last { vec![first] } else { vec![first, last] }
}

/// Returns the ranges before the first partition, and after the last one.
fn table_ranges(disk: &InventoryDisk) -> Vec<ByteRange> {
    let Some(table) = &disk.table else { return Vec::new() };
    let first = table.partitions.iter().map(|part| part.start_bytes).min().unwrap_or(disk.size_bytes);
    let last = table.partitions.iter().map(|part| part.start_bytes.saturating_add(part.size_bytes)).max().unwrap_or(0);
    let backup = disk.size_bytes.saturating_sub(BACKUP_GPT_SECTORS * u64::from(disk.sector_bytes)).max(last);
    let length = disk.size_bytes.saturating_sub(backup);
    vec![ByteRange { start: 0, length: first.min(MIB) }, ByteRange { start: backup, length }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::DiskTable;

    fn disk(partitions: &[(u32, u64, u64)]) -> InventoryDisk {
        let partitions = partitions.iter().map(|&(number, start_mib, size_mib)| DiskPartition {
            number,
            start_bytes: start_mib * MIB,
            size_bytes: size_mib * MIB,
            ..DiskPartition::default()
        });
        let table =
            Some(DiskTable { kind: "gpt".to_owned(), partitions: partitions.collect(), ..DiskTable::default() });
        let (name, device) = ("sda".into(), "/dev/sda".into());
        InventoryDisk { name, device, size_bytes: 100 * MIB, sector_bytes: 512, table, ..InventoryDisk::default() }
    }

    #[test]
    fn guards_ends_of_preserved_disks_but_not_mounted_filesystems() {
        let layout = model::layout::read_yaml(
            "{id: x, filesystems: [{path: /, device: /dev/sda1, format: ext4}], \
             disks: [{device: /dev/sda, partitions: [{number: 1, size: 0}]}], constraints: {sizes: [], images: {}}}",
        );
        let layout = layout.unwrap().layout;
        let inventory =
            model::inventory::Inventory { disks: vec![disk(&[(1, 1, 50), (3, 60, 20)])], ..Default::default() };
        let meant = LayoutMatch::new(&layout, &inventory);
        let of = |verdict| {
            let plan = DiskPlan {
                name: "sda".into(),
                device: "/dev/sda".into(),
                size_bytes: 100 * MIB,
                model: String::new(),
                serial: String::new(),
                verdict,
                listed_as: None,
                found: Default::default(),
                now: String::new(),
                running: Vec::new(),
                preserved: Vec::new(),
            };
            let ranges = guarded_ranges(&meant, &plan);
            ranges.iter().map(|range| (range.start, range.length)).collect::<Vec<_>>()
        };
        let backup = 33 * 512;
        let part_3 = [(60 * MIB, MIB), (79 * MIB, MIB)];
        assert_eq!(of(DiskVerdict::Keep), [&[(0, MIB), (100 * MIB - backup, backup)][..], &part_3].concat());
        let part_1 = [(MIB, MIB), (50 * MIB, MIB)];
        assert_eq!(of(DiskVerdict::NotOurs), [&[(0, MIB), (99 * MIB, MIB)][..], &part_1, &part_3].concat());
    }
}
