//! Common parts of plans that destroy nothing.

use super::firmware::{self, RemovalPolicy};
use super::{DiskPlan, Found, Mode, Plan, Stage, Subject, Summary, Verdict, display, extents, opaque};
use crate::inventory::{Disk, Inventory};
use crate::marker::Marker;
use std::collections::BTreeMap;

/// Actions and subject of a plan that destroys nothing.
pub struct Harmless {
    pub mode: Mode,
    pub subject: Subject,
    pub layout: String,
    pub disks: Vec<DiskPlan>,
    pub stages: Vec<Stage>,
    pub root_uuid: String,
    pub already: Option<Marker>,
}

impl Harmless {
    pub fn plan(self, inventory: &Inventory) -> Plan {
        let plan = Plan {
            mode: self.mode,
            subject: self.subject,
            layout: self.layout,
            summary: Summary::of(&self.disks),
            disks: self.disks,
            point_of_no_return: self.stages.len(),
            stages: self.stages,
            fstab: Vec::new(),
            root_uuid: self.root_uuid,
            already: self.already,
            warnings: Vec::new(),
            torn: Vec::new(),
            opaque: opaque::listed(inventory),
            sizes: BTreeMap::new(),
            extents: Vec::new(),
            volumes: Vec::new(),
            firmware: firmware::plan(inventory, None, RemovalPolicy::Nothing),
            verdicts: None,
        };
        Plan { extents: extents::of(&plan, inventory), ..plan }
    }
}

impl DiskPlan {
    /// Returns the plan of a disk without a tree of its content, listed by its own name or not at all.
    pub fn of(disk: &Disk, verdict: Verdict) -> DiskPlan {
        DiskPlan {
            name: disk.name.clone(),
            device: disk.device.clone(),
            size_bytes: disk.size_bytes,
            model: disk.model.clone(),
            serial: disk.serial.clone(),
            verdict,
            listed_as: None,
            found: Found::on(disk),
            now: display::contents(disk),
            running: Vec::new(),
        }
    }
}
