//! Operation that proves that preserved objects are unchanged, by comparing their identities.

use crate::operation_text::{DeviceSizes, OperationLine, OperationText};
use crate::{Effect, PlannedOperation};
use model::device_name::{DevicePath, KernelName};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use uuid::Uuid;

/// Operation that reads the identities of preserved objects and the content of the protected ranges a second time. It
/// fails if any of them has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProvePreserved(pub Vec<PreservedObject>);

impl PlannedOperation for ProvePreserved {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_proof(&self.0).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

fn describe_proof(preserved: &[PreservedObject]) -> OperationText {
    if preserved.is_empty() {
        return OperationText::after("the ends of the other disks are unchanged");
    }
    let first = OperationText::after("identity unchanged:");
    first.with(preserved.iter().map(|preserved| preserved.object.to_string()).collect())
}

/// Object that a reinstall preserves, with its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PreservedObject {
    pub object: ObjectLocator,
    /// Identifying values by property name, such as `guid`, `partition 1`, `members` or `label`.
    pub identity: BTreeMap<String, String>,
}

/// Preserved object, identified by a property that does not change while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectLocator {
    /// Disk, identified by its kernel name, which does not change while the agent runs.
    Disk(KernelName),
    /// Preserved partition, identified by its path. Other partitions of the same disk are recreated.
    Partition(DevicePath),
    /// Array, identified by its UUID. `device` is only for display, because the kernel name of an array may change
    /// while the agent runs.
    Array {
        uuid: Uuid,
        #[serde(with = "common::empty_string_as_none")]
        device: Option<DevicePath>,
    },
    /// Volume group, identified by its LVM UUID. `name` is only for display. This plan creates the volumes in `added`,
    /// so they are not compared.
    Group {
        uuid: String,
        name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        added: Vec<String>,
    },
    /// Filesystem, identified by the device `on`. `device` and `path` are only for display.
    Filesystem {
        device: DevicePath,
        #[serde(with = "common::empty_string_as_none")]
        path: Option<String>,
        on: StableDevice,
    },
}

impl fmt::Display for ObjectLocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectLocator::Disk(name) => write!(f, "disk {}", name.device_path()),
            ObjectLocator::Partition(device) => write!(f, "partition {device}"),
            ObjectLocator::Array { device: None, uuid } => write!(f, "array {uuid}"),
            ObjectLocator::Array { device: Some(device), .. } => write!(f, "array {device}"),
            ObjectLocator::Group { name, .. } => write!(f, "volume group {name}"),
            ObjectLocator::Filesystem { device, path: None, .. } => write!(f, "filesystem on {device}"),
            ObjectLocator::Filesystem { path: Some(path), .. } => write!(f, "filesystem at {path}"),
        }
    }
}

/// Block device, identified by a property that does not change while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StableDevice {
    /// A disk or partition, identified by its path.
    Device(DevicePath),
    Array(Uuid),
    /// Open mapping of a LUKS container, identified by its path, which contains the UUID of the container.
    Mapping(DevicePath),
    /// A logical volume, identified by its name and the LVM UUID of its group.
    Volume {
        group: String,
        name: String,
    },
}
