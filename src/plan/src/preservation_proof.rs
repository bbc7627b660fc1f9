//! Objects that a reinstall preserves, and their identities. The identities are read when the plan is made, and again
//! before the install marker is written. Both times, the same function reads them, so the results differ only if the
//! machine has changed.

use super::filesystem_fate::FilesystemFate;
use super::plan_decisions::{ArrayFate, GroupFate, PlanDecisions};
use super::{DiskVerdict, luks};
use model::device_name::{DevicePath, KernelName};
use model::install_report::PreservationProof;
use model::inventory::{self, DeviceSignature, Inventory};
use model::layout::Layout;
use model::storage_graph::{CombinedValues, DeviceStack, StackUnit};
use operations::{ObjectLocator, PreservedObject, StableDevice};
use std::collections::{BTreeMap, BTreeSet};

type ObjectIdentity = BTreeMap<String, String>;

/// Returns all objects on preserved disks, including those that are not in the layout.
pub(crate) fn list_preserved(layout: &Layout, inventory: &Inventory, decided: &PlanDecisions) -> Vec<PreservedObject> {
    let keeping = PreservedObjects::new(inventory, decided);
    let disks = keeping.disks().map(|disk| ObjectLocator::Disk(disk.name.clone()));
    let arrays = keeping.arrays().map(|array| {
        let named = keeping.decided.arrays.iter().find_map(|fate| match fate {
            ArrayFate::Preserved { device, uuid, .. } if *uuid == array.uuid => Some(device.clone()),
            _ => None,
        });
        let device = named.or_else(|| array.running.as_ref().map(KernelName::device_path));
        ObjectLocator::Array { uuid: array.uuid, device }
    });
    let groups = keeping.groups();
    let groups = groups.map(|group| ObjectLocator::Group {
        uuid: group.uuid.clone(),
        name: group.name.clone(),
        added: keeping.added_volumes(group),
    });
    let parts = preserved_parts(decided).map(|part| ObjectLocator::Partition(part.device.clone()));
    let objects = disks.chain(parts).chain(arrays).chain(groups).chain(keeping.filesystems(layout));
    objects
        .map(|object| PreservedObject { identity: read_identity(&object, inventory, &keeping.stack), object })
        .collect()
}

/// Compares the recorded identity of each preserved object with its current identity.
pub fn compare_preserved(preserved: &[PreservedObject], now: &Inventory) -> Vec<PreservationProof> {
    let stack = DeviceStack::new(now);
    let proof = |preserved: &PreservedObject| PreservationProof {
        object: preserved.object.to_string(),
        before: preserved.identity.clone(),
        after: read_identity(&preserved.object, now, &stack),
    };
    preserved.iter().map(proof).collect()
}

/// Returns one line for each property that differs between two identities, with both values of the property.
pub fn describe_differences(proofs: &[PreservationProof]) -> Vec<String> {
    let mut differences = Vec::new();
    for proof in proofs.iter().filter(|proof| proof.before != proof.after) {
        if proof.after.is_empty() {
            differences.push(format!("{} is missing", proof.object));
            continue;
        }
        let names: std::collections::BTreeSet<&String> = proof.before.keys().chain(proof.after.keys()).collect();
        for name in names {
            let side = |identity: &ObjectIdentity| identity.get(name).map_or("nothing".to_owned(), String::clone);
            let (before, after) = (side(&proof.before), side(&proof.after));
            if before != after {
                differences.push(format!(
                    "{object}: {name} was {before} before the installation, and is {after} now",
                    object = proof.object
                ));
            }
        }
    }
    differences
}

/// Returns the identity of an object; empty if it is absent.
fn read_identity(object: &ObjectLocator, inventory: &Inventory, stack: &DeviceStack) -> ObjectIdentity {
    let found = match object {
        ObjectLocator::Disk(name) => inventory.disks.iter().find(|disk| disk.name == *name).map(disk_identity),
        ObjectLocator::Partition(device) => match stack.unit_at(device) {
            Some(StackUnit::Partition(part)) => Some(partition_identity(part)),
            Some(StackUnit::Disk(_) | StackUnit::Stacked(_) | StackUnit::Unknown) | None => None,
        },
        ObjectLocator::Array { uuid, .. } => {
            inventory.arrays.iter().find(|array| array.uuid == *uuid).map(array_identity)
        }
        ObjectLocator::Group { uuid, added, .. } => {
            inventory.groups.iter().find(|group| group.uuid == *uuid).map(|found| group_identity(found, added))
        }
        ObjectLocator::Filesystem { on, .. } => {
            find_content(inventory, stack, on).map(|(_, signatures)| filesystem_identity(signatures))
        }
    };
    found.unwrap_or_default()
}

fn disk_identity(disk: &inventory::InventoryDisk) -> ObjectIdentity {
    let mut identity = ObjectIdentity::new();
    let mut put = |name: &str, value: String| drop(identity.insert(name.to_owned(), value));
    put("size", format!("{} bytes", disk.size_bytes));
    if let Some(table) = &disk.table {
        put("table", table.kind.clone());
        table.guid.into_iter().for_each(|guid| put("guid", guid.to_string()));
        for part in &table.partitions {
            put(&format!("partition {}", part.number), describe_entry(part));
        }
    }
    if !disk.signatures.is_empty() {
        put("content", describe_signatures(&disk.signatures));
    }
    identity
}

fn partition_identity(part: &inventory::DiskPartition) -> ObjectIdentity {
    [("number", part.number.to_string()), ("entry", describe_entry(part))]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

fn describe_entry(part: &inventory::DiskPartition) -> String {
    let guid = part.guid.map(|guid| guid.to_string()).unwrap_or_default();
    let (start, size, kind, label) = (part.start_bytes, part.size_bytes, &part.kind, &part.label);
    format!("{guid} at {start} + {size} bytes, {kind} \"{label}\"")
}

/// Returns the preserved partitions of all partly kept disks.
fn preserved_parts(decided: &PlanDecisions) -> impl Iterator<Item = &inventory::DiskPartition> {
    decided.partly_kept.iter().flat_map(|disk| &disk.preserved)
}

fn array_identity(array: &inventory::MdArray) -> ObjectIdentity {
    let mut members: Vec<&str> = array.members.iter().map(|member| member.device.as_str()).collect();
    members.sort();
    [
        ("uuid", array.uuid.to_string()),
        ("level", array.level.clone()),
        ("metadata", array.metadata.clone()),
        ("devices", array.raid_devices.to_string()),
        ("members", members.join(" ")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Returns the identity of a group. The volumes that the plan adds are not part of the identity.
fn group_identity(group: &inventory::LvmVolumeGroup, added: &[String]) -> ObjectIdentity {
    let mut physical: Vec<&str> = group.physical.iter().map(|physical| physical.uuid.as_str()).collect();
    physical.sort();
    let own = [("uuid", group.uuid.clone()), ("name", group.name.clone()), ("physical volumes", physical.join(" "))];
    let own = own.map(|(name, value)| (name.to_owned(), value));
    let volumes = group.volumes.iter().filter(|volume| !added.contains(&volume.name));
    let volumes = volumes.map(|volume| {
        (format!("volume {}", volume.name), format!("{}, {} bytes, {}", volume.uuid, volume.size_bytes, volume.kind))
    });
    let hidden = group.hidden.iter();
    let hidden = hidden.map(|hidden| {
        (format!("hidden volume {}", hidden.name), format!("{}, {} bytes", hidden.uuid, hidden.size_bytes))
    });
    own.into_iter().chain(volumes).chain(hidden).collect()
}

fn filesystem_identity(found: &[DeviceSignature]) -> ObjectIdentity {
    match found {
        [one] => [("format", &one.kind), ("uuid", &one.uuid), ("label", &one.label)]
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .into(),
        [] => ObjectIdentity::new(),
        several => [("format".to_owned(), describe_signatures(several))].into(),
    }
}

fn describe_signatures(signatures: &[DeviceSignature]) -> String {
    let mut said: Vec<String> =
        signatures.iter().map(|signature| format!("{} {}", signature.kind, signature.uuid)).collect();
    said.sort();
    said.join(", ")
}

/// Returns the path and the signatures of a device in an inventory; `None` if it is absent or inactive.
pub(crate) fn find_content<'a>(
    inventory: &'a Inventory,
    stack: &DeviceStack<'a>,
    on: &StableDevice,
) -> Option<(&'a DevicePath, &'a [DeviceSignature])> {
    let running = match on {
        StableDevice::Device(device) => {
            let unit = stack.unit_at(device)?;
            let is_of_disk = match unit {
                StackUnit::Disk(_) => true,
                StackUnit::Partition(_) => matches!(stack.whole_of(device), Some(StackUnit::Disk(_))),
                StackUnit::Stacked(_) | StackUnit::Unknown => false,
            };
            return unit.device().filter(|_| is_of_disk).map(|device| (device, unit.signatures()));
        }
        StableDevice::Mapping(device) => &stack.kernel_name(device),
        StableDevice::Array(uuid) => inventory.arrays.iter().find(|array| array.uuid == *uuid)?.running.as_ref()?,
        StableDevice::Volume { group, name } => {
            let group = inventory.groups.iter().find(|is| is.uuid == *group)?;
            group.volumes.iter().find(|volume| volume.name == *name)?.running.as_ref()?
        }
    };
    let stacked = stack.find_stacked(running)?;
    Some((&stacked.device, &stacked.signatures))
}

/// Returns whether the disk is preserved, either according to the layout or because it already contains a Kubernetes
/// volume.
fn is_preserved(decided: &PlanDecisions, disk: &super::DiskPlan) -> bool {
    match disk.verdict {
        DiskVerdict::Keep => true,
        DiskVerdict::Volumes => !decided.persistent.written.contains(&disk.name),
        DiskVerdict::Wipe | DiskVerdict::Make | DiskVerdict::PartlyKept | DiskVerdict::NotOurs => false,
    }
}

/// Objects that are only on preserved disks.
pub(crate) struct PreservedObjects<'a> {
    inventory: &'a Inventory,
    decided: &'a PlanDecisions,
    pub stack: DeviceStack<'a>,
    /// Flags of each device: [`PRESERVED_DISK_FLAG`] if the device is on a preserved disk or partition,
    /// [`OTHER_DISK_FLAG`] if it is on any other disk or partition. A device may have both flags.
    below: CombinedValues,
    preserved: BTreeSet<&'a KernelName>,
}

/// Flag that [`PreservedObjects::below`] contains for a preserved disk or partition. All other disks and partitions
/// have [`OTHER_DISK_FLAG`].
const PRESERVED_DISK_FLAG: u8 = 1;
const OTHER_DISK_FLAG: u8 = 2;

impl<'a> PreservedObjects<'a> {
    pub(crate) fn new(inventory: &'a Inventory, decided: &'a PlanDecisions) -> PreservedObjects<'a> {
        let stack = DeviceStack::new(inventory);
        let preserved: BTreeSet<&KernelName> =
            decided.disks.iter().filter(|disk| is_preserved(decided, disk)).map(|disk| &disk.name).collect();
        let parts: BTreeSet<KernelName> = preserved_parts(decided).map(|part| part.device.kernel_name()).collect();
        let disk = |name: &KernelName| if preserved.contains(name) { PRESERVED_DISK_FLAG } else { OTHER_DISK_FLAG };
        let below = stack.combine_values_from(disk, |part| parts.contains(part).then_some(PRESERVED_DISK_FLAG));
        PreservedObjects { inventory, decided, stack, below, preserved }
    }

    fn is_preserved(&self, disk: &KernelName) -> bool {
        self.preserved.contains(disk)
    }

    /// Returns the names of the volumes that this plan creates in a preserved group, including volumes that it removes
    /// first.
    fn added_volumes(&self, group: &inventory::LvmVolumeGroup) -> Vec<String> {
        let renewed = self.decided.volumes.iter().filter(|volume| volume.group == group.name);
        let renewed = renewed.map(|volume| volume.name.clone());
        let made = self.decided.persistent.prepares.iter().filter_map(|prepare| prepare.create.as_ref());
        let made = made.filter(|create| create.group == group.name);
        let made = made.map(|create| create.name.clone());
        renewed.chain(made.filter(|name| group.volumes.iter().all(|volume| volume.name != *name))).collect()
    }

    fn are_on_preserved_disks<'b>(&self, devices: impl Iterator<Item = &'b DevicePath>) -> bool {
        let values = devices.map(|device| {
            let name = self.stack.kernel_name(device);
            let unknown = if self.is_preserved(&name) { PRESERVED_DISK_FLAG } else { OTHER_DISK_FLAG };
            self.stack.combined_value(&self.below, &name).unwrap_or(unknown)
        });
        values.fold(0, |all, value| all | value) == PRESERVED_DISK_FLAG
    }

    fn disks(&self) -> impl Iterator<Item = &'a inventory::InventoryDisk> {
        self.inventory.disks.iter().filter(|disk| self.is_preserved(&disk.name))
    }

    fn arrays(&self) -> impl Iterator<Item = &'a inventory::MdArray> {
        let arrays = self.inventory.arrays.iter();
        arrays.filter(|array| self.are_on_preserved_disks(array.members.iter().map(|member| &member.device)))
    }

    fn groups(&self) -> impl Iterator<Item = &'a inventory::LvmVolumeGroup> {
        let groups = self.inventory.groups.iter();
        groups.filter(|group| self.are_on_preserved_disks(group.present_devices()))
    }

    /// Identifies the device at a path in the plan by a property that is independent of kernel names.
    pub(crate) fn locate_device(&self, device: &DevicePath) -> StableDevice {
        let array = self.decided.arrays.iter().find_map(|fate| match fate {
            ArrayFate::Preserved { device: named, uuid, .. } if named == device => Some(StableDevice::Array(*uuid)),
            _ => None,
        });
        let volume = || {
            let preserved = self.decided.groups.iter().find_map(|fate| match fate {
                GroupFate::Preserved { name, .. } => {
                    let volume =
                        device.as_str().strip_prefix("/dev/")?.strip_prefix(name.as_str())?.strip_prefix('/')?;
                    Some((name, volume))
                }
                GroupFate::Created(_) => None,
            });
            let (name, volume) = preserved?;
            let group = self.groups().find(|group| group.name == *name)?;
            Some(StableDevice::Volume { group: group.uuid.clone(), name: volume.to_owned() })
        };
        let mapping = || luks::is_mapping(self.decided, device).then(|| StableDevice::Mapping(device.clone()));
        array.or_else(volume).or_else(mapping).unwrap_or_else(|| StableDevice::Device(device.clone()))
    }

    /// Returns preserved filesystems of the layout, filesystems in unlisted partitions, and preserved LUKS containers.
    fn filesystems(&self, layout: &Layout) -> Vec<ObjectLocator> {
        let ours = layout.filesystems.iter().zip(&self.decided.filesystems).filter(|(_, is)| is.is_preserved());
        let ours = ours.filter_map(|(wanted, is)| {
            let device = is.device()?;
            let path = wanted.path.clone().filter(|path| path.starts_with('/'));
            Some(ObjectLocator::Filesystem { device: device.clone(), path, on: self.locate_device(device) })
        });
        let parts = self.disks().flat_map(|disk| disk.table.iter().flat_map(|table| &table.partitions));
        let used = parts.filter(|part| part.signatures.iter().any(|signature| signature.usage == "filesystem"));
        let taken: BTreeSet<&DevicePath> = self.decided.filesystems.iter().filter_map(FilesystemFate::device).collect();
        let theirs = used.filter(|part| !taken.contains(&part.device)).map(|part| ObjectLocator::Filesystem {
            device: part.device.clone(),
            path: None,
            on: StableDevice::Device(part.device.clone()),
        });
        let containers = self.decided.luks.iter().filter(|luks| luks.is_preserved()).map(|luks| {
            let device = luks.container.device.clone();
            ObjectLocator::Filesystem { on: self.locate_device(&device), device, path: None }
        });
        ours.chain(theirs).chain(containers).collect()
    }
}
