//! Index of an inventory's devices, with their holders, filesystems and failed attempts.

use crate::device_name::{DevicePath, KernelName};
use crate::inventory::{
    DeviceSignature, DeviceUse, FilesystemContents, InspectionTarget, Inventory, StackedDeviceKind,
};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// Disk, partition or stacked device, with its signatures and uses.
pub(crate) struct IndexedDevice<'a> {
    pub path: &'a DevicePath,
    pub signatures: &'a [DeviceSignature],
    pub uses: &'a [DeviceUse],
}

/// Returns all disks, partitions and stacked devices.
pub(crate) fn all_devices(inventory: &Inventory) -> impl Iterator<Item = IndexedDevice<'_>> {
    let disks = inventory.disks.iter().map(|disk| (&disk.device, &disk.signatures, &disk.uses, &disk.table));
    let stacked = inventory.stacked.iter().map(|it| (&it.device, &it.signatures, &it.uses, &it.table));
    disks.chain(stacked).flat_map(|(path, signatures, uses, table)| {
        let partitions = table.iter().flat_map(|table| &table.partitions);
        let partitions =
            partitions.map(|part| IndexedDevice { path: &part.device, signatures: &part.signatures, uses: &part.uses });
        std::iter::once(IndexedDevice { path, signatures, uses }).chain(partitions)
    })
}

/// Set of [`StackedDeviceKind`]s, one bit each.
type DeviceKindSet = u8;

/// Index of an inventory. If several devices have the same path, only the first of them is indexed.
pub(crate) struct DeviceIndex<'a> {
    pub inventory: &'a Inventory,
    names: BTreeMap<&'a DevicePath, &'a KernelName>,
    uses: BTreeMap<&'a DevicePath, &'a [DeviceUse]>,
    filesystems: BTreeMap<&'a DevicePath, &'a FilesystemContents>,
    failures: BTreeMap<&'a InspectionTarget, &'a str>,
    arrays: BTreeSet<Uuid>,
    /// Names of the stacked devices with a nonzero size.
    sized: BTreeSet<&'a KernelName>,
    /// For each stacked device: the types that it contributes to `held_by` of the devices below it. An overlay of the
    /// agent contributes the types of the devices on top of the overlay, a device of size zero contributes none, and
    /// any other device contributes its own type.
    counts_as: BTreeMap<&'a KernelName, DeviceKindSet>,
    /// For each device: the types that the stacked devices directly on top of it contribute (see `counts_as`).
    held_by: BTreeMap<&'a KernelName, DeviceKindSet>,
}

impl<'a> DeviceIndex<'a> {
    pub fn new(inventory: &'a Inventory) -> DeviceIndex<'a> {
        let mut seen = DeviceIndex {
            inventory,
            names: BTreeMap::new(),
            uses: BTreeMap::new(),
            filesystems: BTreeMap::new(),
            failures: BTreeMap::new(),
            arrays: BTreeSet::new(),
            sized: BTreeSet::new(),
            counts_as: BTreeMap::new(),
            held_by: BTreeMap::new(),
        };
        for device in all_devices(inventory) {
            seen.uses.entry(device.path).or_insert(device.uses);
        }
        for filesystem in &inventory.filesystems {
            seen.filesystems.entry(&filesystem.device).or_insert(filesystem);
        }
        // For an object with several failed attempts, the last one is indexed.
        seen.failures.extend(inventory.failed.iter().map(|failed| (&failed.tried, failed.why.as_str())));
        seen.arrays.extend(inventory.arrays.iter().map(|array| array.uuid));
        seen.index_stacked_devices();
        seen
    }

    fn index_stacked_devices(&mut self) {
        let stacked = &self.inventory.stacked;
        let mut on: BTreeMap<&KernelName, DeviceKindSet> = BTreeMap::new();
        for device in stacked {
            self.names.entry(&device.device).or_insert(&device.name);
            let kinds = if device.size_bytes > 0 { kind_bit(device.kind) } else { 0 };
            if device.size_bytes > 0 {
                self.sized.insert(&device.name);
            }
            device.below.iter().for_each(|below| *on.entry(below).or_default() |= kinds);
        }
        for device in stacked {
            let kinds = match device.is_overlay() {
                true => on.get(&device.name).copied().unwrap_or_default(),
                false if device.size_bytes > 0 => kind_bit(device.kind),
                false => 0,
            };
            *self.counts_as.entry(&device.name).or_default() |= kinds;
            device.below.iter().for_each(|below| *self.held_by.entry(below).or_default() |= kinds);
        }
    }

    /// Returns whether a stacked device of the type `kind` is on top of the device. Devices of size zero, such as
    /// inactive arrays, are ignored.
    pub(crate) fn is_held_by(&self, device: &DevicePath, kind: StackedDeviceKind) -> bool {
        let name = self.names.get(device).map_or_else(|| device.kernel_name(), |name| (*name).clone());
        let listed = self.held_by.get(&name).copied().unwrap_or_default();
        let uses = self.uses.get(device).copied().unwrap_or_default();
        let using = uses.iter().map(|usage| match usage {
            DeviceUse::Holder(holder) => self.counts_as.get(holder).copied().unwrap_or_default(),
            DeviceUse::Mounted(_) | DeviceUse::Swap => 0,
        });
        using.fold(listed, |all, kinds| all | kinds) & kind_bit(kind) != 0
    }

    /// Returns whether a stacked device has this name and a nonzero size.
    pub(crate) fn has_size(&self, name: &KernelName) -> bool {
        self.sized.contains(name)
    }

    pub(crate) fn has_array(&self, uuid: Uuid) -> bool {
        self.arrays.contains(&uuid)
    }

    pub(crate) fn find_filesystem(&self, device: &DevicePath) -> Option<&'a FilesystemContents> {
        self.filesystems.get(device).copied()
    }

    /// Indexed form of [`Inventory::find_failure`], with the same result.
    pub fn find_failure(&self, tried: &InspectionTarget) -> Option<&'a str> {
        self.failures.get(tried).copied()
    }
}

fn kind_bit(kind: StackedDeviceKind) -> DeviceKindSet {
    1 << kind as DeviceKindSet
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{InventoryDisk, StackedDevice};
    use proptest::prelude::*;

    /// Returns the expected result of `is_held_by`, by a search through all devices.
    fn searched(inventory: &Inventory, device: &DevicePath, kind: StackedDeviceKind) -> bool {
        let name = inventory.resolve_kernel_name(device);
        let uses =
            all_devices(inventory).find(|other| other.path == device).map(|other| other.uses).unwrap_or_default();
        let holds = |other: &&StackedDevice| {
            other.below.contains(&name) || uses.iter().any(|usage| *usage == DeviceUse::Holder(other.name.clone()))
        };
        let direct = inventory.stacked.iter().filter(holds);
        let mut all = direct.flat_map(|holder| match holder.is_overlay() {
            true => inventory.stacked.iter().filter(|other| other.below.contains(&holder.name)).collect::<Vec<_>>(),
            false => vec![holder],
        });
        all.any(|holder| holder.kind == kind && holder.size_bytes > 0)
    }

    proptest! {
        #[test]
        fn holder_index_matches_a_search(
            links in proptest::collection::vec((0_usize..6, 0_usize..6, any::<bool>(), 0_u64..2, any::<bool>()), 0..6),
            used in proptest::collection::vec(0_usize..6, 0..3),
        ) {
            let name = |number: usize| KernelName::from(format!("d{number}"));
            let mut inventory = Inventory::default();
            let uses = used.iter().map(|number| DeviceUse::Holder(name(*number))).collect();
            inventory.disks.push(InventoryDisk { name: name(0), device: name(0).device_path(), uses, ..InventoryDisk::default() });
            for (index, (one, two, is_overlay, size_bytes, is_array)) in links.iter().enumerate() {
                let prefix = if *is_overlay { crate::inventory::OVERLAY } else { "m" };
                inventory.stacked.push(StackedDevice {
                    name: name(index + 1),
                    device: format!("/dev/mapper/{prefix}{index}").into(),
                    kind: if *is_array { StackedDeviceKind::Array } else { StackedDeviceKind::Crypt },
                    below: vec![name(*one), name(*two)],
                    size_bytes: *size_bytes,
                    ..StackedDevice::default()
                });
            }
            let seen = DeviceIndex::new(&inventory);
            for device in all_devices(&inventory) {
                for kind in [StackedDeviceKind::Array, StackedDeviceKind::Crypt, StackedDeviceKind::Bcache] {
                    prop_assert_eq!(seen.is_held_by(device.path, kind), searched(&inventory, device.path, kind));
                }
            }
        }
    }
}
