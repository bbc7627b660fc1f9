//! Member slots of an array that is created.

use super::CreateArray;
use crate::device::DevicePath;
use serde::{Serialize, Serializer};
use std::fmt;

/// Slot of an array: a device, or none in a degraded array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    Device(DevicePath),
    /// The device is absent; the array is created degraded.
    Missing,
}

impl Member {
    pub fn device(&self) -> Option<&DevicePath> {
        match self {
            Member::Device(device) => Some(device),
            Member::Missing => None,
        }
    }
}

/// Prints the member as an argument of mdadm.
impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.device().map_or("missing", DevicePath::as_str))
    }
}

impl Serialize for Member {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl CreateArray {
    /// Returns the devices of the array that are present, including spares.
    pub fn there(&self) -> impl Iterator<Item = &DevicePath> {
        self.devices.iter().filter_map(Member::device)
    }

    /// Returns all slots in order, as arguments of mdadm.
    pub fn in_words(&self) -> String {
        self.devices.iter().map(Member::to_string).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
impl Member {
    /// Parses arguments of mdadm.
    pub fn list(words: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<Member> {
        let member = |word: &str| if word == "missing" { Member::Missing } else { Member::Device(word.into()) };
        words.into_iter().map(|word| member(word.as_ref())).collect()
    }
}
