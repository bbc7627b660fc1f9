//! Ranges that a wipe zeroes. At each boundary, they are compared with a second computation, and with the ranges that
//! the plan preserves and announces.

use super::properties::assert_sound;
use super::*;
use crate::disk_erasure_plan::wipe_disk;
use crate::partition_placement::place_partitions;
use model::deploy_steps::EraseMode;
use model::inventory::{DiskPartition, FirmwareType, InventoryDisk};
use operations::{ByteRange, DeviceOp, LockDisk, Operation, SessionOp, StageName, WipeDisk};
use proptest::prelude::*;
use std::collections::BTreeSet;

const GIB: u64 = 1 << 30;
const COPIES: [u64; 4] = [GIB, 10 * GIB, 100 * GIB, 1000 * GIB];

/// Areas of a disk: the whole disk, its old and new partitions, and in each of them the part after the metadata of a
/// physical volume.
struct Areas(Vec<(u64, u64)>);

impl Areas {
    fn new(disk: &InventoryDisk, new: &[(u64, u64)]) -> Areas {
        let old = disk.table.iter().flat_map(|table| &table.partitions);
        let old = old.map(|part| (part.start_bytes, part.start_bytes + part.size_bytes));
        let all = old.chain(new.iter().copied()).chain([(0, disk.size_bytes)]);
        let all = all.flat_map(|(start, end)| [(start, end), ((start + MIB).min(end), end)]);
        Areas(all.map(|(start, end)| (start.min(disk.size_bytes), end.min(disk.size_bytes))).collect())
    }

    fn may_zero(&self, byte: u64) -> bool {
        self.0.iter().filter(|(start, end)| (*start..*end).contains(&byte)).any(|&(start, end)| {
            let is_copy = |copy: &u64| (*copy..copy + 4096).contains(&(byte - start)) && copy + 4096 <= end - start;
            byte - start < 5 * MIB || end - byte <= 2 * MIB || COPIES.iter().any(is_copy)
        })
    }

    /// Returns the offsets on both sides of each boundary.
    fn boundaries(&self, zero: &[ByteRange], size_bytes: u64) -> BTreeSet<u64> {
        let of_area = |&(start, end): &(u64, u64)| {
            let copies = COPIES.into_iter().flat_map(move |copy| [start + copy, start + copy + 4096]);
            copies.chain([start, start + 5 * MIB, end.saturating_sub(2 * MIB), end])
        };
        let of_zero = zero.iter().flat_map(|range| [range.start, range.start + range.length]);
        let all = self.0.iter().flat_map(of_area).chain(of_zero);
        all.flat_map(|at| [at.saturating_sub(1), at]).filter(|at| *at < size_bytes).collect()
    }
}

/// Returns a size near a significant value: zero, about the size of both zeroed ends, the offset of a label copy, or
/// the maximum size in the kernel.
fn any_size(sector: u64) -> impl Strategy<Value = u64> {
    let near = prop::sample::select(vec![0, 8 * MIB, GIB, GIB + 4096, 10 * GIB, 100 * GIB, 1000 * GIB, 1 << 62]);
    let by = prop_oneof![-2i64..=2, -20i64..=20, -5000i64..=5000];
    (near, by).prop_map(move |(near, by)| near.saturating_add_signed(by * sector as i64) / sector * sector)
}

prop_compose! {
    /// Returns a disk with partitions at random offsets, which may overlap or exceed the disk.
    fn any_disk()(sector_bytes in prop_oneof![Just(512u32), Just(4096u32)])(
        size_bytes in any_size(sector_bytes.into()),
        partitions in prop::collection::vec((any_size(sector_bytes.into()), any_size(sector_bytes.into())), 0..5),
        sector_bytes in Just(sector_bytes),
    ) -> InventoryDisk {
        let partitions = partitions.into_iter().map(|(start_bytes, size_bytes)| {
            DiskPartition { start_bytes: start_bytes.min(1 << 61), size_bytes, ..DiskPartition::default() }
        });
        let table = DiskTable { partitions: partitions.collect(), ..DiskTable::default() };
        let table = Some(table).filter(|table| !table.partitions.is_empty());
        InventoryDisk { size_bytes, sector_bytes, table, ..InventoryDisk::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn zeroes_exactly_the_signature_areas_in_whole_sectors(
        disk in any_disk(),
        sizes in prop::collection::vec(prop_oneof![Just(0u64), 1u64..2000, 9_000u64..12_000], 0..3),
    ) {
        let numbered = sizes.iter().enumerate().map(|(index, size)| partition(index as u32 + 1, "p", *size, PartitionType::Linux));
        let extents = place_partitions(&numbered.collect::<Vec<_>>(), disk.size_bytes, disk.sector_bytes).unwrap_or_default();
        let sector = u64::from(disk.sector_bytes);
        let new: Vec<_> = extents.iter().map(|new| (new.first_lba * sector, (new.last_lba + 1) * sector)).collect();
        let WipeDisk { first, zero, .. } = wipe_disk(EraseMode::Quick, &disk, &extents);
        for range in first.iter().chain(&zero) {
            prop_assert!(range.start + range.length <= disk.size_bytes && range.length > 0, "{:?} of {:?}", range, disk);
            prop_assert!((range.start % sector, range.length % sector) == (0, 0), "{:?} of {:?}", range, disk);
        }
        prop_assert!(zero.windows(2).all(|pair| pair[0].start + pair[0].length < pair[1].start), "{:?}", zero);
        let areas = Areas::new(&disk, &new);
        for at in areas.boundaries(&zero, disk.size_bytes) {
            let is_zeroed = zero.iter().any(|range| (range.start..range.start + range.length).contains(&at));
            prop_assert_eq!(is_zeroed, areas.may_zero(at), "byte {} of {:?}", at, disk);
        }
    }

    /// The disks are large enough for all label copies. A preserved partition has the same offsets as a wiped one.
    #[test]
    fn wipe_writes_only_announced_ranges_and_locks_other_disks(
        gib in prop::collection::vec(prop_oneof![20u64..40, 90u64..120, 990u64..1100], 3),
        sector_bytes in prop_oneof![Just(512u32), Just(4096u32)],
    ) {
        let disks = ["sda", "sdb", "sdc"].into_iter().zip(&gib).map(|(name, gib)| disk(name, gib * 1024));
        let disks = disks.map(|disk| InventoryDisk { sector_bytes, ..disk });
        let mut machine = Inventory { disks: disks.collect(), ..Inventory::default() };
        // No BIOS boots from disks with sectors of 4096 bytes.
        machine.system.firmware = FirmwareType::Uefi;
        let mut installed = after(&make(&layout(), &machine, InstallMode::Install).unwrap(), machine);
        installed.disks[2].table = installed.disks[0].table.clone();
        let plan = make(&layout(), &installed, InstallMode::Reinstall).unwrap();
        prop_assert_eq!(verdicts(&plan), [DiskVerdict::Wipe, DiskVerdict::Keep, DiskVerdict::NotOurs]);
        assert_sound(&plan, &installed);
        let operations = || plan.stages.iter().flat_map(|stage| &stage.operations);
        let locked: Vec<&str> = operations().filter_map(|operation| match operation {
            Operation::Run(SessionOp::LockDisk(LockDisk { device, .. })) => Some(device.as_str()),
            _ => None,
        }).collect();
        prop_assert_eq!(locked, ["/dev/sdb", "/dev/sdc"]);
        let extents = plan.extents.iter().find(|extents| extents.stages.contains(&StageName::StorageWipe)).unwrap();
        for operation in operations() {
            let Operation::Device(DeviceOp::WipeDisk(wipe)) = operation else { continue };
            let announced = extents.disks.iter().find(|disk| disk.device == wipe.device).unwrap();
            for range in wipe.first.iter().chain(&wipe.zero) {
                let contains = |open: &ByteRange| open.start <= range.start && range.start + range.length <= open.start + open.length;
                prop_assert!(announced.ranges.iter().any(contains), "{:?}", range);
            }
        }
    }
}

/// A power failure during the wipe has erased the table and the signature of the physical volume, but not all label
/// copies.
#[test]
fn attempt_after_interrupted_wipe_zeroes_the_remaining_copies() {
    let physical = || vec![DeviceSignature { kind: "LVM2_member".into(), ..DeviceSignature::default() }];
    let sizes = [partition(1, "a", 20_000, PartitionType::Linux), partition(2, "b", 0, PartitionType::Linux)];
    let blank = disk("sda", 1200 * 1024);
    let extents = place_partitions(&sizes, blank.size_bytes, 512).unwrap();
    let partitions = extents.iter().map(|extent| DiskPartition {
        start_bytes: extent.first_lba * 512,
        size_bytes: extent.length_bytes(512),
        signatures: physical(),
        ..DiskPartition::default()
    });
    let table = Some(DiskTable { partitions: partitions.collect(), ..DiskTable::default() });
    let whole = InventoryDisk { signatures: physical(), ..blank.clone() };
    let parted = InventoryDisk { table, ..blank.clone() };
    for (before, extents) in [(whole, &[][..]), (parted, &extents)] {
        let first = wipe_disk(EraseMode::None, &before, extents).zero;
        assert!(first.iter().filter(|range| range.length == 4096).count() >= 8, "{first:?}");
        assert_eq!(wipe_disk(EraseMode::None, &blank, extents).zero, first);
    }
}
