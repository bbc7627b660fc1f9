//! What the conductor and the agent have agreed on in this boot. It outlives an agent that is started again, and no boot.

use crate::error::{Context, Phase, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// In memory.
pub const DIRECTORY: &str = "/run/drophammer";

const TOKEN: &str = "ironic-token.json";

/// What opens the agent: a conductor hands it out once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub node: String,
    pub token: String,
}

/// That of this node, if an earlier agent of this boot has kept it.
pub fn token(directory: &Path, node: &str) -> Option<String> {
    read::<Token>(directory, TOKEN).filter(|kept| kept.node == node).map(|kept| kept.token)
}

/// # Errors
/// It cannot be written.
pub fn keep_token(directory: &Path, token: &Token) -> Result<()> {
    write(directory, TOKEN, token)
}

/// Nothing where there is none, or a damaged one.
pub fn read<T: DeserializeOwned>(directory: &Path, name: &str) -> Option<T> {
    serde_json::from_slice(&fs::read(directory.join(name)).ok()?).ok()
}

/// For root alone.
///
/// # Errors
/// It cannot be written.
pub fn write(directory: &Path, name: &str, value: &impl Serialize) -> Result<()> {
    let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
    let write = || {
        fs::create_dir_all(directory)?;
        // Whoever could open one that lies there already reads what is written to it now.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(value)?)?;
        fs::rename(&new, &path)
    };
    write().context(Phase::Control, || format!("keep {} for this boot", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_kept_for_its_node_and_for_root_alone() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("run");
        assert_eq!(token(&directory, "n"), None);
        for text in ["a", "b"] {
            keep_token(&directory, &Token { node: "n".into(), token: text.into() }).unwrap();
            assert_eq!(token(&directory, "n").as_deref(), Some(text));
        }
        assert_eq!(token(&directory, "other"), None);
        let path = directory.join(TOKEN);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(path, "damaged").unwrap();
        assert_eq!(token(&directory, "n"), None);
    }
}
