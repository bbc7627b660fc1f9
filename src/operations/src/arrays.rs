//! Operations for mdadm arrays.

use crate::operation_text::{DeviceSizes, OperationLine, describe_size, join_devices, strip_dev};
use crate::{ArraySlot, Effect, PlannedOperation, UndoOperation};
use model::device_name::DevicePath;
use model::layout::RaidLevel;
use serde::Serialize;
use uuid::Uuid;

/// Operation that creates an array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateArray {
    /// Path of the array, such as `/dev/md1` or `/dev/md/root`.
    pub device: DevicePath,
    pub level: RaidLevel,
    /// Version of the superblock: the one that the layout specifies, or else `1.2`.
    pub metadata: String,
    pub uuid: Uuid,
    /// Members of the array: first the slots of active members, then the spares.
    pub devices: Vec<ArraySlot>,
    /// Number of spares among `devices`.
    pub spares: u32,
    /// Options for `mdadm --create` from the layout, except the metadata version.
    pub createoptions: Vec<String>,
}

impl PlannedOperation for CreateArray {
    fn describe(&self, sizes: &DeviceSizes) -> OperationLine<'_> {
        (describe_array(self) + &describe_size(sizes, &self.device)).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::opening(self.present_devices()).undone_by([undo_by_stopping(&self.device)])
    }
}

/// Describes a new array: `md/root raid1 metadata 1.2 (sda2 sdb2) spare sdc2`.
fn describe_array(array: &CreateArray) -> String {
    let active = array.devices.len().saturating_sub(array.spares as usize);
    let (members, spares) = array.devices.split_at(active);
    let word = |member: &ArraySlot| strip_dev(&member.to_string()).to_owned();
    let spaced = |members: &[ArraySlot]| members.iter().map(word).collect::<Vec<_>>().join(" ");
    let spares = if spares.is_empty() { String::new() } else { format!(" spare {}", spaced(spares)) };
    let options =
        if array.createoptions.is_empty() { String::new() } else { format!(" {}", array.createoptions.join(" ")) };
    format!(
        "{} {} metadata {} ({}){spares}{options}",
        strip_dev(&array.device),
        array.level,
        array.metadata,
        spaced(members)
    )
}

/// Operation that assembles a preserved array in read-write mode, under the name that the layout gives to the array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AssembleArray {
    pub device: DevicePath,
    pub uuid: Uuid,
    pub members: Vec<DevicePath>,
}

impl PlannedOperation for AssembleArray {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        format!("assemble {} ({})", strip_dev(&self.device), join_devices(&self.members)).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::opening(&self.members).writing(self.members.clone()).undone_by([undo_by_stopping(&self.device)])
    }
}

fn undo_by_stopping(device: &DevicePath) -> UndoOperation {
    UndoOperation::StopArray(StopArray { device: device.clone() })
}

/// Operation that stops an array, so that the kernel marks its superblocks as clean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StopArray {
    pub device: DevicePath,
}

impl PlannedOperation for StopArray {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        OperationLine::on_device("stop ", self.device.as_str(), "")
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Operation that creates the array from in-memory devices before anything is destroyed. If mdadm or the kernel refuses
/// the array, the installation fails before it destroys data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TryArray {
    /// The array to create. Its name and UUID differ from those of the real array, so that the two arrays cannot be
    /// confused.
    pub make: CreateArray,
    /// Size of each device of the array, in bytes.
    pub member_bytes: Vec<u64>,
    /// Alternative lists of sizes, for devices whose sizes are not known before they are created. If `member_bytes` is
    /// refused, the alternatives are tried in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub or_member_bytes: Vec<Vec<u64>>,
    pub sector_bytes: u32,
}

impl PlannedOperation for TryArray {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_array_trial(self).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Describes a trial of an array: `try to create raid1 --bitmap=internal for md/root in memory`.
fn describe_array_trial(trial: &TryArray) -> String {
    let CreateArray { device, level, createoptions, .. } = &trial.make;
    format!(
        "try to create {level} {options} for {device} in memory",
        options = createoptions.join(" "),
        device = strip_dev(device)
    )
}
