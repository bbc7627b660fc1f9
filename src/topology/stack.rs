//! Stacking of the block devices of a machine: disks, partitions and the devices on them, by kernel name.

use super::graph::reach::{Met, Reach};
use super::graph::{Graph, Node, walk};
use super::index::Index;
use super::steps::Steps;
use crate::device::{DevicePath, KernelName};
use crate::inventory::{Array, Disk, Inventory, LogicalVolume, Partition, Signature, Stacked, Table, Use, VolumeGroup};
use crate::order::{self, Gather};
use std::cell::OnceCell;
use std::collections::BTreeSet;

/// A node of the machine.
#[derive(Debug, Clone, Copy)]
pub enum Unit<'a> {
    Disk(&'a Disk),
    Partition(&'a Partition),
    Stacked(&'a Stacked),
    /// A device that other devices refer to, without further information.
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

/// Returns all disks, partitions and stacked devices, with partitions after their whole device.
pub fn units(inventory: &Inventory) -> impl Iterator<Item = (&DevicePath, Unit<'_>)> {
    let disks = inventory.disks.iter().map(|disk| (&disk.device, Unit::Disk(disk)));
    let stacked = inventory.stacked.iter().map(|device| (&device.device, Unit::Stacked(device)));
    disks.chain(stacked).flat_map(|(device, whole)| {
        let partitions = whole.table().into_iter().flat_map(|table| &table.partitions);
        std::iter::once((device, whole)).chain(partitions.map(|part| (&part.device, Unit::Partition(part))))
    })
}

/// The block devices of a machine, and which of them lie on which.
pub struct Stack<'a> {
    index: Index<'a>,
    graph: Graph<KernelName, Unit<'a>>,
    /// Disks and unknown devices at the bottom of each node.
    bottoms: OnceCell<Reach>,
    /// Topmost holders of each node, except partitions.
    tops: OnceCell<Reach>,
    steps: Steps,
}

impl<'a> Stack<'a> {
    pub fn new(inventory: &'a Inventory) -> Stack<'a> {
        Stack::with(inventory, Steps::unlimited())
    }

    /// Returns a stack with a limited number of steps. Its answers may be incomplete once they are exhausted.
    pub fn bounded(inventory: &'a Inventory) -> Stack<'a> {
        Stack::with(inventory, Steps::bounded())
    }

    fn with(inventory: &'a Inventory, steps: Steps) -> Stack<'a> {
        let mut stack = Stack {
            index: Index::new(inventory),
            graph: Graph::default(),
            bottoms: OnceCell::new(),
            tops: OnceCell::new(),
            steps,
        };
        let disks = inventory.disks.iter().map(|disk| (&disk.name, Unit::Disk(disk)));
        let stacked = inventory.stacked.iter().map(|device| (&device.name, Unit::Stacked(device)));
        for (name, unit) in disks.chain(stacked) {
            let whole = stack.graph.provide(name.clone(), unit);
            for partition in unit.table().iter().flat_map(|table| &table.partitions) {
                let part = stack.graph.provide(partition.device.kernel_name(), Unit::Partition(partition));
                stack.graph.link(whole, part);
            }
        }
        // Both sides list the relation, and either may be more complete.
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

    /// Returns the counter of steps for answers about disks and pairs of devices.
    pub fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Returns the kernel name of a device path of the inventory: `/dev/sda1` → `sda1`, `/dev/mapper/vg00-root` → `dm-0`.
    pub fn name(&self, device: &DevicePath) -> KernelName {
        self.index.kernel_name(device)
    }

    pub fn unit(&self, name: &KernelName) -> Unit<'a> {
        self.graph.find(name).map_or(Unit::Unknown, |node| self.graph.nodes[node].item)
    }

    /// Returns the first disk, partition or stacked device with that path.
    pub fn unit_at(&self, device: &DevicePath) -> Option<Unit<'a>> {
        self.index.unit(device)
    }

    /// Returns the disk or stacked device that has the partition in its table.
    pub fn whole_of(&self, partition: &DevicePath) -> Option<Unit<'a>> {
        self.index.whole_of(partition)
    }

    pub fn stacked(&self, name: &KernelName) -> Option<&'a Stacked> {
        match self.unit(name) {
            Unit::Stacked(device) => Some(device),
            _ => None,
        }
    }

    /// Returns the array that runs under that name.
    pub fn array(&self, name: &KernelName) -> Option<&'a Array> {
        self.index.array(name)
    }

    /// Returns the logical volume that is active under that name, and its group.
    pub fn volume(&self, name: &KernelName) -> Option<(&'a VolumeGroup, &'a LogicalVolume)> {
        self.index.volume(name)
    }

    /// Returns the arrays with the device as a member, running or not.
    pub fn arrays_on(&self, device: &DevicePath) -> &[&'a Array] {
        self.index.arrays_on(device)
    }

    /// Returns the groups with the device as a physical volume, active or not.
    pub fn groups_on(&self, device: &DevicePath) -> &[&'a VolumeGroup] {
        self.index.groups_on(device)
    }

    /// Returns `GROUP/VOLUME` of a logical volume, from LVM or from the name of the mapping, in which LVM doubles each dash of a name.
    pub fn volume_name(&self, device: &Stacked) -> Option<String> {
        match self.volume(&device.name) {
            Some((group, volume)) => Some(format!("{}/{}", group.name, volume.name)),
            None => mapping_name(device.device.as_str().strip_prefix("/dev/mapper/")?),
        }
    }

    /// Returns the direct holders of the device. Its partitions are parts of it, not holders.
    pub fn holders(&self, name: &KernelName) -> BTreeSet<KernelName> {
        let nodes = self.graph.find(name).into_iter().flat_map(|node| self.holding(node));
        nodes.map(|node| self.graph.nodes[node].name.clone()).gather()
    }

    /// Returns the sorted names of the direct holders that the inventory does not list as stacked devices.
    pub fn unknown_holders(&self, name: &KernelName) -> Vec<&KernelName> {
        let nodes = self.graph.find(name).into_iter().flat_map(|node| self.holding(node));
        let unknown = nodes.map(|node| &self.graph.nodes[node]).filter(|node| !matches!(node.item, Unit::Stacked(_)));
        let mut names: Vec<&KernelName> = unknown.map(|node| &node.name).collect();
        order::sort(&mut names);
        names.dedup();
        names
    }

    /// Returns whether the device has a direct holder.
    pub fn is_held(&self, name: &KernelName) -> bool {
        self.graph.find(name).is_some_and(|node| self.holding(node).next().is_some())
    }

    fn holding(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let above = self.graph.nodes[node].above.iter().copied();
        above.filter(|upper| !matches!(self.graph.nodes[*upper].item, Unit::Partition(_)))
    }

    /// Returns the device and everything on it or on its partitions, in the order in which it is taken down: itself last.
    pub fn topmost_first(&self, name: &KernelName) -> Vec<KernelName> {
        self.topmost_first_but(&BTreeSet::new(), name)
    }

    /// Like [`Stack::topmost_first`], without `known` devices and everything on them.
    pub fn topmost_first_but(&self, known: &BTreeSet<KernelName>, name: &KernelName) -> Vec<KernelName> {
        walk::farthest_first_but(known, name.clone(), |name| {
            let partitions = self.unit(name).table().into_iter().flat_map(|table| &table.partitions);
            self.holders(name).into_iter().chain(partitions.map(|part| part.device.kernel_name())).collect()
        })
    }

    fn bottoms(&self) -> &Reach {
        let below = |node: &Node<KernelName, Unit>| match node.item {
            // A disk is the bottom, even if it is listed above another device.
            Unit::Disk(_) => Vec::new(),
            _ => node.below.clone(),
        };
        self.bottoms.get_or_init(|| Reach::new(self.graph.nodes.iter().map(below).collect()))
    }

    fn tops(&self) -> &Reach {
        let nodes = 0..self.graph.nodes.len();
        self.tops.get_or_init(|| Reach::new(nodes.map(|node| self.holding(node).collect()).collect()))
    }

    /// Returns the names of the disks at the bottom of a device. An unknown device stands for itself.
    pub fn disks(&self, name: &KernelName) -> BTreeSet<KernelName> {
        self.disks_of([name])
    }

    /// Returns the names of the disks at the bottom of any of these devices.
    pub fn disks_of<'n>(&self, names: impl IntoIterator<Item = &'n KernelName>) -> BTreeSet<KernelName> {
        let (mut nodes, mut disks) = (Vec::new(), BTreeSet::new());
        for name in names {
            match self.graph.find(name) {
                Some(node) => nodes.push(node),
                None => drop(disks.insert(name.clone())),
            }
        }
        let ends = self.bottoms().ends_of(nodes);
        if self.steps.take(ends.len()) {
            disks.extend(ends.into_iter().map(|node| self.graph.nodes[node].name.clone()));
        }
        disks
    }

    /// Combines the values of the disks at the bottom of each device.
    pub fn combined(&self, value: impl Fn(&KernelName) -> u8) -> Combined {
        Combined(self.bottoms().combine(|end| value(&self.graph.nodes[end].name)))
    }

    /// Returns the combined value of a device; `None` if the inventory does not contain it.
    pub fn value_of(&self, combined: &Combined, name: &KernelName) -> Option<u8> {
        combined.0.get(self.graph.find(name)?).copied()
    }

    /// Returns whether one of them lies on the other, or a third device on both.
    pub fn is_one_thing(&self, name: &KernelName, other: &KernelName) -> bool {
        let (Some(one), Some(two)) = (self.graph.find(name), self.graph.find(other)) else { return name == other };
        self.steps.take(1);
        let bottoms = self.bottoms();
        bottoms.leads_to(one, two) || bottoms.leads_to(two, one) || self.tops().meet(one, two)
    }

    /// Counts the devices that share nothing with those before them.
    pub fn count_apart<'n>(&self, names: impl IntoIterator<Item = &'n KernelName>) -> usize {
        let (mut met, mut unknown) = (Met::default(), BTreeSet::new());
        let mut is_apart = |name: &&KernelName| match self.graph.find(name) {
            Some(node) => met.is_apart(self.bottoms(), self.tops(), node),
            None => unknown.insert((*name).clone()),
        };
        names.into_iter().filter(|name| is_apart(name)).count()
    }
}

/// A value for each device, combined from the disks at its bottom.
pub struct Combined(Vec<u8>);

/// Decodes the name of a mapping: `vg0-lv--0` → `vg0/lv-0`.
fn mapping_name(mapping: &str) -> Option<String> {
    // Names contain no slash, so it can temporarily replace a dash.
    let (group, volume) =
        mapping.replace("--", "/").split_once('-').map(|(group, volume)| (group.to_owned(), volume.to_owned()))?;
    Some(format!("{}/{}", group.replace('/', "-"), volume.replace('/', "-")))
}

#[cfg(test)]
mod tests;
