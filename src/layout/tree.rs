//! Graph of a layout: disks, the devices built on them, and the filesystems on top.
//!
//! The module does no I/O and accepts any layout: a device that the layout does not provide becomes a node of its own, and a cycle of
//! arrays is broken, so that every traversal ends.

#[cfg(test)]
pub(crate) mod tests;

use super::{Disk, Filesystem, Layout, LogicalVolume, Partition, Raid, VolumeGroup};
use crate::device::LayoutPath;
use crate::topology::graph;
use std::ops::Range;

/// Object of the layout that a node represents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    Disk(&'a Disk),
    Partition(&'a Partition),
    Array(&'a Raid),
    Group(&'a VolumeGroup),
    Volume(&'a LogicalVolume),
    Filesystem(&'a Filesystem),
    /// Device that is used but not provided by the layout.
    Missing,
}

/// Graph whose nodes are named by device path; groups by their name, filesystems by their mount point or an empty name.
///
/// The nodes are ordered: disks, partitions, arrays, groups, volumes, filesystems, missing devices, each in the layout's order.
#[derive(Debug, Clone)]
pub struct Graph<'a> {
    pub layout: &'a Layout,
    inner: graph::Graph<LayoutPath, Item<'a>>,
    // Node ranges of the layout's lists.
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
        // Before devices are assigned to groups, so that no group can end up on its own volume.
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

    /// Returns whether `member` is a spare of `array`: mdadm uses the last devices as spares.
    pub fn is_spare(&self, array: usize, member: usize) -> bool {
        let Item::Array(raid) = self.nodes[array].item else { return false };
        let active = raid.devices.len().saturating_sub(raid.spares as usize);
        let is_active = raid.devices[..active].iter().any(|device| self.nodes[member].name == *device);
        !is_active && self.nodes[array].below.contains(&member)
    }

    /// Returns the filesystem or swap area on this device.
    pub fn content(&self, node: usize) -> Option<&'a Filesystem> {
        self.nodes[node].above.iter().find_map(|above| match self.nodes[*above].item {
            Item::Filesystem(filesystem) => Some(filesystem),
            _ => None,
        })
    }

    /// Returns whether the device is a member of an array or a group.
    pub fn is_member(&self, device: &LayoutPath) -> bool {
        let above = self.device(device).into_iter().flat_map(|node| &self.nodes[node].above);
        above.into_iter().any(|above| matches!(self.nodes[*above].item, Item::Array(_) | Item::Group(_)))
    }

    /// Returns the node of a device that the layout provides.
    pub fn device(&self, device: &LayoutPath) -> Option<usize> {
        // Partitions of a raw image are known from its filesystems only; they are represented by the disk.
        let of_image = || self.layout.disks.iter().position(|disk| disk.image_partition(device).is_some());
        self.find(device).or_else(of_image)
    }

    /// Adds a node for each item of a list.
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

    /// Places a node on a device.
    fn put(&mut self, upper: usize, device: &LayoutPath) {
        let lower = match self.device(device) {
            Some(lower) if !self.beneath([lower]).contains(&upper) => lower,
            // Cycle of arrays: the device does not exist yet when it is needed.
            Some(_) => self.inner.add(device.clone(), Item::Missing),
            None => self.missing(device),
        };
        self.inner.link(lower, upper);
    }

    fn missing(&mut self, name: &LayoutPath) -> usize {
        self.find(name).unwrap_or_else(|| self.inner.provide(name.clone(), Item::Missing))
    }
}
