//! A layout as a graph: disks, what is made of them, what that becomes, up to the mount points.
//!
//! Pure, and for any layout at all: a device that the layout does not bring about becomes a node of its own, and an
//! array that would stand on itself is cut there, so that every drawing ends.

#[cfg(test)]
pub(crate) mod tests;

use super::{Disk, Filesystem, Layout, LogicalVolume, Partition, Raid, VolumeGroup, partition_device};
use std::collections::HashMap;

/// What a node stands for, as the layout has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    Disk(&'a Disk),
    Partition(&'a Partition),
    Array(&'a Raid),
    Group(&'a VolumeGroup),
    Volume(&'a LogicalVolume),
    Filesystem(&'a Filesystem),
    /// A device that something is put on and that nothing in the layout brings about.
    Missing,
}

/// One box of the drawing.
#[derive(Debug, Clone)]
pub struct Node<'a> {
    pub item: Item<'a>,
    /// Device path, name of a volume group; of a filesystem its mount point, empty where it has none.
    pub name: String,
    /// Nodes that this one is made of, in the layout's order.
    pub below: Vec<usize>,
    /// Nodes that are made of this one.
    pub above: Vec<usize>,
}

#[derive(Debug, Clone)]
pub struct Graph<'a> {
    pub layout: &'a Layout,
    /// Disks first, then partitions, arrays, groups, volumes, filesystems, missing devices, each in the layout's order.
    pub nodes: Vec<Node<'a>>,
}

impl<'a> Graph<'a> {
    pub fn of(layout: &'a Layout) -> Graph<'a> {
        let mut builder = Builder { graph: Graph { layout, nodes: Vec::new() }, devices: HashMap::new() };
        builder.disks();
        let arrays: Vec<usize> =
            layout.raid.iter().map(|raid| builder.provide(Item::Array(raid), &raid.arrayname)).collect();
        let groups: Vec<usize> =
            layout.volumegroups.iter().map(|group| builder.node(Item::Group(group), &group.name)).collect();
        // Before groups are put on devices: no group can then come to stand on its own volume.
        builder.volumes(&groups);
        for (raid, array) in layout.raid.iter().zip(arrays) {
            raid.devices.iter().for_each(|device| builder.put(array, device));
        }
        for (group, node) in layout.volumegroups.iter().zip(&groups) {
            group.devices.iter().for_each(|device| builder.put(*node, device));
        }
        builder.filesystems();
        builder.graph
    }

    /// Nodes that stand on nothing: disks, tmpfs, devices that are not there.
    pub fn roots(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|index| self.nodes[*index].below.is_empty())
    }

    /// Is `member` one of the spares of `array`? mdadm takes the last of the devices for that.
    pub fn is_spare(&self, array: usize, member: usize) -> bool {
        let Item::Array(raid) = self.nodes[array].item else { return false };
        let active = raid.devices.len().saturating_sub(raid.spares as usize);
        !raid.devices[..active].contains(&self.nodes[member].name) && self.nodes[array].below.contains(&member)
    }

    /// The filesystem or swap area on this device.
    pub fn content(&self, node: usize) -> Option<&'a Filesystem> {
        self.nodes[node].above.iter().find_map(|above| match self.nodes[*above].item {
            Item::Filesystem(filesystem) => Some(filesystem),
            _ => None,
        })
    }

    fn stands_on(&self, upper: usize, lower: usize) -> bool {
        let mut seen = vec![false; self.nodes.len()];
        let mut open = vec![upper];
        while let Some(node) = open.pop() {
            if node == lower {
                return true;
            }
            if !std::mem::replace(&mut seen[node], true) {
                open.extend(&self.nodes[node].below);
            }
        }
        false
    }
}

struct Builder<'a> {
    graph: Graph<'a>,
    /// Block devices by their path. The first of a name is meant wherever that name is used.
    devices: HashMap<String, usize>,
}

impl<'a> Builder<'a> {
    fn node(&mut self, item: Item<'a>, name: &str) -> usize {
        self.graph.nodes.push(Node { item, name: name.to_owned(), below: Vec::new(), above: Vec::new() });
        self.graph.nodes.len() - 1
    }

    fn provide(&mut self, item: Item<'a>, device: &str) -> usize {
        let node = self.node(item, device);
        self.devices.entry(device.to_owned()).or_insert(node);
        node
    }

    fn disks(&mut self) {
        let layout = self.graph.layout;
        let disks: Vec<usize> = layout.disks.iter().map(|disk| self.provide(Item::Disk(disk), &disk.device)).collect();
        for (disk, node) in layout.disks.iter().zip(disks) {
            for partition in &disk.partitions {
                let device = partition_device(&disk.device, partition.number);
                let partition = self.provide(Item::Partition(partition), &device);
                self.link(node, partition);
            }
            // What a raw image brings is known by its filesystems only.
            let wanted = layout.filesystems.iter().map(|filesystem| &filesystem.device);
            for device in wanted.filter(|device| disk.image_partition(device).is_some()) {
                self.devices.entry(device.clone()).or_insert(node);
            }
        }
    }

    fn volumes(&mut self, groups: &[usize]) {
        let layout = self.graph.layout;
        for volume in &layout.logicalvolumes {
            let device = format!("/dev/{}/{}", volume.volumegroup, volume.name);
            let node = self.provide(Item::Volume(volume), &device);
            let known = layout.volumegroups.iter().position(|group| group.name == volume.volumegroup);
            let group = match known {
                Some(index) => groups[index],
                None => self.missing(&format!("group {}", volume.volumegroup)),
            };
            self.link(group, node);
        }
    }

    fn filesystems(&mut self) {
        for filesystem in &self.graph.layout.filesystems {
            let path = filesystem.path.as_deref().filter(|path| *path != "none").unwrap_or_default();
            let node = self.node(Item::Filesystem(filesystem), path);
            if filesystem.format != super::Format::Tmpfs {
                self.put(node, &filesystem.device);
            }
        }
    }

    /// Puts a node on a device.
    fn put(&mut self, upper: usize, device: &str) {
        match self.devices.get(device) {
            Some(lower) if !self.graph.stands_on(*lower, upper) => self.link(*lower, upper),
            // An array on itself: to a person that device is not there when it is needed.
            Some(_) => {
                let lower = self.node(Item::Missing, device);
                self.link(lower, upper);
            }
            None => {
                let lower = self.missing(device);
                self.link(lower, upper);
            }
        }
    }

    fn missing(&mut self, name: &str) -> usize {
        match self.devices.get(name) {
            Some(node) => *node,
            None => self.provide(Item::Missing, name),
        }
    }

    fn link(&mut self, lower: usize, upper: usize) {
        let nodes = &mut self.graph.nodes;
        if !nodes[lower].above.contains(&upper) {
            nodes[lower].above.push(upper);
            nodes[upper].below.push(lower);
        }
    }
}
