//! Objects that span disks with different verdicts: arrays, groups, filesystems and all other objects on several
//! devices, active or not.

use super::planner_state::PlannerState;
use super::{DiskVerdict, InstallMode, TornObject, arrays, lvm};
use crate::content_descriptions;
use common::error_code::ErrorCode;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{DeviceSignature, Inventory, SpanningComponent, StackedDeviceKind};
use std::collections::{BTreeMap, BTreeSet};

/// Filesystems that span devices without LVM or md. Every device of such a filesystem has the filesystem's UUID.
pub(crate) const SPANNING: [&str; 3] = ["btrfs", "zfs_member", "bcachefs"];

/// An object that consists of several devices of the machine.
struct SpanningObject {
    /// Name of the object, such as `md127`, `raid5 "data"`, `vg:vg00`.
    name: String,
    whole: String,
    members: Vec<KernelName>,
}

impl PlannerState<'_> {
    /// Checks objects that would lose members.
    ///
    /// | mode | an object has members on disks that are wiped, and other members on | result |
    /// |---|---|---|
    /// | install | unlisted disks | the object loses members, with a warning |
    /// | reinstall | preserved or unlisted disks | the plan is refused |
    pub(crate) fn check_spanning(&mut self) {
        for thing in self.list_spanning() {
            let below = |member: &KernelName| (member.clone(), self.verdicts_below(member));
            let members: Vec<(KernelName, BTreeSet<DiskVerdict>)> = thing.members.iter().map(below).collect();
            let of = |wiped: bool| -> Vec<KernelName> {
                let members = members.iter().filter(|(_, verdicts)| is_made(verdicts) == wiped);
                members.map(|(name, _)| name.clone()).collect()
            };
            let (wiped, staying) = (of(true), of(false));
            if wiped.is_empty() || staying.is_empty() {
                continue;
            }
            match self.request.mode {
                InstallMode::Install => self.warn_incomplete_object(&thing, &wiped, &staying),
                InstallMode::Reinstall => self.refuse_torn(&thing, &wiped, &staying),
            }
        }
    }

    fn warn_incomplete_object(&mut self, thing: &SpanningObject, wiped: &[KernelName], staying: &[KernelName]) {
        let disks = self.stack.disks_below_all(staying);
        let stays_on: Vec<KernelName> = disks.into_iter().collect();
        self.warn(format!(
            "REMOVES {wiped} FROM {object}, whose other members on {disks} are not in the layout and stay unchanged: {members}", wiped = wiped.join(", "), object = thing.name, disks = stays_on.join(", "), members = thing.whole));
        let (name, whole) = (thing.name.clone(), thing.whole.clone());
        self.decided.dismantled.push(TornObject { name, whole, wiped: wiped.to_vec(), stays_on });
    }

    fn refuse_torn(&mut self, thing: &SpanningObject, wiped: &[KernelName], staying: &[KernelName]) {
        let message = format!(
            "{} spans {}, which a reinstall wipes, and {}, which the reinstall does not write: {}; dismantle this \
                object first, or keep or wipe all of its disks",
            thing.name,
            wiped.join(", "),
            staying.join(", "),
            thing.whole
        );
        self.refuse(ErrorCode::SpanningObject, "disks", message);
    }

    fn list_spanning(&self) -> Vec<SpanningObject> {
        let names = |devices: &mut dyn Iterator<Item = &DevicePath>| -> Vec<KernelName> {
            devices.map(|device| self.stack.kernel_name(device)).collect()
        };
        let arrays = self.inventory.arrays.iter().map(|array| SpanningObject {
            name: array
                .running
                .as_ref()
                .map_or_else(|| format!("{} \"{}\"", array.level, array.name), KernelName::to_string),
            whole: arrays::describe_array(array),
            members: names(&mut array.members.iter().map(|member| &member.device)),
        });
        let groups = self.inventory.groups.iter().map(|group| SpanningObject {
            name: format!("vg:{}", group.name),
            whole: lvm::describe_group(group),
            members: names(&mut group.present_devices()),
        });
        // Stacked devices other than the arrays and groups above. They include arrays and volumes that no superblock in
        // the inventory describes.
        let told = |name: &KernelName| self.stack.find_array(name).is_some() || self.stack.find_volume(name).is_some();
        let others = self.inventory.stacked.iter().filter(|device| !told(&device.name)).map(|device| SpanningObject {
            name: device.name.to_string(),
            whole: format!("{} {}", describe_type(device.kind), device.device),
            members: device.below.clone(),
        });
        arrays.chain(groups).chain(others).chain(self.spanning_filesystems()).chain(self.spanning_parts()).collect()
    }

    /// Returns filesystems with several present devices; `missing_component_protection` checks absent devices. Two
    /// devices with the same UUID are assumed to be members of one filesystem, because a signature does not show
    /// whether one of them is a copy.
    fn spanning_filesystems(&self) -> impl Iterator<Item = SpanningObject> {
        let mut found: BTreeMap<(&str, &str), (&DeviceSignature, Vec<&DevicePath>)> = BTreeMap::new();
        for (device, signature) in all_signatures(self.inventory) {
            if SPANNING.contains(&signature.kind.as_str()) && !signature.uuid.is_empty() {
                let whole = found.entry((&signature.kind, &signature.uuid));
                whole.or_insert_with(|| (signature, Vec::new())).1.push(device);
            }
        }
        let several = found.into_values().filter(|(_, devices)| devices.len() > 1);
        several.map(|(signature, devices)| SpanningObject {
            name: content_descriptions::describe_signature(signature),
            whole: format!("{} with UUID {} on {}", signature.kind, signature.uuid, join_devices(&devices)),
            members: devices.into_iter().map(|device| self.stack.kernel_name(device)).collect(),
        })
    }
}

/// Returns every signature, with the path of the disk, partition or stacked device on which it was found.
pub(crate) fn all_signatures(inventory: &Inventory) -> impl Iterator<Item = (&DevicePath, &DeviceSignature)> {
    inventory.all_signatures().flat_map(|(device, found)| found.iter().map(move |found| (device, found)))
}

impl PlannerState<'_> {
    /// Returns objects that are recognized by an id in the metadata of their components, because libblkid does not
    /// report a UUID for them.
    fn spanning_parts(&self) -> impl Iterator<Item = SpanningObject> {
        let mut found: BTreeMap<(&str, &str), Vec<&SpanningComponent>> = BTreeMap::new();
        // Components of the formats in [`SPANNING`] are found by their signatures, in `spanning_filesystems`.
        for part in self.inventory.parts.iter().filter(|part| !SPANNING.contains(&part.kind.as_str())) {
            found.entry((&part.whole, &part.id)).or_default().push(part);
        }
        found.into_iter().filter(|(_, parts)| parts.len() > 1).map(|((whole, id), parts)| {
            let on: Vec<String> = parts.iter().map(|part| format!("{} on {}", part.kind, part.device)).collect();
            SpanningObject {
                name: whole.to_owned(),
                whole: format!("{whole} {id}: {}", on.join(", ")),
                members: parts.iter().map(|part| self.stack.kernel_name(&part.device)).collect(),
            }
        })
    }
}

fn join_devices(devices: &[&DevicePath]) -> String {
    devices.iter().map(|device| device.as_str()).collect::<Vec<_>>().join(", ")
}

fn is_made(verdicts: &BTreeSet<DiskVerdict>) -> bool {
    verdicts.contains(&DiskVerdict::Wipe) || verdicts.contains(&DiskVerdict::Make)
}

fn describe_type(kind: StackedDeviceKind) -> &'static str {
    match kind {
        StackedDeviceKind::Array => "array",
        StackedDeviceKind::Volume => "logical volume",
        StackedDeviceKind::Crypt => "dm-crypt",
        StackedDeviceKind::Bcache => "bcache",
        StackedDeviceKind::Other => "device-mapper device",
    }
}
