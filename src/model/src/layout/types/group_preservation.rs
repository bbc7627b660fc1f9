//! Value of `preserve` of a volume group.

use serde::{Serialize, Serializer};

/// Volumes of a group that a reinstall preserves, although it may wipe the disks of the group. In a layout, the value
/// is `false`, `unlisted` or `true`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GroupPreservation {
    /// No volumes, except those that the layout preserves individually.
    #[default]
    None,
    /// The group, and the volumes that the layout does not list. Listed volumes are renewed unless the layout preserves
    /// them individually.
    Unlisted,
    /// The group with all of its volumes.
    All,
}

impl GroupPreservation {
    /// Returns the value in a layout.
    pub fn name(self) -> &'static str {
        match self {
            GroupPreservation::None => "false",
            GroupPreservation::Unlisted => "unlisted",
            GroupPreservation::All => "true",
        }
    }

    pub fn is_none(&self) -> bool {
        *self == GroupPreservation::None
    }
}

impl Serialize for GroupPreservation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            GroupPreservation::None => serializer.serialize_bool(false),
            GroupPreservation::Unlisted => serializer.serialize_str(self.name()),
            GroupPreservation::All => serializer.serialize_bool(true),
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for GroupPreservation {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "GroupPreservation".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"enum": [false, "unlisted", true]})
    }
}
