//! Objects of a layout that a device depends on, down to the disks.

use super::graph::LayoutGraph;
use crate::device_name::LayoutPath;
use std::collections::BTreeSet;
use std::ops::Range;

/// Disks, arrays and groups below a device, as indices into the lists of the layout.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnderlyingObjects {
    pub disks: BTreeSet<usize>,
    pub arrays: BTreeSet<usize>,
    pub groups: BTreeSet<usize>,
}

impl LayoutGraph<'_> {
    /// Returns the disks, arrays and groups below these devices, including the devices themselves. Devices that the
    /// layout does not define are ignored.
    pub fn objects_below<'b>(&self, devices: impl IntoIterator<Item = &'b LayoutPath>) -> UnderlyingObjects {
        let beneath = self.reach_below(devices.into_iter().filter_map(|device| self.find_device(device)));
        let of = |list: &Range<usize>| {
            let nodes = beneath.iter().filter(|node| list.contains(node));
            nodes.map(|node| node - list.start).collect()
        };
        UnderlyingObjects { disks: of(&self.disks), arrays: of(&self.arrays), groups: of(&self.groups) }
    }

    /// Returns the disks, arrays and groups below the root filesystem.
    pub fn objects_below_root(&self) -> UnderlyingObjects {
        let root = self.layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/"));
        self.objects_below(root.map(|root| &root.device))
    }
}

impl super::LogicalVolumeSpec {
    /// Returns the path that other parts of the layout use for the volume.
    pub fn device_path(&self) -> LayoutPath {
        format!("/dev/{}/{}", self.volumegroup, self.name).into()
    }
}
