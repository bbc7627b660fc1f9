//! What is asked for: the mode, and whose installation it is.

use super::Assigned;
use crate::marker::{AttemptRecord, FencingToken, MarkedDisk, Marker};
use crate::steps::Steps;
use serde::{Deserialize, Serialize};

/// Fresh install, or a new image on a machine that keeps its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Install,
    Reinstall,
}

/// What is asked for, beside the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub mode: Mode,
    pub steps: Steps,
    pub subject: Subject,
    pub assigned: Assigned,
    /// Whose installation this is; nobody's on a desk.
    pub claim: Option<Claim>,
}

/// What the control plane says about the machine's installation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    pub machine: String,
    pub allocation: String,
    /// Id of the order of a reinstall; none for an install.
    pub order: Option<String>,
    /// Fencing token of the order or first installation; none from a control plane that issues none.
    pub fencing: Option<FencingToken>,
    /// The operator has placed or confirmed the order since the control plane's database was last restored.
    pub confirmed: bool,
    /// The operator replaces the installation on the disks even if it is newer than the order.
    pub replace_newer: bool,
    /// The control plane has heard that an installation of this allocation was finished.
    pub succeeded: bool,
    /// Ids that the machine had before it was renamed.
    pub former_machines: Vec<String>,
    /// The last finished installation, as the control plane remembers it.
    pub installed: Option<Marker>,
    pub waiver: Option<Waiver>,
    /// The disks of the last attempt that has begun, be it a reinstall or a first installation.
    pub begun_on: Vec<MarkedDisk>,
    /// Record of that attempt; none if the control plane has seen no attempt begin.
    pub attempt: Option<AttemptRecord>,
    /// The operator wants what the layout promises, and not what the marker does.
    pub change_promise: bool,
    /// Disks whose data the operator gives up, by serial number, WWN or `by-path` link.
    pub give_up: Vec<String>,
    pub memory: Memory,
}

impl Claim {
    /// Is that installation of this machine? It may have had another id then.
    pub fn is_of_this_machine(&self, marker: &Marker) -> bool {
        self.machine == marker.machine || self.former_machines.contains(&marker.machine)
    }

    pub fn is_ours(&self, marker: &Marker) -> bool {
        self.is_of_this_machine(marker) && self.allocation == marker.allocation
    }

    /// Was this allocation ever installed, by the control plane's word? What is ordered anew was.
    pub fn is_installed(&self) -> bool {
        let remembered = self.installed.as_ref().is_some_and(|marker| marker.allocation == self.allocation);
        self.succeeded || remembered || self.order.is_some()
    }
}

/// Source of what is known about earlier installations of the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Memory {
    /// The control plane remembers them.
    #[default]
    ControlPlane,
    /// No control plane does, or its database was lost: only records on the disks are left.
    DisksOnly,
}

/// Why a reinstall may go on without a marker on the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiver {
    /// The operator has replaced the disk that had it.
    Operator,
    /// An earlier attempt has passed the point of no return.
    Begun,
    /// On a desk, with an inventory that does not tell what is inside of filesystems. No control plane says so.
    Unseen,
}

/// Which machine gets which image; for the title of the plan and for the image's stages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Subject {
    pub machine: String,
    pub name: String,
    pub image: String,
    pub url: String,
}
