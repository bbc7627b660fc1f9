//! The plan as data. It contains all decisions; the executor only carries them out.

mod approval;
mod boot_variables;
mod data_loss_summary;
mod k8s_volumes;
mod migration_source_device;
mod refusal;
mod request;

pub use approval::{ApprovalSummary, ApprovedDisk, ApprovedObject, ObjectFate, VERSION};
pub(crate) use boot_variables::{FirmwarePlan, PlannedVariable, VariableOrigin};
pub(crate) use data_loss_summary::{DiskContent, PlanSummary, TornObject};
pub(crate) use k8s_volumes::{PersistentVerdict, PersistentVolume};
pub use migration_source_device::SourceDevice;
use operations::{ByteRange, FailureState, FstabEntry, PlanStage, StageExtents};
pub use refusal::PlanRefusal;
pub use request::{InstallClaim, InstallMode, MarkerWaiver, PlanRequest, PlanSubject};

use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::install_marker::InstallMarker;
use model::inventory::OpaqueObject;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A plan: the verdict on each disk, and the stages in the order of execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    pub mode: InstallMode,
    pub subject: PlanSubject,
    pub layout: String,
    pub disks: Vec<DiskPlan>,
    /// Stages in order. The JSON field is named `steps`, as in messages to operators.
    #[serde(rename = "steps")]
    pub stages: Vec<PlanStage>,
    /// Index in `stages` of the first destructive stage; `stages.len()` if no stage is destructive.
    pub point_of_no_return: usize,
    /// Lines of `/etc/fstab`, in mount order.
    pub fstab: Vec<FstabEntry>,
    /// UUID of the filesystem with `path: /`.
    pub root_uuid: String,
    /// Marker of the installation that is already on the disks. If this field is set, nothing is destroyed, and the
    /// installed system is booted.
    pub already: Option<InstallMarker>,
    /// Conditions that an operator must not overlook, such as a degraded array or a replaced disk.
    pub warnings: Vec<String>,
    /// Objects that lose members and also have members on disks that are preserved.
    #[serde(rename = "torn")]
    pub dismantled: Vec<TornObject>,
    /// Objects whose content could not be inspected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub opaque: Vec<OpaqueObject>,
    pub summary: PlanSummary,
    /// Minimum size in bytes of each created or preserved device. Devices whose size cannot be predicted are omitted.
    pub sizes: BTreeMap<DevicePath, u64>,
    /// Disk extents that each stage may write.
    pub extents: Vec<StageExtents>,
    /// Kubernetes volumes, in the order of the allocation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<PersistentVolume>,
    /// Boot variables of the UEFI firmware; `None` on a BIOS machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<FirmwarePlan>,
    /// Verdicts that an operator approves; `None` for a plan that destroys nothing.
    #[serde(skip)]
    pub verdicts: Option<ApprovalSummary>,
}

impl Plan {
    /// Returns the state of the machine after a failure of this stage. Before the point of no return, or in a plan
    /// without one, the disks are untouched.
    pub fn state_after_failure(&self, stage: usize) -> FailureState {
        match self.stages[stage].name.failure_state() {
            FailureState::Incomplete | FailureState::Changed if stage < self.point_of_no_return => {
                FailureState::Untouched
            }
            leaves => leaves,
        }
    }
}

/// Verdict of the plan on a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskVerdict {
    Wipe,
    Keep,
    /// The layout preserves the disk, but the disk is blank, for example because it was replaced. The disk is
    /// recreated.
    Make,
    /// A reinstall wipes the disk, except for partitions that the layout preserves.
    PartlyKept,
    /// The layout does not list the disk. The disk is not written in any mode.
    #[default]
    NotOurs,
    /// The layout does not list the disk, but a Kubernetes volume uses it. Only this volume is written to the disk, and
    /// only if the disk is blank.
    Volumes,
}

impl DiskVerdict {
    pub(crate) const ALL: [DiskVerdict; 6] = [
        DiskVerdict::Wipe,
        DiskVerdict::Keep,
        DiskVerdict::Make,
        DiskVerdict::PartlyKept,
        DiskVerdict::NotOurs,
        DiskVerdict::Volumes,
    ];

    /// Returns whether the plan recreates the whole disk.
    pub(crate) fn is_recreated(self) -> bool {
        matches!(self, DiskVerdict::Wipe | DiskVerdict::Make)
    }

    /// Returns whether the plan writes the disk before preserved objects are activated.
    pub(crate) fn is_written(self) -> bool {
        self.is_recreated() || self == DiskVerdict::PartlyKept
    }

    /// Returns whether the plan may destroy data on the disk. Returns false for [`DiskVerdict::Make`], because such a
    /// disk is expected to be blank.
    pub(crate) fn loses_data(self) -> bool {
        matches!(self, DiskVerdict::Wipe | DiskVerdict::PartlyKept)
    }
}

/// A disk of the machine and its verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiskPlan {
    pub name: KernelName,
    pub device: DevicePath,
    pub size_bytes: u64,
    pub model: String,
    pub serial: String,
    pub verdict: DiskVerdict,
    /// Name of the disk in the layout, if it differs from `device`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed_as: Option<LayoutPath>,
    pub found: DiskContent,
    /// Current content, as text for the operator.
    pub now: String,
    /// Objects in use on the disk, as text for the operator: a tree with one object per line. An object is indented
    /// under the object on which it is stacked.
    pub running: Vec<String>,
    /// Extents of the partitions of a partly kept disk that are preserved. No operation writes them until the preserved
    /// objects on them are mounted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preserved: Vec<ByteRange>,
}
