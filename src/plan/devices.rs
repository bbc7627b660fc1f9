//! The block devices that a layout speaks of, and what is or will be behind each.

use crate::device::{DevicePath, LayoutPath};
use crate::inventory::Signature;
use crate::order::{self, Gather};
use crate::problem::Problem;
use std::collections::BTreeMap;

/// What becomes of a device, by the disks at its bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// Made, on disks that are wiped.
    Wiped,
    /// Made, on disks that would be kept, and are blank.
    Blank,
    /// Kept, with its content.
    Kept,
}

/// A block device of the layout: a disk, partition, array or volume.
#[derive(Debug, Clone)]
pub struct Device<'a> {
    /// Where it is found while the installation runs.
    pub path: DevicePath,
    /// Where it is found now; a kept array may run under another name.
    pub now: DevicePath,
    pub fate: Fate,
    /// It is on a disk that is not in the machine: which one of `Layout::disks`.
    pub absent: Option<usize>,
    /// It is kept and shows nothing but zeros.
    pub blank: bool,
    /// At least; `None` when that cannot be said.
    pub size_bytes: Option<u64>,
    /// At most, where the size cannot be said.
    pub most_bytes: u64,
    pub sector_bytes: u32,
    /// What LVM aligns to; 0 when nothing special.
    pub stripe_bytes: u64,
    /// What is on a kept device, or why that is not known.
    pub content: Result<&'a [Signature], String>,
}

/// How large a device is, as far as that can be said before it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    Known(u64),
    AtMost(u64),
}

impl Size {
    pub fn most(self) -> u64 {
        let (Size::Known(bytes) | Size::AtMost(bytes)) = self;
        bytes
    }
}

impl Device<'_> {
    pub fn size(&self) -> Size {
        self.size_bytes.map_or(Size::AtMost(self.most_bytes), Size::Known)
    }
}

/// Devices that something lies on, with one fate.
pub struct Below<'a> {
    pub devices: Vec<Device<'a>>,
    pub fate: Fate,
}

impl<'a> Below<'a> {
    /// Those that are in the machine.
    pub fn present(&self) -> impl Iterator<Item = &Device<'a>> {
        self.devices.iter().filter(|device| device.absent.is_none())
    }

    /// Place among `devices`, and the device.
    pub fn absent(&self) -> impl Iterator<Item = (usize, &Device<'a>)> {
        self.devices.iter().enumerate().filter(|(_, device)| device.absent.is_some())
    }

    pub fn paths(&self) -> Vec<DevicePath> {
        self.present().map(|device| device.path.clone()).collect()
    }

    /// Where they are now, sorted, as a set.
    pub fn now(&self) -> Vec<DevicePath> {
        let mut now: Vec<DevicePath> = self.present().map(|device| device.now.clone()).collect();
        order::sort(&mut now);
        now
    }

    /// The largest, which is what md shows for the whole.
    pub fn sector_bytes(&self) -> u32 {
        self.present().map(|device| device.sector_bytes).max().unwrap_or(512)
    }
}

#[derive(Default)]
pub struct Devices<'a> {
    devices: BTreeMap<LayoutPath, Device<'a>>,
    /// Devices that were asked for and are not there.
    pub unknown: Vec<Problem>,
}

impl<'a> Devices<'a> {
    pub fn insert(&mut self, path: LayoutPath, device: Device<'a>) {
        self.devices.insert(path, device);
    }

    /// Bytes by where it is while the installation runs, of those whose size is known.
    pub fn sizes(&self) -> BTreeMap<DevicePath, u64> {
        let present = self.devices.values().filter(|device| device.absent.is_none());
        present.filter_map(|device| Some((device.path.clone(), device.size_bytes?))).gather()
    }

    /// Where it is now, and where it is found while the installation runs; `None` when the layout does not bring it about.
    pub fn path(&self, path: &LayoutPath) -> Option<(&DevicePath, &DevicePath)> {
        self.devices.get(path).map(|device| (&device.now, &device.path))
    }

    pub fn get(&mut self, place: &str, path: &LayoutPath) -> Option<Device<'a>> {
        let device = self.devices.get(path).cloned();
        if device.is_none() {
            self.unknown.push(Problem::new(place, format!("device:{path} is not provided by the layout")));
        }
        device
    }

    pub fn get_all(&mut self, place: &str, paths: &[LayoutPath]) -> Option<Vec<Device<'a>>> {
        let found: Vec<Option<Device>> = paths.iter().map(|path| self.get(place, path)).collect();
        found.into_iter().collect()
    }
}
