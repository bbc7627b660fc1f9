//! Operations on volume groups and logical volumes.

use crate::operation_text::{DeviceSizes, OperationLine, describe_size, join_devices};
use crate::{ByteRange, Effect, PlannedOperation, UndoOperation};
use model::device_name::DevicePath;
use model::layout::{LvmType, RequestedSize};
use serde::Serialize;

/// Operation that creates a volume group.
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

/// Operation that creates a logical volume.
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

/// Operation that removes volumes of a group that is otherwise preserved, so that [`CreateVolume`] can create them
/// again. The operation is part of a plan even if it removes no volume, because it verifies the group before volumes
/// are added to the group.
///
/// The operation fails before its first write if the group has another UUID or other physical volumes, or if a volume
/// in `removed`, `preserved` or `hidden` is missing or has another UUID or size. Volumes in `preserved` and `hidden`
/// are neither changed nor activated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RemoveVolumes {
    /// Name of the group.
    pub group: String,
    /// UUID of the group in LVM's format.
    pub uuid: String,
    /// All physical volumes of the group.
    pub physical: Vec<DevicePath>,
    pub removed: Vec<ExpectedVolume>,
    /// All other volumes of the group, including those that the layout does not list.
    pub preserved: Vec<ExpectedVolume>,
    /// Hidden volumes of the group, such as data and metadata of thin pools. They are also preserved. Parts of
    /// raid1 volumes are not included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<ExpectedVolume>,
}

/// Logical volume that the plan expects in the group. The operation fails if the volume differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpectedVolume {
    pub name: String,
    /// UUID of the volume in LVM's format.
    pub uuid: String,
    pub size_bytes: u64,
    /// Ranges of the physical volumes that contain the volume; empty if they are unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<PhysicalRange>,
}

/// Range of a physical volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PhysicalRange {
    pub physical: DevicePath,
    /// Range relative to the start of the physical volume.
    pub range: ByteRange,
}

impl PlannedOperation for RemoveVolumes {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        let names = |volumes: &[ExpectedVolume]| match volumes {
            [] => "no volume".to_owned(),
            some => some.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>().join(", "),
        };
        let RemoveVolumes { group, physical, removed, preserved, .. } = self;
        let (removed, preserved) = (names(removed), names(preserved));
        format!("remove {removed} of {group} ({devices}); preserve {preserved}", devices = join_devices(physical))
            .into()
    }

    fn effect(&self) -> Effect<'_> {
        // The written ranges are not declared here: the planner derives them from the ranges of the preserved volumes.
        Effect::opening(&self.physical).undone_by([undo_by_deactivating(&self.group, &self.physical)])
    }
}

/// Operation that activates the listed volumes of a preserved group in read-write mode. Other volumes of the group are
/// not affected.
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

/// Operation that deactivates a volume group that this plan has created or activated, so that the arrays below it can
/// be stopped.
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
