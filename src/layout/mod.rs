//! Filesystem layouts: parsing of all spellings in use, validation that reports all problems at once, and canonical output.

mod advice;
mod arrays;
mod below;
mod canonical;
mod constraints;
mod document;
mod edit;
mod encrypted;
mod fields;
#[cfg(test)]
#[cfg(feature = "desk")]
mod fuzz;
pub mod hints;
mod mapper_name;
mod mkfs;
pub mod set;
mod size;
mod spellings;
#[cfg(test)]
mod tests;
pub mod tree;
mod types;
mod validate;
mod words;

pub use advice::likely_disk;
pub use below::Below;
pub use canonical::{canonical_yaml, digest};
pub use constraints::{ImageId, Version};
pub use encrypted::{Encrypted, KeySource};
pub use mapper_name::excessive_name;
pub use size::Size;
#[cfg(feature = "desk")]
pub use spellings::{FILESYSTEM_OF_V2, LAYOUT_OF_V2};
pub use spellings::{Parsed, read_all, read_json, read_yaml, respelt};
pub use types::*;
pub use validate::validate;

use words::nearest;
