//! Devices that a device of the layout depends on, down to the disks.

use super::tree::Graph;
use crate::device::LayoutPath;
use crate::order::Gather;
use std::collections::BTreeSet;
use std::ops::Range;

/// Indices into the layout's lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Below {
    pub disks: BTreeSet<usize>,
    pub arrays: BTreeSet<usize>,
    pub groups: BTreeSet<usize>,
}

impl Graph<'_> {
    /// Returns all objects below these devices. Devices that the layout does not provide are ignored.
    pub fn below<'b>(&self, devices: impl IntoIterator<Item = &'b LayoutPath>) -> Below {
        let beneath = self.beneath(devices.into_iter().filter_map(|device| self.device(device)));
        let of = |list: &Range<usize>| {
            let nodes = beneath.iter().filter(|node| list.contains(node));
            nodes.map(|node| node - list.start).gather()
        };
        Below { disks: of(&self.disks), arrays: of(&self.arrays), groups: of(&self.groups) }
    }

    /// Returns all objects below the root filesystem.
    pub fn below_root(&self) -> Below {
        let root = self.layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/"));
        self.below(root.map(|root| &root.device))
    }
}

impl super::LogicalVolume {
    /// Returns the path by which the rest of the layout refers to the volume.
    pub fn device(&self) -> LayoutPath {
        format!("/dev/{}/{}", self.volumegroup, self.name).into()
    }
}
