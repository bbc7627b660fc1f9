//! Files of the target that describe the machine and its installation.

use crate::operation_text::{DeviceSizes, OperationLine};
use crate::{Effect, MakeFilesystem, PlannedOperation};
use model::allocation::Allocation;
use model::install_marker::InstallMarker;
use model::inventory::Nic;
use serde::Serialize;

/// Fields of the plan request that are written to files of the target and to the report. The fields may be empty in a
/// plan that is made offline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanAssignment {
    pub allocation: Allocation,
    /// Values of `console=` on the kernel command line, in order.
    pub consoles: Vec<String>,
}

/// Writes `/etc/metal/install.yaml`, `userdata` and `disk.json`.
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

/// Content of `/etc/metal/install.yaml`, `userdata` and `disk.json`. The content includes passwords and keys, and is
/// never printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineFiles {
    /// Id of the machine.
    pub machine: String,
    pub assigned: PlanAssignment,
    pub nics: Vec<Nic>,
    /// Whether the system uses at least one array, created or preserved.
    pub has_arrays: bool,
    /// Filesystems that this run formats.
    pub made: Vec<MakeFilesystem>,
    /// UUID of the root filesystem; empty if the filesystem is part of a raw image.
    pub root_uuid: String,
}

/// Writes `/etc/metal/drophammer.json`. This is the last file that a run writes, so a system that contains this file is
/// complete.
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

/// Serializes a marker for the printed plan. The secret of the attempt is omitted.
fn serialize_without_secret<S: serde::Serializer>(marker: &InstallMarker, serializer: S) -> Result<S::Ok, S::Error> {
    InstallMarker { secret: None, ..marker.clone() }.serialize(serializer)
}
