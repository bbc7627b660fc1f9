//! Discovery of the layout of a machine that another installer has installed, for reinstalls that preserve its data.
//!
//! [`discover_layout`] is a pure function of the inventory and of the installed system's fstab. [`assess_reinstall`] plans a reinstall with
//! the discovered layout, and reports what prevents it. [`plan_adoption`] returns the install marker with which the machine can be
//! reinstalled.

mod adoption_plan;
mod annotated_yaml;
mod container_keys;
mod content_purpose;
mod crypttab;
mod fstab;
mod layout_builder;
mod layout_names;
mod machine_contents;
mod notes;
mod reinstall_assessment;
#[cfg(test)]
mod tests;

pub use adoption_plan::{AdoptedInstallation, AdoptionPlan, plan_adoption};
pub use annotated_yaml::format_layout;
pub use crypttab::InstalledCrypttab;
pub use notes::DiscoveryNote;
pub use reinstall_assessment::{ReinstallAssessment, assess_reinstall};

use fstab::{MountTable, parse_fstab};
use layout_builder::build_layout;
use layout_builder::filesystems::describe_content;
use machine_contents::MachineContents;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{DiskPartition, Inventory};
use model::layout::Layout;
use model::storage_graph::{DeviceStack, StackUnit};
use operations::ByteRange;

/// Layout that describes an existing machine, and the properties of the machine that the layout cannot express.
#[derive(Debug, Clone)]
pub struct DiscoveredLayout {
    pub layout: Layout,
    pub notes: Vec<DiscoveryNote>,
    /// Contents that a reinstall renews, each with its device.
    pub system: Vec<String>,
    /// Contents that a reinstall must preserve, each with its device.
    pub data: Vec<String>,
    /// Device with the root filesystem; `None` if nothing mounts `/`.
    pub root: Option<DevicePath>,
    /// Ranges of the disks that contain only data, each with the path of its disk.
    data_ranges: Vec<(String, ByteRange)>,
}

/// Returns the layout of a machine. `fstab` is the fstab of the installed system. If it is `None`, the fstab in the
/// inventory is used, and mounts of the running system are added.
pub fn discover_layout(inventory: &Inventory, fstab: Option<&str>, id: &str) -> DiscoveredLayout {
    discover_layout_with_keys(inventory, fstab, None, id)
}

/// Returns the layout of a machine, as [`discover_layout`] does. `crypttab` is the crypttab of the installed system. If
/// it is `None`, a reinstall is refused if the machine has encrypted data, because it might erase the key of this data.
pub fn discover_layout_with_keys(
    inventory: &Inventory,
    fstab: Option<&str>,
    crypttab: Option<&InstalledCrypttab>,
    id: &str,
) -> DiscoveredLayout {
    let mut notes = Vec::new();
    let stack = DeviceStack::new(inventory);
    let recorded = if fstab.is_none() { find_recorded_fstab(inventory, &mut notes) } else { None };
    let lines = parse_fstab(fstab.or(recorded).unwrap_or_default());
    let mounts = MountTable::from_fstab(lines, inventory, &stack, &mut notes);
    let machine = MachineContents::new(inventory, stack, &mounts);
    let layout = build_layout(&machine, &mounts.memory, id, &mut notes);
    container_keys::note_container_keys(&machine, crypttab, &mut notes);
    let of = |wanted: fn(&content_purpose::PurposeSet) -> bool| {
        let contents = machine.contents.iter().filter(|content| wanted(&content.purpose));
        contents.map(describe_content).collect::<Vec<_>>()
    };
    let root = machine.contents.iter().find(|content| content.paths().any(|path| path == "/"));
    let root = root.map(|content| content.device.clone());
    DiscoveredLayout {
        layout,
        root,
        notes,
        system: of(|purpose| purpose.system),
        data: of(|purpose| purpose.data),
        data_ranges: find_data_ranges(&machine),
    }
}

/// Returns the fstab in the inventory; `None` if there is none, or if several installations have one.
fn find_recorded_fstab<'a>(inventory: &'a Inventory, notes: &mut Vec<DiscoveryNote>) -> Option<&'a str> {
    let found =
        inventory.filesystems.iter().filter_map(|contents| Some((&contents.device, contents.fstab.as_deref()?)));
    let found: Vec<_> = found.filter(|(_, text)| parse_fstab(text).iter().any(|line| line.path == "/")).collect();
    match found.as_slice() {
        [] => None,
        [(_, text)] => Some(text),
        several => {
            let devices: Vec<&str> = several.iter().map(|(device, _)| device.as_str()).collect();
            notes.push(DiscoveryNote::obstacle(format!(
                "several installed systems have an fstab ({}): select one of them with --fstab",
                devices.join(", ")
            )));
            None
        }
    }
}

/// Returns the partitions and whole disks that contain data and nothing of the system.
fn find_data_ranges(machine: &MachineContents) -> Vec<(String, ByteRange)> {
    let is_data = |name: &KernelName| {
        let purpose = machine.purpose_of(name);
        purpose.data && !purpose.system
    };
    let range = |part: &DiskPartition| ByteRange { start: part.start_bytes, length: part.size_bytes };
    let mut ranges = Vec::new();
    for disk in &machine.inventory.disks {
        let device = disk.device.to_string();
        if is_data(&disk.name) {
            ranges.push((device, ByteRange { start: 0, length: disk.size_bytes }));
            continue;
        }
        let parts = disk.table.iter().flat_map(|table| &table.partitions);
        let parts = parts.filter(|part| {
            let name = part.device.kernel_name();
            is_data(&name) && !matches!(machine.stack.find_unit(&name), StackUnit::Unknown)
        });
        ranges.extend(parts.map(|part| (device.clone(), range(part))));
    }
    ranges
}
