//! Kubernetes volumes prepared on a machine: MetalK8s' `Volume` resources with their storage classes. No I/O.

mod parser;
mod persistent_volume;
mod quantity;
#[cfg(test)]
mod tests;

pub use parser::parse_volumes;
pub use persistent_volume::{BackedVolume, format_manifests};

use crate::device::LayoutPath;
use crate::layout::FilesystemFormat;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use uuid::Uuid;

/// Directory of the backing files of sparse volumes in the installed system, each named by its UUID.
pub const SPARSE: &str = "/var/lib/metalk8s/storage/sparse";

/// `Volume` of a node, combined with its storage class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct K8sVolume {
    pub name: String,
    /// `metadata.uid`, which identifies the prepared object: UUID of a filesystem, or GUID of a partition.
    pub uid: Uuid,
    /// `spec.nodeName`.
    pub node: String,
    pub source: VolumeSource,
    pub content: VolumeContent,
    pub class: StorageClass,
    /// `spec.template` for the PersistentVolume; null if absent.
    pub template: Value,
    /// Whether it is marked for deletion (`metadata.deletionTimestamp`).
    pub deleted: bool,
}

/// Backing storage of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// `rawBlockDevice.devicePath`: a disk, or a partition, array or logical volume.
    Raw(LayoutPath),
    /// `rawBlockDevice.discover`: any blank disk that matches these hints and is not named otherwise.
    Discover(BTreeMap<String, String>),
    /// `lvmLogicalVolume`: a separate volume in this group, named after the resource.
    Logical { group: String, size_bytes: u64 },
    /// `sparseLoopDevice`: a file in the installed system.
    Sparse { size_bytes: u64 },
}

/// Content of a volume (`spec.mode`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeContent {
    Filesystem {
        /// ext4 or xfs.
        format: FilesystemFormat,
        /// Options of mkfs, one argument each.
        options: Vec<String>,
    },
    Block,
}

/// Properties that the PersistentVolume inherits from the storage class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageClass {
    pub name: String,
    /// `parameters.fsType`; none for a block volume whose class is not in the list.
    pub fs_type: Option<FilesystemFormat>,
    pub mount_options: Vec<String>,
}

impl K8sVolume {
    /// Returns the path of a sparse volume's backing file in the installed system.
    pub fn sparse_path(&self) -> String {
        format!("{SPARSE}/{}", self.uid)
    }

    /// Returns whether the volume belongs to the host. Kubernetes names nodes by hostname, with or without domain; at
    /// an operator's workstation there may be none.
    pub fn belongs_to_host(&self, hostname: &str) -> bool {
        hostname.is_empty() || is_node(&self.node, hostname)
    }

    /// Returns a short description: `rawBlockDevice ext4`.
    pub fn describe_kind(&self) -> String {
        let source = match self.source {
            VolumeSource::Raw(_) | VolumeSource::Discover(_) => "rawBlockDevice",
            VolumeSource::Logical { .. } => "lvmLogicalVolume",
            VolumeSource::Sparse { .. } => "sparseLoopDevice",
        };
        format!("{source} {}", self.content)
    }
}

/// Returns whether a hostname denotes that node. Either may lack its domain.
pub fn is_node(node: &str, hostname: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    match node.contains('.') && hostname.contains('.') {
        true => node.eq_ignore_ascii_case(hostname),
        false => short(node) == short(hostname),
    }
}

impl fmt::Display for VolumeContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VolumeContent::Filesystem { format, .. } => format.name(),
            VolumeContent::Block => "Block",
        })
    }
}
