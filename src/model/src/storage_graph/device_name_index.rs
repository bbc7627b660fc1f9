//! Index of the devices of an inventory by name, for lookups without a search. If several devices have the same name,
//! the first of them is found.

use super::device_stack::{StackUnit, all_units};
use crate::device_name::{DevicePath, KernelName};
use crate::inventory::{Inventory, LvmLogicalVolume, LvmVolumeGroup, MdArray};
use std::collections::BTreeMap;

/// Devices, arrays and volumes of an inventory, each indexed by its name or path.
#[derive(Default)]
pub(crate) struct InventoryIndex<'a> {
    stacked: BTreeMap<&'a DevicePath, &'a KernelName>,
    units: BTreeMap<&'a DevicePath, StackUnit<'a>>,
    /// Disks and stacked devices, indexed by the partitions in their tables.
    wholes: BTreeMap<&'a DevicePath, StackUnit<'a>>,
    arrays: BTreeMap<&'a KernelName, &'a MdArray>,
    volumes: BTreeMap<&'a KernelName, (&'a LvmVolumeGroup, &'a LvmLogicalVolume)>,
    /// For each array member, the arrays to which it belongs. They are in the order of the inventory, and each array is
    /// listed once.
    arrays_on: BTreeMap<&'a DevicePath, Vec<&'a MdArray>>,
    groups_on: BTreeMap<&'a DevicePath, Vec<&'a LvmVolumeGroup>>,
}

impl<'a> InventoryIndex<'a> {
    pub fn new(inventory: &'a Inventory) -> InventoryIndex<'a> {
        let mut index = InventoryIndex::default();
        for stacked in &inventory.stacked {
            index.stacked.entry(&stacked.device).or_insert(&stacked.name);
        }
        for (device, unit) in all_units(inventory) {
            index.units.entry(device).or_insert(unit);
            for part in unit.table().into_iter().flat_map(|table| &table.partitions) {
                index.wholes.entry(&part.device).or_insert(unit);
            }
        }
        for array in &inventory.arrays {
            if let Some(name) = &array.running {
                index.arrays.entry(name).or_insert(array);
            }
            array.members.iter().for_each(|member| add_once(&mut index.arrays_on, &member.device, array));
        }
        for group in &inventory.groups {
            let running = group.volumes.iter().filter_map(|volume| Some((volume.running.as_ref()?, volume)));
            for (name, volume) in running {
                index.volumes.entry(name).or_insert((group, volume));
            }
            group.present_devices().for_each(|device| add_once(&mut index.groups_on, device, group));
        }
        index
    }

    pub fn kernel_name(&self, device: &DevicePath) -> KernelName {
        self.stacked.get(device).map_or_else(|| device.kernel_name(), |name| (*name).clone())
    }

    pub(crate) fn unit(&self, device: &DevicePath) -> Option<StackUnit<'a>> {
        self.units.get(device).copied()
    }

    pub fn whole_of(&self, partition: &DevicePath) -> Option<StackUnit<'a>> {
        self.wholes.get(partition).copied()
    }

    pub fn array(&self, running: &KernelName) -> Option<&'a MdArray> {
        self.arrays.get(running).copied()
    }

    pub(crate) fn volume(&self, running: &KernelName) -> Option<(&'a LvmVolumeGroup, &'a LvmLogicalVolume)> {
        self.volumes.get(running).copied()
    }

    pub fn arrays_on(&self, device: &DevicePath) -> &[&'a MdArray] {
        self.arrays_on.get(device).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn groups_on(&self, device: &DevicePath) -> &[&'a LvmVolumeGroup] {
        self.groups_on.get(device).map(Vec::as_slice).unwrap_or_default()
    }
}

fn add_once<'a, T>(all: &mut BTreeMap<&'a DevicePath, Vec<&'a T>>, device: &'a DevicePath, item: &'a T) {
    let on = all.entry(device).or_default();
    // A member that is listed twice in one array is indexed only once.
    if !on.last().is_some_and(|last| std::ptr::eq(*last, item)) {
        on.push(item);
    }
}
