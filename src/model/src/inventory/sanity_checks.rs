//! Detection of impossible inventories, which occur for example if a file was edited by hand or truncated. Code that
//! uses an inventory assumes that the inventory has passed these checks.

use super::{DiskTable, Inventory, InventoryDisk};
use std::fmt::Display;

/// Largest byte offset that the kernel supports. The kernel represents offsets as signed 64-bit numbers.
const MAX_BYTES: u64 = i64::MAX as u64;
/// Maximum number of members that an array in an inventory may have. No metadata version supports more members.
const MAX_MEMBERS: u32 = 4096;

impl Inventory {
    /// Returns a message about the first impossible property; `None` if there is none.
    pub fn find_impossible_property(&self) -> Option<String> {
        let disks = self.disks.iter().find_map(find_impossible_disk_property);
        let stacked = self.stacked.iter();
        let stacked = || {
            stacked.clone().find_map(|device| {
                check_end_offset(&device.device, 0, device.size_bytes)
                    .or_else(|| find_impossible_partition(&device.table))
            })
        };
        let arrays = || self.arrays.iter().find(|array| array.raid_devices > MAX_MEMBERS);
        let arrays = || arrays().map(|array| format!("array {} has {} members", array.uuid, array.raid_devices));
        let volumes = || self.groups.iter().flat_map(|group| &group.volumes);
        let volumes = || volumes().find_map(|volume| check_end_offset(&volume.name, 0, volume.size_bytes));
        disks.or_else(stacked).or_else(arrays).or_else(volumes).or_else(|| self.find_exceeded_limit())
    }
}

fn find_impossible_disk_property(disk: &InventoryDisk) -> Option<String> {
    let sector = disk.sector_bytes;
    if !sector.is_power_of_two() || !(512..=65536).contains(&sector) {
        return Some(format!(
            "sector_bytes of {disk} is {sector}, which is not a supported sector size",
            disk = disk.device
        ));
    }
    check_end_offset(&disk.device, 0, disk.size_bytes).or_else(|| find_impossible_partition(&disk.table))
}

fn find_impossible_partition(table: &Option<DiskTable>) -> Option<String> {
    let mut partitions = table.iter().flat_map(|table| &table.partitions);
    partitions.find_map(|part| check_end_offset(&part.device, part.start_bytes, part.size_bytes))
}

fn check_end_offset(device: impl Display, start: u64, size: u64) -> Option<String> {
    let fits = start.checked_add(size).is_some_and(|end| end <= MAX_BYTES);
    (!fits).then(|| format!("{device} ends beyond the maximum of {MAX_BYTES} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{DiskPartition, LvmLogicalVolume, LvmVolumeGroup, MdArray, StackedDevice};

    #[test]
    fn reports_properties_that_no_machine_has() {
        let disk = |sector_bytes, size_bytes| InventoryDisk {
            device: "/dev/sda".into(),
            sector_bytes,
            size_bytes,
            ..InventoryDisk::default()
        };
        let with = |disk| Inventory { disks: vec![disk], ..Inventory::default() };
        let part = DiskPartition { start_bytes: 1 << 62, size_bytes: 1 << 62, ..DiskPartition::default() };
        let table = Some(DiskTable { partitions: vec![part], ..DiskTable::default() });
        let huge = || LvmLogicalVolume { size_bytes: u64::MAX, ..LvmLogicalVolume::default() };
        let empty = Inventory::default;
        for (inventory, words) in [
            (with(disk(512, 0)), ""),
            (with(disk(4096, 22_000_969_973_760)), ""),
            (with(disk(0, 1)), "sector_bytes of /dev/sda is 0"),
            (with(disk(520, 1)), "sector_bytes of /dev/sda is 520"),
            (with(disk(1 << 21, 1)), "sector_bytes"),
            (with(disk(512, u64::MAX)), "ends beyond the maximum"),
            (with(InventoryDisk { table: table.clone(), ..disk(512, 1) }), "ends beyond the maximum"),
            (
                Inventory { stacked: vec![StackedDevice { table, ..StackedDevice::default() }], ..empty() },
                "ends beyond the maximum",
            ),
            (
                Inventory { arrays: vec![MdArray { raid_devices: 5000, ..MdArray::default() }], ..empty() },
                "5000 members",
            ),
            (
                Inventory {
                    groups: vec![LvmVolumeGroup { volumes: vec![huge()], ..LvmVolumeGroup::default() }],
                    ..empty()
                },
                "ends beyond the maximum",
            ),
        ] {
            let found = inventory.find_impossible_property();
            assert_eq!(found.is_some(), !words.is_empty(), "{words}: {found:?}");
            assert!(found.is_none_or(|found| found.contains(words)), "{words}");
        }
    }
}
