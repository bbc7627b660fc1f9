//! Block devices of a layout, with their current and future state.

use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::device_name::{DevicePath, LayoutPath};
use model::inventory::DeviceSignature;
use std::collections::BTreeMap;

/// Decision whether a device is created on wiped disks, created on blank disks, or preserved. The decision depends on
/// the disks below the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DeviceFate {
    /// The device is created on disks that are wiped.
    Wiped,
    /// The device is created on blank disks that the layout preserves.
    Blank,
    /// The device is preserved with its content.
    Preserved,
}

/// A block device of the layout: a disk, partition, array or volume.
#[derive(Debug, Clone)]
pub(crate) struct PlannedDevice<'a> {
    /// Path of the device during the installation.
    pub path: DevicePath,
    /// Path of the device when the plan is made. It differs from `path` if the device is a preserved array that is
    /// active under another name.
    pub now: DevicePath,
    pub fate: DeviceFate,
    /// Index in `Layout::disks` of the absent disk that is below the device; `None` if all of its disks are present.
    pub absent: Option<usize>,
    /// True if the device is preserved, and all samples read from it are zero.
    pub blank: bool,
    /// Minimum size in bytes; `None` if unknown.
    pub size_bytes: Option<u64>,
    /// Maximum size in bytes, if the exact size is unknown.
    pub most_bytes: u64,
    pub sector_bytes: u32,
    /// Alignment that LVM uses for data on the device, in bytes; 0 for the default.
    pub stripe_bytes: u64,
    /// Signatures on a preserved device, or the reason why they are unknown.
    pub content: Result<&'a [DeviceSignature], String>,
}

/// Size of a device, as far as it is known before the device is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceSize {
    Known(u64),
    AtMost(u64),
}

impl DeviceSize {
    pub(crate) fn max_bytes(self) -> u64 {
        let (DeviceSize::Known(bytes) | DeviceSize::AtMost(bytes)) = self;
        bytes
    }
}

impl PlannedDevice<'_> {
    pub(crate) fn size(&self) -> DeviceSize {
        self.size_bytes.map_or(DeviceSize::AtMost(self.most_bytes), DeviceSize::Known)
    }
}

/// Devices directly below an object, and their common fate.
pub(crate) struct UnderlyingDevices<'a> {
    pub devices: Vec<PlannedDevice<'a>>,
    pub fate: DeviceFate,
}

impl<'a> UnderlyingDevices<'a> {
    /// Returns the devices that are present in the machine.
    pub(crate) fn present(&self) -> impl Iterator<Item = &PlannedDevice<'a>> {
        self.devices.iter().filter(|device| device.absent.is_none())
    }

    /// Returns the absent devices, with their index in `devices`.
    pub(crate) fn absent(&self) -> impl Iterator<Item = (usize, &PlannedDevice<'a>)> {
        self.devices.iter().enumerate().filter(|(_, device)| device.absent.is_some())
    }

    pub(crate) fn install_paths(&self) -> Vec<DevicePath> {
        self.present().map(|device| device.path.clone()).collect()
    }

    /// Returns the current paths of the devices that are present, sorted.
    pub(crate) fn present_paths(&self) -> Vec<DevicePath> {
        let mut now: Vec<DevicePath> = self.present().map(|device| device.now.clone()).collect();
        now.sort();
        now
    }

    /// Returns the largest sector size of the devices, which md reports as the sector size of an array of these
    /// devices.
    pub(crate) fn sector_bytes(&self) -> u32 {
        self.present().map(|device| device.sector_bytes).max().unwrap_or(512)
    }
}

/// Devices that the layout defines, by their path in the layout.
#[derive(Default)]
pub(crate) struct DeviceTable<'a> {
    devices: BTreeMap<LayoutPath, PlannedDevice<'a>>,
    /// Problems of the layout, one for each reference to a device that the layout does not define.
    pub unknown: Vec<Diagnostic>,
}

impl<'a> DeviceTable<'a> {
    pub(crate) fn insert(&mut self, path: LayoutPath, device: PlannedDevice<'a>) {
        self.devices.insert(path, device);
    }

    /// Returns the known sizes in bytes, by path during the installation.
    pub(crate) fn known_sizes(&self) -> BTreeMap<DevicePath, u64> {
        let present = self.devices.values().filter(|device| device.absent.is_none());
        present.filter_map(|device| Some((device.path.clone(), device.size_bytes?))).collect()
    }

    /// Returns the current path and the path during the installation; `None` if the layout does not define the device.
    pub(crate) fn find_paths(&self, path: &LayoutPath) -> Option<(&DevicePath, &DevicePath)> {
        self.devices.get(path).map(|device| (&device.now, &device.path))
    }

    pub(crate) fn get_or_report(&mut self, place: &str, path: &LayoutPath) -> Option<PlannedDevice<'a>> {
        let device = self.devices.get(path).cloned();
        if device.is_none() {
            self.unknown.push(
                Diagnostic::new(place, format!("device:{path} is not provided by the layout"))
                    .with_code(ErrorCode::Layout),
            );
        }
        device
    }

    pub(crate) fn get_all_or_report(&mut self, place: &str, paths: &[LayoutPath]) -> Option<Vec<PlannedDevice<'a>>> {
        let found: Vec<Option<PlannedDevice>> = paths.iter().map(|path| self.get_or_report(place, path)).collect();
        found.into_iter().collect()
    }
}
