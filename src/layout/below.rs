//! What a device of the layout lies on, down to the disks.

use super::{Layout, partition_device};
use std::collections::BTreeSet;

/// Positions in the layout's lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Below {
    pub disks: BTreeSet<usize>,
    pub arrays: BTreeSet<usize>,
    pub groups: BTreeSet<usize>,
}

impl Layout {
    /// Everything below these devices; of what the layout does not bring about nothing is known.
    pub fn below<'a>(&'a self, devices: impl IntoIterator<Item = &'a str>) -> Below {
        let mut below = Below::default();
        let mut open: Vec<&str> = devices.into_iter().collect();
        while let Some(device) = open.pop() {
            let is_part = |disk: &super::Disk| {
                disk.device == device
                    || disk.image_partition(device).is_some()
                    || disk.partitions.iter().any(|part| partition_device(&disk.device, part.number) == device)
            };
            below.disks.extend(self.disks.iter().position(is_part));
            let array = self.raid.iter().position(|raid| raid.arrayname == device);
            if let Some(array) = array.filter(|array| below.arrays.insert(*array)) {
                open.extend(self.raid[array].devices.iter().map(String::as_str));
            }
            let volumes = self.logicalvolumes.iter();
            let volume = volumes.into_iter().find(|volume| volume.device() == device);
            let group = volume.and_then(|is| self.volumegroups.iter().position(|group| group.name == is.volumegroup));
            if let Some(group) = group.filter(|group| below.groups.insert(*group)) {
                open.extend(self.volumegroups[group].devices.iter().map(String::as_str));
            }
        }
        below
    }
}

impl super::LogicalVolume {
    /// What the rest of the layout calls it.
    pub fn device(&self) -> String {
        format!("/dev/{}/{}", self.volumegroup, self.name)
    }
}
