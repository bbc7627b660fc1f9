//! Objects in use on each disk, as a tree for the operator.

use super::lines::Lines;
use super::{nothing_known, short, signature};
use crate::device::{DevicePath, KernelName};
use crate::inventory::{Array, Disk, Inventory, LogicalVolume, Stacked, StackedKind, Table, Use};
use crate::plan::{arrays, lvm};
use crate::topology::Stack;
use std::collections::BTreeSet;

/// Draws the trees. An object that spans several disks is drawn once.
pub struct Running<'a> {
    inventory: &'a Inventory,
    stack: &'a Stack<'a>,
    drawn: BTreeSet<&'a KernelName>,
    lines: Lines,
}

impl<'a> Running<'a> {
    pub fn new(inventory: &'a Inventory, stack: &'a Stack<'a>) -> Running<'a> {
        Running { inventory, stack, drawn: BTreeSet::new(), lines: Lines::default() }
    }

    /// Returns one tree for each disk of the inventory, in order.
    pub fn trees(mut self) -> Vec<Vec<String>> {
        let mut trees = Vec::new();
        for disk in &self.inventory.disks {
            self.whole(disk);
            self.partitions(&disk.table, 0);
            trees.push(self.lines.take());
        }
        trees
    }

    /// Draws the whole disk, whose name is in the line above the tree.
    fn whole(&mut self, disk: &'a Disk) {
        self.unit(&disk.name, &disk.device, &disk.uses, 0);
        self.lines.lift(short(&disk.device));
    }

    fn partitions(&mut self, table: &'a Option<Table>, depth: usize) {
        for part in table.iter().flat_map(|table| &table.partitions) {
            self.unit(&part.device.kernel_name(), &part.device, &part.uses, depth);
        }
    }

    /// Draws a disk or partition if something on it is active, or can be activated.
    fn unit(&mut self, name: &KernelName, device: &DevicePath, uses: &[Use], depth: usize) {
        let mut parts: Vec<String> = uses.iter().filter_map(use_in_words).collect();
        let holders = self.stack.holders(name);
        if holders.is_empty() {
            parts.extend(self.dormant(device));
        }
        if parts.is_empty() && holders.is_empty() {
            return;
        }
        self.line(depth, short(device), &parts);
        holders.iter().for_each(|holder| self.holder(holder, depth + 1));
    }

    fn holder(&mut self, name: &KernelName, depth: usize) {
        let Some(device) = self.stack.stacked(name) else {
            return self.line(depth, name, &["unknown device".to_owned()]);
        };
        if self.lines.is_full(depth) {
            return;
        }
        // Overlays of the agent for inspection are omitted.
        if device.is_overlay() {
            if !self.drawn.insert(&device.name) {
                return;
            }
            return self.stack.holders(name).iter().for_each(|holder| self.holder(holder, depth));
        }
        let what = self.in_words(device);
        if !self.drawn.insert(&device.name) {
            return self.line(depth, &what, &["as above".to_owned()]);
        }
        let mut parts: Vec<String> = device.signatures.iter().map(signature).collect();
        let holders = self.stack.holders(&device.name);
        let is_bottom = device.table.is_none() && holders.is_empty();
        if parts.is_empty() && is_bottom {
            parts.push(nothing_known(device.blank).to_owned());
        }
        parts.extend(device.uses.iter().filter_map(use_in_words));
        self.line(depth, &what, &parts);
        holders.iter().for_each(|holder| self.holder(holder, depth + 1));
        self.partitions(&device.table, depth + 1);
    }

    /// Returns the inactive arrays and groups on a device without holders.
    fn dormant(&self, device: &DevicePath) -> Vec<String> {
        let arrays = self.stack.arrays_on(device).iter().filter(|array| array.running.is_none());
        let groups = self.stack.groups_on(device).iter();
        let arrays = arrays.map(|array| format!("{}, not running", arrays::in_words(array)));
        arrays.chain(groups.map(|group| format!("{}, not active", lvm::in_words(group)))).collect()
    }

    fn in_words(&self, device: &Stacked) -> String {
        let array = self.stack.array(&device.name);
        let volume = self.stack.volume(&device.name).map(|(_, volume)| volume);
        let known = match (array, volume) {
            (Some(Array { level, metadata, name, .. }), _) if name.is_empty() => {
                format!(" {level} metadata {metadata}")
            }
            (Some(Array { level, metadata, name, .. }), _) => format!(" {level} \"{name}\" metadata {metadata}"),
            (None, Some(LogicalVolume { kind, .. })) => format!(" {kind} volume"),
            (None, None) => format!(" {}", kind(device.kind)),
        };
        let volume = (device.kind == StackedKind::Volume).then(|| self.stack.volume_name(device)).flatten();
        format!("{}{known}", volume.as_deref().unwrap_or_else(|| short(&device.device)))
    }

    fn line(&mut self, depth: usize, what: &str, parts: &[String]) {
        self.lines.push(depth, what, parts);
    }
}

fn use_in_words(usage: &Use) -> Option<String> {
    (!matches!(usage, Use::Holder(_))).then(|| usage.to_string())
}

fn kind(kind: StackedKind) -> &'static str {
    match kind {
        StackedKind::Array => "array",
        StackedKind::Volume => "volume",
        StackedKind::Crypt => "dm-crypt",
        StackedKind::Bcache => "bcache",
        StackedKind::Other => "device-mapper device",
    }
}
