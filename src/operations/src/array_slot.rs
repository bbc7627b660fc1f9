//! Member slots of a new array.

use super::CreateArray;
use model::device_name::DevicePath;
use serde::{Serialize, Serializer};
use std::fmt;

/// Slot of an array: a device, or the empty slot of a degraded array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArraySlot {
    Device(DevicePath),
    /// No device exists for this slot, so the array is created degraded.
    Missing,
}

impl ArraySlot {
    pub fn device(&self) -> Option<&DevicePath> {
        match self {
            ArraySlot::Device(device) => Some(device),
            ArraySlot::Missing => None,
        }
    }
}

/// Formats the slot as an argument of mdadm: a device path, or `missing`.
impl fmt::Display for ArraySlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.device().map_or("missing", DevicePath::as_str))
    }
}

impl Serialize for ArraySlot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl CreateArray {
    /// Returns the present devices of the array, including spares.
    pub fn present_devices(&self) -> impl Iterator<Item = &DevicePath> {
        self.devices.iter().filter_map(ArraySlot::device)
    }

    /// Returns all slots in order, as arguments of mdadm.
    pub fn mdadm_arguments(&self) -> String {
        self.devices.iter().map(ArraySlot::to_string).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(any(test, feature = "testing"))]
impl ArraySlot {
    /// Parses the slots of an array from arguments of mdadm.
    pub fn parse_list(words: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<ArraySlot> {
        let member = |word: &str| if word == "missing" { ArraySlot::Missing } else { ArraySlot::Device(word.into()) };
        words.into_iter().map(|word| member(word.as_ref())).collect()
    }
}
