//! UUIDs on disks that are not wiped. A raw image or a migrated system must not contain one of these UUIDs: if two
//! devices have the same UUID, it is undefined which of them the installed system uses. For example, all disks to which
//! a raw image is written have the same UUIDs.

use super::{DiskPlan, DiskVerdict};
use model::device_name::{DevicePath, KernelName};
use model::inventory::{DeviceSignature, DiskTable, Inventory};
use model::storage_graph::DeviceStack;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// Returns the UUIDs of disks, partitions and their contents that are not wiped. Each UUID is in lower case, and is
/// mapped to the device that has it.
pub(crate) fn collect_uuids(inventory: &Inventory, disks: &[DiskPlan]) -> BTreeMap<String, DevicePath> {
    let stack = DeviceStack::new(inventory);
    let made = disks.iter().filter(|disk| matches!(disk.verdict, DiskVerdict::Wipe | DiskVerdict::Make));
    let made: BTreeSet<&KernelName> = made.map(|disk| &disk.name).collect();
    let below = stack.combine_values(|disk| u8::from(made.contains(disk)));
    let disks = inventory.disks.iter().map(|disk| (&disk.name, &disk.device, &disk.table, &disk.signatures));
    let stacked = inventory.stacked.iter().map(|is| (&is.name, &is.device, &is.table, &is.signatures));
    let mut found = BTreeMap::new();
    for (name, device, table, signatures) in disks.chain(stacked) {
        if stack.combined_value(&below, name) == Some(0) {
            record_signatures(&mut found, device, signatures);
            table.iter().for_each(|table| note_table(&mut found, device, table));
        }
    }
    found
}

fn note_table(found: &mut BTreeMap<String, DevicePath>, device: &DevicePath, table: &DiskTable) {
    let mut add = |guid: Option<Uuid>, device: &DevicePath| {
        // A nil UUID in a table means that the UUID is not set.
        found.extend(guid.filter(|guid| !guid.is_nil()).map(|guid| (guid.to_string(), device.clone())));
    };
    add(table.guid, device);
    table.partitions.iter().for_each(|partition| add(partition.guid, &partition.device));
    for partition in &table.partitions {
        record_signatures(found, &partition.device, &partition.signatures);
    }
}

fn record_signatures(found: &mut BTreeMap<String, DevicePath>, device: &DevicePath, signatures: &[DeviceSignature]) {
    let uuids = signatures.iter().map(|signature| signature.uuid.to_lowercase()).filter(|uuid| !uuid.is_empty());
    found.extend(uuids.map(|uuid| (uuid, device.clone())));
}
