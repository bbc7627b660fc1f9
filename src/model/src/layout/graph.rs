//! Graph of a layout: the disks, the devices on top of the disks, and the filesystems on these devices.
//!
//! The module does no I/O and accepts any layout. A device that the layout uses but does not define becomes a separate
//! node. A cycle of arrays is broken, so that every traversal terminates.

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use super::{ArraySpec, DiskSpec, FilesystemSpec, Layout, LogicalVolumeSpec, PartitionSpec, VolumeGroupSpec};
use crate::device_name::LayoutPath;
use crate::storage_graph::layer_graph;
use std::ops::Range;

/// Object of the layout that a node represents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutItem<'a> {
    Disk(&'a DiskSpec),
    Partition(&'a PartitionSpec),
    Array(&'a ArraySpec),
    Group(&'a VolumeGroupSpec),
    Volume(&'a LogicalVolumeSpec),
    Filesystem(&'a FilesystemSpec),
    /// Device that the layout uses but does not define.
    Missing,
}

/// Graph of a layout. The name of a group node is the name of the group, and the name of a filesystem node is the mount
/// point or empty. The names of all other nodes are device paths.
///
/// The nodes are in this order: disks, partitions, arrays, groups, volumes, filesystems, missing devices. Within each
/// type, they are in the order of the layout.
#[derive(Debug, Clone)]
pub struct LayoutGraph<'a> {
    pub layout: &'a Layout,
    inner: layer_graph::LayerGraph<LayoutPath, LayoutItem<'a>>,
    // Ranges of the nodes that represent the items of the layout's lists.
    pub(super) disks: Range<usize>,
    pub(super) arrays: Range<usize>,
    pub(super) groups: Range<usize>,
}

impl<'a> std::ops::Deref for LayoutGraph<'a> {
    type Target = layer_graph::LayerGraph<LayoutPath, LayoutItem<'a>>;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl<'a> LayoutGraph<'a> {
    pub fn from_layout(layout: &'a Layout) -> LayoutGraph<'a> {
        let inner = layer_graph::LayerGraph::default();
        let mut graph = LayoutGraph { layout, inner, disks: 0..0, arrays: 0..0, groups: 0..0 };
        graph.add_disks();
        graph.arrays = graph.add_all(&layout.raid, |graph, raid| {
            graph.inner.add_named(raid.arrayname.clone(), LayoutItem::Array(raid));
        });
        graph.groups = graph.add_all(&layout.volumegroups, |graph, group| {
            graph.inner.add_unnamed(group.name.as_str().into(), LayoutItem::Group(group));
        });
        // Volumes are added before devices are assigned to groups, so that no group can be on top of its own volume.
        graph.add_volumes();
        for (raid, array) in layout.raid.iter().zip(graph.arrays.clone()) {
            raid.devices.iter().for_each(|device| graph.place_on_device(array, device));
        }
        for (group, node) in layout.volumegroups.iter().zip(graph.groups.clone()) {
            group.devices.iter().for_each(|device| graph.place_on_device(node, device));
        }
        graph.add_filesystems();
        graph
    }

    /// Returns whether `member` is a spare of `array`. mdadm uses the last devices of the list as spares.
    pub fn is_spare(&self, array: usize, member: usize) -> bool {
        let LayoutItem::Array(raid) = self.nodes[array].item else { return false };
        let active = raid.devices.len().saturating_sub(raid.spares as usize);
        let is_active = raid.devices[..active].iter().any(|device| self.nodes[member].name == *device);
        !is_active && self.nodes[array].below.contains(&member)
    }

    /// Returns the filesystem or swap area on this device.
    pub fn filesystem_on(&self, node: usize) -> Option<&'a FilesystemSpec> {
        self.nodes[node].above.iter().find_map(|above| match self.nodes[*above].item {
            LayoutItem::Filesystem(filesystem) => Some(filesystem),
            _ => None,
        })
    }

    /// Returns whether the device is a member of an array or a group.
    pub fn is_member(&self, device: &LayoutPath) -> bool {
        let above = self.find_device(device).into_iter().flat_map(|node| &self.nodes[node].above);
        above.into_iter().any(|above| matches!(self.nodes[*above].item, LayoutItem::Array(_) | LayoutItem::Group(_)))
    }

    /// Returns the node of a device that the layout defines.
    pub fn find_device(&self, device: &LayoutPath) -> Option<usize> {
        // A layout mentions the partitions of a raw image only as devices of filesystems. Such a partition is
        // represented by the node of its disk.
        let of_image = || self.layout.disks.iter().position(|disk| disk.image_partition_number(device).is_some());
        self.find(device).or_else(of_image)
    }

    /// Adds a node for each item of a list.
    fn add_all<T>(&mut self, list: &'a [T], add: impl Fn(&mut LayoutGraph<'a>, &'a T)) -> Range<usize> {
        let first = self.nodes.len();
        list.iter().for_each(|item| add(self, item));
        first..self.nodes.len()
    }

    fn add_disks(&mut self) {
        self.disks = self.add_all(&self.layout.disks, |graph, disk| {
            graph.inner.add_named(disk.device.clone(), LayoutItem::Disk(disk));
        });
        for (disk, node) in self.layout.disks.iter().zip(self.disks.clone()) {
            for partition in &disk.partitions {
                let device = disk.device.partition_path(partition.number);
                let partition = self.inner.add_named(device, LayoutItem::Partition(partition));
                self.inner.link(node, partition);
            }
        }
    }

    fn add_volumes(&mut self) {
        for volume in &self.layout.logicalvolumes {
            let node = self.inner.add_named(volume.device_path(), LayoutItem::Volume(volume));
            let known = self.layout.volumegroups.iter().position(|group| group.name == volume.volumegroup);
            let group = match known {
                Some(index) => self.groups.start + index,
                None => self.find_or_add_missing(&format!("group {}", volume.volumegroup).into()),
            };
            self.inner.link(group, node);
        }
    }

    fn add_filesystems(&mut self) {
        for filesystem in &self.layout.filesystems {
            let path = filesystem.path.as_deref().filter(|path| *path != "none").unwrap_or_default();
            let node = self.inner.add_unnamed(path.into(), LayoutItem::Filesystem(filesystem));
            if filesystem.format != super::FilesystemFormat::Tmpfs {
                self.place_on_device(node, &filesystem.device);
            }
        }
    }

    /// Links the node `upper` to the node of `device`, on which the object of `upper` is placed.
    fn place_on_device(&mut self, upper: usize, device: &LayoutPath) {
        let lower = match self.find_device(device) {
            Some(lower) if !self.reach_below([lower]).contains(&upper) => lower,
            // A link to this device would close a cycle of devices. A missing device is added in its place.
            Some(_) => self.inner.add_unnamed(device.clone(), LayoutItem::Missing),
            None => self.find_or_add_missing(device),
        };
        self.inner.link(lower, upper);
    }

    fn find_or_add_missing(&mut self, name: &LayoutPath) -> usize {
        self.find(name).unwrap_or_else(|| self.inner.add_named(name.clone(), LayoutItem::Missing))
    }
}
