//! Record of an attempt that passed the point of no return: the devices that it was creating, and the comparison with present devices.

use super::Request;
use super::making::DISK;
use super::marking::table_guid;
use super::same::{Likeness, Shared, compare};
use crate::device::{DevicePath, KernelName, LayoutPath};
use crate::inventory::{Disk, Inventory, Tried};
use crate::marker::{Making, MarkedDisk};
use crate::order::Gather;
use crate::topology::{Stack, Unit, units};
use std::collections::BTreeSet;

/// Disks of an interrupted attempt, from the records of the control plane.
pub struct BegunAttempt<'a> {
    inventory: &'a Inventory,
    records: &'a [MarkedDisk],
}

impl<'a> BegunAttempt<'a> {
    pub fn new(request: &'a Request, inventory: &'a Inventory) -> BegunAttempt<'a> {
        let records = request.claim.as_ref().map(|claim| claim.begun_on.as_slice()).unwrap_or_default();
        BegunAttempt { inventory, records }
    }

    /// Returns the record of a listed disk that the attempt recreated as a whole, if `found` is provably that disk.
    pub fn remade_disk(&self, listed: &LayoutPath, found: &Disk) -> Option<&'a Making> {
        let record = self.records.iter().find(|record| record.device == *listed && self.is_same_disk(record, found))?;
        let is_whole = |making: &&Making| making.on == DISK && making.uuid.is_none();
        record.making.iter().find(is_whole)
    }

    /// Returns the UUID of the filesystem that the attempt was creating on this device, if the device contains nothing else. Unrecognized
    /// content is an unfinished filesystem only if the record proves that the device was empty when the attempt started. A filesystem with
    /// that UUID is unfinished only if it cannot be mounted.
    pub fn unfinished_filesystem(
        &self,
        stack: &Stack,
        device: &DevicePath,
        content: &[crate::inventory::Signature],
    ) -> Option<String> {
        let making = self.filling(stack, device)?;
        let uuid = making.uuid.as_ref()?;
        let is_unfinished = match content {
            [] => making.was_empty && self.is_unrecognized(device),
            [one] => {
                one.uuid.eq_ignore_ascii_case(uuid)
                    && self.inventory.failure(&Tried::Filesystem(device.clone())).is_some()
            }
            _ => false,
        };
        is_unfinished.then(|| uuid.clone())
    }

    /// Returns the record for exactly this device, matched by its unique id, on disks that do not contradict it.
    fn filling(&self, stack: &Stack, device: &DevicePath) -> Option<&'a Making> {
        let on = unique_id(self.inventory, device)?;
        let disks = self.disks_beneath(stack, device);
        let is_on_it = |record: &&MarkedDisk| match on == DISK {
            true => disks.iter().any(|disk| self.is_same_disk(record, disk)),
            false => disks.iter().any(|disk| self.likeness(record, disk) != Likeness::Contradicting),
        };
        let makings = self.records.iter().filter(is_on_it).flat_map(|record| &record.making);
        makings.filter(|making| making.on == on).find(|making| making.uuid.is_some())
    }

    /// Returns the disks below a device; for a logical volume those of its whole group, because the record names only some of them.
    fn disks_beneath(&self, stack: &Stack, device: &DevicePath) -> Vec<&'a Disk> {
        let running = Some(stack.name(device));
        let mut groups = self.inventory.groups.iter();
        let group = groups.find(|group| group.volumes.iter().any(|volume| volume.running == running));
        let devices: Vec<&DevicePath> = group.map_or_else(|| vec![device], |group| group.devices().collect());
        let names: BTreeSet<KernelName> =
            devices.into_iter().flat_map(|device| stack.disks(&stack.name(device))).gather();
        self.inventory.disks.iter().filter(|disk| names.contains(&disk.name)).collect()
    }

    /// Returns whether nothing is recognized on the device: no signature, partition table or user, and no read error.
    fn is_unrecognized(&self, device: &DevicePath) -> bool {
        let Some((_, unit)) = units(self.inventory).find(|(found, _)| *found == device) else { return false };
        let is_readable = !matches!(unit, Unit::Disk(disk) if disk.unreadable.is_some());
        is_readable && unit.table().is_none() && unit.signatures().is_empty() && unit.uses().is_empty()
    }

    /// Returns whether this is the recorded disk, with no table, its old table, or the table that it was about to get. An identifier must
    /// prove it, because a different disk that only looks the same may have been inserted.
    fn is_same_disk(&self, record: &MarkedDisk, disk: &Disk) -> bool {
        let guids = table_guids(record);
        let is_ours = disk.table.is_none() || table_guid(disk).is_some_and(|guid| guids.contains(&guid.as_str()));
        is_ours && self.likeness(record, disk) == Likeness::Equal
    }

    fn likeness(&self, record: &MarkedDisk, disk: &Disk) -> Likeness {
        compare(record, &table_guids(record), disk, &Shared::new(self.inventory, self.records))
    }
}

fn table_guids(record: &MarkedDisk) -> Vec<&str> {
    [&record.guid, &record.guid_before].into_iter().flatten().map(String::as_str).collect()
}

/// Identifies a block device by the GUID of a partition, or the UUID of an array or group. Returns `None` if several devices share it.
pub fn unique_id(inventory: &Inventory, device: &DevicePath) -> Option<String> {
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
