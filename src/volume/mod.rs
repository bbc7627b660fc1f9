//! Kubernetes volumes prepared on a machine: MetalK8s' `Volume` resources with their storage classes. No I/O.

mod manifest;
mod quantity;
mod read;
#[cfg(test)]
mod tests;

pub use manifest::{Backed, manifests};
pub use read::read;

use crate::device::LayoutPath;
use crate::layout::Format;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use uuid::Uuid;

/// Directory of the backing files of sparse volumes in the installed system, each named by its UUID.
pub const SPARSE: &str = "/var/lib/metalk8s/storage/sparse";

/// `Volume` of a node, combined with its storage class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    /// `metadata.uid`, which identifies the prepared object: UUID of a filesystem, or GUID of a partition.
    pub uid: Uuid,
    /// `spec.nodeName`.
    pub node: String,
    pub source: Source,
    pub content: Content,
    pub class: Class,
    /// `spec.template` for the PersistentVolume; null if absent.
    pub template: Value,
    /// Whether it is marked for deletion (`metadata.deletionTimestamp`).
    pub deleted: bool,
}

/// Backing storage of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
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
pub enum Content {
    Filesystem {
        /// ext4 or xfs.
        format: Format,
        /// Options of mkfs, one argument each.
        options: Vec<String>,
    },
    Block,
}

/// Properties that the PersistentVolume inherits from the storage class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Class {
    pub name: String,
    /// `parameters.fsType`; none for a block volume whose class is not in the list.
    pub fs_type: Option<Format>,
    pub mount_options: Vec<String>,
}

impl Volume {
    /// Returns the path of a sparse volume's backing file in the installed system.
    pub fn sparse_path(&self) -> String {
        format!("{SPARSE}/{}", self.uid)
    }

    /// Returns whether the volume belongs to the host. Kubernetes names nodes by hostname, with or without domain; at
    /// an operator's workstation there may be none.
    pub fn is_of(&self, hostname: &str) -> bool {
        hostname.is_empty() || is_node(&self.node, hostname)
    }

    /// Returns a short description: `rawBlockDevice ext4`.
    pub fn kind(&self) -> String {
        let source = match self.source {
            Source::Raw(_) | Source::Discover(_) => "rawBlockDevice",
            Source::Logical { .. } => "lvmLogicalVolume",
            Source::Sparse { .. } => "sparseLoopDevice",
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

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Content::Filesystem { format, .. } => format.name(),
            Content::Block => "Block",
        })
    }
}
