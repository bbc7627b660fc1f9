//! Index of an inventory's devices by name and path, with their holders and failed attempts.

use crate::device::{DevicePath, KernelName};
use crate::inventory::{Filesystem, Inventory, Signature, StackedKind, Tried, Use};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// Disk, partition or stacked device with its content and users.
pub struct Device<'a> {
    pub path: &'a DevicePath,
    pub signatures: &'a [Signature],
    pub uses: &'a [Use],
}

/// Returns all disks, partitions and stacked devices.
pub fn devices(inventory: &Inventory) -> impl Iterator<Item = Device<'_>> {
    let disks = inventory.disks.iter().map(|disk| (&disk.device, &disk.signatures, &disk.uses, &disk.table));
    let stacked = inventory.stacked.iter().map(|it| (&it.device, &it.signatures, &it.uses, &it.table));
    disks.chain(stacked).flat_map(|(path, signatures, uses, table)| {
        let partitions = table.iter().flat_map(|table| &table.partitions);
        let partitions =
            partitions.map(|part| Device { path: &part.device, signatures: &part.signatures, uses: &part.uses });
        std::iter::once(Device { path, signatures, uses }).chain(partitions)
    })
}

/// Set of device types, one bit each.
type Kinds = u8;

/// Index of an inventory. Of several devices with one path, the first one counts.
pub struct SeenDevices<'a> {
    pub inventory: &'a Inventory,
    names: BTreeMap<&'a DevicePath, &'a KernelName>,
    uses: BTreeMap<&'a DevicePath, &'a [Use]>,
    filesystems: BTreeMap<&'a DevicePath, &'a Filesystem>,
    failures: BTreeMap<&'a Tried, &'a str>,
    arrays: BTreeSet<Uuid>,
    /// Running devices with a size.
    sized: BTreeSet<&'a KernelName>,
    /// Types that a holder of that name counts as. An overlay is transparent: its own holders count instead.
    counts_as: BTreeMap<&'a KernelName, Kinds>,
    /// Types of the devices that list a device of that name below them.
    held_by: BTreeMap<&'a KernelName, Kinds>,
}

impl<'a> SeenDevices<'a> {
    pub fn new(inventory: &'a Inventory) -> SeenDevices<'a> {
        let mut seen = SeenDevices {
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
        for device in devices(inventory) {
            seen.uses.entry(device.path).or_insert(device.uses);
        }
        for filesystem in &inventory.filesystems {
            seen.filesystems.entry(&filesystem.device).or_insert(filesystem);
        }
        // The last of several tries counts.
        seen.failures.extend(inventory.failed.iter().map(|failed| (&failed.tried, failed.why.as_str())));
        seen.arrays.extend(inventory.arrays.iter().map(|array| array.uuid));
        seen.note_stacked();
        seen
    }

    fn note_stacked(&mut self) {
        let stacked = &self.inventory.stacked;
        let mut on: BTreeMap<&KernelName, Kinds> = BTreeMap::new();
        for device in stacked {
            self.names.entry(&device.device).or_insert(&device.name);
            let kinds = if device.size_bytes > 0 { bit(device.kind) } else { 0 };
            if device.size_bytes > 0 {
                self.sized.insert(&device.name);
            }
            device.below.iter().for_each(|below| *on.entry(below).or_default() |= kinds);
        }
        for device in stacked {
            let kinds = match device.is_overlay() {
                true => on.get(&device.name).copied().unwrap_or_default(),
                false if device.size_bytes > 0 => bit(device.kind),
                false => 0,
            };
            *self.counts_as.entry(&device.name).or_default() |= kinds;
            device.below.iter().for_each(|below| *self.held_by.entry(below).or_default() |= kinds);
        }
    }

    /// Returns whether a device of this type with a nonzero size lies on the device. Inactive arrays have no size.
    pub fn is_held_by(&self, device: &DevicePath, kind: StackedKind) -> bool {
        let name = self.names.get(device).map_or_else(|| device.kernel_name(), |name| (*name).clone());
        let listed = self.held_by.get(&name).copied().unwrap_or_default();
        let uses = self.uses.get(device).copied().unwrap_or_default();
        let using = uses.iter().map(|usage| match usage {
            Use::Holder(holder) => self.counts_as.get(holder).copied().unwrap_or_default(),
            Use::Mounted(_) | Use::Swap => 0,
        });
        using.fold(listed, |all, kinds| all | kinds) & bit(kind) != 0
    }

    /// Returns whether a running device of that name has a nonzero size.
    pub fn has_size(&self, name: &KernelName) -> bool {
        self.sized.contains(name)
    }

    pub fn has_array(&self, uuid: Uuid) -> bool {
        self.arrays.contains(&uuid)
    }

    pub fn filesystem(&self, device: &DevicePath) -> Option<&'a Filesystem> {
        self.filesystems.get(device).copied()
    }

    /// Returns the same as [`Inventory::failure`].
    pub fn failure(&self, tried: &Tried) -> Option<&'a str> {
        self.failures.get(tried).copied()
    }
}

fn bit(kind: StackedKind) -> Kinds {
    1 << kind as Kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Disk, Stacked};
    use proptest::prelude::*;

    /// Searches all devices for the holders of one.
    fn searched(inventory: &Inventory, device: &DevicePath, kind: StackedKind) -> bool {
        let name = inventory.kernel_name(device);
        let uses = devices(inventory).find(|other| other.path == device).map(|other| other.uses).unwrap_or_default();
        let holds = |other: &&Stacked| {
            other.below.contains(&name) || uses.iter().any(|usage| *usage == Use::Holder(other.name.clone()))
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
        fn holders_are_those_that_a_search_finds(
            links in proptest::collection::vec((0_usize..6, 0_usize..6, any::<bool>(), 0_u64..2, any::<bool>()), 0..6),
            used in proptest::collection::vec(0_usize..6, 0..3),
        ) {
            let name = |number: usize| KernelName::from(format!("d{number}"));
            let mut inventory = Inventory::default();
            let uses = used.iter().map(|number| Use::Holder(name(*number))).collect();
            inventory.disks.push(Disk { name: name(0), device: name(0).path(), uses, ..Disk::default() });
            for (index, (one, two, is_overlay, size_bytes, is_array)) in links.iter().enumerate() {
                let prefix = if *is_overlay { crate::inventory::OVERLAY } else { "m" };
                inventory.stacked.push(Stacked {
                    name: name(index + 1),
                    device: format!("/dev/mapper/{prefix}{index}").into(),
                    kind: if *is_array { StackedKind::Array } else { StackedKind::Crypt },
                    below: vec![name(*one), name(*two)],
                    size_bytes: *size_bytes,
                    ..Stacked::default()
                });
            }
            let seen = SeenDevices::new(&inventory);
            for device in devices(&inventory) {
                for kind in [StackedKind::Array, StackedKind::Crypt, StackedKind::Bcache] {
                    prop_assert_eq!(seen.is_held_by(device.path, kind), searched(&inventory, device.path, kind));
                }
            }
        }
    }
}
