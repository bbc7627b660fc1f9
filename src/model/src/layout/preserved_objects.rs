//! Objects that a reinstall preserves: objects with `preserve: true`, and all objects on disks with
//! `wipeonreinstall: false`.
//!
//! Preservation spreads in both directions. Everything on top of a preserved object is preserved, and so are the devices
//! of which it consists. It ends at disks, of which only a part may be preserved, and at the volumes of a group, which do
//! not preserve the group.

use super::graph::{LayoutGraph, LayoutItem};
use super::{DiskSpec, FilesystemSpec};
use crate::device_name::LayoutPath;

/// Preservation of each node of a layout graph.
#[derive(Debug, Clone)]
pub struct PreservedObjects<'g, 'a> {
    graph: &'g LayoutGraph<'a>,
    preserved: Vec<bool>,
}

impl<'g, 'a> PreservedObjects<'g, 'a> {
    pub fn from_graph(graph: &'g LayoutGraph<'a>) -> PreservedObjects<'g, 'a> {
        let preserved = graph.nodes.iter().map(|node| is_marked(node.item)).collect();
        let mut objects = PreservedObjects { graph, preserved };
        while objects.spread() {}
        objects
    }

    /// Returns whether the object of this node is preserved completely.
    pub fn includes(&self, node: usize) -> bool {
        self.preserved[node]
    }

    /// Returns whether the layout defines this device and preserves it.
    pub fn includes_device(&self, device: &LayoutPath) -> bool {
        self.graph.find_device(device).is_some_and(|node| self.preserved[node])
    }

    pub fn includes_filesystem(&self, filesystem: &FilesystemSpec) -> bool {
        let is_node =
            |item: LayoutItem| matches!(item, LayoutItem::Filesystem(other) if std::ptr::eq(other, filesystem));
        self.graph.nodes.iter().zip(&self.preserved).any(|(node, preserved)| *preserved && is_node(node.item))
    }

    /// Returns whether a reinstall renews the disk, but preserves some of its partitions.
    pub fn includes_part_of(&self, disk: &DiskSpec) -> bool {
        !self.numbers_on(disk).is_empty()
    }

    /// Returns the numbers of the partitions that a reinstall preserves although it renews the disk.
    pub fn numbers_on(&self, disk: &DiskSpec) -> Vec<u32> {
        let numbers = disk.partitions.iter().map(|part| part.number).filter(|_| disk.wipeonreinstall);
        numbers.filter(|number| self.includes_device(&disk.device.partition_path(*number))).collect()
    }

    /// Returns whether all disks below the node have `wipeonreinstall: false`.
    pub(super) fn is_on_preserved_disks(&self, node: usize) -> bool {
        let below = self.graph.reach_below([node]);
        let mut disks = below.into_iter().filter_map(|below| match self.graph.nodes[below].item {
            LayoutItem::Disk(disk) => Some(disk),
            _ => None,
        });
        disks.all(|disk| !disk.wipeonreinstall)
    }

    /// Spreads preservation by one layer. Returns whether another object is preserved as a result.
    fn spread(&mut self) -> bool {
        let mut changed = false;
        for (index, node) in self.graph.nodes.iter().enumerate() {
            let all = |nodes: &[usize]| !nodes.is_empty() && nodes.iter().all(|node| self.preserved[*node]);
            let is_whole = match node.item {
                LayoutItem::Disk(_) => false,
                LayoutItem::Group(_) => all(&node.below) || all(&node.above),
                _ => all(&node.below),
            };
            if is_whole && !self.preserved[index] {
                self.preserved[index] = true;
                changed = true;
            }
            if !self.preserved[index] || matches!(node.item, LayoutItem::Disk(_) | LayoutItem::Volume(_)) {
                continue;
            }
            for below in &node.below {
                if !matches!(self.graph.nodes[*below].item, LayoutItem::Disk(_)) && !self.preserved[*below] {
                    self.preserved[*below] = true;
                    changed = true;
                }
            }
        }
        changed
    }
}

/// Returns whether the layout itself requires that the object is preserved.
fn is_marked(item: LayoutItem) -> bool {
    match item {
        LayoutItem::Disk(disk) => !disk.wipeonreinstall,
        LayoutItem::Partition(partition) => partition.preserve,
        LayoutItem::Array(array) => array.preserve,
        LayoutItem::Group(group) => group.preserve,
        LayoutItem::Volume(volume) => volume.preserve,
        LayoutItem::Filesystem(filesystem) => filesystem.preserve,
        LayoutItem::Missing => false,
    }
}
