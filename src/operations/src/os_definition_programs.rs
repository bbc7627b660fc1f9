//! Programs of an OS definition.

use crate::operation_text::{DeviceSizes, OperationLine, OperationText, join_devices, strip_dev};
use crate::raw_image::{describe_expected, describe_growth};
use crate::{BurnDisk, Effect, PlannedOperation, UndoOperation};
use model::device_name::DevicePath;
use model::os_definition::SelectedDefinition;
use serde::Serialize;
use std::collections::BTreeMap;

/// Runs the `verify` program of the OS definition, which accepts or rejects the parameters. The program runs in a
/// sandbox that has no access to disks or the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyDefinition {
    /// Name of the OS definition, with its variant.
    pub os: String,
    /// Names of the parameters that are set. The values of the parameters may be secret and are not included.
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

/// Checks that the ramdisk contains the programs that the `create` program of the OS definition needs.
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

/// Fills the system disk by running the `create` program of the OS definition, instead of writing a raw image to the
/// disk. The disk is then adapted and checked as after [`BurnDisk`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateSystem {
    /// Name of the OS definition, with its variant.
    pub os: String,
    /// Disks that the program may write, in the order of the layout. These are the recreated disks; the program's
    /// `/dev` does not contain any other disk.
    pub disks: Vec<DevicePath>,
    /// The system disk and the content that is expected on this disk after the program has run, in the same form as for
    /// a raw image.
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
        // The program opens the disks by path. The undo erases partition tables too, since it is unknown which partitions are bootable.
        Effect::opening(&self.disks).undone_by(self.disks.iter().cloned().map(UndoOperation::Made))
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
