//! Decides on each disk and on every object on it, or returns the reasons why the plan is refused.
//!
//! Implements the tables in docs/plan.md and docs/plan-objects.md.

use super::holder_teardown::HolderTeardown;
use super::planned_devices::DeviceTable;
use super::{DiskPlan, DiskVerdict, PlanRequest, display, partly_kept_disks};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::device_name::LayoutPath;
use model::inventory::{self, Inventory, UniqueIdentifiers};
use model::layout::Layout;
use model::layout::graph::LayoutGraph;
use model::storage_graph::DeviceStack;
use operations::DiskHolder;
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

use super::plan_decisions::PlanDecisions;
use super::planner_state::PlannerState;
const TOO_MANY_COMBINATIONS: &str = "the devices of this machine are stacked in more combinations than can be examined, so \
    the plan was not completed; remove arrays, volumes or mappings that are not needed";

pub(crate) fn decide_plan(
    layout: &Layout,
    inventory: &Inventory,
    request: &PlanRequest,
    remade: &BTreeSet<LayoutPath>,
    ids: &mut dyn FnMut() -> Uuid,
) -> PlanDecisions {
    let (graph, stack) = (LayoutGraph::from_layout(layout), DeviceStack::bounded(inventory));
    let mut deciding = PlannerState {
        layout,
        graph: &graph,
        inventory,
        request,
        remade,
        stack: &stack,
        ids,
        identifiers: UniqueIdentifiers::from_disks(&inventory.disks),
        verdicts: BTreeMap::new(),
        parts: BTreeMap::new(),
        combined: RefCell::default(),
        records: OnceCell::new(),
        found: BTreeMap::new(),
        absent: BTreeMap::new(),
        devices: DeviceTable::default(),
        groups: BTreeMap::new(),
        unopened_groups: BTreeMap::new(),
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
    deciding.refuse_preserved_boot_disks();
    deciding.refuse_unrecognized_companions();
    deciding.check_migration();
    deciding.decide_absent();
    deciding.decide_identity();
    deciding.refuse_unusual_disks();
    deciding.refuse_unrecorded();
    deciding.decide_persistent();
    deciding.refuse_hibernated();
    deciding.warn_about_unlisted_containers();
    deciding.finish_decisions()
}

impl PlannerState<'_> {
    /// Decides which holders are released: all holders on disks that will be wiped, and all devices that were assembled
    /// for inspection, except devices that are entirely on preserved disks. Refuses the plan if a device on a preserved
    /// disk is mounted or otherwise in use, because the device could not be stopped at the end of the installation.
    fn decide_releases(&mut self) {
        let (mut release, mut preserved) = (HolderTeardown::new(self.stack), HolderTeardown::new(self.stack));
        let mut problems = Vec::new();
        for (index, disk) in &self.found {
            let refused = match self.verdict(&disk.name) {
                // A preserved array on a partly kept disk is also released: it stays stopped until the partition table
                // was changed.
                DiskVerdict::Wipe | DiskVerdict::Make | DiskVerdict::PartlyKept => release.release_disk(disk),
                DiskVerdict::Keep => preserved.release_disk(disk),
                DiskVerdict::NotOurs | DiskVerdict::Volumes => Vec::new(),
            };
            problems.extend(
                refused.into_iter().map(|message| {
                    Diagnostic::new(format!("disks[{index}].device"), message).with_code(ErrorCode::InUse)
                }),
            );
        }
        for holder in &preserved.holders {
            if let DiskHolder::Swap { device } = holder {
                let message = format!("{device} must be preserved but is in use (active swap); run swapoff first");
                problems.push(Diagnostic::new("disks", message).with_code(ErrorCode::InUse));
            }
        }
        for device in self.inventory.stacked.iter().filter(|device| device.assembled) {
            if self.verdicts_below(&device.name).iter().any(|verdict| *verdict != DiskVerdict::Keep) {
                problems.extend(
                    release
                        .release_device(device)
                        .into_iter()
                        .map(|message| Diagnostic::new("disks", message).with_code(ErrorCode::InUse)),
                );
            }
        }
        self.decided.releases = release.holders;
        self.released = release.seen;
        self.decided.problems.extend(problems);
    }

    fn finish_decisions(mut self) -> PlanDecisions {
        // In a valid layout, a device is unknown only because of another problem, so unknown devices are reported
        // only if there are no other problems.
        if self.decided.problems.is_empty() {
            self.decided.problems = std::mem::take(&mut self.devices.unknown);
        }
        // A decision that is based on incomplete results must not be executed.
        if self.stack.steps().is_exhausted() {
            self.refuse(ErrorCode::TooManyObjects, "disks", TOO_MANY_COMBINATIONS);
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
            preserved: partly_kept_disks::preserved_extents(&self.decided.partly_kept, &disk.name),
            ..DiskPlan::from_disk(disk, self.verdict(&disk.name))
        }
    }
}
