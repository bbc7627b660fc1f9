//! Effect of a plan on the data of a machine, in a canonical form that two programs write identically: the operator approves it, and the
//! agent compares it. Disks are identified by their printed identifiers and contain their present content; things have the names of the
//! layout. Random ids of new objects and kernel names are not included.
//!
//! The format is described by a table in docs/rack.md. A change of the format or of its texts requires another [`VERSION`].

mod disks;

use disks::DiskNames;
pub use disks::DiskVerdict;

use super::verdict::{ArrayFate, Decided, GroupFate, of_disk};
use super::{FilesystemFate, Mode, PersistentVerdict, PersistentVolume, Request, Verdict, finishing, receiving, steps};
use crate::device::LayoutPath;
use crate::inventory::{self, Inventory, OwnIdentifiers};
use crate::layout::tree::Graph;
use crate::layout::{self, Format, Layout};
use crate::order;
use crate::problem::Problem;
use crate::topology::{Match, find};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Version of the format. Version 1 did not include the content of the disks.
pub const VERSION: u32 = 2;

/// Approved form of a plan. The fields of each of these structures are sorted by name, so that the compact JSON is canonical.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdicts {
    /// Id of the allocation in the control plane.
    pub allocation: String,
    /// Verdicts on disks that are written or preserved.
    pub disks: Vec<DiskVerdict>,
    pub image: String,
    pub layout: String,
    pub layout_digest: String,
    pub machine: String,
    pub mode: Mode,
    pub things: Vec<Thing>,
    /// Arrays, groups and similar objects that lose members and also have members on disks that are not wiped.
    pub torn: Vec<String>,
    pub version: u32,
}

/// An array, group, volume or filesystem of the layout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thing {
    pub fate: Kind,
    pub name: String,
    /// Disks below it, after the installation.
    pub on: Vec<String>,
}

/// Fate of an array, group, volume or filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Made,
    Kept,
    /// Added to a preserved object: a Kubernetes volume.
    Added,
}

impl Verdicts {
    /// Returns `sha256:HEX` of the canonical JSON.
    pub fn digest(&self) -> String {
        // Serialization of texts and numbers cannot fail.
        let canonical = serde_json::to_vec(self).unwrap_or_default();
        format!("sha256:{:x}", Sha256::digest(canonical))
    }
}

/// Returns the verdicts of a plan that was decided without problems.
pub fn of(layout: &Layout, inventory: &Inventory, request: &Request, decided: &Decided) -> Verdicts {
    let meant = Match::new(layout, inventory);
    let identifiers = OwnIdentifiers::of(&inventory.disks);
    let disk = |listed: usize| {
        let disk = meant.disk(listed)?;
        let verdict = decided.disks.iter().find(|is| is.name == disk.name)?.verdict;
        Some(DiskVerdict::new(&layout.disks[listed], disk, &identifiers, verdict))
    };
    let head = Head { layout, request, disks: (0..layout.disks.len()).map(disk).collect() };
    let kind = |is_kept: bool| Some(if is_kept { Kind::Kept } else { Kind::Made });
    let is_made = |volume: &layout::LogicalVolume| {
        decided.volumes.iter().any(|made| made.name == volume.name && made.group == volume.volumegroup)
    };
    let volumes = persistent(inventory, &identifiers, decided);
    let verdicts = head.verdicts(Fates {
        array: &|index, _| kind(matches!(decided.arrays.get(index), Some(ArrayFate::Kept { .. }))),
        group: &|index, _| kind(matches!(decided.groups.get(index), Some(GroupFate::Kept { .. }))),
        volume: &|index, _| kind(!is_made(&layout.logicalvolumes[index])),
        filesystem: &|index, _| match decided.filesystems.get(index)? {
            FilesystemFate::Tmpfs => None,
            FilesystemFate::Kept { .. } | FilesystemFate::Unformatted { is_kept: true, .. } => Some(Kind::Kept),
            FilesystemFate::Made(_)
            | FilesystemFate::Filled(_)
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Unformatted { is_kept: false, .. } => Some(Kind::Made),
        },
    });
    let mut things = [verdicts.things, volumes].concat();
    order::sort(&mut things);
    let names = DiskNames::new(&inventory.disks, &identifiers);
    let mut torn: Vec<String> = decided.torn.iter().map(|torn| names.describe(torn)).collect();
    order::sort(&mut torn);
    Verdicts { things, torn, ..verdicts }
}

/// Returns the verdicts on Kubernetes volumes.
fn persistent(inventory: &Inventory, identifiers: &OwnIdentifiers, decided: &Decided) -> Vec<Thing> {
    let name = |disk: &inventory::Disk| DiskVerdict::identity("a disk", disk, identifiers).name();
    let thing = |volume: &PersistentVolume| {
        let disks = inventory.disks.iter().filter(|disk| volume.disks.contains(&disk.name));
        let mut on: Vec<String> = disks.map(name).collect();
        order::sort(&mut on);
        let fate = match volume.verdict {
            PersistentVerdict::Make => Kind::Made,
            PersistentVerdict::Keep => Kind::Kept,
            PersistentVerdict::Extend => Kind::Added,
            PersistentVerdict::Leave => return None,
        };
        Some(Thing { fate, name: format!("kubernetes volume {} {}", volume.name, volume.uid), on })
    };
    decided.persistent.planned.iter().filter_map(thing).collect()
}

/// Predicts the verdicts for a machine whose disks have changed since the inventory was read, under the assumption that they are the same
/// disks with the content that the layout specifies. The agent checks that, and refuses otherwise.
///
/// # Errors Returns the problems that do not depend on the content of the disks.
pub fn foreseen(layout: &Layout, inventory: &Inventory, request: &Request) -> Result<Verdicts, Vec<Problem>> {
    let meant = receiving::meant(layout, inventory, request);
    let layout = &*meant;
    let mut problems = Vec::new();
    if !request.assigned.allocation.volumes.is_null() {
        let why = "the verdicts on Kubernetes volumes are unknown until the disks are read again; boot the machine into the ramdisk";
        problems.push(Problem::new("volumes", why));
    }
    let identifiers = OwnIdentifiers::of(&inventory.disks);
    let mut seen: Vec<&inventory::Disk> = Vec::new();
    let mut disks = Vec::new();
    for (index, listed) in layout.disks.iter().enumerate() {
        let place = format!("disks[{index}].device");
        match find::disk(listed, inventory) {
            Ok(disk) if seen.iter().any(|other| other.name == disk.name) => {
                let why = format!("{} is {}, which the layout already lists", listed.device, disk.device);
                problems.push(Problem::new(place, why));
            }
            Ok(disk) => {
                seen.push(disk);
                let verdict = of_disk(request.mode, Some(listed));
                let verdict = DiskVerdict::new(listed, disk, &identifiers, verdict);
                // Their content has changed since, and was not read again.
                disks.push(Some(DiskVerdict { contents: None, ..verdict }));
            }
            Err(why) => problems.push(Problem::new(place, why)),
        }
    }
    if request.mode == Mode::Reinstall && !layout.disks.iter().any(|disk| disk.wipeonreinstall) {
        let why = format!("filesystemlayout:{} is not reinstallable, abort reinstallation", layout.id);
        problems.push(Problem::new("disks", why));
    }
    problems.extend(steps::missing(&request.steps));
    problems.extend(finishing::refused(layout, inventory, request));
    if !problems.is_empty() {
        return Err(problems);
    }
    let kind = |_: usize, on: &[&DiskVerdict]| {
        let is_kept = !on.is_empty() && on.iter().all(|disk| disk.verdict == Verdict::Keep);
        Some(if is_kept { Kind::Kept } else { Kind::Made })
    };
    let filesystem = |index: usize, on: &[&DiskVerdict]| match layout.filesystems[index].format {
        Format::Tmpfs => None,
        _ => kind(index, on),
    };
    let fates = Fates { array: &kind, group: &kind, volume: &kind, filesystem: &filesystem };
    Ok(Head { layout, request, disks }.verdicts(fates))
}

/// Returns the fate of a thing, by its index in the layout and the disks below it; `None` if it lies on no disk.
type FateOf<'a> = &'a dyn Fn(usize, &[&DiskVerdict]) -> Option<Kind>;

/// Functions that return the fate of each type of object.
struct Fates<'a> {
    array: FateOf<'a>,
    group: FateOf<'a>,
    volume: FateOf<'a>,
    filesystem: FateOf<'a>,
}

/// Layout, request and disk verdicts from which a summary is built.
struct Head<'a> {
    layout: &'a Layout,
    request: &'a Request,
    /// Disks in the order of the layout; `None` for an absent disk without which the plan proceeds.
    disks: Vec<Option<DiskVerdict>>,
}

impl Head<'_> {
    fn verdicts(self, fates: Fates) -> Verdicts {
        let mut things = self.things(&fates);
        order::sort(&mut things);
        let Head { layout, request, disks } = self;
        let mut disks: Vec<DiskVerdict> = disks.into_iter().flatten().collect();
        order::sort(&mut disks);
        Verdicts {
            allocation: request.assigned.allocation.id.clone(),
            disks,
            image: request.subject.image.clone(),
            layout: layout.id.clone(),
            layout_digest: receiving::digest(layout, request),
            machine: request.subject.machine.to_lowercase(),
            mode: request.mode,
            things,
            torn: Vec::new(),
            version: VERSION,
        }
    }

    fn things(&self, fates: &Fates) -> Vec<Thing> {
        let layout = self.layout;
        let graph = Graph::of(layout);
        let mut things = Vec::new();
        let mut add = |fate: FateOf, index: usize, name: String, devices: &[LayoutPath]| {
            // Nodes of disks come first, in the order of the layout.
            let bottoms = graph.bottoms(devices.iter().filter_map(|device| graph.device(device)));
            let on: Vec<&DiskVerdict> = bottoms.into_iter().filter_map(|node| self.disks.get(node)?.as_ref()).collect();
            let Some(fate) = fate(index, &on) else { return };
            let mut on: Vec<String> = on.into_iter().map(DiskVerdict::name).collect();
            order::sort(&mut on);
            things.push(Thing { fate, name, on });
        };
        for (index, raid) in layout.raid.iter().enumerate() {
            add(fates.array, index, format!("array {}", raid.arrayname), &raid.devices);
        }
        for (index, group) in layout.volumegroups.iter().enumerate() {
            add(fates.group, index, format!("group {}", group.name), &group.devices);
        }
        for (index, volume) in layout.logicalvolumes.iter().enumerate() {
            let name = format!("volume {}/{}", volume.volumegroup, volume.name);
            add(fates.volume, index, name, &[volume.device()]);
        }
        for (index, filesystem) in layout.filesystems.iter().enumerate() {
            let path = filesystem.path.as_deref().filter(|path| path.starts_with('/'));
            let name = match (path, &filesystem.label) {
                (Some(path), _) => format!("{} {path}", filesystem.format.name()),
                (None, Some(label)) => format!("{} {label:?}", filesystem.format.name()),
                (None, None) => filesystem.format.name().to_owned(),
            };
            add(fates.filesystem, index, name, std::slice::from_ref(&filesystem.device));
        }
        things
    }
}
