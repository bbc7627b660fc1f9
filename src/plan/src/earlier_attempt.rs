//! Record of an attempt that passed the point of no return: the devices that the attempt was creating, and their
//! comparison with the devices that are present now.

use super::PlanRequest;
use super::attempt_record::DISK;
use super::recorded_disk::table_guid;
use super::recorded_disk_match::{DiskLikeness, SharedIdentifiers, compare_disk};
use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::install_marker::{PendingCreation, RecordedDisk};
use model::inventory::{InspectionTarget, Inventory, InventoryDisk};
use model::storage_graph::{DeviceStack, all_units};
use std::collections::BTreeSet;

/// Disks of an interrupted attempt, from the records of the control plane.
pub(crate) struct AttemptDevices<'a> {
    inventory: &'a Inventory,
    records: &'a [RecordedDisk],
}

impl<'a> AttemptDevices<'a> {
    pub(crate) fn new(request: &'a PlanRequest, inventory: &'a Inventory) -> AttemptDevices<'a> {
        let records = request.claim.as_ref().map(|claim| claim.begun_on.as_slice()).unwrap_or_default();
        AttemptDevices { inventory, records }
    }

    /// Returns the record of a listed disk if the attempt was recreating the whole disk, and an identifier proves that
    /// `found` is that disk.
    pub(crate) fn remade_disk(&self, listed: &LayoutPath, found: &InventoryDisk) -> Option<&'a PendingCreation> {
        let record = self.records.iter().find(|record| record.device == *listed && self.is_same_disk(record, found))?;
        let is_whole = |making: &&PendingCreation| making.on == DISK && making.uuid.is_none();
        record.making.iter().find(is_whole)
    }

    /// Returns the UUID of the filesystem that the attempt was creating on this device, if the device contains
    /// nothing else. Unrecognized content counts as an unfinished filesystem only if the record proves that the
    /// device was empty when the attempt started. A filesystem with that UUID counts as unfinished only if it cannot
    /// be mounted.
    pub(crate) fn unfinished_filesystem(
        &self,
        stack: &DeviceStack,
        device: &DevicePath,
        content: &[model::inventory::DeviceSignature],
    ) -> Option<String> {
        let making = self.recorded_filling(stack, device)?;
        let uuid = making.uuid.as_ref()?;
        let is_unfinished = match content {
            [] => making.was_empty && self.is_unrecognized(stack, device),
            [one] => {
                one.uuid.eq_ignore_ascii_case(uuid)
                    && self.inventory.find_failure(&InspectionTarget::Filesystem(device.clone())).is_some()
            }
            _ => false,
        };
        is_unfinished.then(|| uuid.clone())
    }

    /// Returns the record of the filesystem that the attempt was creating on this device. Records of disks that
    /// contradict the present disks below the device are ignored.
    fn recorded_filling(&self, stack: &DeviceStack, device: &DevicePath) -> Option<&'a PendingCreation> {
        let on = unique_id(self.inventory, device)?;
        let disks = self.disks_below(stack, device);
        let is_on_it = |record: &&RecordedDisk| match on == DISK {
            true => disks.iter().any(|disk| self.is_same_disk(record, disk)),
            false => disks.iter().any(|disk| self.match_disk(record, disk) != DiskLikeness::Contradicting),
        };
        let makings = self.records.iter().filter(is_on_it).flat_map(|record| &record.making);
        makings.filter(|making| making.on == on).find(|making| making.uuid.is_some())
    }

    /// Returns the disks below a device. For a logical volume, returns the disks of the whole group, because the record
    /// may belong to any of these disks.
    fn disks_below(&self, stack: &DeviceStack, device: &DevicePath) -> Vec<&'a InventoryDisk> {
        let running = Some(stack.kernel_name(device));
        let mut groups = self.inventory.groups.iter();
        let group = groups.find(|group| group.volumes.iter().any(|volume| volume.running == running));
        let devices: Vec<&DevicePath> = group.map_or_else(|| vec![device], |group| group.present_devices().collect());
        let names: BTreeSet<KernelName> =
            devices.into_iter().flat_map(|device| stack.disks_below(&stack.kernel_name(device))).collect();
        self.inventory.disks.iter().filter(|disk| names.contains(&disk.name)).collect()
    }

    /// Returns whether the device, and the device that contains it, were read without errors, and the device has
    /// neither signature nor partition table nor current use.
    fn is_unrecognized(&self, stack: &DeviceStack, device: &DevicePath) -> bool {
        let Some((_, unit)) = all_units(self.inventory).find(|(found, _)| *found == device) else { return false };
        let whole = stack.whole_of(device).unwrap_or(unit);
        let is_readable = whole.unreadable().is_none() && unit.unreadable().is_none();
        is_readable && unit.table().is_none() && unit.signatures().is_empty() && unit.uses().is_empty()
    }

    /// Returns whether the disk is the recorded one. The disk may have no partition table, the table from before the
    /// attempt, or the table that the attempt writes. An identifier must match, because a different disk that only
    /// looks the same may have been inserted.
    fn is_same_disk(&self, record: &RecordedDisk, disk: &InventoryDisk) -> bool {
        let guids = table_guids(record);
        let is_ours = disk.table.is_none() || table_guid(disk).is_some_and(|guid| guids.contains(&guid.as_str()));
        is_ours && self.match_disk(record, disk) == DiskLikeness::Equal
    }

    fn match_disk(&self, record: &RecordedDisk, disk: &InventoryDisk) -> DiskLikeness {
        compare_disk(record, &table_guids(record), disk, &SharedIdentifiers::new(self.inventory, self.records))
    }
}

fn table_guids(record: &RecordedDisk) -> Vec<&str> {
    [&record.guid, &record.guid_before].into_iter().flatten().map(String::as_str).collect()
}

/// Returns the value of [`PendingCreation::on`] for a block device: `disk`, or text with the GUID of the partition or
/// the UUID of the array or group. Returns `None` if the device is unknown, or if the GUID or UUID is not unique.
pub(crate) fn unique_id(inventory: &Inventory, device: &DevicePath) -> Option<String> {
    if inventory.disks.iter().any(|disk| disk.device == *device) {
        return Some(DISK.to_owned());
    }
    let parts = || inventory.disks.iter().flat_map(|disk| disk.table.iter().flat_map(|table| &table.partitions));
    if let Some(part) = parts().find(|part| part.device == *device) {
        let guid = part.guid.filter(|_| parts().filter(|other| other.guid == part.guid).count() == 1);
        return Some(format!("partition {}", guid?));
    }
    let running = Some(inventory.stacked.iter().find(|stacked| stacked.device == *device)?.name.clone());
    if let Some(array) = inventory.arrays.iter().find(|array| array.running == running) {
        let is_unique = inventory.arrays.iter().filter(|other| other.uuid == array.uuid).count() == 1;
        return is_unique.then(|| format!("array {}", array.uuid));
    }
    let mut volumes = inventory.groups.iter().flat_map(|group| group.volumes.iter().map(move |volume| (group, volume)));
    let (group, volume) = volumes.find(|(_, volume)| volume.running == running)?;
    let is_unique = inventory.groups.iter().filter(|other| other.uuid == group.uuid).count() == 1;
    is_unique.then(|| format!("volume {} {}", group.uuid, volume.name))
}
