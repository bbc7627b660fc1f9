//! Code that is common to all plans that do not destroy anything.

use super::stale_boot_variables::{self, RemovalPolicy};
use super::{
    DiskContent, DiskPlan, DiskVerdict, InstallMode, Plan, PlanSubject, PlanSummary, opaque_objects, writable_extents,
};
use crate::content_descriptions;
use model::install_marker::InstallMarker;
use model::inventory::{Inventory, InventoryDisk};
use operations::PlanStage;
use std::collections::BTreeMap;

/// Contents of a plan that does not destroy anything.
pub(crate) struct ReadOnlyPlan {
    pub mode: InstallMode,
    pub subject: PlanSubject,
    pub layout: String,
    pub disks: Vec<DiskPlan>,
    pub stages: Vec<PlanStage>,
    pub root_uuid: String,
    pub already: Option<InstallMarker>,
}

impl ReadOnlyPlan {
    pub(crate) fn build_plan(self, inventory: &Inventory) -> Plan {
        let plan = Plan {
            mode: self.mode,
            subject: self.subject,
            layout: self.layout,
            summary: PlanSummary::from_disks(&self.disks),
            disks: self.disks,
            point_of_no_return: self.stages.len(),
            stages: self.stages,
            fstab: Vec::new(),
            root_uuid: self.root_uuid,
            already: self.already,
            warnings: Vec::new(),
            dismantled: Vec::new(),
            opaque: opaque_objects::listed_objects(inventory),
            sizes: BTreeMap::new(),
            extents: Vec::new(),
            volumes: Vec::new(),
            firmware: stale_boot_variables::plan_variables(inventory, None, RemovalPolicy::KeepAll),
            verdicts: None,
        };
        Plan { extents: writable_extents::compute_extents(&plan, inventory), ..plan }
    }
}

impl DiskPlan {
    /// Returns the number of bytes on the disk that the plan destroys; 0 if the disk is blank.
    pub(crate) fn lost_bytes(&self) -> u64 {
        if !self.verdict.loses_data() || self.found.blank {
            return 0;
        }
        self.preserved.iter().fold(self.size_bytes, |left, preserved| left.saturating_sub(preserved.length))
    }

    /// Returns the entry for a disk in a plan, without a tree of the disk's content. The entry does not contain the
    /// disk's name in the layout, because the layout either lists the disk by its kernel name or does not list it.
    pub(crate) fn from_disk(disk: &InventoryDisk, verdict: DiskVerdict) -> DiskPlan {
        DiskPlan {
            name: disk.name.clone(),
            device: disk.device.clone(),
            size_bytes: disk.size_bytes,
            model: disk.model.clone(),
            serial: disk.serial.clone(),
            verdict,
            listed_as: None,
            found: DiskContent::from_disk(disk),
            now: content_descriptions::describe_contents(disk),
            running: Vec::new(),
            preserved: Vec::new(),
        }
    }
}
