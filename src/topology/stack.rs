//! What lies on what in a machine at this moment: disks, partitions and the devices made of them, by kernel name.

use super::graph::{Graph, Node, walk};
use crate::device::{DevicePath, KernelName};
use crate::inventory::{Disk, Inventory, Partition, Signature, Stacked, Table, Use};
use crate::order::Gather;
use std::collections::BTreeSet;

/// What a node of the machine is.
#[derive(Debug, Clone, Copy)]
pub enum Unit<'a> {
    Disk(&'a Disk),
    Partition(&'a Partition),
    Stacked(&'a Stacked),
    /// Something is said to lie on it or to hold something, and no more is known.
    Unknown,
}

impl<'a> Unit<'a> {
    pub fn device(&self) -> Option<&'a DevicePath> {
        match self {
            Unit::Disk(disk) => Some(&disk.device),
            Unit::Partition(partition) => Some(&partition.device),
            Unit::Stacked(device) => Some(&device.device),
            Unit::Unknown => None,
        }
    }

    pub fn uses(&self) -> &'a [Use] {
        match self {
            Unit::Disk(disk) => &disk.uses,
            Unit::Partition(partition) => &partition.uses,
            Unit::Stacked(device) => &device.uses,
            Unit::Unknown => &[],
        }
    }

    pub fn signatures(&self) -> &'a [Signature] {
        match self {
            Unit::Disk(disk) => &disk.signatures,
            Unit::Partition(partition) => &partition.signatures,
            Unit::Stacked(device) => &device.signatures,
            Unit::Unknown => &[],
        }
    }

    pub fn is_blank(&self) -> bool {
        match self {
            Unit::Disk(disk) => disk.blank,
            Unit::Partition(partition) => partition.blank,
            Unit::Stacked(device) => device.blank,
            Unit::Unknown => false,
        }
    }

    pub fn table(&self) -> Option<&'a Table> {
        match self {
            Unit::Disk(disk) => disk.table.as_ref(),
            Unit::Stacked(device) => device.table.as_ref(),
            Unit::Partition(_) | Unit::Unknown => None,
        }
    }
}

/// All disks, partitions and stacked devices, partitions after what they are parts of.
pub fn units(inventory: &Inventory) -> impl Iterator<Item = (&DevicePath, Unit<'_>)> {
    let disks = inventory.disks.iter().map(|disk| (&disk.device, Unit::Disk(disk)));
    let stacked = inventory.stacked.iter().map(|device| (&device.device, Unit::Stacked(device)));
    disks.chain(stacked).flat_map(|(device, whole)| {
        let partitions = whole.table().into_iter().flat_map(|table| &table.partitions);
        std::iter::once((device, whole)).chain(partitions.map(|part| (&part.device, Unit::Partition(part))))
    })
}

pub struct Stack<'a> {
    inventory: &'a Inventory,
    graph: Graph<KernelName, Unit<'a>>,
}

impl<'a> Stack<'a> {
    pub fn new(inventory: &'a Inventory) -> Stack<'a> {
        let mut stack = Stack { inventory, graph: Graph::default() };
        let disks = inventory.disks.iter().map(|disk| (&disk.name, Unit::Disk(disk)));
        let stacked = inventory.stacked.iter().map(|device| (&device.name, Unit::Stacked(device)));
        for (name, unit) in disks.chain(stacked) {
            let whole = stack.graph.provide(name.clone(), unit);
            for partition in unit.table().iter().flat_map(|table| &table.partitions) {
                let part = stack.graph.provide(partition.device.kernel_name(), Unit::Partition(partition));
                stack.graph.link(whole, part);
            }
        }
        // Both sides say who lies on whom: one of them may know more.
        for node in 0..stack.graph.nodes.len() {
            let unit = stack.graph.nodes[node].item;
            for usage in unit.uses() {
                if let Use::Holder(holder) = usage {
                    let upper = stack.node(holder);
                    stack.graph.link(node, upper);
                }
            }
            if let Unit::Stacked(device) = unit {
                for below in &device.below {
                    let lower = stack.node(below);
                    stack.graph.link(lower, node);
                }
            }
        }
        stack
    }

    fn node(&mut self, name: &KernelName) -> usize {
        self.graph.find(name).unwrap_or_else(|| self.graph.provide(name.clone(), Unit::Unknown))
    }

    /// Kernel name of a device path as the inventory writes it: `/dev/sda1` → `sda1`, `/dev/mapper/vg00-root` → `dm-0`.
    pub fn name(&self, device: &DevicePath) -> KernelName {
        self.inventory.kernel_name(device)
    }

    pub fn unit(&self, name: &KernelName) -> Unit<'a> {
        self.graph.find(name).map_or(Unit::Unknown, |node| self.graph.nodes[node].item)
    }

    pub fn stacked(&self, name: &KernelName) -> Option<&'a Stacked> {
        match self.unit(name) {
            Unit::Stacked(device) => Some(device),
            _ => None,
        }
    }

    /// `GROUP/VOLUME` of a logical volume. LVM tells it, or the name of the mapping, in which LVM writes each dash of a name
    /// twice.
    pub fn volume_name(&self, device: &Stacked) -> Option<String> {
        let groups = self.inventory.groups.iter();
        let mut volumes = groups.flat_map(|group| group.volumes.iter().map(move |volume| (group, volume)));
        match volumes.find(|(_, volume)| volume.running.as_ref() == Some(&device.name)) {
            Some((group, volume)) => Some(format!("{}/{}", group.name, volume.name)),
            None => mapping_name(device.device.as_str().strip_prefix("/dev/mapper/")?),
        }
    }

    /// What holds the device directly. Its partitions are parts of it, and do not.
    pub fn holders(&self, name: &KernelName) -> BTreeSet<KernelName> {
        self.above(name, |unit| !matches!(unit, Unit::Partition(_)))
    }

    fn above(&self, name: &KernelName, is: impl Fn(Unit) -> bool) -> BTreeSet<KernelName> {
        let nodes = self.graph.find(name).into_iter().flat_map(|node| &self.graph.nodes[node].above);
        nodes.map(|node| &self.graph.nodes[*node]).filter(|node| is(node.item)).map(|node| node.name.clone()).gather()
    }

    /// The device and all that is made of it as a whole.
    pub fn with_holders(&self, name: &KernelName) -> BTreeSet<KernelName> {
        walk::reach([name.clone()], |name| self.holders(name).into_iter().collect())
    }

    /// The device and all that is made of it or of its partitions, in the order in which it is taken down: itself last.
    pub fn topmost_first(&self, name: &KernelName) -> Vec<KernelName> {
        walk::farthest_first(name.clone(), |name| {
            let partitions = self.unit(name).table().into_iter().flat_map(|table| &table.partitions);
            self.holders(name).into_iter().chain(partitions.map(|part| part.device.kernel_name())).collect()
        })
    }

    /// Names of the disks at the bottom of a device. What nobody knows stands for itself.
    pub fn disks(&self, name: &KernelName) -> BTreeSet<KernelName> {
        let below = |node: &usize| match &self.graph.nodes[*node] {
            // Whatever is said of it, a disk is the bottom.
            Node { item: Unit::Disk(_), .. } => Vec::new(),
            node => node.below.clone(),
        };
        match self.graph.find(name) {
            Some(node) => {
                let bottoms = walk::ends([node], below).into_iter();
                bottoms.map(|node| self.graph.nodes[node].name.clone()).gather()
            }
            None => [name.clone()].into(),
        }
    }

    /// Does one of them lie on the other, or something on both?
    pub fn is_one_thing(&self, name: &KernelName, other: &KernelName) -> bool {
        self.disks(name).contains(other)
            || self.disks(other).contains(name)
            || !self.with_holders(name).is_disjoint(&self.with_holders(other))
    }
}

/// `vg0-lv--0` → `vg0/lv-0`.
fn mapping_name(mapping: &str) -> Option<String> {
    // No name has a slash, so that it can stand for a dash meanwhile.
    let (group, volume) =
        mapping.replace("--", "/").split_once('-').map(|(group, volume)| (group.to_owned(), volume.to_owned()))?;
    Some(format!("{}/{}", group.replace('/', "-"), volume.replace('/', "-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory(disks: &str, stacked: &str) -> Inventory {
        let (disks, stacked) = (serde_json::from_str(disks).unwrap(), serde_json::from_str(stacked).unwrap());
        Inventory { disks, stacked, ..Inventory::default() }
    }

    /// sysfs has an exclamation mark where `/dev` has a directory.
    #[test]
    fn what_lies_on_a_disk_with_a_directory_of_its_own_is_found() {
        let inventory = inventory(
            r#"[{"name": "cciss!c0d0", "device": "/dev/cciss/c0d0", "size_bytes": 0, "sector_bytes": 512, "table": {"kind": "gpt",
                "partitions": [{"number": 1, "device": "/dev/cciss/c0d0p1", "start_bytes": 0, "size_bytes": 0}]}}]"#,
            r#"[{"name": "dm-0", "device": "/dev/mapper/vg00-root", "kind": "volume", "below": ["cciss!c0d0p1"], "size_bytes": 0}]"#,
        );
        let stack = Stack::new(&inventory);
        let part = DevicePath::from("/dev/cciss/c0d0p1");
        assert_eq!(stack.name(&part), "cciss!c0d0p1");
        assert_eq!(stack.disks(&"dm-0".into()), ["cciss!c0d0".into()].into());
        assert_eq!(stack.holders(&stack.name(&part)), ["dm-0".into()].into());
        assert_eq!(stack.topmost_first(&"cciss!c0d0".into()), ["dm-0", "cciss!c0d0p1", "cciss!c0d0"]);
    }

    #[test]
    fn both_sides_say_who_lies_on_whom() {
        let inventory = inventory(
            r#"[{"name": "sda", "device": "/dev/sda", "size_bytes": 0, "sector_bytes": 512, "uses": [{"holder": "md9"}]},
                {"name": "sdb", "device": "/dev/sdb", "size_bytes": 0, "sector_bytes": 512, "uses": [{"holder": "sda"}]}]"#,
            r#"[{"name": "md9", "device": "/dev/md9", "kind": "array", "below": ["sdb", "sdx"], "size_bytes": 0}]"#,
        );
        let stack = Stack::new(&inventory);
        let disks = |name: &str| stack.disks(&name.into()).iter().map(KernelName::to_string).collect::<Vec<_>>();
        assert_eq!(disks("md9"), ["sda", "sdb", "sdx"]);
        assert_eq!(disks("sda"), ["sda"], "a disk lies on nothing");
        assert_eq!(disks("nobody"), ["nobody"]);
    }

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
