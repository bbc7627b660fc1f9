//! Parts of the allocation that operations contain, so that the executor needs no lookups.

use model::allocation::Allocation;
use model::device::DevicePath;
use model::install_marker::InstallMarker;
use model::inventory::Nic;
use serde::Serialize;

/// Parts of a request that go into the target and the report. They may be empty when a plan is made offline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanAssignment {
    pub allocation: Allocation,
    /// Values of `console=` on the kernel command line, in order.
    pub consoles: Vec<String>,
}

/// Content of `/etc/metal/install.yaml`, `userdata` and `disk.json`. It includes passwords and keys, and is never printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineFiles {
    /// Id of the machine.
    pub machine: String,
    pub assigned: PlanAssignment,
    pub nics: Vec<Nic>,
    /// Whether the system uses arrays, created or preserved.
    pub has_arrays: bool,
    /// Filesystems that this run formats.
    pub made: Vec<super::MakeFilesystem>,
    /// UUID of the root filesystem; empty if a raw image brings it.
    pub root_uuid: String,
}

/// Final report of a successful run to the control plane, in addition to the results of the stages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FinalReport {
    /// Id of the allocation.
    pub allocation: String,
    #[serde(with = "common::serde_empty")]
    pub order: Option<String>,
    pub message: String,
    /// Marker of an installation that was already on the disks.
    pub already: Option<InstallMarker>,
    /// Disks whose start and end are wiped if the control plane denies the migration: their content then belongs to the source machine
    /// again, which may run it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taken_back: Vec<DevicePath>,
}
