//! Files that are put into a filesystem which is there already.

use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InjectedFile {
    /// Absolute, in the filesystem.
    pub path: String,
    /// The file goes where there is none. It may hold a secret.
    #[serde(skip)]
    pub content: Option<Vec<u8>>,
    pub mode: u32,
    /// Name or number; root where nobody is named.
    #[serde(with = "crate::empty")]
    pub owner: Option<String>,
    #[serde(with = "crate::empty")]
    pub group: Option<String>,
}
