//! Operations that write files of the target about the machine and its installation.

use crate::operation_text::{DeviceSizes, OperationLine};
use crate::{Effect, MakeFilesystem, PlannedOperation};
use model::allocation::Allocation;
use model::install_marker::InstallMarker;
use model::inventory::Nic;
use serde::Serialize;

/// Fields of the plan request that are copied to files of the installed system and to the report. If the plan is made
/// offline, the fields may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanAssignment {
    pub allocation: Allocation,
    /// Values of the kernel argument `console=`, in order.
    pub consoles: Vec<String>,
}

/// Operation that writes `/etc/metal/install.yaml`, `userdata` and `disk.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WriteMachineFiles {
    #[serde(skip)]
    pub files: Box<MachineFiles>,
}

impl PlannedOperation for WriteMachineFiles {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        let has_definition = self.files.assigned.allocation.definition.is_some();
        let more = if has_definition { ", os-parameters" } else { "" };
        format!("/etc/metal/install.yaml, userdata, disk.json{more}").into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Content of `/etc/metal/install.yaml`, `userdata` and `disk.json`. It includes passwords and keys, and is never
/// printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineFiles {
    /// Id of the machine.
    pub machine: String,
    pub assigned: PlanAssignment,
    pub nics: Vec<Nic>,
    /// True if the system uses at least one array, created or preserved.
    pub has_arrays: bool,
    /// Filesystems that this installation creates.
    pub made: Vec<MakeFilesystem>,
    /// UUID of the root filesystem; empty if the filesystem is part of a raw image.
    pub root_uuid: String,
}

/// Operation that writes `/etc/metal/drophammer.json`. An installation writes this file last, so a system that contains
/// this file is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WriteMarker(#[serde(serialize_with = "serialize_without_secret")] pub InstallMarker);

impl PlannedOperation for WriteMarker {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        "/etc/metal/drophammer.json".into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Serializes a marker for the printed plan, without the secret of the attempt.
fn serialize_without_secret<S: serde::Serializer>(marker: &InstallMarker, serializer: S) -> Result<S::Ok, S::Error> {
    InstallMarker { secret: None, ..marker.clone() }.serialize(serializer)
}
