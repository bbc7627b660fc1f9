//! Detection of cycles and excessive depth of stacked devices.

use crate::device_name::KernelName;
use crate::inventory::{DeviceUse, DiskPartition, DiskTable, Inventory};
use std::collections::BTreeMap;

/// Graph that contains, for each device, the devices on top of it.
#[derive(Default)]
struct StackingLevels {
    numbers: BTreeMap<KernelName, usize>,
    names: Vec<KernelName>,
    above: Vec<Vec<usize>>,
    /// For each device, number of underlying devices whose level has not been determined yet.
    waits_for: Vec<usize>,
    disks: Vec<bool>,
}

impl StackingLevels {
    fn device_index(&mut self, name: &KernelName) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len();
        self.numbers.insert(name.clone(), number);
        self.names.push(name.clone());
        self.above.push(Vec::new());
        self.waits_for.push(0);
        self.disks.push(false);
        number
    }

    /// Records that `upper` is on top of `lower`. Does nothing if `upper` is a disk, which cannot be on top of a
    /// device.
    fn add_link(&mut self, lower: usize, upper: usize) {
        if !self.disks[upper] {
            self.above[lower].push(upper);
            self.waits_for[upper] += 1;
        }
    }

    fn add_holders(&mut self, lower: usize, uses: &[DeviceUse]) {
        for usage in uses {
            if let DeviceUse::Holder(holder) = usage {
                let upper = self.device_index(holder);
                self.add_link(lower, upper);
            }
        }
    }

    fn add_partitions(&mut self, whole: usize, table: Option<&DiskTable>) {
        for DiskPartition { device, uses, .. } in table.into_iter().flat_map(|table| &table.partitions) {
            let part = self.device_index(&device.kernel_name());
            self.add_link(whole, part);
            self.add_holders(part, uses);
        }
    }
}

/// Returns a message if devices are stacked in a cycle, or in more than `maximum` levels; otherwise `None`.
pub(crate) fn find_stacking_problem(inventory: &Inventory, maximum: usize) -> Option<String> {
    let mut levels = StackingLevels::default();
    for disk in &inventory.disks {
        let number = levels.device_index(&disk.name);
        levels.disks[number] = true;
    }
    for disk in &inventory.disks {
        let number = levels.device_index(&disk.name);
        levels.add_holders(number, &disk.uses);
        levels.add_partitions(number, disk.table.as_ref());
    }
    for stacked in &inventory.stacked {
        let number = levels.device_index(&stacked.name);
        for below in &stacked.below {
            let lower = levels.device_index(below);
            levels.add_link(lower, number);
        }
        levels.add_holders(number, &stacked.uses);
        levels.add_partitions(number, stacked.table.as_ref());
    }
    levels.check_levels(maximum)
}

impl StackingLevels {
    /// Determines the level of each device, starting with devices that are not on top of another device. Devices in a
    /// cycle, and devices on top of a cycle, get no level, which reveals the cycle.
    fn check_levels(mut self, maximum: usize) -> Option<String> {
        let mut level = vec![1; self.names.len()];
        let mut open: Vec<usize> = (0..self.names.len()).filter(|number| self.waits_for[*number] == 0).collect();
        let mut judged = 0;
        while let Some(lower) = open.pop() {
            judged += 1;
            for upper in std::mem::take(&mut self.above[lower]) {
                level[upper] = level[upper].max(level[lower] + 1);
                self.waits_for[upper] -= 1;
                if self.waits_for[upper] == 0 {
                    open.push(upper);
                }
            }
        }
        if judged < self.names.len() {
            let cyclic = (0..self.names.len()).find(|number| self.waits_for[*number] > 0);
            let name = cyclic.map(|number| self.names[number].as_str()).unwrap_or_default();
            return Some(format!(
                "the inventory is inconsistent: the devices below {name} form a cycle; read the inventory again on the machine"
            ));
        }
        let highest = level.into_iter().max().unwrap_or_default();
        (highest > maximum).then(|| {
            format!(
                "the inventory contains {highest} levels of stacked devices, but at most {maximum} are supported: \
                 stop or remove arrays, volumes and mappings that are not needed"
            )
        })
    }
}
