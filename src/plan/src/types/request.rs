//! The request for a plan: its mode, and the state of the installation according to the control plane.

use model::allocation::RecordSource;
use model::deploy_steps::StepList;
use model::install_marker::{AttemptRecord, FencingToken, InstallMarker, RecordedDisk};
use operations::PlanAssignment;
use serde::{Deserialize, Serialize};

/// Mode of a plan: a first installation, which erases the disks of the layout, or a reinstall, which preserves data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InstallMode {
    Install,
    Reinstall,
}

/// Inputs of a plan in addition to layout and inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanRequest {
    pub mode: InstallMode,
    pub steps: StepList,
    pub subject: PlanSubject,
    pub assigned: PlanAssignment,
    /// State of the installation according to the control plane; `None` for an offline plan.
    pub claim: Option<InstallClaim>,
}

/// State of the machine's installation, as reported by the control plane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstallClaim {
    pub machine: String,
    pub allocation: String,
    /// Id of the reinstall order; `None` for a first installation.
    pub order: Option<String>,
    /// Fencing token of the reinstall order or first installation; `None` if the control plane does not issue tokens.
    pub fencing: Option<FencingToken>,
    /// True if the operator placed or confirmed the reinstall order after the last restore of the control plane's
    /// database.
    pub confirmed: bool,
    /// True if the operator permits replacing an installation that is newer than the reinstall order.
    pub replace_newer: bool,
    /// True if a successful installation of this allocation was reported to the control plane.
    pub succeeded: bool,
    /// Ids that the machine had before it was renamed.
    pub former_machines: Vec<String>,
    /// The last completed installation in the records of the control plane.
    pub installed: Option<InstallMarker>,
    pub waiver: Option<MarkerWaiver>,
    /// Disks of the last attempt that passed the point of no return. The attempt was a reinstall or a first
    /// installation.
    pub begun_on: Vec<RecordedDisk>,
    /// Record of the last attempt that passed the point of no return; `None` if there is no such attempt.
    pub attempt: Option<AttemptRecord>,
    /// True if the operator permits replacing the recorded wipe policy with the layout's wipe policy.
    pub change_promise: bool,
    /// Disks whose data the operator discards, by serial number, WWN or `by-path` link.
    pub give_up: Vec<String>,
    pub memory: RecordSource,
}

impl InstallClaim {
    /// Returns whether the marker was written for this machine, under its current or a former id.
    pub fn is_of_this_machine(&self, marker: &InstallMarker) -> bool {
        self.machine == marker.machine || self.former_machines.contains(&marker.machine)
    }

    pub fn is_ours(&self, marker: &InstallMarker) -> bool {
        self.is_of_this_machine(marker) && self.allocation == marker.allocation
    }

    /// Returns whether this allocation was ever installed, according to the control plane. A reinstall order implies
    /// that it was installed.
    pub fn is_installed(&self) -> bool {
        let remembered = self.installed.as_ref().is_some_and(|marker| marker.allocation == self.allocation);
        self.succeeded || remembered || self.order.is_some()
    }
}

/// Reason why a reinstall may proceed without a marker on the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkerWaiver {
    /// The operator has replaced the disk that contained the marker.
    Operator,
    /// An earlier attempt has passed the point of no return.
    Begun,
    /// The plan is made offline, from an inventory without the content of filesystems. This reason is never used with a
    /// control plane.
    OfflinePlan,
}

/// Machine and image, as shown in the title of the plan and used in the image stages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PlanSubject {
    pub machine: String,
    pub name: String,
    pub image: String,
    pub url: String,
}
