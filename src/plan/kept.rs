//! Objects that a reinstall preserves, and their identities: read before the first stage, and again after the last one. The same function
//! reads both, so that they differ only if the machine has changed.

use super::placed::FilesystemFate;
use super::verdict::{ArrayFate, Decided, GroupFate};
use super::{Kept, KeptObject, LiesOn, Verdict, luks};
use crate::device::{DevicePath, KernelName};
use crate::facts::KeptProof;
use crate::inventory::{self, Inventory, Signature};
use crate::layout::Layout;
use crate::order::{self, Gather};
use crate::topology::{Combined, Stack, Unit};
use std::collections::{BTreeMap, BTreeSet};

type Identity = BTreeMap<String, String>;

/// Returns all objects on preserved disks, including those that are not in the layout.
pub fn expected(layout: &Layout, inventory: &Inventory, decided: &Decided) -> Vec<Kept> {
    let keeping = Keeping::new(inventory, decided);
    let disks = keeping.disks().map(|disk| KeptObject::Disk(disk.name.clone()));
    let arrays = keeping.arrays().map(|array| {
        let named = keeping.decided.arrays.iter().find_map(|fate| match fate {
            ArrayFate::Kept { device, uuid, .. } if *uuid == array.uuid => Some(device.clone()),
            _ => None,
        });
        let device = named.or_else(|| array.running.as_ref().map(KernelName::path));
        KeptObject::Array { uuid: array.uuid, device }
    });
    let groups = keeping.groups();
    let groups = groups.map(|group| KeptObject::Group {
        uuid: group.uuid.clone(),
        name: group.name.clone(),
        added: keeping.added(group),
    });
    let objects = disks.chain(arrays).chain(groups).chain(keeping.filesystems(layout));
    objects.map(|object| Kept { identity: identity(&object, inventory, &keeping.stack), object }).collect()
}

/// Compares the identity of each preserved object with its present one.
pub fn compare(kept: &[Kept], now: &Inventory) -> Vec<KeptProof> {
    let stack = Stack::new(now);
    let proof = |kept: &Kept| KeptProof {
        object: kept.object.to_string(),
        before: kept.identity.clone(),
        after: identity(&kept.object, now, &stack),
    };
    kept.iter().map(proof).collect()
}

/// Returns each difference with both sides.
pub fn differences(proofs: &[KeptProof]) -> Vec<String> {
    let mut differences = Vec::new();
    for proof in proofs.iter().filter(|proof| proof.before != proof.after) {
        if proof.after.is_empty() {
            differences.push(format!("{} is missing", proof.object));
            continue;
        }
        let names: std::collections::BTreeSet<&String> = proof.before.keys().chain(proof.after.keys()).gather();
        for name in names {
            let side = |identity: &Identity| identity.get(name).map_or("nothing".to_owned(), String::clone);
            let (before, after) = (side(&proof.before), side(&proof.after));
            if before != after {
                differences.push(format!("{}: {name} was {before} and is {after}", proof.object));
            }
        }
    }
    differences
}

impl std::fmt::Display for KeptObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeptObject::Disk(name) => write!(f, "disk {}", name.path()),
            KeptObject::Array { device: None, uuid } => write!(f, "array {uuid}"),
            KeptObject::Array { device: Some(device), .. } => write!(f, "array {device}"),
            KeptObject::Group { name, .. } => write!(f, "volume group {name}"),
            KeptObject::Filesystem { device, path: None, .. } => write!(f, "filesystem on {device}"),
            KeptObject::Filesystem { path: Some(path), .. } => write!(f, "filesystem at {path}"),
        }
    }
}

/// Returns the identity of an object; empty if it is absent.
fn identity(object: &KeptObject, inventory: &Inventory, stack: &Stack) -> Identity {
    let found = match object {
        KeptObject::Disk(name) => inventory.disks.iter().find(|disk| disk.name == *name).map(disk),
        KeptObject::Array { uuid, .. } => inventory.arrays.iter().find(|array| array.uuid == *uuid).map(array),
        KeptObject::Group { uuid, added, .. } => {
            inventory.groups.iter().find(|group| group.uuid == *uuid).map(|found| group(found, added))
        }
        KeptObject::Filesystem { on, .. } => {
            content(inventory, stack, on).map(|(_, signatures)| filesystem(signatures))
        }
    };
    found.unwrap_or_default()
}

fn disk(disk: &inventory::Disk) -> Identity {
    let mut identity = Identity::new();
    let mut put = |name: &str, value: String| drop(identity.insert(name.to_owned(), value));
    put("size", format!("{} bytes", disk.size_bytes));
    if let Some(table) = &disk.table {
        put("table", table.kind.clone());
        table.guid.into_iter().for_each(|guid| put("guid", guid.to_string()));
        for part in &table.partitions {
            let guid = part.guid.map(|guid| guid.to_string()).unwrap_or_default();
            let (start, size, kind, label) = (part.start_bytes, part.size_bytes, &part.kind, &part.label);
            put(&format!("partition {}", part.number), format!("{guid} at {start} + {size} bytes, {kind} \"{label}\""));
        }
    }
    if !disk.signatures.is_empty() {
        put("content", signatures(&disk.signatures));
    }
    identity
}

fn array(array: &inventory::Array) -> Identity {
    let mut members: Vec<&str> = array.members.iter().map(|member| member.device.as_str()).collect();
    order::sort(&mut members);
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

/// Returns the identity of a group without the volumes that the plan adds.
fn group(group: &inventory::VolumeGroup, added: &[String]) -> Identity {
    let mut physical: Vec<&str> = group.physical.iter().map(|physical| physical.uuid.as_str()).collect();
    order::sort(&mut physical);
    let own = [("uuid", group.uuid.clone()), ("name", group.name.clone()), ("physical volumes", physical.join(" "))];
    let own = own.map(|(name, value)| (name.to_owned(), value));
    let volumes = group.volumes.iter().filter(|is| !added.contains(&is.name));
    let volumes =
        volumes.map(|is| (format!("volume {}", is.name), format!("{}, {} bytes, {}", is.uuid, is.size_bytes, is.kind)));
    own.into_iter().chain(volumes).gather()
}

fn filesystem(found: &[Signature]) -> Identity {
    match found {
        [one] => [("format", &one.kind), ("uuid", &one.uuid), ("label", &one.label)]
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .into(),
        [] => Identity::new(),
        several => [("format".to_owned(), signatures(several))].into(),
    }
}

fn signatures(signatures: &[Signature]) -> String {
    let mut said: Vec<String> = signatures.iter().map(|is| format!("{} {}", is.kind, is.uuid)).collect();
    order::sort(&mut said);
    said.join(", ")
}

/// Returns the path and the signatures of a device in an inventory; `None` if it is absent or inactive.
pub fn content<'a>(
    inventory: &'a Inventory,
    stack: &Stack<'a>,
    on: &LiesOn,
) -> Option<(&'a DevicePath, &'a [Signature])> {
    let running = match on {
        LiesOn::Device(device) => {
            let unit = stack.unit_at(device)?;
            let is_of_disk = match unit {
                Unit::Disk(_) => true,
                Unit::Partition(_) => matches!(stack.whole_of(device), Some(Unit::Disk(_))),
                Unit::Stacked(_) | Unit::Unknown => false,
            };
            return unit.device().filter(|_| is_of_disk).map(|device| (device, unit.signatures()));
        }
        LiesOn::Mapping(device) => &stack.name(device),
        LiesOn::Array(uuid) => inventory.arrays.iter().find(|array| array.uuid == *uuid)?.running.as_ref()?,
        LiesOn::Volume { group, name } => {
            let group = inventory.groups.iter().find(|is| is.uuid == *group)?;
            group.volumes.iter().find(|volume| volume.name == *name)?.running.as_ref()?
        }
    };
    let stacked = stack.stacked(running)?;
    Some((&stacked.device, &stacked.signatures))
}

/// Returns whether the disk is preserved, as is one that already contains a Kubernetes volume.
fn stays(decided: &Decided, disk: &super::DiskPlan) -> bool {
    match disk.verdict {
        Verdict::Keep => true,
        Verdict::Volumes => !decided.persistent.written.contains(&disk.name),
        Verdict::Wipe | Verdict::Make | Verdict::NotOurs => false,
    }
}

/// Objects that lie only on preserved disks.
pub struct Keeping<'a> {
    inventory: &'a Inventory,
    decided: &'a Decided,
    pub stack: Stack<'a>,
    /// Flags of each device: whether disks below it are preserved ([`KEPT`]), and whether others are not ([`OTHER`]).
    below: Combined,
    kept: BTreeSet<&'a KernelName>,
}

/// Flags of a disk in [`Keeping::below`].
const KEPT: u8 = 1;
const OTHER: u8 = 2;

impl<'a> Keeping<'a> {
    pub fn new(inventory: &'a Inventory, decided: &'a Decided) -> Keeping<'a> {
        let stack = Stack::new(inventory);
        let kept: BTreeSet<&KernelName> =
            decided.disks.iter().filter(|disk| stays(decided, disk)).map(|disk| &disk.name).gather();
        let below = stack.combined(|disk| if kept.contains(disk) { KEPT } else { OTHER });
        Keeping { inventory, decided, stack, below, kept }
    }

    fn is_kept(&self, disk: &KernelName) -> bool {
        self.kept.contains(disk)
    }

    /// Returns the volumes that this plan creates in a preserved group.
    fn added(&self, group: &inventory::VolumeGroup) -> Vec<String> {
        let made = self.decided.persistent.prepares.iter().filter_map(|prepare| prepare.create.as_ref());
        let made = made.filter(|create| create.group == group.name);
        made.map(|create| create.name.clone()).filter(|name| group.volumes.iter().all(|is| is.name != *name)).collect()
    }

    fn lie_on_kept<'b>(&self, devices: impl Iterator<Item = &'b DevicePath>) -> bool {
        let values = devices.map(|device| {
            let name = self.stack.name(device);
            let unknown = if self.is_kept(&name) { KEPT } else { OTHER };
            self.stack.value_of(&self.below, &name).unwrap_or(unknown)
        });
        values.fold(0, |all, value| all | value) == KEPT
    }

    fn disks(&self) -> impl Iterator<Item = &'a inventory::Disk> {
        self.inventory.disks.iter().filter(|disk| self.is_kept(&disk.name))
    }

    fn arrays(&self) -> impl Iterator<Item = &'a inventory::Array> {
        let arrays = self.inventory.arrays.iter();
        arrays.filter(|array| self.lie_on_kept(array.members.iter().map(|member| &member.device)))
    }

    fn groups(&self) -> impl Iterator<Item = &'a inventory::VolumeGroup> {
        let groups = self.inventory.groups.iter();
        groups.filter(|group| self.lie_on_kept(group.devices()))
    }

    /// Identifies the device of a path in the plan by a property that is independent of kernel names.
    pub fn lies_on(&self, device: &DevicePath) -> LiesOn {
        let array = self.decided.arrays.iter().find_map(|fate| match fate {
            ArrayFate::Kept { device: named, uuid, .. } if named == device => Some(LiesOn::Array(*uuid)),
            _ => None,
        });
        let volume = || {
            let kept = self.decided.groups.iter().find_map(|fate| match fate {
                GroupFate::Kept { name, .. } => {
                    let volume =
                        device.as_str().strip_prefix("/dev/")?.strip_prefix(name.as_str())?.strip_prefix('/')?;
                    Some((name, volume))
                }
                GroupFate::Made(_) => None,
            });
            let (name, volume) = kept?;
            let group = self.groups().find(|group| group.name == *name)?;
            Some(LiesOn::Volume { group: group.uuid.clone(), name: volume.to_owned() })
        };
        let mapping = || luks::is_mapping(self.decided, device).then(|| LiesOn::Mapping(device.clone()));
        array.or_else(volume).or_else(mapping).unwrap_or_else(|| LiesOn::Device(device.clone()))
    }

    /// Returns the filesystems of the layout, those in partitions that the layout does not list, and LUKS containers.
    fn filesystems(&self, layout: &Layout) -> Vec<KeptObject> {
        let ours = layout.filesystems.iter().zip(&self.decided.filesystems).filter(|(_, is)| is.is_kept());
        let ours = ours.filter_map(|(wanted, is)| {
            let device = is.device()?;
            let path = wanted.path.clone().filter(|path| path.starts_with('/'));
            Some(KeptObject::Filesystem { device: device.clone(), path, on: self.lies_on(device) })
        });
        let parts = self.disks().flat_map(|disk| disk.table.iter().flat_map(|table| &table.partitions));
        let used = parts.filter(|part| part.signatures.iter().any(|is| is.usage == "filesystem"));
        let taken: BTreeSet<&DevicePath> = self.decided.filesystems.iter().filter_map(FilesystemFate::device).gather();
        let theirs = used.filter(|part| !taken.contains(&part.device)).map(|part| KeptObject::Filesystem {
            device: part.device.clone(),
            path: None,
            on: LiesOn::Device(part.device.clone()),
        });
        let containers = self.decided.luks.iter().filter(|luks| luks.is_kept()).map(|luks| {
            let device = luks.container.device.clone();
            KeptObject::Filesystem { on: self.lies_on(&device), device, path: None }
        });
        ours.chain(theirs).chain(containers).collect()
    }
}
