//! State of the planner while it decides. Each module that decides on one type of object adds its methods to this type.

use super::plan_decisions::PlanDecisions;
use super::planned_devices::{DeviceFate, DeviceTable, UnderlyingDevices};
use super::recorded_disk_match::SharedIdentifiers;
use super::{DiskVerdict, InstallMode, PlanRequest};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::install_marker::RecordedDisk;
use model::inventory::{self, Inventory, UniqueIdentifiers};
use model::layout::graph::LayoutGraph;
use model::layout::preserved_objects::PreservedObjects;
use model::layout::{self, Layout};
use model::storage_graph::{CombinedValues, DeviceStack};
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// Inputs of the planner, and the decisions made so far.
pub(crate) struct PlannerState<'a> {
    pub layout: &'a Layout,
    pub graph: &'a LayoutGraph<'a>,
    pub inventory: &'a Inventory,
    pub request: &'a PlanRequest,
    /// Listed disks that an earlier attempt was recreating when it was interrupted, and that this plan recreates.
    pub remade: &'a BTreeSet<LayoutPath>,
    pub stack: &'a DeviceStack<'a>,
    pub ids: &'a mut dyn FnMut() -> Uuid,
    pub identifiers: UniqueIdentifiers,
    /// Verdicts on the listed disks; only `set_verdict` changes them.
    pub verdicts: BTreeMap<KernelName, DiskVerdict>,
    /// Verdicts on the partitions of partly kept disks, and on volumes that are removed from preserved groups.
    pub parts: BTreeMap<KernelName, DiskVerdict>,
    /// Verdicts on the disks below each device, as a bit set with one bit for each verdict. All bit sets are discarded
    /// when a verdict changes.
    pub combined: RefCell<Option<CombinedValues>>,
    /// Records of this installation: for each of them, the recorded disks, and the identifiers that are not unique.
    pub records: OnceCell<Vec<(&'a [RecordedDisk], SharedIdentifiers)>>,
    /// Disks of the machine that match the layout, by index in `Layout::disks`.
    pub found: BTreeMap<usize, &'a inventory::InventoryDisk>,
    /// Absent disks, by index in `Layout::disks`.
    pub absent: BTreeMap<usize, MissingDisk>,
    /// Devices of the layout, existing or new, by their path in the layout.
    pub devices: DeviceTable<'a>,
    pub groups: BTreeMap<&'a str, PlannedGroup<'a>>,
    /// Encrypted groups that were not opened.
    pub unopened_groups: BTreeMap<&'a str, UnopenedReason>,
    /// Disks and assembled devices that are released together with everything on them.
    pub released: BTreeSet<KernelName>,
    /// Devices of the layout that Kubernetes volumes use.
    pub layout_names: BTreeSet<LayoutPath>,
    /// Sizes, in bytes, of the volumes that are added to a preserved group, by group.
    pub added: BTreeMap<String, Vec<u64>>,
    pub decided: PlanDecisions,
}

/// Volume group as planned, before the decisions on its volumes are made.
pub(crate) struct PlannedGroup<'a> {
    /// Physical volumes.
    pub physical: Vec<DevicePath>,
    /// Free extents of each physical volume; `None` if a size is unknown.
    pub free: Option<Vec<u64>>,
    /// Maximum total size of the physical volumes.
    pub most_bytes: u64,
    pub sector_bytes: u32,
    pub fate: DeviceFate,
    /// The existing volume group; `None` if the group is not preserved.
    pub preserved: Option<&'a inventory::LvmVolumeGroup>,
    pub extent_bytes: u64,
    /// Names of the volumes that are renewed in a preserved group.
    pub renewed: Vec<&'a str>,
}

/// A disk of the layout that is absent.
pub(crate) struct MissingDisk {
    /// Description of the absent disk, and of the disks that are present instead.
    pub message: String,
    /// Reasons why objects of the layout require the disk.
    pub needed: Vec<String>,
}

impl MissingDisk {
    pub(crate) fn new(message: String) -> MissingDisk {
        MissingDisk { message, needed: Vec::new() }
    }
}

/// Reason why the content of an encrypted group is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnopenedReason {
    /// The LUKS containers could not be opened.
    Locked,
    /// The plan is made offline, so neither the key nor the disks are available.
    Unopened,
}

fn verdict_bit(verdict: DiskVerdict) -> u8 {
    1 << verdict as u8
}

/// Returns the verdict on a disk. `listed` is the layout's entry for the disk; `None` if the layout does not list it.
pub fn verdict_on_disk(mode: InstallMode, listed: Option<(&LayoutGraph, &layout::DiskSpec)>) -> DiskVerdict {
    match (mode, listed) {
        (_, None) => DiskVerdict::NotOurs,
        (InstallMode::Install, Some(_)) => DiskVerdict::Wipe,
        (InstallMode::Reinstall, Some((graph, disk))) if disk.wipeonreinstall => {
            match PreservedObjects::from_graph(graph).includes_part_of(disk) {
                true => DiskVerdict::PartlyKept,
                false => DiskVerdict::Wipe,
            }
        }
        (InstallMode::Reinstall, Some(_)) => DiskVerdict::Keep,
    }
}

impl<'a> PlannerState<'a> {
    pub(crate) fn refuse(&mut self, code: ErrorCode, place: impl Into<String>, message: impl Into<String>) {
        self.decided.problems.push(Diagnostic::new(place, message).with_code(code));
    }

    pub(crate) fn warn(&mut self, message: impl Into<String>) {
        self.decided.warnings.push(message.into());
    }

    pub(crate) fn verdict(&self, disk: &KernelName) -> DiskVerdict {
        self.verdicts.get(disk).copied().unwrap_or(DiskVerdict::NotOurs)
    }

    /// Sets the verdict on a disk and returns the previous one.
    pub(crate) fn set_verdict(&mut self, disk: &KernelName, verdict: DiskVerdict) -> Option<DiskVerdict> {
        self.combined.take();
        self.verdicts.insert(disk.clone(), verdict)
    }

    /// Returns the verdicts of all disks below a device of the inventory.
    pub(crate) fn verdicts_below(&self, name: &KernelName) -> BTreeSet<DiskVerdict> {
        let mut combined = self.combined.borrow_mut();
        let combined = combined.get_or_insert_with(|| {
            let part = |name: &KernelName| self.parts.get(name).map(|verdict| verdict_bit(*verdict));
            self.stack.combine_values_from(|disk| verdict_bit(self.verdict(disk)), part)
        });
        let bits = self.stack.combined_value(combined, name).unwrap_or_else(|| verdict_bit(self.verdict(name)));
        DiskVerdict::ALL.into_iter().filter(|verdict| bits & verdict_bit(*verdict) != 0).collect()
    }

    /// Returns the verdicts of all disks below a device, by path.
    pub(crate) fn verdicts_on(&self, device: &DevicePath) -> BTreeSet<DiskVerdict> {
        self.verdicts_below(&self.stack.kernel_name(device))
    }

    /// Returns the names of the disks below a device of the inventory.
    pub(crate) fn disks_below(&self, device: &DevicePath) -> BTreeSet<KernelName> {
        self.stack.disks_below(&self.stack.kernel_name(device))
    }

    /// Returns the devices below an object and their common fate: the object is created if all of its devices are
    /// created, and preserved if all of them are preserved. If some are created and some preserved, adds a problem.
    /// Returns `None` if a problem was added.
    pub(crate) fn common_fate(
        &mut self,
        place: &str,
        what: &str,
        devices: &[LayoutPath],
    ) -> Option<UnderlyingDevices<'a>> {
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
                "{what} must be preserved and spans {others} and {some}, but {some} is blank. Attach the old disk; or boot the installed system and add the new disk to {what}; or, if {what} works without the new disk, remove the new disk"
            ),
            _ => format!(
                "a reinstall wipes {some} and keeps {others}, but {what} spans both; set the same wipeonreinstall for all of its disks"
            ),
        };
        let code = if fate == DeviceFate::Blank { ErrorCode::BlankDevice } else { ErrorCode::SpanningObject };
        self.refuse(code, format!("{place}.devices"), message);
        None
    }
}
