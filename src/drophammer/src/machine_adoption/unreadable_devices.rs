//! Arrays, volumes and mappings of the machine that cannot be read completely.

use model::inventory::{Inventory, OpaqueKind};

/// Returns the reasons why arrays, volumes and mappings could not be read. Disks are omitted.
pub(crate) fn list_unreadable_stacks(inventory: &Inventory) -> Vec<String> {
    let objects = inventory.find_opaque_objects().into_iter();
    let unreadable = objects.filter(|object| object.kind == OpaqueKind::UnreadableRegion);
    let stacked = unreadable.filter_map(|object| {
        let device = object.devices.iter().find(|device| inventory.disks.iter().all(|disk| disk.device != **device))?;
        Some(format!("{device} is partly unreadable: {}; {}", object.reason, object.remedy))
    });
    stacked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::{InventoryDisk, StackedDevice};

    #[test]
    fn unreadable_arrays_are_listed_without_disks() {
        let why = Some("read error at 4096".to_owned());
        let disk = InventoryDisk { device: "/dev/sda".into(), unreadable: why.clone(), ..InventoryDisk::default() };
        let array = StackedDevice { device: "/dev/md127".into(), unreadable: why, ..StackedDevice::default() };
        let inventory = Inventory { disks: vec![disk], stacked: vec![array], ..Inventory::default() };
        let [one] = &list_unreadable_stacks(&inventory)[..] else { panic!("one array") };
        assert!(one.starts_with("/dev/md127 is partly unreadable: read error at 4096; "), "{one}");
    }
}
