//! Mapping between the devices of a layout and the devices of a machine.

use super::disk_lookup;
use crate::device_name::{DevicePath, KernelName, LayoutPath};
use crate::inventory::{self, Inventory, LvmVolumeGroup, MdArray, StackedDevice, StackedDeviceKind};
use crate::layout::graph::{LayoutGraph, LayoutItem};
use crate::layout::{self, Layout};
use std::collections::BTreeSet;

/// A layout and an inventory, with the disks of the machine that match the disks of the layout.
pub struct LayoutMatch<'a> {
    pub graph: LayoutGraph<'a>,
    pub inventory: &'a Inventory,
    /// Matching disk of the machine for each disk in `Layout::disks`; `None` if no disk matches.
    disks: Vec<Option<&'a inventory::InventoryDisk>>,
}

impl<'a> LayoutMatch<'a> {
    /// Matches disks by the names and hints in the layout.
    pub fn new(layout: &'a Layout, inventory: &'a Inventory) -> LayoutMatch<'a> {
        LayoutMatch::with_disks(layout, inventory, |listed| disk_lookup::find_disk(listed, inventory).ok())
    }

    /// Matches disks by a function that returns the disk of the machine for a disk of the layout.
    pub fn with_disks(
        layout: &'a Layout,
        inventory: &'a Inventory,
        disk: impl Fn(&layout::DiskSpec) -> Option<&'a inventory::InventoryDisk>,
    ) -> LayoutMatch<'a> {
        LayoutMatch {
            graph: LayoutGraph::from_layout(layout),
            inventory,
            disks: layout.disks.iter().map(disk).collect(),
        }
    }

    /// Returns the disk of the machine that matches the disk with this index in the layout.
    pub fn matched_disk(&self, listed: usize) -> Option<&'a inventory::InventoryDisk> {
        self.disks.get(listed).copied().flatten()
    }

    /// Returns the disk of the layout that matches this disk of the machine.
    pub fn layout_entry(&self, disk: &KernelName) -> Option<&'a layout::DiskSpec> {
        let listed = self.disks.iter().position(|found| found.is_some_and(|found| found.name == *disk))?;
        self.graph.layout.disks.get(listed)
    }

    /// Returns the disks of the machine on which the root filesystem is stored.
    pub fn root_disks(&self) -> BTreeSet<KernelName> {
        let disks = self.graph.objects_below_root().disks.into_iter();
        disks.filter_map(|listed| self.matched_disk(listed)).map(|disk| disk.name.clone()).collect()
    }

    /// Returns the path that a device of the layout currently has on the machine; `None` if the device does not exist,
    /// or is an inactive array or volume.
    pub fn present_path(&self, device: &LayoutPath) -> Option<DevicePath> {
        let node = self.graph.find_device(device)?;
        match self.graph.nodes[node].item {
            // The partitions of a raw image have no nodes in the graph, so they are derived from the node of the disk.
            LayoutItem::Disk(disk) => match disk.image_partition_number(device) {
                Some(number) => Some(self.path_of_disk(disk)?.partition_path(number)),
                None => self.present_path_of_node(node),
            },
            _ => self.present_path_of_node(node),
        }
    }

    fn present_path_of_node(&self, node: usize) -> Option<DevicePath> {
        let below = &self.graph.nodes[node].below;
        let running = match self.graph.nodes[node].item {
            LayoutItem::Disk(disk) => return self.path_of_disk(disk).cloned(),
            LayoutItem::Partition(partition) => {
                let disk = self.present_path_of_node(*below.first()?)?;
                return Some(disk.partition_path(partition.number));
            }
            LayoutItem::Array(_) => {
                let arrays = find_arrays_on(self.inventory, &self.present_paths(below));
                arrays.into_iter().next()?.running.as_ref()?
            }
            LayoutItem::Volume(volume) => {
                let physical = self.physical_volumes(*below.first()?);
                let groups = find_groups_on(self.inventory, &physical).into_iter();
                let group = groups.into_iter().find(|found| found.name == volume.volumegroup)?;
                group.volumes.iter().find(|found| found.name == volume.name)?.running.as_ref()?
            }
            LayoutItem::Group(_) | LayoutItem::Filesystem(_) | LayoutItem::Missing => return None,
        };
        let stacked = self.inventory.stacked.iter().find(|stacked| stacked.name == *running)?;
        Some(stacked.device.clone())
    }

    /// Returns the paths of a group's physical volumes that are present. In an encrypted group, each physical volume is
    /// in a container, and is returned only if the container is open.
    fn physical_volumes(&self, group: usize) -> Vec<DevicePath> {
        let group = &self.graph.nodes[group];
        let on = self.present_paths(&group.below);
        match group.item {
            LayoutItem::Group(is) if is.encrypted.is_some() => on
                .iter()
                .filter_map(|device| find_mapping_on(self.inventory, device))
                .map(|is| is.device.clone())
                .collect(),
            _ => on,
        }
    }

    /// Returns the paths that the devices of these nodes currently have on the machine. The recursion terminates,
    /// because the graph of a layout has no cycles.
    fn present_paths(&self, nodes: &[usize]) -> Vec<DevicePath> {
        nodes.iter().filter_map(|node| self.present_path_of_node(*node)).collect()
    }

    fn path_of_disk(&self, disk: &layout::DiskSpec) -> Option<&'a DevicePath> {
        let listed = self.graph.layout.disks.iter().position(|listed| std::ptr::eq(listed, disk))?;
        Some(&self.matched_disk(listed)?.device)
    }
}

/// Returns the arrays, whether running or not, that have one of these devices as a member.
pub fn find_arrays_on<'a>(inventory: &'a Inventory, devices: &[DevicePath]) -> Vec<&'a MdArray> {
    let devices: BTreeSet<&DevicePath> = devices.iter().collect();
    let is = |array: &&MdArray| array.members.iter().any(|member| devices.contains(&member.device));
    inventory.arrays.iter().filter(is).collect()
}

/// Returns the groups, whether active or not, that have one of these devices as a physical volume.
pub fn find_groups_on<'a>(inventory: &'a Inventory, devices: &[DevicePath]) -> Vec<&'a LvmVolumeGroup> {
    let devices: BTreeSet<&DevicePath> = devices.iter().collect();
    let is = |group: &&LvmVolumeGroup| group.present_devices().any(|device| devices.contains(device));
    inventory.groups.iter().filter(is).collect()
}

/// Returns the mapping of the encrypted container on this device; `None` if the container is not open.
pub fn find_mapping_on<'a>(inventory: &'a Inventory, device: &DevicePath) -> Option<&'a StackedDevice> {
    let below = inventory.resolve_kernel_name(device);
    inventory.stacked.iter().find(|is| is.kind == StackedDeviceKind::Crypt && is.below.contains(&below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_devices_resolve_to_devices_of_the_machine() {
        let layout = layout::read_yaml(
            r#"{id: x, filesystems: [{path: /data, device: os1, format: ext4}, {path: /, device: /dev/sdb2, format: ext4}],
              disks: [{device: os, hints: {serial: S1}, partitions: [{number: 1, size: 9}, {number: 2, size: 0}], wipeonreinstall: true},
                {device: /dev/sdb, image: true, wipeonreinstall: true}, {device: /dev/sdx, partitions: [{number: 1, size: 0}]}],
              raid: [{arrayname: /dev/md/data, devices: [os2, /dev/sdx1], level: "1"}],
              volumegroups: [{name: vg00, devices: [/dev/md/data]}],
              logicalvolumes: [{name: srv, volumegroup: vg00, size: 0, lvmtype: linear}],
              constraints: {sizes: [], images: {}}}"#,
        );
        let layout = layout.unwrap().layout;
        let disk = |name: &str, serial: &str| inventory::InventoryDisk {
            name: name.into(),
            device: format!("/dev/{name}").into(),
            serial: serial.to_owned(),
            ..Default::default()
        };
        let stacked = |name: &str, device: &str| inventory::StackedDevice {
            name: name.into(),
            device: device.into(),
            ..Default::default()
        };
        let member = inventory::ArrayMember { device: "/dev/nvme0n1p2".into(), ..Default::default() };
        let physical = inventory::LvmPhysicalVolume { device: Some("/dev/md127".into()), ..Default::default() };
        let volume =
            inventory::LvmLogicalVolume { name: "srv".to_owned(), running: Some("dm-0".into()), ..Default::default() };
        let mut inventory = Inventory {
            disks: vec![disk("nvme0n1", "S1"), disk("sdb", "S2")],
            stacked: vec![stacked("md127", "/dev/md127"), stacked("dm-0", "/dev/mapper/vg00-srv")],
            arrays: vec![MdArray { members: vec![member], running: Some("md127".into()), ..Default::default() }],
            groups: vec![LvmVolumeGroup {
                name: "vg00".to_owned(),
                physical: vec![physical],
                volumes: vec![volume],
                ..Default::default()
            }],
            ..Inventory::default()
        };
        let now =
            |inventory: &Inventory, device: &str| LayoutMatch::new(&layout, inventory).present_path(&device.into());
        for (device, expected) in [
            ("os", Some("/dev/nvme0n1")),
            ("os1", Some("/dev/nvme0n1p1")),
            ("/dev/sdb", Some("/dev/sdb")),
            ("/dev/sdb2", Some("/dev/sdb2")),
            ("/dev/md/data", Some("/dev/md127")),
            ("/dev/vg00/srv", Some("/dev/mapper/vg00-srv")),
            ("/dev/sdx1", None),
            ("/dev/nvme0n1p1", None),
            ("tmpfs", None),
        ] {
            assert_eq!(now(&inventory, device).as_ref().map(DevicePath::as_str), expected, "{device}");
        }
        let meant = LayoutMatch::new(&layout, &inventory);
        assert_eq!(meant.root_disks(), ["sdb".into()].into());
        assert_eq!(meant.layout_entry(&"nvme0n1".into()).map(|listed| listed.device.as_str()), Some("os"));
        inventory.groups[0].volumes[0].running = None;
        assert_eq!(now(&inventory, "/dev/vg00/srv"), None);
    }
}
