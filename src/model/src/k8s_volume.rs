//! Kubernetes volumes that are prepared on a machine. The volumes are specified by MetalK8s' `Volume` resources and
//! storage classes. This module does no I/O.

mod persistent_volume;
mod quantity;
mod resource_problem_messages;
#[cfg(test)]
mod tests;
mod volume_list_parser;

pub use persistent_volume::{BackedVolume, format_manifests};
pub use resource_problem_messages::{find_addition_problems, format_resource_problem, split_place};
pub use volume_list_parser::parse_volumes;

use crate::device_name::LayoutPath;
use crate::layout::FilesystemFormat;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use uuid::Uuid;

/// Directory of the backing files of sparse volumes in the installed system. Each file is named by its volume's UUID.
pub const SPARSE: &str = "/var/lib/metalk8s/storage/sparse";

/// `Volume` resource of a node, combined with its storage class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct K8sVolume {
    pub name: String,
    /// `metadata.uid`, which is also the UUID of the prepared filesystem or the GUID of the prepared partition.
    pub uid: Uuid,
    /// Name of the node (`spec.nodeName`).
    pub node: String,
    pub source: VolumeSource,
    pub content: VolumeContent,
    pub class: StorageClass,
    /// `spec.template`, from which the PersistentVolume is created; null if absent.
    pub template: Value,
    /// True if the resource is marked for deletion (`metadata.deletionTimestamp`).
    pub deleted: bool,
    /// True if the resource was exported from a Kubernetes API server, according to its `apiVersion`. Such a resource
    /// is the owner of its PersistentVolume.
    pub is_exported: bool,
}

/// Storage that contains the data of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// `rawBlockDevice.devicePath`: a disk, or a partition, array or logical volume.
    Raw(LayoutPath),
    /// `rawBlockDevice.discover`: any blank disk that matches these hints, unless the layout or another volume uses it.
    Discover(BTreeMap<String, String>),
    /// `lvmLogicalVolume`: a logical volume that is created in this group, and has the name of the resource.
    Logical { group: String, size_bytes: u64 },
    /// `sparseLoopDevice`: a file in the installed system.
    Sparse { size_bytes: u64 },
}

/// Content of a volume (`spec.mode`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeContent {
    Filesystem {
        /// Format of the filesystem: ext4 or xfs.
        format: FilesystemFormat,
        /// Options of mkfs, one word per item.
        options: Vec<String>,
    },
    Block,
}

/// Properties of the storage class that are copied to the PersistentVolume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageClass {
    pub name: String,
    /// `parameters.fsType`; `None` for a block volume whose class is not in the list.
    pub fs_type: Option<FilesystemFormat>,
    pub mount_options: Vec<String>,
}

impl K8sVolume {
    /// Returns the path of a sparse volume's backing file in the installed system.
    pub fn sparse_path(&self) -> String {
        format!("{SPARSE}/{}", self.uid)
    }

    /// Returns whether the volume belongs to the host with this name. Kubernetes names nodes by their hostnames, with
    /// or without the domain. If the hostname is empty, because a command runs on an operator's workstation, returns
    /// true for all volumes.
    pub fn belongs_to_host(&self, hostname: &str) -> bool {
        hostname.is_empty() || is_node(&self.node, hostname)
    }

    /// Returns a short description of the volume's type: `rawBlockDevice ext4`.
    pub fn describe_kind(&self) -> String {
        let source = match self.source {
            VolumeSource::Raw(_) | VolumeSource::Discover(_) => "rawBlockDevice",
            VolumeSource::Logical { .. } => "lvmLogicalVolume",
            VolumeSource::Sparse { .. } => "sparseLoopDevice",
        };
        format!("{source} {}", self.content)
    }
}

/// Returns whether the node has this hostname. If either name has no domain, the domain of the other name is ignored.
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
