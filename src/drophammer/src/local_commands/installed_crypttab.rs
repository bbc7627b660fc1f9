//! Crypttab of an installed system.

use super::read_text;
use common::error::{Context, Phase, Result};
use layout_discovery::InstalledCrypttab;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Reads the crypttab of the system below this root directory. A system without a crypttab has an empty one.
///
/// # Errors
/// Fails if the crypttab exists but cannot be read.
pub(crate) fn read_system_crypttab(root: &Path) -> Result<InstalledCrypttab> {
    let path = root.join("etc/crypttab");
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text.context(Phase::Settings, || format!("read {}", path.display()))?,
    };
    Ok(InstalledCrypttab { text, key_files: list_key_files(&root.join("etc/cryptsetup-keys.d")) })
}

/// Reads a copy of a crypttab. The key files of its system are unknown.
///
/// # Errors
/// Fails if the file cannot be read.
pub(crate) fn read_crypttab_copy(path: &Path) -> Result<InstalledCrypttab> {
    Ok(InstalledCrypttab { text: read_text(path)?, key_files: None })
}

/// Returns the names of the files in a directory; `None` if the directory exists but cannot be read.
fn list_key_files(directory: &Path) -> Option<Vec<String>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => Some(Vec::new()),
        Err(_) => None,
        Ok(entries) => entries.map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crypttab_and_names_of_key_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            read_system_crypttab(dir.path()).unwrap(),
            InstalledCrypttab { text: String::new(), key_files: Some(Vec::new()) }
        );
        fs::create_dir_all(dir.path().join("etc/cryptsetup-keys.d")).unwrap();
        fs::write(dir.path().join("etc/cryptsetup-keys.d/vault.key"), "secret").unwrap();
        fs::write(dir.path().join("etc/crypttab"), "vault /dev/sdb none\n").unwrap();
        let found = read_system_crypttab(dir.path()).unwrap();
        assert_eq!(found.key_files.as_deref(), Some(&["vault.key".to_owned()][..]));
        assert!(found.text.starts_with("vault ") && !format!("{found:?}").contains("secret"));
        assert_eq!(read_crypttab_copy(&dir.path().join("etc/crypttab")).unwrap().key_files, None);
        fs::remove_file(dir.path().join("etc/crypttab")).unwrap();
        fs::create_dir(dir.path().join("etc/crypttab")).unwrap();
        assert!(read_system_crypttab(dir.path()).is_err());
    }
}
