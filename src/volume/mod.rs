//! Volumes of Kubernetes that are prepared on a machine: MetalK8s' `Volume` resources with their storage classes. Pure.

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

/// Where the files of sparse volumes lie in the installed system, one each, called by its UUID.
pub const SPARSE: &str = "/var/lib/metalk8s/storage/sparse";

/// A `Volume` of one node, with what its storage class says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    /// `metadata.uid`. What is prepared is known by it: UUID of a filesystem, or GUID of a partition.
    pub uid: Uuid,
    /// `spec.nodeName`.
    pub node: String,
    pub source: Source,
    pub content: Content,
    pub class: Class,
    /// `spec.template`, for the PersistentVolume; null where there is none.
    pub template: Value,
    /// `metadata.deletionTimestamp`: it is marked for deletion.
    pub deleted: bool,
}

/// What backs a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `rawBlockDevice.devicePath`: a disk, or a partition, array or logical volume.
    Raw(LayoutPath),
    /// `rawBlockDevice.discover`: a blank disk that nobody names, and that matches these hints.
    Discover(BTreeMap<String, String>),
    /// `lvmLogicalVolume`: a volume of its own in this group, called like the resource.
    Logical { group: String, size_bytes: u64 },
    /// `sparseLoopDevice`: a file in the installed system.
    Sparse { size_bytes: u64 },
}

/// `spec.mode`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Filesystem {
        /// ext4 or xfs.
        format: Format,
        /// One word each.
        options: Vec<String>,
    },
    Block,
}

/// What the PersistentVolume takes from the storage class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Class {
    pub name: String,
    /// `parameters.fsType`; none where a block volume has a class that is not in the list.
    pub fs_type: Option<Format>,
    pub mount_options: Vec<String>,
}

impl Volume {
    /// Where the file of a sparse volume lies in the installed system.
    pub fn sparse_path(&self) -> String {
        format!("{SPARSE}/{}", self.uid)
    }

    /// Kubernetes calls a node by its hostname, with or without the domain. On a desk there may be none.
    pub fn is_of(&self, hostname: &str) -> bool {
        hostname.is_empty() || is_node(&self.node, hostname)
    }

    /// In a few words: `rawBlockDevice ext4`.
    pub fn kind(&self) -> String {
        let source = match self.source {
            Source::Raw(_) | Source::Discover(_) => "rawBlockDevice",
            Source::Logical { .. } => "lvmLogicalVolume",
            Source::Sparse { .. } => "sparseLoopDevice",
        };
        format!("{source} {}", self.content)
    }
}

/// Whether a machine with this hostname is that node. One of them may be without its domain.
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
