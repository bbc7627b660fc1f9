//! Effect of a plan on the data of a machine, in the form that an operator approves.

use super::{DiskVerdict, InstallMode};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::cmp::Ordering;

/// Version of the format. Version 1 did not include the content of the disks.
pub const VERSION: u32 = 2;

/// Approved form of a plan. The fields of this structure, and of all structures in it, are sorted by name, so that the
/// compact JSON is canonical.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalSummary {
    /// Id of the allocation in the control plane.
    pub allocation: String,
    /// Verdicts on disks that are written or preserved.
    pub disks: Vec<ApprovedDisk>,
    pub image: String,
    pub layout: String,
    pub layout_digest: String,
    pub machine: String,
    pub mode: InstallMode,
    pub things: Vec<ApprovedObject>,
    /// Arrays, groups and similar objects that lose members and also have members on disks that are not wiped.
    #[serde(rename = "torn")]
    pub dismantled: Vec<String>,
    pub version: u32,
}

/// An array, group, volume or filesystem of the layout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovedObject {
    pub fate: ObjectFate,
    pub name: String,
    /// Disks below the object, after the installation.
    pub on: Vec<String>,
}

/// Effect of the plan on an array, group, volume or filesystem: it is created, preserved, or added to a preserved
/// object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectFate {
    Made,
    Kept,
    /// A Kubernetes volume that is added to a preserved object.
    Added,
}

/// Verdict on a disk. The fields are sorted by name, like those of [`super::ApprovalSummary`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovedDisk {
    /// Partition table, partitions and signatures of the disk, one line each; `None` if the plan was made without
    /// reading the disk.
    pub contents: Option<Vec<String>>,
    /// Name of the disk in the layout. It is set only if no serial number or WWN identifies the disk uniquely within
    /// the machine.
    pub device: String,
    pub model: String,
    /// Partitions of the disk in the layout: the number, label and size in MiB of each partition.
    pub partitions: Vec<String>,
    /// `by-path` link or SCSI address of the disk; empty if `device` is not set.
    pub place: String,
    pub serial: String,
    pub size_bytes: u64,
    pub verdict: DiskVerdict,
    pub wwn: String,
}

impl PartialOrd for ApprovedDisk {
    fn partial_cmp(&self, other: &ApprovedDisk) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Orders disks primarily by their identifiers, so that a disk with changed content keeps its position.
impl Ord for ApprovedDisk {
    fn cmp(&self, other: &ApprovedDisk) -> Ordering {
        let identity = |is: &ApprovedDisk| [is.serial.clone(), is.wwn.clone(), is.device.clone(), is.place.clone()];
        let rest = |disk: &ApprovedDisk| (disk.size_bytes, disk.verdict, disk.partitions.clone(), disk.model.clone());
        let order = identity(self).cmp(&identity(other)).then_with(|| rest(self).cmp(&rest(other)));
        order.then_with(|| self.contents.cmp(&other.contents))
    }
}

impl ApprovalSummary {
    /// Returns `sha256:HEX` of the canonical JSON.
    pub fn digest(&self) -> String {
        // Serialization cannot fail, because strings and numbers can always be represented as JSON.
        let canonical = serde_json::to_vec(self).unwrap_or_default();
        format!("sha256:{:x}", Sha256::digest(canonical))
    }
}
