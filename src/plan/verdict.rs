//! Decision on each disk and everything on it, or the reasons why the plan is refused.
//!
//! An implementation of the tables in docs/plan.md.

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

const TOO_ENTANGLED: &str = "the devices of this machine are stacked in too many ways: the plan was not completed; remove arrays, volumes or mappings that are not needed";

/// All decisions, which `stages` arranges in order.
#[derive(Default)]
pub struct Decided {
    /// Secret in the install marker of this attempt; `None` in plans that write no marker.
    pub secret: Option<AttemptSecret>,
    pub disks: Vec<DiskPlan>,
    pub identities: Vec<DiskIdentity>,
    pub releases: Vec<Holder>,
    pub wipes: Vec<WipeDisk>,
    pub tables: Vec<PartitionTable>,
    /// The disk that a raw image is written to.
    pub image_disk: Option<inventory::Disk>,
    /// Fates of the arrays, in the order of `Layout::raid`.
    pub arrays: Vec<ArrayFate>,
    /// Devices that are assumed to be blank, and must be proven to be.
    pub zero_proofs: Vec<ZeroProof>,
    /// Trials of the arrays that are created with options of the layout.
    pub array_trials: Vec<TryArray>,
    /// Fates of the volume groups, in the order of `Layout::volumegroups`.
    pub groups: Vec<GroupFate>,
    pub volumes: Vec<CreateVolume>,
    /// Fates of the filesystems, in the order of `Layout::filesystems`.
    pub filesystems: Vec<FilesystemFate>,
    /// Containers of encrypted filesystems and groups.
    pub luks: Vec<Luks>,
    /// Filesystems that are created on preserved devices: the device in the layout, and the record for the control plane.
    pub filling: Vec<(LayoutPath, Making)>,
    /// Filesystems that another machine sends.
    pub received: Vec<Received>,
    /// Devices of received filesystems that are larger than on the source machine, so that the filesystem is grown.
    pub larger: Vec<DevicePath>,
    /// Decisions on Kubernetes volumes.
    pub persistent: Decisions,
    /// Disks that the layout does not list, and the volumes that are prepared on them.
    pub beginning: Vec<(KernelName, Uuid)>,
    /// Conditions that an operator must not overlook.
    pub warnings: Vec<String>,
    pub torn: Vec<Torn>,
    /// Size in bytes by device path, including devices that will be created.
    pub sizes: BTreeMap<DevicePath, u64>,
    pub problems: Vec<Problem>,
}

/// Fate of an array.
pub enum ArrayFate {
    Made(CreateArray),
    Kept { device: DevicePath, uuid: Uuid, members: Vec<DevicePath> },
}

/// Fate of a volume group.
pub enum GroupFate {
    Made(CreateGroup),
    /// A preserved group. `volumes` are those that the layout lists.
    Kept {
        name: String,
        devices: Vec<DevicePath>,
        volumes: Vec<String>,
    },
}

/// State of the decision.
pub struct Deciding<'a> {
    pub layout: &'a Layout,
    pub graph: &'a Graph<'a>,
    pub inventory: &'a Inventory,
    pub request: &'a Request,
    /// Listed disks that are recreated again, because an earlier attempt was interrupted while it recreated them.
    pub remade: &'a BTreeSet<LayoutPath>,
    pub stack: &'a Stack<'a>,
    pub ids: &'a mut dyn FnMut() -> Uuid,
    pub identifiers: OwnIdentifiers,
    /// Verdicts of the listed disks; changed only by `set_verdict`.
    pub verdicts: BTreeMap<KernelName, Verdict>,
    /// Verdicts of all disks below each device, one bit each; reset when a verdict changes.
    combined: RefCell<Option<Combined>>,
    /// Recorded disks of this installation, and the identifiers that several of them share.
    pub records: OnceCell<Vec<(&'a [MarkedDisk], Shared)>>,
    /// Matching disk by index in `Layout::disks`.
    pub found: BTreeMap<usize, &'a inventory::Disk>,
    /// Absent disk by index in `Layout::disks`.
    pub absent: BTreeMap<usize, Absent>,
    /// Present or future devices by their path in the layout.
    pub devices: Devices<'a>,
    pub groups: BTreeMap<&'a str, Group<'a>>,
    /// Encrypted groups that were not opened.
    pub hidden: BTreeMap<&'a str, Hidden>,
    /// Devices that are released.
    pub released: BTreeSet<KernelName>,
    /// Devices of the layout that Kubernetes volumes use.
    pub layout_names: BTreeSet<LayoutPath>,
    /// Sizes in bytes of the volumes that are added to each preserved group.
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

/// Returns the verdict on a disk. `listed` is its entry in the layout.
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

    /// Sets the verdict on a disk and returns the previous one.
    pub fn set_verdict(&mut self, disk: &KernelName, verdict: Verdict) -> Option<Verdict> {
        self.combined.take();
        self.verdicts.insert(disk.clone(), verdict)
    }

    /// Returns the verdicts of all disks below a device of the inventory.
    pub fn verdicts_below(&self, name: &KernelName) -> BTreeSet<Verdict> {
        let mut combined = self.combined.borrow_mut();
        let combined = combined.get_or_insert_with(|| self.stack.combined(|disk| bit(self.verdict(disk))));
        let bits = self.stack.value_of(combined, name).unwrap_or_else(|| bit(self.verdict(name)));
        Verdict::ALL.into_iter().filter(|verdict| bits & bit(*verdict) != 0).gather()
    }

    /// Returns the verdicts of all disks below a device, by path.
    pub fn verdicts_on(&self, device: &DevicePath) -> BTreeSet<Verdict> {
        self.verdicts_below(&self.stack.name(device))
    }

    /// Returns the names of the disks below a device of the inventory.
    pub fn disks_below(&self, device: &DevicePath) -> BTreeSet<KernelName> {
        self.stack.disks(&self.stack.name(device))
    }

    /// Returns the devices below an object and their common fate: it is created if all of them are created, and preserved if all of them
    /// are preserved. A mixture is refused. Returns `None` if a problem was added.
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
                "{what} must be kept and lies on {others} and on {some}, but {some} is blank. Attach the old disk; or boot the installed system and add the new disk to {what}; or remove the new disk, if {what} works without it"
            ),
            _ => format!(
                "a reinstall wipes {some} and keeps {others}, but {what} lies on both; set the same wipeonreinstall for all of its disks"
            ),
        };
        self.refuse(format!("{place}.devices"), message);
        None
    }

    /// Releases holders of the disks that will be wiped, and devices that were only assembled for inspection, unless they lie only on
    /// preserved disks. Devices that lie only on preserved disks must not be in use otherwise, because they could not be stopped at the
    /// end.
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
                let message = format!("{device} must be kept but is in use (active swap); run swapoff first");
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
        // Unknown devices follow from other problems unless the layout is invalid, so they are reported only without those.
        if self.decided.problems.is_empty() {
            self.decided.problems = std::mem::take(&mut self.devices.unknown);
        }
        // A decision that is based on incomplete answers must not be carried out.
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
