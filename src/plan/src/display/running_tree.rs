//! Objects in use on each disk, as a tree for the operator.

use super::tree_lines::TreeLines;
use crate::content_descriptions::{describe_signature, describe_unrecognized};
use crate::{arrays, lvm};
use model::device_name::{DevicePath, KernelName};
use model::inventory::{
    DeviceUse, DiskTable, Inventory, InventoryDisk, LvmLogicalVolume, MdArray, StackedDevice, StackedDeviceKind,
};
use model::storage_graph::DeviceStack;
use operations::operation_text::strip_dev;
use std::collections::BTreeSet;

/// Draws the trees. An object that spans several disks is drawn once.
pub(crate) struct RunningTrees<'a> {
    inventory: &'a Inventory,
    stack: &'a DeviceStack<'a>,
    drawn: BTreeSet<&'a KernelName>,
    lines: TreeLines,
}

impl<'a> RunningTrees<'a> {
    pub(crate) fn new(inventory: &'a Inventory, stack: &'a DeviceStack<'a>) -> RunningTrees<'a> {
        RunningTrees { inventory, stack, drawn: BTreeSet::new(), lines: TreeLines::default() }
    }

    /// Returns one tree for each disk of the inventory, in order.
    pub(crate) fn draw_trees(mut self) -> Vec<Vec<String>> {
        let mut trees = Vec::new();
        for disk in &self.inventory.disks {
            self.draw_disk(disk);
            self.draw_partitions(&disk.table, 0);
            trees.push(self.lines.take_tree());
        }
        trees
    }

    /// Draws the objects on a disk. The name of the disk is in the line above the tree.
    fn draw_disk(&mut self, disk: &'a InventoryDisk) {
        self.draw_unit(&disk.name, &disk.device, &disk.uses, 0);
        self.lines.flatten_first_line(strip_dev(&disk.device));
    }

    fn draw_partitions(&mut self, table: &'a Option<DiskTable>, depth: usize) {
        for part in table.iter().flat_map(|table| &table.partitions) {
            self.draw_unit(&part.device.kernel_name(), &part.device, &part.uses, depth);
        }
    }

    /// Draws a disk or partition if there is an object on it that is active or can be activated.
    fn draw_unit(&mut self, name: &KernelName, device: &DevicePath, uses: &[DeviceUse], depth: usize) {
        let mut parts: Vec<String> = uses.iter().filter_map(describe_use).collect();
        let holders = self.stack.holders(name);
        if holders.is_empty() {
            parts.extend(self.describe_inactive(device));
        }
        if parts.is_empty() && holders.is_empty() {
            return;
        }
        self.push_line(depth, strip_dev(device), &parts);
        holders.iter().for_each(|holder| self.draw_holder(holder, depth + 1));
    }

    fn draw_holder(&mut self, name: &KernelName, depth: usize) {
        let Some(device) = self.stack.find_stacked(name) else {
            return self.push_line(depth, name, &["unknown device".to_owned()]);
        };
        if self.lines.is_full(depth) {
            return;
        }
        // Overlays that the agent created for inspection are omitted.
        if device.is_overlay() {
            if !self.drawn.insert(&device.name) {
                return;
            }
            return self.stack.holders(name).iter().for_each(|holder| self.draw_holder(holder, depth));
        }
        let what = self.describe_device(device);
        if !self.drawn.insert(&device.name) {
            return self.push_line(depth, &what, &["as above".to_owned()]);
        }
        let mut parts: Vec<String> = device.signatures.iter().map(describe_signature).collect();
        let holders = self.stack.holders(&device.name);
        let is_bottom = device.table.is_none() && holders.is_empty();
        if parts.is_empty() && is_bottom {
            parts.push(describe_unrecognized(device.blank).to_owned());
        }
        parts.extend(device.unreadable.iter().map(|why| format!("partly unreadable: {why}")));
        parts.extend(device.uses.iter().filter_map(describe_use));
        self.push_line(depth, &what, &parts);
        holders.iter().for_each(|holder| self.draw_holder(holder, depth + 1));
        self.draw_partitions(&device.table, depth + 1);
    }

    /// Describes the arrays on this device that are not running, and the volume groups on it. The device must not have
    /// holders.
    fn describe_inactive(&self, device: &DevicePath) -> Vec<String> {
        let arrays = self.stack.arrays_on(device).iter().filter(|array| array.running.is_none());
        let groups = self.stack.groups_on(device).iter();
        let arrays = arrays.map(|array| format!("{}, not running", arrays::describe_array(array)));
        arrays.chain(groups.map(|group| format!("{}, not active", lvm::describe_group(group)))).collect()
    }

    fn describe_device(&self, device: &StackedDevice) -> String {
        let array = self.stack.find_array(&device.name);
        let volume = self.stack.find_volume(&device.name).map(|(_, volume)| volume);
        let known = match (array, volume) {
            (Some(MdArray { level, metadata, name, .. }), _) if name.is_empty() => {
                format!(" {level} metadata {metadata}")
            }
            (Some(MdArray { level, metadata, name, .. }), _) => format!(" {level} \"{name}\" metadata {metadata}"),
            (None, Some(LvmLogicalVolume { kind, .. })) => format!(" {kind} volume"),
            (None, None) => format!(" {}", describe_type(device.kind)),
        };
        let volume = (device.kind == StackedDeviceKind::Volume).then(|| self.stack.volume_name(device)).flatten();
        format!("{}{known}", volume.as_deref().unwrap_or_else(|| strip_dev(&device.device)))
    }

    fn push_line(&mut self, depth: usize, what: &str, parts: &[String]) {
        self.lines.push_line(depth, what, parts);
    }
}

fn describe_use(usage: &DeviceUse) -> Option<String> {
    (!matches!(usage, DeviceUse::Holder(_))).then(|| usage.to_string())
}

fn describe_type(kind: StackedDeviceKind) -> &'static str {
    match kind {
        StackedDeviceKind::Array => "array",
        StackedDeviceKind::Volume => "volume",
        StackedDeviceKind::Crypt => "dm-crypt",
        StackedDeviceKind::Bcache => "bcache",
        StackedDeviceKind::Other => "device-mapper device",
    }
}
