//! Graph of a machine's block devices: disks, partitions, and the devices on top of them, named by kernel names.

use super::computation_step_budget::StepBudget;
use super::device_name_index::InventoryIndex;
use super::layer_graph::reachability::{DistinctNodes, Reachability};
use super::layer_graph::{LayerGraph, LayerNode, traversal};
use crate::device_name::{DevicePath, KernelName};
use crate::inventory::{
    DeviceSignature, DeviceUse, DiskPartition, DiskTable, Inventory, InventoryDisk, LvmLogicalVolume, LvmVolumeGroup,
    MdArray, StackedDevice,
};
use std::cell::OnceCell;
use std::collections::BTreeSet;

/// A block device of the machine.
#[derive(Debug, Clone, Copy)]
pub enum StackUnit<'a> {
    Disk(&'a InventoryDisk),
    Partition(&'a DiskPartition),
    Stacked(&'a StackedDevice),
    /// A device to which other devices refer, but which the inventory does not list.
    Unknown,
}

impl<'a> StackUnit<'a> {
    pub fn device(&self) -> Option<&'a DevicePath> {
        match self {
            StackUnit::Disk(disk) => Some(&disk.device),
            StackUnit::Partition(partition) => Some(&partition.device),
            StackUnit::Stacked(device) => Some(&device.device),
            StackUnit::Unknown => None,
        }
    }

    pub fn uses(&self) -> &'a [DeviceUse] {
        match self {
            StackUnit::Disk(disk) => &disk.uses,
            StackUnit::Partition(partition) => &partition.uses,
            StackUnit::Stacked(device) => &device.uses,
            StackUnit::Unknown => &[],
        }
    }

    pub fn signatures(&self) -> &'a [DeviceSignature] {
        match self {
            StackUnit::Disk(disk) => &disk.signatures,
            StackUnit::Partition(partition) => &partition.signatures,
            StackUnit::Stacked(device) => &device.signatures,
            StackUnit::Unknown => &[],
        }
    }

    pub fn is_blank(&self) -> bool {
        match self {
            StackUnit::Disk(disk) => disk.blank,
            StackUnit::Partition(partition) => partition.blank,
            StackUnit::Stacked(device) => device.blank,
            StackUnit::Unknown => false,
        }
    }

    /// Returns the reason why the contents of a disk or stacked device are not completely known. Always `None` for
    /// partitions: the reason is part of the device that contains the partition.
    pub fn unreadable(&self) -> Option<&'a str> {
        match self {
            StackUnit::Disk(disk) => disk.unreadable.as_deref(),
            StackUnit::Stacked(device) => device.unreadable.as_deref(),
            StackUnit::Partition(_) | StackUnit::Unknown => None,
        }
    }

    pub fn table(&self) -> Option<&'a DiskTable> {
        match self {
            StackUnit::Disk(disk) => disk.table.as_ref(),
            StackUnit::Stacked(device) => device.table.as_ref(),
            StackUnit::Partition(_) | StackUnit::Unknown => None,
        }
    }
}

/// Returns all disks, partitions and stacked devices. Partitions follow the device that contains them.
pub fn all_units(inventory: &Inventory) -> impl Iterator<Item = (&DevicePath, StackUnit<'_>)> {
    let disks = inventory.disks.iter().map(|disk| (&disk.device, StackUnit::Disk(disk)));
    let stacked = inventory.stacked.iter().map(|device| (&device.device, StackUnit::Stacked(device)));
    disks.chain(stacked).flat_map(|(device, whole)| {
        let partitions = whole.table().into_iter().flat_map(|table| &table.partitions);
        std::iter::once((device, whole)).chain(partitions.map(|part| (&part.device, StackUnit::Partition(part))))
    })
}

/// Block devices of a machine, and the relations between upper and lower devices.
pub struct DeviceStack<'a> {
    index: InventoryIndex<'a>,
    graph: LayerGraph<KernelName, StackUnit<'a>>,
    /// Lowest devices below each node: disks, and other devices for which the inventory lists no underlying device.
    bottoms: OnceCell<Reachability>,
    /// Topmost holders above each node. Partitions are not holders.
    tops: OnceCell<Reachability>,
    steps: StepBudget,
}

impl<'a> DeviceStack<'a> {
    pub fn new(inventory: &'a Inventory) -> DeviceStack<'a> {
        DeviceStack::build_stack(inventory, StepBudget::unlimited())
    }

    /// Returns a stack with a limit on computation steps. Once the limit is exceeded (see [`DeviceStack::steps`]),
    /// results are incomplete.
    pub fn bounded(inventory: &'a Inventory) -> DeviceStack<'a> {
        DeviceStack::build_stack(inventory, StepBudget::bounded())
    }

    fn build_stack(inventory: &'a Inventory, steps: StepBudget) -> DeviceStack<'a> {
        let mut stack = DeviceStack {
            index: InventoryIndex::new(inventory),
            graph: LayerGraph::default(),
            bottoms: OnceCell::new(),
            tops: OnceCell::new(),
            steps,
        };
        let disks = inventory.disks.iter().map(|disk| (&disk.name, StackUnit::Disk(disk)));
        let stacked = inventory.stacked.iter().map(|device| (&device.name, StackUnit::Stacked(device)));
        for (name, unit) in disks.chain(stacked) {
            let whole = stack.graph.add_named(name.clone(), unit);
            for partition in unit.table().iter().flat_map(|table| &table.partitions) {
                let part = stack.graph.add_named(partition.device.kernel_name(), StackUnit::Partition(partition));
                stack.graph.link(whole, part);
            }
        }
        // Links are read from lower devices (`uses`) and from upper devices (`below`), because either list may be
        // incomplete.
        for node in 0..stack.graph.nodes.len() {
            let unit = stack.graph.nodes[node].item;
            for usage in unit.uses() {
                if let DeviceUse::Holder(holder) = usage {
                    let upper = stack.find_or_add(holder);
                    stack.graph.link(node, upper);
                }
            }
            if let StackUnit::Stacked(device) = unit {
                for below in &device.below {
                    let lower = stack.find_or_add(below);
                    stack.graph.link(lower, node);
                }
            }
        }
        stack
    }

    fn find_or_add(&mut self, name: &KernelName) -> usize {
        self.graph.find(name).unwrap_or_else(|| self.graph.add_named(name.clone(), StackUnit::Unknown))
    }

    /// Returns the counter of computation steps. Each disk in a result is a step, and so is each compared pair of
    /// devices.
    pub fn steps(&self) -> &StepBudget {
        &self.steps
    }

    /// Returns the kernel name of a device path: `sda1` for `/dev/sda1`, `dm-0` for `/dev/mapper/vg00-root`.
    pub fn kernel_name(&self, device: &DevicePath) -> KernelName {
        self.index.kernel_name(device)
    }

    pub fn find_unit(&self, name: &KernelName) -> StackUnit<'a> {
        self.graph.find(name).map_or(StackUnit::Unknown, |node| self.graph.nodes[node].item)
    }

    /// Returns the first disk, partition or stacked device with this path.
    pub fn unit_at(&self, device: &DevicePath) -> Option<StackUnit<'a>> {
        self.index.unit(device)
    }

    /// Returns the disk or stacked device whose partition table contains the partition.
    pub fn whole_of(&self, partition: &DevicePath) -> Option<StackUnit<'a>> {
        self.index.whole_of(partition)
    }

    pub fn find_stacked(&self, name: &KernelName) -> Option<&'a StackedDevice> {
        match self.find_unit(name) {
            StackUnit::Stacked(device) => Some(device),
            _ => None,
        }
    }

    /// Returns the array that runs under this kernel name.
    pub fn find_array(&self, name: &KernelName) -> Option<&'a MdArray> {
        self.index.array(name)
    }

    /// Returns the logical volume that is active under this kernel name, and its group.
    pub fn find_volume(&self, name: &KernelName) -> Option<(&'a LvmVolumeGroup, &'a LvmLogicalVolume)> {
        self.index.volume(name)
    }

    /// Returns the arrays, whether running or not, that have the device as a member.
    pub fn arrays_on(&self, device: &DevicePath) -> &[&'a MdArray] {
        self.index.arrays_on(device)
    }

    /// Returns the groups, whether active or not, that have the device as a physical volume.
    pub fn groups_on(&self, device: &DevicePath) -> &[&'a LvmVolumeGroup] {
        self.index.groups_on(device)
    }

    /// Returns `GROUP/VOLUME` of a logical volume. If LVM does not report the volume, the names are decoded from the
    /// name of the mapping, in which LVM doubles each hyphen.
    pub fn volume_name(&self, device: &StackedDevice) -> Option<String> {
        match self.find_volume(&device.name) {
            Some((group, volume)) => Some(format!("{}/{}", group.name, volume.name)),
            None => decode_mapping_name(device.device.as_str().strip_prefix("/dev/mapper/")?),
        }
    }

    /// Returns the devices directly on top of the device. Partitions are part of a device, not on top of it.
    pub fn holders(&self, name: &KernelName) -> BTreeSet<KernelName> {
        let nodes = self.graph.find(name).into_iter().flat_map(|node| self.direct_holders(node));
        nodes.map(|node| self.graph.nodes[node].name.clone()).collect()
    }

    /// Returns the names of the direct holders that the inventory does not list as stacked devices, sorted.
    pub fn unknown_holders(&self, name: &KernelName) -> Vec<&KernelName> {
        let nodes = self.graph.find(name).into_iter().flat_map(|node| self.direct_holders(node));
        let unknown =
            nodes.map(|node| &self.graph.nodes[node]).filter(|node| !matches!(node.item, StackUnit::Stacked(_)));
        let mut names: Vec<&KernelName> = unknown.map(|node| &node.name).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Returns whether another device is directly on top of the device.
    pub fn is_held(&self, name: &KernelName) -> bool {
        self.graph.find(name).is_some_and(|node| self.direct_holders(node).next().is_some())
    }

    fn direct_holders(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let above = self.graph.nodes[node].above.iter().copied();
        above.filter(|upper| !matches!(self.graph.nodes[*upper].item, StackUnit::Partition(_)))
    }

    /// Returns the device and all devices on top of it or its partitions, in the order in which they must be stopped.
    /// The device itself is last.
    pub fn topmost_first(&self, name: &KernelName) -> Vec<KernelName> {
        self.topmost_first_except(&BTreeSet::new(), name)
    }

    /// Returns the devices of [`DeviceStack::topmost_first`], in the same order. Omits the devices in `known`. Also
    /// omits a device if every path from this device down to `name` contains a device in `known`.
    pub fn topmost_first_except(&self, known: &BTreeSet<KernelName>, name: &KernelName) -> Vec<KernelName> {
        traversal::order_farthest_first_except(known, name.clone(), |name| {
            let partitions = self.find_unit(name).table().into_iter().flat_map(|table| &table.partitions);
            self.holders(name).into_iter().chain(partitions.map(|part| part.device.kernel_name())).collect()
        })
    }

    fn bottoms(&self) -> &Reachability {
        let below = |node: &LayerNode<KernelName, StackUnit>| match node.item {
            // The traversal ends at a disk, even if the inventory lists another device below the disk.
            StackUnit::Disk(_) => Vec::new(),
            _ => node.below.clone(),
        };
        self.bottoms.get_or_init(|| Reachability::new(self.graph.nodes.iter().map(below).collect()))
    }

    fn tops(&self) -> &Reachability {
        let nodes = 0..self.graph.nodes.len();
        self.tops.get_or_init(|| Reachability::new(nodes.map(|node| self.direct_holders(node).collect()).collect()))
    }

    /// Returns the names of the disks below a device. For a device that the inventory does not contain, returns the
    /// name of the device itself.
    pub fn disks_below(&self, name: &KernelName) -> BTreeSet<KernelName> {
        self.disks_below_all([name])
    }

    /// Returns the names of the disks below any of these devices.
    pub fn disks_below_all<'n>(&self, names: impl IntoIterator<Item = &'n KernelName>) -> BTreeSet<KernelName> {
        let (mut nodes, mut disks) = (Vec::new(), BTreeSet::new());
        for name in names {
            match self.graph.find(name) {
                Some(node) => nodes.push(node),
                None => drop(disks.insert(name.clone())),
            }
        }
        let ends = self.bottoms().ends_of(nodes);
        if self.steps.take_steps(ends.len()) {
            disks.extend(ends.into_iter().map(|node| self.graph.nodes[node].name.clone()));
        }
        disks
    }

    /// Computes, for each device, the bitwise OR of the values of all disks below the device.
    pub fn combine_values(&self, value: impl Fn(&KernelName) -> u8) -> CombinedValues {
        self.combine_values_from(value, |_| None)
    }

    /// Computes values like [`DeviceStack::combine_values`]. If `upper` assigns a value to a partition or stacked
    /// device, this value replaces the values of the disks below it.
    pub fn combine_values_from(
        &self,
        disk: impl Fn(&KernelName) -> u8,
        upper: impl Fn(&KernelName) -> Option<u8>,
    ) -> CombinedValues {
        let value = |index: usize| {
            let node = &self.graph.nodes[index];
            match node.item {
                StackUnit::Disk(_) => Some(disk(&node.name)),
                StackUnit::Partition(_) => upper(&node.name),
                StackUnit::Stacked(_) => upper(&node.name).or_else(|| node.below.is_empty().then(|| disk(&node.name))),
                StackUnit::Unknown => node.below.is_empty().then(|| disk(&node.name)),
            }
        };
        CombinedValues(self.bottoms().combine_values(value))
    }

    /// Returns the combined value of a device; `None` if the stack does not contain the device.
    pub fn combined_value(&self, combined: &CombinedValues, name: &KernelName) -> Option<u8> {
        combined.0.get(self.graph.find(name)?).copied()
    }

    /// Returns whether one of two devices is on top of the other device, or whether a third device is on top of both.
    pub fn is_one_object(&self, name: &KernelName, other: &KernelName) -> bool {
        let (Some(one), Some(two)) = (self.graph.find(name), self.graph.find(other)) else { return name == other };
        self.steps.take_steps(1);
        let bottoms = self.bottoms();
        bottoms.leads_to(one, two) || bottoms.leads_to(two, one) || self.tops().lead_to_common(one, two)
    }

    /// Counts the objects to which the devices belong. Two devices belong to the same object if one device is on top of
    /// the other, or if the two devices have a common holder.
    pub fn count_distinct<'n>(&self, names: impl IntoIterator<Item = &'n KernelName>) -> usize {
        let (mut met, mut unknown) = (DistinctNodes::default(), BTreeSet::new());
        let mut is_apart = |name: &&KernelName| match self.graph.find(name) {
            Some(node) => met.add_if_distinct(self.bottoms(), self.tops(), node),
            None => unknown.insert((*name).clone()),
        };
        names.into_iter().filter(|name| is_apart(name)).count()
    }
}

/// Values of all devices, each combined from the values of the disks below the device.
pub struct CombinedValues(Vec<u8>);

/// Decodes the name of an LVM mapping: `vg0/lv-0` for `vg0-lv--0`.
fn decode_mapping_name(mapping: &str) -> Option<String> {
    // LVM names cannot contain a slash, so a slash can temporarily represent an escaped hyphen (`--`).
    let (group, volume) =
        mapping.replace("--", "/").split_once('-').map(|(group, volume)| (group.to_owned(), volume.to_owned()))?;
    Some(format!("{}/{}", group.replace('/', "-"), volume.replace('/', "-")))
}

#[cfg(test)]
mod tests;
