//! Volume groups and logical volumes.

use crate::operation_text::{DeviceSizes, OperationLine, describe_size, join_devices};
use crate::{Effect, PlannedOperation, UndoOperation};
use model::device_name::DevicePath;
use model::layout::{LvmType, RequestedSize};
use serde::Serialize;

/// Creates a volume group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateGroup {
    pub name: String,
    pub devices: Vec<DevicePath>,
    pub tags: Vec<String>,
}

impl PlannedOperation for CreateGroup {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_group(self).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::opening(&self.devices).undone_by([undo_by_deactivating(&self.name, &self.devices)])
    }
}

fn describe_group(group: &CreateGroup) -> String {
    let tags = if group.tags.is_empty() { String::new() } else { format!(" tags {}", group.tags.join(" ")) };
    format!("{} ({}){tags}", group.name, join_devices(&group.devices))
}

/// Creates a logical volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateVolume {
    pub name: String,
    pub group: String,
    /// Path of the volume, `/dev/GROUP/NAME`.
    pub device: DevicePath,
    /// All physical volumes of the group in which the logical volume is created.
    pub physical: Vec<DevicePath>,
    #[serde(rename = "size_mib")]
    pub size: RequestedSize,
    pub kind: LvmType,
}

impl PlannedOperation for CreateVolume {
    fn describe(&self, sizes: &DeviceSizes) -> OperationLine<'_> {
        describe_logical_volume(self, sizes).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::opening(&self.physical)
    }
}

fn describe_logical_volume(volume: &CreateVolume, sizes: &DeviceSizes) -> String {
    let size = match volume.size {
        RequestedSize::Rest => format!("remaining space{}", describe_size(sizes, &volume.device)),
        RequestedSize::Mib(mib) => format!("{mib} MiB"),
    };
    format!("{}/{} {} {size}", volume.group, volume.name, volume.kind)
}

/// Activates these volumes of a preserved group for writing. Other volumes of the group are not affected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActivateGroup {
    pub name: String,
    pub devices: Vec<DevicePath>,
    pub volumes: Vec<String>,
}

impl PlannedOperation for ActivateGroup {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        let ActivateGroup { name, devices, volumes } = self;
        format!("activate {} of {name} ({})", volumes.join(", "), join_devices(devices)).into()
    }

    fn effect(&self) -> Effect<'_> {
        let undo = undo_by_deactivating(&self.name, &self.devices);
        Effect::opening(&self.devices).writing(self.devices.clone()).undone_by([undo])
    }
}

fn undo_by_deactivating(name: &str, devices: &[DevicePath]) -> UndoOperation {
    UndoOperation::DeactivateGroup(DeactivateGroup { name: name.to_owned(), devices: devices.to_vec() })
}

/// Deactivates a volume group that this plan created or activated, so that the arrays below it can be stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeactivateGroup {
    pub name: String,
    pub devices: Vec<DevicePath>,
}

impl PlannedOperation for DeactivateGroup {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        OperationLine::on_device("deactivate ", &self.name, "")
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}
