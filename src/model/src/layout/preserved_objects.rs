//! Objects that a reinstall preserves: objects with `preserve: true`, and all objects on disks with `wipeonreinstall:
//! false`.
//!
//! Preservation spreads upward and downward. Upward: if all devices of which an object consists are completely
//! preserved, the object is also completely preserved, with everything on top of it. Downward: the devices of which a
//! preserved object consists are preserved, except disks, because only a part of a disk may be preserved.
//!
//! A preserved volume thus preserves its group and the physical volumes of the group, but not the other volumes that
//! the layout lists. Listed volumes that are not preserved are renewed (removed, and created again without their
//! contents). `preserve: unlisted` also preserves the group and its physical volumes, but not the listed volumes.

use super::graph::{LayoutGraph, LayoutItem};
use super::{DiskSpec, FilesystemSpec, GroupPreservation, LogicalVolumeSpec, VolumeGroupSpec};
use crate::device_name::LayoutPath;
use crate::install_marker::InstallMarker;

/// Preservation of each node of a layout graph.
#[derive(Debug, Clone)]
pub struct PreservedObjects<'g, 'a> {
    graph: &'g LayoutGraph<'a>,
    /// True if the object itself is preserved.
    preserved: Vec<bool>,
    /// True if the object is preserved with everything on top of it. Such an object is also in `preserved`.
    complete: Vec<bool>,
}

impl<'g, 'a> PreservedObjects<'g, 'a> {
    pub fn from_graph(graph: &'g LayoutGraph<'a>) -> PreservedObjects<'g, 'a> {
        let complete: Vec<bool> = graph.nodes.iter().map(|node| is_marked(node.item, &node.above)).collect();
        let preserved = graph.nodes.iter().zip(&complete);
        let preserved = preserved.map(|(node, complete)| *complete || keeps_unlisted(node.item)).collect();
        let mut objects = PreservedObjects { graph, preserved, complete };
        while objects.spread() {}
        objects
    }

    /// Returns whether the object of this node is preserved. Some volumes of a preserved group may nevertheless be
    /// renewed.
    pub fn includes(&self, node: usize) -> bool {
        self.preserved[node]
    }

    /// Returns whether the object of this node is preserved with everything on top of it.
    pub(super) fn includes_completely(&self, node: usize) -> bool {
        self.complete[node]
    }

    /// Returns whether a reinstall preserves the group of this node, but renews some of its volumes.
    pub(super) fn is_partly_renewed(&self, node: usize) -> bool {
        let is_group = matches!(self.graph.nodes[node].item, LayoutItem::Group(_));
        is_group && self.preserved[node] && !self.complete[node]
    }

    /// Returns the volumes that a reinstall renews in a preserved group; empty for any other group.
    pub fn renewed_volumes(&self, group: &VolumeGroupSpec) -> Vec<&'a LogicalVolumeSpec> {
        let is_node = |item: LayoutItem| matches!(item, LayoutItem::Group(other) if std::ptr::eq(other, group));
        let node = self.graph.nodes.iter().position(|node| is_node(node.item));
        let Some(node) = node.filter(|node| self.is_partly_renewed(*node)) else { return Vec::new() };
        let renewed = self.graph.nodes[node].above.iter().filter(|above| !self.preserved[**above]);
        let volumes = renewed.filter_map(|above| match self.graph.nodes[*above].item {
            LayoutItem::Volume(volume) => Some(volume),
            _ => None,
        });
        volumes.collect()
    }

    /// Returns the volumes that a reinstall renews in preserved groups, as `GROUP/NAME`.
    pub fn renewed_volume_names(&self) -> Vec<String> {
        let groups = self.graph.layout.volumegroups.iter();
        let volumes = groups.flat_map(|group| self.renewed_volumes(group));
        volumes.map(|volume| format!("{}/{}", volume.volumegroup, volume.name)).collect()
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

    /// Returns whether a reinstall wipes the disk except for some partitions, which it preserves.
    pub fn includes_part_of(&self, disk: &DiskSpec) -> bool {
        !self.numbers_on(disk).is_empty()
    }

    /// Returns the numbers of the partitions that a reinstall preserves while it wipes the rest of the disk.
    pub fn numbers_on(&self, disk: &DiskSpec) -> Vec<u32> {
        let numbers = disk.partitions.iter().map(|part| part.number).filter(|_| disk.wipeonreinstall);
        numbers.filter(|number| self.includes_device(&disk.device.partition_path(*number))).collect()
    }

    /// Returns the names of the preserved arrays, groups and volumes on disks that a reinstall may wipe: `array PATH`,
    /// `group NAME`, `volume GROUP/NAME`. Filesystems are not listed, because a filesystem is preserved together with
    /// its device. A group in which some volumes are renewed is represented by its preserved volumes, and also by
    /// `unlisted volumes of group NAME` if it has `preserve: unlisted`.
    pub fn names_on_renewed_disks(&self) -> Vec<String> {
        let is_named = |node: usize| self.preserved[node] && !self.is_on_preserved_disks(node);
        let nodes = self.graph.nodes.iter().enumerate().filter(|(index, _)| is_named(*index));
        let names = nodes.filter_map(|(index, node)| match node.item {
            LayoutItem::Array(array) => Some(format!("array {}", array.arrayname)),
            LayoutItem::Group(group) if self.complete[index] => Some(format!("group {}", group.name)),
            LayoutItem::Group(group) => keeps_unlisted(node.item).then(|| name_unlisted(group)),
            LayoutItem::Volume(volume) => Some(format!("volume {}/{}", volume.volumegroup, volume.name)),
            LayoutItem::Disk(_) | LayoutItem::Partition(_) | LayoutItem::Filesystem(_) | LayoutItem::Missing => None,
        });
        names.collect()
    }

    /// Returns the objects that a reinstall with this layout would no longer preserve, although the marker records them
    /// as preserved: partitions, arrays, groups and volumes. Objects on disks that the layout preserves completely are
    /// not included, and neither are partitions of disks that the layout does not list.
    pub fn find_given_up(&self, marker: &InstallMarker) -> Vec<String> {
        let layout = self.graph.layout;
        let parts = layout.disks.iter().filter(|disk| disk.wipeonreinstall).flat_map(|disk| {
            let numbers = self.numbers_on(disk);
            let records = marker.disks.iter().filter(|record| record.device == disk.device);
            let lost = records.flat_map(|record| &record.preserved).filter(move |number| !numbers.contains(number));
            lost.map(|number| format!("partition {}", disk.device.partition_path(*number)))
        });
        let names = self.names_on_renewed_disks();
        let is_preserved = |name: &&String| {
            names.contains(name) || self.is_on_kept_disks(name) || self.includes_unlisted_volumes(name)
        };
        let objects = marker.preserved.iter().filter(|name| !is_preserved(name));
        parts.chain(objects.cloned()).collect()
    }

    /// Returns the volumes in `existing`, as `GROUP/NAME`, that a reinstall with this layout would remove, although the
    /// installed layout did not renew them: it did not list them, and a preserved group retains unlisted volumes.
    ///
    /// Older markers do not list the renewed volumes. With a layout other than the installed one, every removal from a
    /// group of which a part is recorded as preserved is then returned.
    pub fn find_removed(&self, marker: &InstallMarker, is_same_layout: bool, existing: &[String]) -> Vec<String> {
        let is_permitted = |name: &String| match &marker.renewed {
            Some(renewed) => renewed.contains(name),
            None => is_same_layout,
        };
        let has_preserved_group = |name: &str| {
            let group = name.split('/').next().unwrap_or_default();
            let (unlisted, volumes) = (name_unlisted_of(group), format!("volume {group}/"));
            marker.preserved.iter().any(|name| *name == unlisted || name.starts_with(&volumes))
        };
        // A volume that is recorded as preserved itself is already returned by `find_given_up`.
        let is_recorded = |name: &str| marker.preserved.contains(&format!("volume {name}"));
        let removed = self.renewed_volume_names().into_iter().filter(|name| existing.contains(name));
        removed.filter(|name| has_preserved_group(name) && !is_recorded(name) && !is_permitted(name)).collect()
    }

    /// Returns whether the name in a marker represents the unlisted volumes of a group that is preserved. A preserved
    /// group retains its unlisted volumes, also if some of the listed volumes are renewed.
    fn includes_unlisted_volumes(&self, name: &str) -> bool {
        let mut nodes = self.graph.nodes.iter().zip(&self.preserved);
        nodes.any(|(node, preserved)| {
            *preserved && matches!(node.item, LayoutItem::Group(group) if name == name_unlisted(group))
        })
    }

    /// Returns whether an object with this name, which comes from a marker, is preserved in this layout, on disks that
    /// a reinstall preserves completely.
    fn is_on_kept_disks(&self, name: &str) -> bool {
        let is_it = |item: LayoutItem| match item {
            LayoutItem::Array(array) => name == format!("array {}", array.arrayname),
            LayoutItem::Group(group) => name == format!("group {}", group.name),
            LayoutItem::Volume(volume) => name == format!("volume {}/{}", volume.volumegroup, volume.name),
            LayoutItem::Disk(_) | LayoutItem::Partition(_) | LayoutItem::Filesystem(_) | LayoutItem::Missing => false,
        };
        let found = self.graph.nodes.iter().position(|node| is_it(node.item));
        found.is_some_and(|node| self.preserved[node] && self.is_on_preserved_disks(node))
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

    /// Marks the neighbors of preserved objects as preserved. Returns whether this has marked further objects.
    fn spread(&mut self) -> bool {
        let before = (self.preserved.clone(), self.complete.clone());
        for (index, node) in self.graph.nodes.iter().enumerate() {
            let all = |nodes: &[usize]| !nodes.is_empty() && nodes.iter().all(|node| self.complete[*node]);
            let is_complete = match node.item {
                LayoutItem::Disk(_) => false,
                LayoutItem::Group(_) => all(&node.below) || all(&node.above),
                _ => all(&node.below),
            };
            self.complete[index] |= is_complete;
            self.preserved[index] |= is_complete;
            if self.preserved[index] && !matches!(node.item, LayoutItem::Disk(_)) {
                for below in &node.below {
                    let below_item = self.graph.nodes[*below].item;
                    self.preserved[*below] |= !matches!(below_item, LayoutItem::Disk(_));
                    // A filesystem occupies its whole device, so the volume below a completely preserved filesystem
                    // is also completely preserved.
                    self.complete[*below] |= self.complete[index] && matches!(below_item, LayoutItem::Volume(_));
                }
            }
        }
        before != (self.preserved.clone(), self.complete.clone())
    }
}

/// Returns the name that represents the unlisted volumes of a group in install markers.
fn name_unlisted(group: &VolumeGroupSpec) -> String {
    name_unlisted_of(&group.name)
}

fn name_unlisted_of(group: &str) -> String {
    format!("unlisted volumes of group {group}")
}

fn keeps_unlisted(item: LayoutItem) -> bool {
    matches!(item, LayoutItem::Group(group) if group.preserve == GroupPreservation::Unlisted)
}

/// Returns whether a field of the object itself, such as `preserve`, requires that the object is completely preserved.
/// `above` contains the nodes on top of the object.
fn is_marked(item: LayoutItem, above: &[usize]) -> bool {
    match item {
        LayoutItem::Disk(disk) => !disk.wipeonreinstall,
        LayoutItem::Partition(partition) => partition.preserve,
        LayoutItem::Array(array) => array.preserve,
        LayoutItem::Group(group) => match group.preserve {
            GroupPreservation::None => false,
            GroupPreservation::Unlisted => above.is_empty(),
            GroupPreservation::All => true,
        },
        LayoutItem::Volume(volume) => volume.preserve,
        LayoutItem::Filesystem(filesystem) => filesystem.preserve,
        LayoutItem::Missing => false,
    }
}
