//! Files that are written into an existing filesystem.

use serde::Serialize;

/// A file that is written into an existing filesystem, or deleted from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InjectedFile {
    /// Absolute path in the filesystem.
    pub path: String,
    /// Content of the file, which may be secret; `None` deletes the file.
    #[serde(skip)]
    pub content: Option<Vec<u8>>,
    pub mode: u32,
    /// Name or number of the owner; root by default.
    #[serde(with = "common::serde_empty")]
    pub owner: Option<String>,
    #[serde(with = "common::serde_empty")]
    pub group: Option<String>,
}
