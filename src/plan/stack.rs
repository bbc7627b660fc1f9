//! What lies on what at this moment: disks, partitions and the devices made of them, by kernel name.

use crate::inventory::{Disk, Inventory, Partition, Stacked, Table, Use};
use std::collections::{BTreeMap, BTreeSet};

pub struct Stack<'a> {
    inventory: &'a Inventory,
    /// Partition to the disk or stacked device that it is a part of.
    wholes: BTreeMap<&'a str, &'a str>,
    /// Device to what holds it directly.
    holders: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

/// A disk, a partition or a stacked device: something that can be in use.
#[derive(Clone, Copy)]
pub struct Unit<'a> {
    pub name: &'a str,
    pub device: &'a str,
    pub uses: &'a [Use],
}

impl<'a> Stack<'a> {
    pub fn new(inventory: &'a Inventory) -> Stack<'a> {
        let mut stack = Stack { inventory, wholes: BTreeMap::new(), holders: BTreeMap::new() };
        let disks = inventory.disks.iter().flat_map(|disk| parts(&disk.table).map(|part| (part, disk.name.as_str())));
        let stacked = inventory.stacked.iter();
        let stacked = stacked.flat_map(|device| parts(&device.table).map(|part| (part, device.name.as_str())));
        stack.wholes.extend(disks.chain(stacked).map(|(part, whole)| (kernel_name(&part.device), whole)));
        let units: Vec<Unit> = inventory.disks.iter().flat_map(disk_units).collect();
        let units = units.into_iter().chain(inventory.stacked.iter().flat_map(stacked_units));
        for unit in units {
            let held = unit.uses.iter().filter_map(|usage| match usage {
                Use::Holder(holder) => Some(holder.as_str()),
                _ => None,
            });
            stack.holders.entry(unit.name).or_default().extend(held);
        }
        for device in &inventory.stacked {
            for below in &device.below {
                stack.holders.entry(below).or_default().insert(&device.name);
            }
        }
        stack
    }

    /// Kernel name of a device path as the inventory writes it: `/dev/sda1` → `sda1`, `/dev/mapper/vg00-root` → `dm-0`.
    pub fn name<'b>(&self, device: &'b str) -> &'b str
    where
        'a: 'b,
    {
        let stacked = self.inventory.stacked.iter().find(|stacked| stacked.device == device);
        stacked.map_or_else(|| kernel_name(device), |stacked| stacked.name.as_str())
    }

    pub fn stacked(&self, name: &str) -> Option<&'a Stacked> {
        self.inventory.stacked.iter().find(|device| device.name == name)
    }

    /// `GROUP/VOLUME` of a logical volume. LVM tells it, or the name of the mapping, in which LVM writes each dash of a name
    /// twice.
    pub fn volume_name(&self, device: &Stacked) -> Option<String> {
        let groups = self.inventory.groups.iter();
        let mut volumes = groups.flat_map(|group| group.volumes.iter().map(move |volume| (group, volume)));
        match volumes.find(|(_, volume)| volume.running.as_ref() == Some(&device.name)) {
            Some((group, volume)) => Some(format!("{}/{}", group.name, volume.name)),
            None => mapping_name(device.device.strip_prefix("/dev/mapper/")?),
        }
    }

    /// What holds the device directly.
    pub fn holders(&self, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.holders.get(name).cloned().unwrap_or_default().into_iter()
    }

    /// Names of the disks at the bottom of a device. What nobody knows stands for itself.
    pub fn disks(&self, name: &str) -> BTreeSet<String> {
        let (mut disks, mut seen, mut open) = (BTreeSet::new(), BTreeSet::new(), vec![name.to_owned()]);
        while let Some(name) = open.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            match (self.wholes.get(name.as_str()), self.stacked(&name)) {
                (Some(whole), _) => open.push((*whole).to_owned()),
                (None, Some(stacked)) if !stacked.below.is_empty() => open.extend(stacked.below.iter().cloned()),
                _ => drop(disks.insert(name)),
            }
        }
        disks
    }
}

/// The disk and its partitions.
pub fn disk_units(disk: &Disk) -> impl Iterator<Item = Unit<'_>> {
    let whole = Unit { name: &disk.name, device: &disk.device, uses: &disk.uses };
    std::iter::once(whole).chain(parts(&disk.table).map(partition_unit))
}

/// The stacked device and its partitions.
pub fn stacked_units(device: &Stacked) -> impl Iterator<Item = Unit<'_>> {
    let whole = Unit { name: &device.name, device: &device.device, uses: &device.uses };
    std::iter::once(whole).chain(parts(&device.table).map(partition_unit))
}

fn partition_unit(partition: &Partition) -> Unit<'_> {
    Unit { name: kernel_name(&partition.device), device: &partition.device, uses: &partition.uses }
}

fn parts(table: &Option<Table>) -> impl Iterator<Item = &Partition> {
    table.iter().flat_map(|table| &table.partitions)
}

/// `vg0-lv--0` → `vg0/lv-0`.
fn mapping_name(mapping: &str) -> Option<String> {
    // No name has a slash, so that it can stand for a dash meanwhile.
    let (group, volume) =
        mapping.replace("--", "/").split_once('-').map(|(group, volume)| (group.to_owned(), volume.to_owned()))?;
    Some(format!("{}/{}", group.replace('/', "-"), volume.replace('/', "-")))
}

fn kernel_name(device: &str) -> &str {
    device.strip_prefix("/dev/").unwrap_or(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_called_as_its_volume() {
        for (mapping, name) in [
            ("vg0-lv--0", Some("vg0/lv-0")),
            ("csi--lvm-varlib", Some("csi-lvm/varlib")),
            ("a--b--c-d", Some("a-b-c/d")),
            ("mpatha", None),
            ("", None),
        ] {
            assert_eq!(mapping_name(mapping).as_deref(), name, "{mapping}");
        }
    }
}
