//! Operations that run the programs of an OS definition.

use crate::operation_text::{DeviceSizes, OperationLine, OperationText, join_devices, strip_dev};
use crate::raw_image::{describe_expected, describe_growth};
use crate::{BurnDisk, Effect, PlannedOperation, UndoOperation};
use model::device_name::DevicePath;
use model::ganeti_os_definition::SelectedDefinition;
use serde::Serialize;
use std::collections::BTreeMap;

/// Operation that runs the `verify` program of the OS definition, which accepts or rejects the parameters. The program
/// runs in a sandbox without access to disks and the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyDefinition {
    /// Name of the OS definition, with its variant.
    pub os: String,
    /// Names of the parameters that are set, without their values, which may be secret.
    pub parameters: Vec<String>,
    #[serde(skip)]
    pub chosen: Box<SelectedDefinition>,
}

impl PlannedOperation for VerifyDefinition {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_verify(&self.os, &self.parameters).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Describes a run of `verify`: `` `verify` of web+small accepts ns1, track ``.
fn describe_verify(os: &str, parameters: &[String]) -> String {
    match parameters {
        [] => format!("`verify` of {os} passes"),
        some => format!("`verify` of {os} accepts {what}", what = some.join(", ")),
    }
}

/// Operation that checks that the ramdisk contains the programs that the `create` program of the OS definition
/// requires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FindPrograms {
    /// Name of the OS definition, with its variant.
    pub os: String,
    pub programs: Vec<String>,
}

impl PlannedOperation for FindPrograms {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        format!(
            "check that the ramdisk contains the programs that `create` of {os} needs: {programs}",
            os = self.os,
            programs = self.programs.join(", ")
        )
        .into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Operation that runs the `create` program of the OS definition, which fills the system disk in place of a raw image.
/// The disk is then adapted and checked as after [`BurnDisk`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateSystem {
    /// Name of the OS definition, with its variant.
    pub os: String,
    /// The recreated disks, in the order of the layout. The program may write these disks; its `/dev` contains no other
    /// disks.
    pub disks: Vec<DevicePath>,
    /// The system disk, and the content that must be on it after the program has run, in the same form as for a raw
    /// image.
    pub onto: BurnDisk,
    /// Environment of the program.
    #[serde(skip)]
    pub environment: BTreeMap<String, String>,
    #[serde(skip)]
    pub chosen: Box<SelectedDefinition>,
}

impl PlannedOperation for CreateSystem {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_create(self).into()
    }

    fn effect(&self) -> Effect<'_> {
        // The program opens the disks by path. Since it is unknown which partitions are bootable, the undo also erases
        // the partition tables.
        Effect::opening(&self.disks).undone_by(self.disks.iter().cloned().map(UndoOperation::WipeDeviceEnds))
    }
}

fn describe_create(create: &CreateSystem) -> OperationText {
    let CreateSystem { os, disks, onto, .. } = create;
    let given =
        format!("the program may write {disks}; other disks are not visible to it", disks = join_devices(disks));
    OperationText::after(format!(
        "`create` of {os} onto {device}{growth}",
        device = strip_dev(&onto.device),
        growth = describe_growth(onto)
    ))
    .with(std::iter::once(given).chain(describe_expected(onto)).collect())
}
