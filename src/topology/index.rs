//! The devices of an inventory by name, for lookups without a search. If several have the same name, the first counts.

use super::stack::{Unit, units};
use crate::device::{DevicePath, KernelName};
use crate::inventory::{Array, Inventory, LogicalVolume, VolumeGroup};
use std::collections::BTreeMap;

/// Devices, arrays and volumes of an inventory, by name or path.
#[derive(Default)]
pub struct Index<'a> {
    stacked: BTreeMap<&'a DevicePath, &'a KernelName>,
    units: BTreeMap<&'a DevicePath, Unit<'a>>,
    /// Disks and stacked devices by the partitions in their tables.
    wholes: BTreeMap<&'a DevicePath, Unit<'a>>,
    arrays: BTreeMap<&'a KernelName, &'a Array>,
    volumes: BTreeMap<&'a KernelName, (&'a VolumeGroup, &'a LogicalVolume)>,
    /// Arrays by their members, in the order of the inventory, each once.
    arrays_on: BTreeMap<&'a DevicePath, Vec<&'a Array>>,
    groups_on: BTreeMap<&'a DevicePath, Vec<&'a VolumeGroup>>,
}

impl<'a> Index<'a> {
    pub fn new(inventory: &'a Inventory) -> Index<'a> {
        let mut index = Index::default();
        for stacked in &inventory.stacked {
            index.stacked.entry(&stacked.device).or_insert(&stacked.name);
        }
        for (device, unit) in units(inventory) {
            index.units.entry(device).or_insert(unit);
            for part in unit.table().into_iter().flat_map(|table| &table.partitions) {
                index.wholes.entry(&part.device).or_insert(unit);
            }
        }
        for array in &inventory.arrays {
            if let Some(name) = &array.running {
                index.arrays.entry(name).or_insert(array);
            }
            array.members.iter().for_each(|member| note(&mut index.arrays_on, &member.device, array));
        }
        for group in &inventory.groups {
            let running = group.volumes.iter().filter_map(|volume| Some((volume.running.as_ref()?, volume)));
            for (name, volume) in running {
                index.volumes.entry(name).or_insert((group, volume));
            }
            group.devices().for_each(|device| note(&mut index.groups_on, device, group));
        }
        index
    }

    pub fn kernel_name(&self, device: &DevicePath) -> KernelName {
        self.stacked.get(device).map_or_else(|| device.kernel_name(), |name| (*name).clone())
    }

    pub fn unit(&self, device: &DevicePath) -> Option<Unit<'a>> {
        self.units.get(device).copied()
    }

    pub fn whole_of(&self, partition: &DevicePath) -> Option<Unit<'a>> {
        self.wholes.get(partition).copied()
    }

    pub fn array(&self, running: &KernelName) -> Option<&'a Array> {
        self.arrays.get(running).copied()
    }

    pub fn volume(&self, running: &KernelName) -> Option<(&'a VolumeGroup, &'a LogicalVolume)> {
        self.volumes.get(running).copied()
    }

    pub fn arrays_on(&self, device: &DevicePath) -> &[&'a Array] {
        self.arrays_on.get(device).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn groups_on(&self, device: &DevicePath) -> &[&'a VolumeGroup] {
        self.groups_on.get(device).map(Vec::as_slice).unwrap_or_default()
    }
}

fn note<'a, T>(all: &mut BTreeMap<&'a DevicePath, Vec<&'a T>>, device: &'a DevicePath, item: &'a T) {
    let on = all.entry(device).or_default();
    // A device may be listed twice in one array.
    if !on.last().is_some_and(|last| std::ptr::eq(*last, item)) {
        on.push(item);
    }
}
