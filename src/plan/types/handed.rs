//! What operations carry of the allocation, so that the executor looks nothing up.

use crate::allocation::Allocation;
use crate::device::DevicePath;
use crate::inventory::Nic;
use crate::marker::Marker;
use serde::Serialize;

/// What a request brings for the target and for the report; on a desk there may be none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Assigned {
    pub allocation: Allocation,
    /// `console=` of the kernel command line, in order.
    pub consoles: Vec<String>,
}

/// All that `/etc/metal/install.yaml`, `userdata` and `disk.json` are made of. It holds passwords and keys, and is never printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineFiles {
    /// The machine's id.
    pub machine: String,
    pub assigned: Assigned,
    pub nics: Vec<Nic>,
    /// There are arrays beneath the system, made or kept.
    pub has_arrays: bool,
    /// What this run formats.
    pub made: Vec<super::MakeFilesystem>,
    /// UUID of the filesystem that carries `/`; empty when a raw image brings it.
    pub root_uuid: String,
}

/// What a successful run tells the control plane, beside what happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Closing {
    /// Ids; no order for an install.
    pub allocation: String,
    #[serde(with = "crate::empty")]
    pub order: Option<String>,
    pub message: String,
    /// Of an installation that was on the disks already.
    pub already: Option<Marker>,
    /// Disks whose ends are wiped when the control plane says no: what was received is the other machine's again, which may run it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taken_back: Vec<DevicePath>,
}
