//! Effect of a plan on the data on the disks: current content, objects that lose members, and amount of data lost.

use super::{DiskPlan, DiskVerdict};
use model::device_name::KernelName;
use model::inventory::{DeviceSignature, DiskTable, InventoryDisk};
use serde::Serialize;

/// Current content of a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DiskContent {
    pub table: Option<DiskTable>,
    /// Signatures on the whole disk.
    pub signatures: Vec<DeviceSignature>,
    /// True if all samples from the whole disk are zero. A disk that is not blank may contain data even if nothing is
    /// recognized on it.
    pub blank: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

impl DiskContent {
    pub(crate) fn from_disk(disk: &InventoryDisk) -> DiskContent {
        DiskContent {
            table: disk.table.clone(),
            signatures: disk.signatures.clone(),
            blank: disk.blank,
            unreadable: disk.unreadable.clone(),
        }
    }
}

/// An array, group or filesystem that loses members: some of its members are wiped, and its other members stay
/// unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TornObject {
    /// Name of the object, such as `md127`, `vg:vg00`, `zfs_member "tank"`.
    pub name: String,
    /// Description of the object with all of its members.
    pub whole: String,
    /// Members that are wiped.
    pub wiped: Vec<KernelName>,
    /// Disks with the members that are not wiped.
    pub stays_on: Vec<KernelName>,
}

/// Number of disks with each verdict, and the amount of data lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PlanSummary {
    pub wiped: Vec<KernelName>,
    /// Disks that the layout preserves, and that are recreated because they are blank.
    pub made: Vec<KernelName>,
    pub kept: Vec<KernelName>,
    /// Disks that are wiped except for the partitions that the layout preserves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub partly_kept: Vec<KernelName>,
    pub untouched: Vec<KernelName>,
    /// Disks that are used only for Kubernetes volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<KernelName>,
    /// Total size of the wiped disks that are not proven blank, and of the partly kept disks without their preserved
    /// partitions.
    pub lost_bytes: u64,
}

impl PlanSummary {
    pub(crate) fn from_disks(disks: &[DiskPlan]) -> PlanSummary {
        let names = |verdict: DiskVerdict| -> Vec<KernelName> {
            disks.iter().filter(|disk| disk.verdict == verdict).map(|disk| disk.name.clone()).collect()
        };
        PlanSummary {
            wiped: names(DiskVerdict::Wipe),
            made: names(DiskVerdict::Make),
            kept: names(DiskVerdict::Keep),
            partly_kept: names(DiskVerdict::PartlyKept),
            untouched: names(DiskVerdict::NotOurs),
            volumes: names(DiskVerdict::Volumes),
            lost_bytes: disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.lost_bytes())),
        }
    }
}
