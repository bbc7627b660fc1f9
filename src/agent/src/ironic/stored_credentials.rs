//! Credentials that the conductor and the agent share until the machine reboots. A restarted agent reads them from
//! memory.

use common::error::{Context, Phase, Result};
use linux::atomic_file::replace_file;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Directory of the stored credentials, in memory.
pub(crate) const DIRECTORY: &str = "/run/drophammer";

const TOKEN: &str = "ironic-token.json";

/// Token for requests to the agent. Ironic issues this token only once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredToken {
    pub node: String,
    pub token: String,
}

/// Returns the token for this node, if an earlier process of the agent has stored the token in this boot.
pub(crate) fn read_token(directory: &Path, node: &str) -> Option<String> {
    read_value::<StoredToken>(directory, TOKEN).filter(|kept| kept.node == node).map(|kept| kept.token)
}

/// Stores the token.
///
/// # Errors
/// Fails if the token cannot be written.
pub(crate) fn write_token(directory: &Path, token: &StoredToken) -> Result<()> {
    write_value(directory, TOKEN, token)
}

/// Reads the credential that is stored under a name. Returns `None` if its file is missing or damaged.
pub(crate) fn read_value<T: DeserializeOwned>(directory: &Path, name: &str) -> Option<T> {
    serde_json::from_slice(&fs::read(directory.join(name)).ok()?).ok()
}

/// Stores a credential in a file that only root can read.
///
/// # Errors
/// Fails if the file cannot be written.
pub(crate) fn write_value(directory: &Path, name: &str, value: &impl Serialize) -> Result<()> {
    let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
    let write = || {
        fs::create_dir_all(directory)?;
        replace_file(&path, &new, &serde_json::to_vec(value)?, Permissions::from_mode(0o600))
    };
    write().context(Phase::Control, || format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_stored_per_node_for_root_only() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("run");
        assert_eq!(read_token(&directory, "n"), None);
        for text in ["a", "b"] {
            write_token(&directory, &StoredToken { node: "n".into(), token: text.into() }).unwrap();
            assert_eq!(read_token(&directory, "n").as_deref(), Some(text));
        }
        assert_eq!(read_token(&directory, "other"), None);
        let path = directory.join(TOKEN);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(path, "damaged").unwrap();
        assert_eq!(read_token(&directory, "n"), None);
    }
}
