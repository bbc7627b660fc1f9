//! Files of the installed system for Kubernetes volumes.

use crate::k8s_volumes::describe_initial_content;
use crate::operation_text::{DeviceSizes, OperationLine, OperationText};
use crate::{CreateVolume, Effect, InitialVolumeContent, PlannedOperation, spanning_partition_bytes};
use common::format;
use model::device_name::DevicePath;
use model::k8s_volume::K8sVolume;
use serde::Serialize;
use uuid::Uuid;

/// Operation that writes files of the target for Kubernetes volumes: sparse files, systemd units that attach them to
/// loop devices, and `/etc/metal/volumes.yaml`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct WriteK8sVolumeFiles {
    pub sparse: Vec<SparseVolume>,
    /// All Kubernetes volumes of the allocation.
    #[serde(skip)]
    pub volumes: Vec<ManifestVolume>,
}

impl PlannedOperation for WriteK8sVolumeFiles {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_volume_files(self).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

fn describe_volume_files(write: &WriteK8sVolumeFiles) -> OperationText {
    let file = |sparse: &SparseVolume| match &sparse.make {
        Some(filling) => {
            format!(
                "volume {}: {}, {}, {}",
                sparse.name,
                sparse.path,
                format::format_bytes(sparse.size_bytes),
                describe_initial_content(filling)
            )
        }
        None => format!("volume {}: {} unchanged", sparse.name, sparse.path),
    };
    let first = OperationText::after("/etc/metal/volumes.yaml");
    first.with(write.sparse.iter().map(file).collect())
}

/// Kubernetes volume that is a file of the installed system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SparseVolume {
    pub name: String,
    pub uid: Uuid,
    /// Path of the file in the installed system.
    pub path: String,
    pub size_bytes: u64,
    /// Initial content of a new file; `None` if the file exists and is preserved.
    pub make: Option<InitialVolumeContent>,
}

/// Kubernetes volume, as listed in `/etc/metal/volumes.yaml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestVolume {
    pub volume: K8sVolume,
    /// Name of the device during the installation.
    pub device: DevicePath,
    /// True if this plan creates the volume as a partition that spans `device`.
    pub is_part: bool,
    pub persistent: VolumePath,
    pub size_bytes: Option<u64>,
}

impl ManifestVolume {
    /// Returns the size of the volume on a device of `device_bytes` bytes.
    pub fn size_on(&self, device_bytes: u64) -> u64 {
        if self.is_part { spanning_partition_bytes(device_bytes) } else { device_bytes }
    }
}

/// Device path from which Kubernetes mounts the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumePath {
    Known(String),
    /// Logical volume that this plan creates. Its path is unknown until LVM has assigned a UUID to it.
    NewVolume(CreateVolume),
}

impl VolumePath {
    pub fn as_known(&self) -> Option<&str> {
        match self {
            VolumePath::Known(path) => Some(path),
            VolumePath::NewVolume(_) => None,
        }
    }
}
