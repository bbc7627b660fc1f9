//! Devices below a device: the devices on which its content is stored.

use model::device_name::KernelName;
use model::inventory::{Inventory, LvmLogicalVolume, LvmVolumeGroup, StackedDeviceKind};
use model::storage_graph::{DeviceStack, StackUnit};
use std::collections::BTreeSet;

/// Returns these devices, and all devices below them.
pub(crate) fn find_layers(stack: &DeviceStack, devices: impl IntoIterator<Item = KernelName>) -> BTreeSet<KernelName> {
    let mut pending: Vec<KernelName> = devices.into_iter().collect();
    let mut layers = BTreeSet::new();
    while let Some(name) = pending.pop() {
        if !layers.contains(&name) {
            pending.extend(devices_below(stack, &name));
            layers.insert(name);
        }
    }
    layers
}

/// Returns the devices directly below a device; empty for a disk, and for a device that the inventory does not list.
pub(crate) fn devices_below(stack: &DeviceStack, name: &KernelName) -> Vec<KernelName> {
    match stack.find_unit(name) {
        StackUnit::Partition(partition) => {
            let whole = stack.whole_of(&partition.device);
            whole.and_then(|whole| Some(stack.kernel_name(whole.device()?))).into_iter().collect()
        }
        StackUnit::Stacked(stacked) => {
            let group = stack.find_volume(name).map(|(group, _)| physical_volumes(stack, group));
            stacked.below.iter().cloned().chain(group.into_iter().flatten()).collect()
        }
        StackUnit::Disk(_) | StackUnit::Unknown => Vec::new(),
    }
}

pub(crate) fn physical_volumes(stack: &DeviceStack, group: &LvmVolumeGroup) -> Vec<KernelName> {
    group.present_devices().map(|device| stack.kernel_name(device)).collect()
}

/// Returns the kernel name of an active volume, and `GROUP/VOLUME` for an inactive volume.
pub(crate) fn volume_name(group: &LvmVolumeGroup, volume: &LvmLogicalVolume) -> KernelName {
    volume.running.clone().unwrap_or_else(|| format!("{}/{}", group.name, volume.name).into())
}

/// Returns the volume with this name, which [`volume_name`] has returned, and its group.
pub(crate) fn find_volume<'a>(
    inventory: &'a Inventory,
    stack: &DeviceStack<'a>,
    name: &KernelName,
) -> Option<(&'a LvmVolumeGroup, &'a LvmLogicalVolume)> {
    stack.find_volume(name).or_else(|| {
        inventory.groups.iter().find_map(|group| {
            let name = name.strip_prefix(group.name.as_str())?.strip_prefix('/')?;
            Some((group, group.volumes.iter().find(|volume| volume.name == name)?))
        })
    })
}

/// Returns the disk or array whose partition table contains the partition. Returns `None` for a partition inside
/// another device, such as the disk of a virtual machine in a logical volume.
pub(crate) fn find_partitioned_device(stack: &DeviceStack, partition: StackUnit) -> Option<KernelName> {
    let StackUnit::Partition(partition) = partition else { return None };
    match stack.whole_of(&partition.device)? {
        StackUnit::Disk(disk) => Some(disk.name.clone()),
        StackUnit::Stacked(stacked) if stacked.kind == StackedDeviceKind::Array => Some(stacked.name.clone()),
        StackUnit::Stacked(_) | StackUnit::Partition(_) | StackUnit::Unknown => None,
    }
}
