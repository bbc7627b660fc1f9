//! A layout as a graph: disks, what is made of them, what that becomes, up to the mount points.
//!
//! Pure, and for any layout at all: a device that the layout does not bring about becomes a node of its own, and an
//! array that would stand on itself is cut there, so that every drawing ends.

#[cfg(test)]
pub(crate) mod tests;

use super::{Disk, Filesystem, Layout, LogicalVolume, Partition, Raid, VolumeGroup};
use crate::device::LayoutPath;
use crate::topology::graph;
use std::ops::Range;

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

/// A node is called by its device path; a group by its name; a filesystem by its mount point, or not at all where it has none.
///
/// Disks come first, then partitions, arrays, groups, volumes, filesystems, missing devices, each in the layout's order.
#[derive(Debug, Clone)]
pub struct Graph<'a> {
    pub layout: &'a Layout,
    inner: graph::Graph<LayoutPath, Item<'a>>,
    // Nodes of the layout's lists.
    pub(super) disks: Range<usize>,
    pub(super) arrays: Range<usize>,
    pub(super) groups: Range<usize>,
}

impl<'a> std::ops::Deref for Graph<'a> {
    type Target = graph::Graph<LayoutPath, Item<'a>>;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl<'a> Graph<'a> {
    pub fn of(layout: &'a Layout) -> Graph<'a> {
        let inner = graph::Graph::default();
        let mut graph = Graph { layout, inner, disks: 0..0, arrays: 0..0, groups: 0..0 };
        graph.disks();
        graph.arrays = graph.all(&layout.raid, |graph, raid| {
            graph.inner.provide(raid.arrayname.clone(), Item::Array(raid));
        });
        graph.groups = graph.all(&layout.volumegroups, |graph, group| {
            graph.inner.add(group.name.as_str().into(), Item::Group(group));
        });
        // Before groups are put on devices: no group can then come to stand on its own volume.
        graph.volumes();
        for (raid, array) in layout.raid.iter().zip(graph.arrays.clone()) {
            raid.devices.iter().for_each(|device| graph.put(array, device));
        }
        for (group, node) in layout.volumegroups.iter().zip(graph.groups.clone()) {
            group.devices.iter().for_each(|device| graph.put(node, device));
        }
        graph.filesystems();
        graph
    }

    /// Is `member` one of the spares of `array`? mdadm takes the last of the devices for that.
    pub fn is_spare(&self, array: usize, member: usize) -> bool {
        let Item::Array(raid) = self.nodes[array].item else { return false };
        let active = raid.devices.len().saturating_sub(raid.spares as usize);
        let is_active = raid.devices[..active].iter().any(|device| self.nodes[member].name == *device);
        !is_active && self.nodes[array].below.contains(&member)
    }

    /// The filesystem or swap area on this device.
    pub fn content(&self, node: usize) -> Option<&'a Filesystem> {
        self.nodes[node].above.iter().find_map(|above| match self.nodes[*above].item {
            Item::Filesystem(filesystem) => Some(filesystem),
            _ => None,
        })
    }

    /// Is an array or a group made of this device?
    pub fn is_member(&self, device: &LayoutPath) -> bool {
        let above = self.device(device).into_iter().flat_map(|node| &self.nodes[node].above);
        above.into_iter().any(|above| matches!(self.nodes[*above].item, Item::Array(_) | Item::Group(_)))
    }

    /// The node of a device that the layout brings about.
    pub fn device(&self, device: &LayoutPath) -> Option<usize> {
        // What a raw image brings is known by its filesystems only, and lies on the disk.
        let of_image = || self.layout.disks.iter().position(|disk| disk.image_partition(device).is_some());
        self.find(device).or_else(of_image)
    }

    /// Adds a node for each of a list.
    fn all<T>(&mut self, list: &'a [T], add: impl Fn(&mut Graph<'a>, &'a T)) -> Range<usize> {
        let first = self.nodes.len();
        list.iter().for_each(|item| add(self, item));
        first..self.nodes.len()
    }

    fn disks(&mut self) {
        self.disks = self.all(&self.layout.disks, |graph, disk| {
            graph.inner.provide(disk.device.clone(), Item::Disk(disk));
        });
        for (disk, node) in self.layout.disks.iter().zip(self.disks.clone()) {
            for partition in &disk.partitions {
                let device = disk.device.partition(partition.number);
                let partition = self.inner.provide(device, Item::Partition(partition));
                self.inner.link(node, partition);
            }
        }
    }

    fn volumes(&mut self) {
        for volume in &self.layout.logicalvolumes {
            let node = self.inner.provide(volume.device(), Item::Volume(volume));
            let known = self.layout.volumegroups.iter().position(|group| group.name == volume.volumegroup);
            let group = match known {
                Some(index) => self.groups.start + index,
                None => self.missing(&format!("group {}", volume.volumegroup).into()),
            };
            self.inner.link(group, node);
        }
    }

    fn filesystems(&mut self) {
        for filesystem in &self.layout.filesystems {
            let path = filesystem.path.as_deref().filter(|path| *path != "none").unwrap_or_default();
            let node = self.inner.add(path.into(), Item::Filesystem(filesystem));
            if filesystem.format != super::Format::Tmpfs {
                self.put(node, &filesystem.device);
            }
        }
    }

    /// Puts a node on a device.
    fn put(&mut self, upper: usize, device: &LayoutPath) {
        let lower = match self.device(device) {
            Some(lower) if !self.beneath([lower]).contains(&upper) => lower,
            // An array on itself: to a person that device is not there when it is needed.
            Some(_) => self.inner.add(device.clone(), Item::Missing),
            None => self.missing(device),
        };
        self.inner.link(lower, upper);
    }

    fn missing(&mut self, name: &LayoutPath) -> usize {
        self.find(name).unwrap_or_else(|| self.inner.provide(name.clone(), Item::Missing))
    }
}
