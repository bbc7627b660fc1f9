//! Decides what becomes of each disk and of everything on it, or why the plan is refused.
//!
//! A translation of the tables in docs/plan.md.

use super::absent::Absent;
use super::devices::{Below, Devices, Fate};
use super::encrypted_groups::Hidden;
use super::luks::Luks;
use super::lvm::Group;
use super::persistent::Decisions;
use super::placed::FilesystemFate;
use super::release::Release;
use super::same::Shared;
use super::{
    CreateArray, CreateGroup, CreateVolume, DiskIdentity, DiskPlan, Holder, Mode, PartitionTable, Received, Request,
    Torn, TryArray, Verdict, WipeDisk, ZeroProof, display,
};
use crate::device::{DevicePath, KernelName, LayoutPath};
use crate::inventory::{self, Inventory, OwnIdentifiers};
use crate::layout::tree::Graph;
use crate::layout::{self, Layout};
use crate::marker::{AttemptSecret, Making, MarkedDisk};
use crate::order::Gather;
use crate::problem::Problem;
use crate::topology::{Combined, Stack};
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

const TOO_ENTANGLED: &str = "the devices of this machine lie on one another in too many ways: the plan was not completed; remove arrays, volumes or mappings that are not needed";

/// Everything that was decided. `stages` puts it into an order.
#[derive(Default)]
pub struct Decided {
    /// Secret that the install marker of this attempt contains; none in plans that write no marker.
    pub secret: Option<AttemptSecret>,
    pub disks: Vec<DiskPlan>,
    pub identities: Vec<DiskIdentity>,
    pub releases: Vec<Holder>,
    pub wipes: Vec<WipeDisk>,
    pub tables: Vec<PartitionTable>,
    /// The disk that takes a raw image.
    pub image_disk: Option<inventory::Disk>,
    /// In the order of `Layout::raid`.
    pub arrays: Vec<ArrayFate>,
    /// Devices that are taken for blank, and must be proven to be.
    pub zero_proofs: Vec<ZeroProof>,
    /// Arrays that are made with options of the layout are tried first.
    pub array_trials: Vec<TryArray>,
    /// In the order of `Layout::volumegroups`.
    pub groups: Vec<GroupFate>,
    pub volumes: Vec<CreateVolume>,
    /// In the order of `Layout::filesystems`.
    pub filesystems: Vec<FilesystemFate>,
    /// Containers of encrypted filesystems and groups.
    pub luks: Vec<Luks>,
    /// Filesystems that are made on kept devices: the layout's device, and what is reported about it to the control plane.
    pub filling: Vec<(LayoutPath, Making)>,
    /// What another machine sends.
    pub received: Vec<Received>,
    /// Those of them that are larger than there, and so are the filesystems in the end.
    pub larger: Vec<DevicePath>,
    /// Volumes of Kubernetes.
    pub persistent: Decisions,
    /// Disks that the layout does not name, and the volumes that are prepared on them.
    pub beginning: Vec<(KernelName, Uuid)>,
    /// What a person must not overlook.
    pub warnings: Vec<String>,
    pub torn: Vec<Torn>,
    /// Device path to size in bytes, also for devices that will be made.
    pub sizes: BTreeMap<DevicePath, u64>,
    pub problems: Vec<Problem>,
}

pub enum ArrayFate {
    Made(CreateArray),
    Kept { device: DevicePath, uuid: Uuid, members: Vec<DevicePath> },
}

pub enum GroupFate {
    Made(CreateGroup),
    /// `volumes` are the volumes that the layout lists.
    Kept {
        name: String,
        devices: Vec<DevicePath>,
        volumes: Vec<String>,
    },
}

/// What is known while deciding.
pub struct Deciding<'a> {
    pub layout: &'a Layout,
    pub graph: &'a Graph<'a>,
    pub inventory: &'a Inventory,
    pub request: &'a Request,
    /// Listed disks that are made anew again, because an earlier attempt was cut off while it made them.
    pub remade: &'a BTreeSet<LayoutPath>,
    pub stack: &'a Stack<'a>,
    pub ids: &'a mut dyn FnMut() -> Uuid,
    pub identifiers: OwnIdentifiers,
    /// Verdicts of the listed disks; changed by `set_verdict` alone.
    pub verdicts: BTreeMap<KernelName, Verdict>,
    /// Verdicts of all disks below each device, a bit each, until a verdict changes.
    combined: RefCell<Option<Combined>>,
    /// Recorded disks of this installation, and the identifiers that do not tell them apart.
    pub records: OnceCell<Vec<(&'a [MarkedDisk], Shared)>>,
    /// Index in `Layout::disks` to the disk that is meant.
    pub found: BTreeMap<usize, &'a inventory::Disk>,
    /// Index in `Layout::disks` to why there is no such disk.
    pub absent: BTreeMap<usize, Absent>,
    /// Device path of the layout to what is or will be there.
    pub devices: Devices<'a>,
    pub groups: BTreeMap<&'a str, Group<'a>>,
    /// Encrypted groups that nobody has seen the inside of.
    pub hidden: BTreeMap<&'a str, Hidden>,
    /// What is taken down.
    pub released: BTreeSet<KernelName>,
    /// Devices of the layout that volumes of Kubernetes have.
    pub layout_names: BTreeSet<LayoutPath>,
    /// Sizes in bytes of the volumes that are added to each kept group.
    pub added: BTreeMap<String, Vec<u64>>,
    pub decided: Decided,
}

pub fn decide(
    layout: &Layout,
    inventory: &Inventory,
    request: &Request,
    remade: &BTreeSet<LayoutPath>,
    ids: &mut dyn FnMut() -> Uuid,
) -> Decided {
    let (graph, stack) = (Graph::of(layout), Stack::bounded(inventory));
    let mut deciding = Deciding {
        layout,
        graph: &graph,
        inventory,
        request,
        remade,
        stack: &stack,
        ids,
        identifiers: OwnIdentifiers::of(&inventory.disks),
        verdicts: BTreeMap::new(),
        combined: RefCell::default(),
        records: OnceCell::new(),
        found: BTreeMap::new(),
        absent: BTreeMap::new(),
        devices: Devices::default(),
        groups: BTreeMap::new(),
        hidden: BTreeMap::new(),
        released: BTreeSet::new(),
        layout_names: BTreeSet::new(),
        added: BTreeMap::new(),
        decided: Decided::default(),
    };
    deciding.decide_disks();
    deciding.decide_reaching();
    deciding.refuse_unknown();
    deciding.refuse_copies();
    deciding.refuse_missing();
    deciding.decide_releases();
    deciding.decide_arrays();
    deciding.decide_groups();
    deciding.decide_volumes();
    deciding.decide_filesystems();
    deciding.refuse_nameless_companions();
    deciding.decide_receiving();
    deciding.decide_absent();
    deciding.decide_identity();
    deciding.refuse_unremembered();
    deciding.decide_persistent();
    deciding.finish()
}

fn bit(verdict: Verdict) -> u8 {
    1 << verdict as u8
}

/// The verdict of a disk. `listed` is its entry in the layout.
pub fn of_disk(mode: Mode, listed: Option<&layout::Disk>) -> Verdict {
    match (mode, listed) {
        (_, None) => Verdict::NotOurs,
        (Mode::Install, Some(_)) => Verdict::Wipe,
        (Mode::Reinstall, Some(disk)) if disk.wipeonreinstall => Verdict::Wipe,
        (Mode::Reinstall, Some(_)) => Verdict::Keep,
    }
}

impl<'a> Deciding<'a> {
    pub fn refuse(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.decided.problems.push(Problem::new(place, message));
    }

    pub fn warn(&mut self, message: impl Into<String>) {
        self.decided.warnings.push(message.into());
    }

    pub fn verdict(&self, disk: &KernelName) -> Verdict {
        self.verdicts.get(disk).copied().unwrap_or(Verdict::NotOurs)
    }

    /// Returns the verdict that the disk had before.
    pub fn set_verdict(&mut self, disk: &KernelName, verdict: Verdict) -> Option<Verdict> {
        self.combined.take();
        self.verdicts.insert(disk.clone(), verdict)
    }

    /// The verdicts of all disks at the bottom of a device that the inventory knows.
    pub fn verdicts_below(&self, name: &KernelName) -> BTreeSet<Verdict> {
        let mut combined = self.combined.borrow_mut();
        let combined = combined.get_or_insert_with(|| self.stack.combined(|disk| bit(self.verdict(disk))));
        let bits = self.stack.value_of(combined, name).unwrap_or_else(|| bit(self.verdict(name)));
        Verdict::ALL.into_iter().filter(|verdict| bits & bit(*verdict) != 0).gather()
    }

    /// The same by its path.
    pub fn verdicts_on(&self, device: &DevicePath) -> BTreeSet<Verdict> {
        self.verdicts_below(&self.stack.name(device))
    }

    /// Names of the disks at the bottom of a device of the inventory.
    pub fn disks_below(&self, device: &DevicePath) -> BTreeSet<KernelName> {
        self.stack.disks(&self.stack.name(device))
    }

    /// The verdict travels upwards. What lies on these devices is made if all of them are made, and kept if all of them are
    /// kept. A mixture is refused. `None`: the problem is noted already.
    pub fn below(&mut self, place: &str, what: &str, devices: &[LayoutPath]) -> Option<Below<'a>> {
        let below = self.devices.get_all(place, devices)?;
        let fates: BTreeSet<Fate> = below.iter().map(|device| device.fate).gather();
        let fate = fates.first().copied().unwrap_or(Fate::Wiped);
        if fates.len() < 2 {
            return Some(Below { devices: below, fate });
        }
        let named = |wanted: bool| -> String {
            let paths =
                below.iter().filter(|device| (device.fate == fate) == wanted).map(|device| device.path.as_str());
            paths.collect::<Vec<_>>().join(", ")
        };
        let (some, others) = (named(true), named(false));
        let message = match fate {
            Fate::Blank => format!(
                "{what} is to be kept. It lies on {others} and on {some}, but there is nothing on {some}. Put the old disk back. Or start the installed system, and make the new disk a part of {what}. Or pull the new disk, if {what} works without it"
            ),
            _ => format!(
                "a reinstall wipes {some} and keeps {others}, but {what} lies on both. Give all of its disks the same wipeonreinstall"
            ),
        };
        self.refuse(format!("{place}.devices"), message);
        None
    }

    /// Takes down what runs on the disks to be wiped. Takes down what was only assembled to look inside, unless it lies on kept
    /// disks alone. What lies on kept disks alone must not be in use by others: it could not be taken down in the end.
    fn decide_releases(&mut self) {
        let (mut release, mut kept) = (Release::new(self.stack), Release::new(self.stack));
        let mut problems = Vec::new();
        for (index, disk) in &self.found {
            let refused = match self.verdict(&disk.name) {
                Verdict::Wipe | Verdict::Make => release.disk(disk),
                Verdict::Keep => kept.disk(disk),
                Verdict::NotOurs | Verdict::Volumes => Vec::new(),
            };
            problems.extend(refused.into_iter().map(|message| Problem::new(format!("disks[{index}].device"), message)));
        }
        for holder in &kept.holders {
            if let Holder::Swap { device } = holder {
                let message = format!("{device} is to be kept and is in use (active swap): swapoff it first");
                problems.push(Problem::new("disks", message));
            }
        }
        for device in self.inventory.stacked.iter().filter(|device| device.assembled) {
            if self.verdicts_below(&device.name).iter().any(|verdict| *verdict != Verdict::Keep) {
                problems.extend(release.stacked(device).into_iter().map(|message| Problem::new("disks", message)));
            }
        }
        self.decided.releases = release.holders;
        self.released = release.seen;
        self.decided.problems.extend(problems);
    }

    fn finish(mut self) -> Decided {
        // Unknown devices are reported only without other problems, from which they follow unless the layout was not valid.
        if self.decided.problems.is_empty() {
            self.decided.problems = std::mem::take(&mut self.devices.unknown);
        }
        // A decision that is made with an incomplete answer must not be carried out.
        if self.stack.steps().is_exhausted() {
            self.refuse("disks", TOO_ENTANGLED);
        }
        let running = display::Running::new(self.inventory, self.stack).trees();
        let plans = self.inventory.disks.iter().zip(running).map(|(disk, running)| self.disk_plan(disk, running));
        self.decided.disks = plans.collect();
        self.decided.sizes = self.devices.sizes();
        self.decided
    }

    fn disk_plan(&self, disk: &inventory::Disk, running: Vec<String>) -> DiskPlan {
        let listed = self.found.iter().find(|(_, found)| found.name == disk.name);
        let listed = listed.map(|(index, _)| &self.layout.disks[*index]);
        DiskPlan {
            listed_as: listed.map(|listed| &listed.device).filter(|name| disk.device != name.as_str()).cloned(),
            running,
            ..DiskPlan::of(disk, self.verdict(&disk.name))
        }
    }
}
