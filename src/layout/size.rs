//! Size of a partition or logical volume.

use serde::{Serialize, Serializer};
use std::fmt;
use std::num::NonZeroU64;

/// Size in MiB; documents write the remaining space as 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    Mib(NonZeroU64),
    /// Remaining space of the disk or group.
    Rest,
}

impl Size {
    /// Returns the size in MiB; `None` for the remaining space.
    pub fn mib(self) -> Option<u64> {
        match self {
            Size::Mib(mib) => Some(mib.get()),
            Size::Rest => None,
        }
    }
}

/// Converts the number of a document.
impl From<u64> for Size {
    fn from(mib: u64) -> Size {
        NonZeroU64::new(mib).map_or(Size::Rest, Size::Mib)
    }
}

/// Displays the number as documents write it.
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
