//! Decision on each disk and everything on it, or the reasons why the plan is refused.
//!
//! An implementation of the tables in docs/plan.md.

use super::devices::{DeviceFate, DeviceTable, UnderlyingDevices};
use super::disk_match::SharedIdentifiers;
use super::encrypted_groups::UnopenedReason;
use super::filesystem_fate::FilesystemFate;
use super::k8s_volumes::VolumeDecisions;
use super::luks::LuksDecision;
use super::lvm::PlannedGroup;
use super::missing_disks::MissingDisk;
use super::teardown::HolderTeardown;
use super::{DiskPlan, DiskVerdict, InstallMode, PlanRequest, TornObject, display};
use common::diagnostic::Diagnostic;
use model::device::{DevicePath, KernelName, LayoutPath};
use model::install_marker::{AttemptSecret, PendingCreation, RecordedDisk};
use model::inventory::{self, Inventory, UniqueIdentifiers};
use model::layout::graph::LayoutGraph;
use model::layout::{self, Layout};
use model::storage_graph::{CombinedValues, DeviceStack};
use operations::{
    CreateArray, CreateGroup, CreateVolume, DiskIdentity, Holder, PartitionTable, ReceivedDevice, TryArray, WipeDisk,
    ZeroProof,
};
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

const TOO_ENTANGLED: &str = "the devices of this machine are stacked in too many ways: the plan was not completed; remove arrays, volumes or mappings that are not needed";

/// All decisions, which `stages` arranges in order.
#[derive(Default)]
pub struct PlanDecisions {
    /// Secret in the install marker of this attempt; `None` in plans that write no marker.
    pub secret: Option<AttemptSecret>,
    pub disks: Vec<DiskPlan>,
    pub identities: Vec<DiskIdentity>,
    pub releases: Vec<Holder>,
    pub wipes: Vec<WipeDisk>,
    pub tables: Vec<PartitionTable>,
    /// The disk that a raw image is written to.
    pub image_disk: Option<inventory::InventoryDisk>,
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
    pub luks: Vec<LuksDecision>,
    /// Filesystems that are created on preserved devices: the device in the layout, and the record for the control plane.
    pub filling: Vec<(LayoutPath, PendingCreation)>,
    /// Filesystems that another machine sends.
    pub received: Vec<ReceivedDevice>,
    /// Devices of received filesystems that are larger than on the source machine, so that the filesystem is grown.
    pub larger: Vec<DevicePath>,
    /// Decisions on Kubernetes volumes.
    pub persistent: VolumeDecisions,
    /// Disks that the layout does not list, and the volumes that are prepared on them.
    pub beginning: Vec<(KernelName, Uuid)>,
    /// Conditions that an operator must not overlook.
    pub warnings: Vec<String>,
    pub torn: Vec<TornObject>,
    /// Size in bytes by device path, including devices that will be created.
    pub sizes: BTreeMap<DevicePath, u64>,
    pub problems: Vec<Diagnostic>,
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
pub struct PlanDecider<'a> {
    pub layout: &'a Layout,
    pub graph: &'a LayoutGraph<'a>,
    pub inventory: &'a Inventory,
    pub request: &'a PlanRequest,
    /// Listed disks that are recreated again, because an earlier attempt was interrupted while it recreated them.
    pub remade: &'a BTreeSet<LayoutPath>,
    pub stack: &'a DeviceStack<'a>,
    pub ids: &'a mut dyn FnMut() -> Uuid,
    pub identifiers: UniqueIdentifiers,
    /// Verdicts of the listed disks; changed only by `set_verdict`.
    pub verdicts: BTreeMap<KernelName, DiskVerdict>,
    /// Verdicts of all disks below each device, one bit each; reset when a verdict changes.
    combined: RefCell<Option<CombinedValues>>,
    /// Recorded disks of this installation, and the identifiers that several of them share.
    pub records: OnceCell<Vec<(&'a [RecordedDisk], SharedIdentifiers)>>,
    /// Matching disk by index in `Layout::disks`.
    pub found: BTreeMap<usize, &'a inventory::InventoryDisk>,
    /// Absent disk by index in `Layout::disks`.
    pub absent: BTreeMap<usize, MissingDisk>,
    /// Present or future devices by their path in the layout.
    pub devices: DeviceTable<'a>,
    pub groups: BTreeMap<&'a str, PlannedGroup<'a>>,
    /// Encrypted groups that were not opened.
    pub hidden: BTreeMap<&'a str, UnopenedReason>,
    /// Devices that are released.
    pub released: BTreeSet<KernelName>,
    /// Devices of the layout that Kubernetes volumes use.
    pub layout_names: BTreeSet<LayoutPath>,
    /// Sizes in bytes of the volumes that are added to each preserved group.
    pub added: BTreeMap<String, Vec<u64>>,
    pub decided: PlanDecisions,
}

pub fn decide_plan(
    layout: &Layout,
    inventory: &Inventory,
    request: &PlanRequest,
    remade: &BTreeSet<LayoutPath>,
    ids: &mut dyn FnMut() -> Uuid,
) -> PlanDecisions {
    let (graph, stack) = (LayoutGraph::from_layout(layout), DeviceStack::bounded(inventory));
    let mut deciding = PlanDecider {
        layout,
        graph: &graph,
        inventory,
        request,
        remade,
        stack: &stack,
        ids,
        identifiers: UniqueIdentifiers::from_disks(&inventory.disks),
        verdicts: BTreeMap::new(),
        combined: RefCell::default(),
        records: OnceCell::new(),
        found: BTreeMap::new(),
        absent: BTreeMap::new(),
        devices: DeviceTable::default(),
        groups: BTreeMap::new(),
        hidden: BTreeMap::new(),
        released: BTreeSet::new(),
        layout_names: BTreeSet::new(),
        added: BTreeMap::new(),
        decided: PlanDecisions::default(),
    };
    deciding.decide_disks();
    deciding.check_spanning();
    deciding.refuse_orphans();
    deciding.refuse_copies();
    deciding.refuse_missing();
    deciding.decide_releases();
    deciding.decide_arrays();
    deciding.decide_groups();
    deciding.decide_volumes();
    deciding.decide_filesystems();
    deciding.refuse_unrecognized_companions();
    deciding.check_migration();
    deciding.decide_absent();
    deciding.decide_identity();
    deciding.refuse_unrecorded();
    deciding.decide_persistent();
    deciding.finish_decisions()
}

fn verdict_bit(verdict: DiskVerdict) -> u8 {
    1 << verdict as u8
}

/// Returns the verdict on a disk. `listed` is its entry in the layout.
pub fn verdict_on_disk(mode: InstallMode, listed: Option<&layout::DiskSpec>) -> DiskVerdict {
    match (mode, listed) {
        (_, None) => DiskVerdict::NotOurs,
        (InstallMode::Install, Some(_)) => DiskVerdict::Wipe,
        (InstallMode::Reinstall, Some(disk)) if disk.wipeonreinstall => DiskVerdict::Wipe,
        (InstallMode::Reinstall, Some(_)) => DiskVerdict::Keep,
    }
}

impl<'a> PlanDecider<'a> {
    pub fn refuse(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.decided.problems.push(Diagnostic::new(place, message));
    }

    pub fn warn(&mut self, message: impl Into<String>) {
        self.decided.warnings.push(message.into());
    }

    pub fn verdict(&self, disk: &KernelName) -> DiskVerdict {
        self.verdicts.get(disk).copied().unwrap_or(DiskVerdict::NotOurs)
    }

    /// Sets the verdict on a disk and returns the previous one.
    pub fn set_verdict(&mut self, disk: &KernelName, verdict: DiskVerdict) -> Option<DiskVerdict> {
        self.combined.take();
        self.verdicts.insert(disk.clone(), verdict)
    }

    /// Returns the verdicts of all disks below a device of the inventory.
    pub fn verdicts_below(&self, name: &KernelName) -> BTreeSet<DiskVerdict> {
        let mut combined = self.combined.borrow_mut();
        let combined =
            combined.get_or_insert_with(|| self.stack.combine_values(|disk| verdict_bit(self.verdict(disk))));
        let bits = self.stack.combined_value(combined, name).unwrap_or_else(|| verdict_bit(self.verdict(name)));
        DiskVerdict::ALL.into_iter().filter(|verdict| bits & verdict_bit(*verdict) != 0).collect()
    }

    /// Returns the verdicts of all disks below a device, by path.
    pub fn verdicts_on(&self, device: &DevicePath) -> BTreeSet<DiskVerdict> {
        self.verdicts_below(&self.stack.kernel_name(device))
    }

    /// Returns the names of the disks below a device of the inventory.
    pub fn disks_below(&self, device: &DevicePath) -> BTreeSet<KernelName> {
        self.stack.disks_below(&self.stack.kernel_name(device))
    }

    /// Returns the devices below an object and their common fate: it is created if all of them are created, and preserved if all of them
    /// are preserved. A mixture is refused. Returns `None` if a problem was added.
    pub fn common_fate(&mut self, place: &str, what: &str, devices: &[LayoutPath]) -> Option<UnderlyingDevices<'a>> {
        let below = self.devices.get_all_or_report(place, devices)?;
        let fates: BTreeSet<DeviceFate> = below.iter().map(|device| device.fate).collect();
        let fate = fates.first().copied().unwrap_or(DeviceFate::Wiped);
        if fates.len() < 2 {
            return Some(UnderlyingDevices { devices: below, fate });
        }
        let named = |wanted: bool| -> String {
            let paths =
                below.iter().filter(|device| (device.fate == fate) == wanted).map(|device| device.path.as_str());
            paths.collect::<Vec<_>>().join(", ")
        };
        let (some, others) = (named(true), named(false));
        let message = match fate {
            DeviceFate::Blank => format!(
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
        let (mut release, mut kept) = (HolderTeardown::new(self.stack), HolderTeardown::new(self.stack));
        let mut problems = Vec::new();
        for (index, disk) in &self.found {
            let refused = match self.verdict(&disk.name) {
                DiskVerdict::Wipe | DiskVerdict::Make => release.release_disk(disk),
                DiskVerdict::Keep => kept.release_disk(disk),
                DiskVerdict::NotOurs | DiskVerdict::Volumes => Vec::new(),
            };
            problems
                .extend(refused.into_iter().map(|message| Diagnostic::new(format!("disks[{index}].device"), message)));
        }
        for holder in &kept.holders {
            if let Holder::Swap { device } = holder {
                let message = format!("{device} must be kept but is in use (active swap); run swapoff first");
                problems.push(Diagnostic::new("disks", message));
            }
        }
        for device in self.inventory.stacked.iter().filter(|device| device.assembled) {
            if self.verdicts_below(&device.name).iter().any(|verdict| *verdict != DiskVerdict::Keep) {
                problems.extend(
                    release.release_device(device).into_iter().map(|message| Diagnostic::new("disks", message)),
                );
            }
        }
        self.decided.releases = release.holders;
        self.released = release.seen;
        self.decided.problems.extend(problems);
    }

    fn finish_decisions(mut self) -> PlanDecisions {
        // Unknown devices follow from other problems unless the layout is invalid, so they are reported only without those.
        if self.decided.problems.is_empty() {
            self.decided.problems = std::mem::take(&mut self.devices.unknown);
        }
        // A decision that is based on incomplete answers must not be carried out.
        if self.stack.steps().is_exhausted() {
            self.refuse("disks", TOO_ENTANGLED);
        }
        let running = display::RunningTrees::new(self.inventory, self.stack).draw_trees();
        let plans = self.inventory.disks.iter().zip(running).map(|(disk, running)| self.disk_plan(disk, running));
        self.decided.disks = plans.collect();
        self.decided.sizes = self.devices.known_sizes();
        self.decided
    }

    fn disk_plan(&self, disk: &inventory::InventoryDisk, running: Vec<String>) -> DiskPlan {
        let listed = self.found.iter().find(|(_, found)| found.name == disk.name);
        let listed = listed.map(|(index, _)| &self.layout.disks[*index]);
        DiskPlan {
            listed_as: listed.map(|listed| &listed.device).filter(|name| disk.device != name.as_str()).cloned(),
            running,
            ..DiskPlan::from_disk(disk, self.verdict(&disk.name))
        }
    }
}
