//! Size of a partition or logical volume.

use serde::{Serialize, Serializer};
use std::fmt;
use std::num::NonZeroU64;

/// Size in MiB that a document specifies. In a document, 0 means the remaining space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedSize {
    Mib(NonZeroU64),
    /// Remaining space of the disk or volume group.
    Rest,
}

impl RequestedSize {
    /// Returns the size in MiB; `None` for the remaining space.
    pub fn as_mib(self) -> Option<u64> {
        match self {
            RequestedSize::Mib(mib) => Some(mib.get()),
            RequestedSize::Rest => None,
        }
    }
}

/// In a JSON Schema, a `RequestedSize` is an inline number type, not a reference to a definition.
#[cfg(feature = "schema")]
impl schemars::JsonSchema for RequestedSize {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RequestedSize".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        u64::json_schema(generator)
    }
}

/// Converts a number read from a layout document: a size in MiB, or 0 for the remaining space.
impl From<u64> for RequestedSize {
    fn from(mib: u64) -> RequestedSize {
        NonZeroU64::new(mib).map_or(RequestedSize::Rest, RequestedSize::Mib)
    }
}

/// Displays the size in the notation of documents: a number of MiB, or 0 for the remaining space.
impl fmt::Display for RequestedSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_mib().unwrap_or(0))
    }
}

impl Serialize for RequestedSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.as_mib().unwrap_or(0))
    }
}
