//! The places of an array that is made.

use super::CreateArray;
use serde::{Serialize, Serializer};
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    Device(String),
    /// The device is not there. The array is made without it.
    Missing,
}

impl Member {
    pub fn device(&self) -> Option<&str> {
        match self {
            Member::Device(device) => Some(device),
            Member::Missing => None,
        }
    }
}

/// As mdadm takes it.
impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.device().unwrap_or("missing"))
    }
}

impl Serialize for Member {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl CreateArray {
    /// Its members that are there, spares among them.
    pub fn there(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().filter_map(Member::device)
    }

    /// All places in their order, as mdadm takes them.
    pub fn in_words(&self) -> String {
        self.devices.iter().map(Member::to_string).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
impl Member {
    /// Of words as mdadm takes them.
    pub fn list(words: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<Member> {
        let member = |word: &str| if word == "missing" { Member::Missing } else { Member::Device(word.to_owned()) };
        words.into_iter().map(|word| member(word.as_ref())).collect()
    }
}
