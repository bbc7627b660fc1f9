//! What a device of the layout lies on, down to the disks.

use super::tree::Graph;
use crate::device::LayoutPath;
use crate::order::Gather;
use std::collections::BTreeSet;
use std::ops::Range;

/// Positions in the layout's lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Below {
    pub disks: BTreeSet<usize>,
    pub arrays: BTreeSet<usize>,
    pub groups: BTreeSet<usize>,
}

impl Graph<'_> {
    /// Everything below these devices; of what the layout does not bring about nothing is known.
    pub fn below<'b>(&self, devices: impl IntoIterator<Item = &'b LayoutPath>) -> Below {
        let beneath = self.beneath(devices.into_iter().filter_map(|device| self.device(device)));
        let of = |list: &Range<usize>| {
            let nodes = beneath.iter().filter(|node| list.contains(node));
            nodes.map(|node| node - list.start).gather()
        };
        Below { disks: of(&self.disks), arrays: of(&self.arrays), groups: of(&self.groups) }
    }

    /// Everything below `/`.
    pub fn below_root(&self) -> Below {
        let root = self.layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/"));
        self.below(root.map(|root| &root.device))
    }
}

impl super::LogicalVolume {
    /// What the rest of the layout calls it.
    pub fn device(&self) -> LayoutPath {
        format!("/dev/{}/{}", self.volumegroup, self.name).into()
    }
}
