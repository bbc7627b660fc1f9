//! Identities of preserved objects. An installation must not change these identities.

use crate::operation_text::{DeviceSizes, OperationLine, OperationText};
use crate::{Effect, PlannedOperation};
use model::device_name::{DevicePath, KernelName};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use uuid::Uuid;

/// Reads the identities of preserved objects, and the protected ranges, again. Fails if one of them has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProveKept(pub Vec<PreservedObject>);

impl PlannedOperation for ProveKept {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_proof(&self.0).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

fn describe_proof(kept: &[PreservedObject]) -> OperationText {
    let first = OperationText::after("identity unchanged:");
    first.with(kept.iter().map(|kept| kept.object.to_string()).collect())
}

/// An object that a reinstall preserves, and its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PreservedObject {
    pub object: ObjectLocator,
    /// Identifying values by property name, such as `guid`, `partition 1`, `members` or `label`.
    pub identity: BTreeMap<String, String>,
}

/// A preserved object, identified by a property that is stable while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectLocator {
    /// A disk, identified by its kernel name. The name is stable while the agent runs.
    Disk(KernelName),
    /// A preserved partition of a disk whose other partitions are renewed, identified by its path.
    Partition(DevicePath),
    /// An array, identified by its UUID. `device` is for display only, because kernel names of arrays may change while
    /// the agent runs.
    Array {
        uuid: Uuid,
        #[serde(with = "common::serde_empty")]
        device: Option<DevicePath>,
    },
    /// A volume group, identified by its LVM UUID; `name` is for display only. Volumes in `added` are created by this
    /// plan and are not compared.
    Group {
        uuid: String,
        name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        added: Vec<String>,
    },
    /// A filesystem, identified by the device `on`. `device` and `path` are for display only.
    Filesystem {
        device: DevicePath,
        #[serde(with = "common::serde_empty")]
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

/// A block device, identified by a property that is stable while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StableDevice {
    /// A disk or partition, identified by its path.
    Device(DevicePath),
    Array(Uuid),
    /// The open mapping of a LUKS container, identified by its path. The path contains the UUID of the container.
    Mapping(DevicePath),
    /// A logical volume, identified by its name and the LVM UUID of its group.
    Volume {
        group: String,
        name: String,
    },
}
