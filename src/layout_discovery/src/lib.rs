//! Discovery of the layout of a machine that another installer has installed, for reinstalls that preserve its data.
//!
//! [`discover_layout`] is a pure function of the inventory and of the installed system's fstab. [`assess_reinstall`]
//! plans a reinstall with the discovered layout, and reports what prevents it. [`plan_adoption`] returns the install
//! marker with which the machine can be reinstalled.

mod adoption_marker;
mod annotated_yaml;
mod container_keys;
mod content_purposes;
mod crypttab;
mod discovery_notes;
mod fstab;
mod layout_builder;
mod layout_device_names;
mod mount_point_purposes;
mod planned_erasure;
mod reinstall_assessment;
mod system_partition_types;
#[cfg(test)]
mod tests;
mod unconfirmed_kernel_names;
mod underlying_devices;
mod unproven_contents;

pub use adoption_marker::{AdoptedInstallation, AdoptionPlan, plan_adoption};
pub use annotated_yaml::format_layout;
pub use crypttab::InstalledCrypttab;
pub use discovery_notes::DiscoveryNote;
pub use reinstall_assessment::{ReinstallAssessment, assess_reinstall};

use content_purposes::MachineContents;
use fstab::{MountTable, parse_fstab};
use layout_builder::build_layout;
use layout_builder::filesystems::describe_content;
use model::device_name::{DevicePath, KernelName};
use model::inventory::Inventory;
use model::layout::Layout;
use model::storage_graph::DeviceStack;
use unconfirmed_kernel_names::find_unconfirmed_names;
use unproven_contents::{UnprovenContent, find_unproven};

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
    /// Kernel names of the devices with data, or `GROUP/VOLUME`, in the order of `data`.
    data_devices: Vec<KernelName>,
    /// Contents that a reinstall must not erase without a request of the operator.
    unproven: Vec<UnprovenContent>,
}

impl DiscoveredLayout {
    /// Permits the erasure of the content of this device, although no mount proves that the content belongs to the
    /// system. Contents of `data` must be preserved nevertheless.
    pub fn give_up(&mut self, device: &str) {
        let found = std::mem::take(&mut self.unproven).into_iter();
        let (given_up, others): (Vec<_>, Vec<_>) = found.partition(|content| content.device == *device);
        self.unproven = others;
        self.notes.push(match given_up.as_slice() {
            [] => DiscoveryNote::obstacle(format!(
                "--give-up {device}: no device with this path has a content whose purpose is uncertain; use the path in the list of the \
                 reasons"
            )),
            [found, ..] => DiscoveryNote::report(format!(
                "{device}: a reinstall may erase this {}, as requested with --give-up",
                found.content
            )),
        });
    }
}

/// Returns the layout of a machine. `fstab` is the fstab of the installed system. If it is `None`, the fstab in the
/// inventory is used. The mounts of the running system count in addition to the fstab.
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
    let lines = parse_fstab(fstab.or(recorded.map(|(_, text)| text)).unwrap_or_default());
    let recorded_on = recorded.map(|(device, _)| device);
    notes.extend(find_unconfirmed_names(&lines, recorded_on, inventory, &stack));
    let mounts = MountTable::from_fstab(lines, inventory, &stack, &mut notes);
    notes.extend(recorded_on.and_then(|device| find_other_root(device, &mounts, &stack)));
    let unproven = find_unproven(inventory, &stack, &mounts);
    let machine = MachineContents::new(inventory, stack, &mounts);
    let layout = build_layout(&machine, &mounts.memory, id, &mut notes);
    container_keys::note_container_keys(&machine, crypttab, &mut notes);
    let of = |wanted: fn(&mount_point_purposes::PurposeSet) -> bool| {
        let contents = machine.contents.iter().filter(|content| wanted(&content.purpose));
        contents.map(describe_content).collect::<Vec<_>>()
    };
    let data_devices = machine.contents.iter().filter(|content| content.purpose.data);
    let data_devices = data_devices.map(|content| content.name.clone()).collect();
    let root = machine.contents.iter().find(|content| content.paths().any(|path| path == "/"));
    let root = root.map(|content| content.device.clone());
    DiscoveredLayout {
        layout,
        root,
        notes,
        system: of(|purpose| purpose.system),
        data: of(|purpose| purpose.data),
        data_devices,
        unproven,
    }
}

/// Returns an obstacle if the fstab that was found on this device mounts another device as root.
fn find_other_root(device: &DevicePath, mounts: &MountTable, stack: &DeviceStack) -> Option<DiscoveryNote> {
    let is_root = mounts.lines_of(&stack.kernel_name(device)).iter().any(|line| line.path == "/");
    (mounts.has_path("/") && !is_root).then(|| {
        DiscoveryNote::obstacle(format!(
            "the fstab of an installed system is on {device}, but it mounts another device at /: select the fstab of the \
             system with --fstab"
        ))
    })
}

/// Returns the fstab in the inventory, and the device on which it was found; `None` if there is none, or if several
/// installations have one.
fn find_recorded_fstab<'a>(
    inventory: &'a Inventory,
    notes: &mut Vec<DiscoveryNote>,
) -> Option<(&'a DevicePath, &'a str)> {
    let found =
        inventory.filesystems.iter().filter_map(|contents| Some((&contents.device, contents.fstab.as_deref()?)));
    let found: Vec<_> = found.filter(|(_, text)| parse_fstab(text).iter().any(|line| line.path == "/")).collect();
    match found.as_slice() {
        [] => None,
        [(device, text)] => Some((*device, *text)),
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
