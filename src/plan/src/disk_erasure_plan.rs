//! Erasure of a disk, and the ranges that are zeroed with every erase method.
//!
//! Both ends of the disk and of every partition, old and new, are zeroed, because an old superblock at the offset of
//! a new partition would be detected again (LP #1718699). Old data at any other offset would be detected only if a
//! new device started or ended there. Therefore both ends of a new array are zeroed when it is created, lvcreate
//! wipes signatures on new volumes, and both ends of a device are zeroed before mkfs runs. The same operations also
//! zero the copies of BlueStore labels, which are at fixed offsets from the start of a device.
//!
//! A disk may reorder writes between two flushes. A system with missing files must never boot after a power failure,
//! so the disk is made unbootable before anything else is erased.

use super::partition_placement::{MIB, SectorExtent};
use super::partly_kept_disks::{subtract_areas, table_areas};
use super::planned_device_capacity::LVM_METADATA_BYTES;
use super::signature_ranges::signature_ranges;
use model::deploy_steps::EraseMode;
use model::inventory::{DiskPartition, EraseMethod, InventoryDisk};
use operations::{ByteRange, DiskIdentity, WipeDisk};

const QUICK_SECONDS: u64 = 60;
const SECURE_SECONDS: u64 = 4 * 3600;

pub(crate) fn wipe_disk(erase: EraseMode, disk: &InventoryDisk, extents: &[SectorExtent]) -> WipeDisk {
    let takes_seconds = |method: &EraseMethod| matches!(method, EraseMethod::NvmeFormatCrypto | EraseMethod::Discard);
    let (methods, strict, budget_seconds) = match erase {
        EraseMode::Quick => (disk.erase.iter().copied().filter(takes_seconds).collect(), false, QUICK_SECONDS),
        EraseMode::Secure => {
            let all = disk.erase.iter().copied().chain([EraseMethod::WriteZeroes]);
            (all.collect(), true, SECURE_SECONDS)
        }
        EraseMode::None => (vec![EraseMethod::Ends], false, QUICK_SECONDS),
    };
    let (device, identity) = (disk.device.clone(), DiskIdentity::from_disk(disk));
    WipeDisk {
        device,
        identity,
        methods,
        strict,
        budget_seconds,
        first: first_ranges(disk),
        zero: zeroed_ranges(disk, extents),
    }
}

/// GUIDs of the types of partitions from which firmware boots: EFI system partition and BIOS boot partition.
const BOOT_TYPES: [&str; 2] = ["c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "21686148-6449-6e6f-744e-656564454649"];

/// Returns the ranges to zero on a partly kept disk: first the ranges that must be zeroed before all others, and then
/// the remaining ranges. All ranges are strictly outside the preserved partitions and the partition table.
pub(crate) fn cleared_ranges(
    disk: &InventoryDisk,
    removed: &[&DiskPartition],
    new: &[SectorExtent],
    preserved: &[ByteRange],
) -> (Vec<ByteRange>, Vec<ByteRange>) {
    let preserved_ranges: Vec<ByteRange> =
        preserved.iter().copied().chain(table_areas(disk.size_bytes, disk.sector_bytes)).collect();
    let is_booted = |part: &&&DiskPartition| BOOT_TYPES.iter().any(|kind| part.kind.eq_ignore_ascii_case(kind));
    let head = |part: &&DiskPartition| ByteRange { start: part.start_bytes, length: part.size_bytes.min(MIB) };
    let others = removed.iter().filter(|part| !is_booted(part));
    let first = removed.iter().filter(is_booted).chain(others).map(head).collect();
    let old = removed.iter().map(|part| ByteRange { start: part.start_bytes, length: part.size_bytes });
    let new = new.iter().map(|extent| ByteRange {
        start: extent.first_lba * u64::from(disk.sector_bytes),
        length: extent.length_bytes(disk.sector_bytes),
    });
    let areas = old.chain(new).flat_map(|area| [area, first_volume_range(area)]);
    let zero = signature_ranges(areas, disk.size_bytes);
    (subtract_areas(first, &preserved_ranges), subtract_areas(zero, &preserved_ranges))
}

/// Returns the ranges that are zeroed first. The first range is the first sector: a disk writes it atomically, a BIOS
/// executes it, and UEFI requires it for a valid GPT (UEFI specification 5.2.3). The next ranges are the areas before
/// the first and after the last partition, which contain the partition tables.
fn first_ranges(disk: &InventoryDisk) -> Vec<ByteRange> {
    let range = |start: u64, end: u64| (start < end).then(|| ByteRange { start, length: end - start });
    let sector_end = u64::from(disk.sector_bytes).min(disk.size_bytes);
    let partitions = || disk.table.iter().flat_map(|table| &table.partitions);
    let tables = partitions()
        .map(|part| part.start_bytes)
        .min()
        .zip(partitions().map(|part| part.start_bytes.saturating_add(part.size_bytes)).max());
    let tables = tables.map(|(begin, end)| {
        let behind = end.max(disk.size_bytes.saturating_sub(MIB));
        [range(sector_end, begin.min(MIB).min(disk.size_bytes)), range(behind, disk.size_bytes)]
    });
    range(0, sector_end).into_iter().chain(tables.into_iter().flatten().flatten()).collect()
}

fn zeroed_ranges(disk: &InventoryDisk, extents: &[SectorExtent]) -> Vec<ByteRange> {
    let whole = ByteRange { start: 0, length: disk.size_bytes };
    let old = disk.table.iter().flat_map(|table| &table.partitions);
    let old = old.map(|part| ByteRange { start: part.start_bytes, length: part.size_bytes });
    let new = extents.iter().map(|extent| ByteRange {
        start: extent.first_lba * u64::from(disk.sector_bytes),
        length: extent.length_bytes(disk.sector_bytes),
    });
    let areas = std::iter::once(whole).chain(old).chain(new);
    signature_ranges(areas.flat_map(|area| [area, first_volume_range(area)]), disk.size_bytes)
}

/// Returns the range in which the first logical volume usually starts if `area` is a physical volume: the range after
/// the metadata of LVM. Ceph stores its data in logical volumes, and such a volume may be recreated at the same offset.
/// The range is zeroed even if the area has no signature of a physical volume, because an interrupted attempt may have
/// zeroed the signature but not the copies of the label.
fn first_volume_range(area: ByteRange) -> ByteRange {
    let length = area.length.saturating_sub(LVM_METADATA_BYTES);
    ByteRange { start: area.start.saturating_add(LVM_METADATA_BYTES), length }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::DiskTable;

    fn first_of(sector_bytes: u32, partitions: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let partitions = partitions.iter().map(|&(start_bytes, size_bytes)| DiskPartition {
            start_bytes,
            size_bytes,
            ..DiskPartition::default()
        });
        let table = DiskTable { partitions: partitions.collect(), ..DiskTable::default() };
        let table = Some(table).filter(|table| !table.partitions.is_empty());
        let disk = InventoryDisk { size_bytes: 100 * MIB, sector_bytes, table, ..InventoryDisk::default() };
        first_ranges(&disk).iter().map(|range| (range.start, range.start + range.length)).collect()
    }

    #[test]
    fn erases_partition_table_sector_before_other_ranges() {
        let sector = (0, 512);
        for (partitions, expected) in [
            (vec![], vec![sector]),
            (vec![(MIB, 98 * MIB)], vec![sector, (512, MIB), (99 * MIB, 100 * MIB)]),
            // The last partition of an old MBR extends to the end of the disk.
            (vec![(63 * 512, 100 * MIB - 63 * 512)], vec![sector, (512, 63 * 512)]),
            (vec![(30 * MIB, MIB), (20 * MIB, MIB)], vec![sector, (512, MIB), (99 * MIB, 100 * MIB)]),
            // Partitions should not start at the first sector, but some tables contain such a partition.
            (vec![(0, 100 * MIB)], vec![sector]),
        ] {
            assert_eq!(first_of(512, &partitions), expected, "{partitions:?}");
        }
        assert_eq!(first_of(4096, &[(MIB, MIB)]), [(0, 4096), (4096, MIB), (99 * MIB, 100 * MIB)]);
    }

    #[test]
    fn zeroes_bluestore_label_copies_with_every_erase_method() {
        const GIB: u64 = 1 << 30;
        let partitions = [(MIB, 5 * GIB), (6 * GIB, 20 * GIB)];
        let partitions = partitions.map(|(start_bytes, size_bytes)| DiskPartition {
            start_bytes,
            size_bytes,
            ..DiskPartition::default()
        });
        let table = Some(DiskTable { partitions: partitions.into(), ..DiskTable::default() });
        let disk = InventoryDisk { size_bytes: 500 * GIB, sector_bytes: 512, table, ..InventoryDisk::default() };
        let new = SectorExtent { first_lba: 16384, last_lba: 12 * GIB / 512 };
        // Starts of the disk, of both old partitions, and of the new partition, and the offset 1 MiB after each of
        // them.
        let short = [0, MIB, 2 * MIB, 8 * MIB, 9 * MIB, 6 * GIB, 6 * GIB + MIB].map(|start| start + GIB);
        let long = [0, MIB, 8 * MIB, 9 * MIB, 6 * GIB, 6 * GIB + MIB].map(|start| start + 10 * GIB);
        let longest = [0, MIB].map(|start| start + 100 * GIB);
        let expected = [&short[..], &long, &longest].concat();
        for erase in [EraseMode::Quick, EraseMode::Secure, EraseMode::None] {
            let zero = wipe_disk(erase, &disk, &[new]).zero;
            let copies: Vec<u64> = zero.iter().filter(|range| range.length == 4096).map(|range| range.start).collect();
            assert_eq!(copies, expected, "{erase:?}");
        }
    }
}
