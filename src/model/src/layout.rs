//! Filesystem layouts: parsing of all spellings that are in use, validation that reports all problems together, and
//! output in canonical form.

mod advice;
mod array_options;
mod canonical;
mod encryption;
mod field_name_spelling;
mod field_reader;
mod filesystem_limits;
#[cfg(test)]
mod fuzz;
pub mod graph;
mod image_version_constraints;
pub mod layout_set;
mod logical_volume_name_limits;
mod mkfs;
mod parser;
pub mod preserved_objects;
pub mod root_device_hints;
mod size;
mod spelling_edits;
#[cfg(test)]
mod tests;
mod types;
mod underlying_objects;
mod validation;
mod value_syntax;
mod yaml_document;

pub(crate) use advice::suggest_disk;
pub use canonical::{canonical_yaml, compute_digest};
pub use encryption::{EncryptionSpec, KeySource};
pub use filesystem_limits::max_filesystem_bytes;
pub use image_version_constraints::{ImageId, ImageVersion};
pub use logical_volume_name_limits::explain_excessive_name;
pub use parser::{
    FILESYSTEM_OF_V2, LAYOUT_OF_V2, ParsedLayout, read_all_layouts, read_json, read_yaml, respell_canonically,
};
pub use size::RequestedSize;
pub use types::*;
pub use underlying_objects::UnderlyingObjects;
pub use validation::{MIN_BTRFS_MIB, MIN_EXT3_MIB, MIN_XFS_MIB, validate_layout};

use field_name_spelling::find_nearest;
