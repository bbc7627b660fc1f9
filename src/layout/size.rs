//! How large a partition or volume is.

use serde::{Serialize, Serializer};
use std::fmt;
use std::num::NonZeroU64;

/// In documents a number of MiB, where 0 is all that is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    Mib(NonZeroU64),
    /// All that is left of the disk or group.
    Rest,
}

impl Size {
    /// `None`: all that is left.
    pub fn mib(self) -> Option<u64> {
        match self {
            Size::Mib(mib) => Some(mib.get()),
            Size::Rest => None,
        }
    }
}

/// As documents have it.
impl From<u64> for Size {
    fn from(mib: u64) -> Size {
        NonZeroU64::new(mib).map_or(Size::Rest, Size::Mib)
    }
}

/// As documents have it.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mib().unwrap_or(0))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.mib().unwrap_or(0))
    }
}
