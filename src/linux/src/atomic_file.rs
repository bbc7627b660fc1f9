//! Atomic replacement of files: a reader sees either the complete old content or the complete new content, even after a
//! power failure.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

/// Replaces or creates the file `path`. `temporary` is another path in the same directory; no other process may use
/// this path. A file that an interrupted run has left at `temporary` is removed first.
///
/// # Errors
/// Returns an error if the file cannot be written. In this case, the old content of the file is unchanged.
pub fn replace_file(path: &Path, temporary: &Path, content: &[u8], permissions: Permissions) -> Result<()> {
    write_temporary(temporary, content, permissions)?;
    fs::rename(temporary, path).inspect_err(|_| drop(fs::remove_file(temporary)))
}

/// Writes and syncs a file that the caller then moves into place. Removes the file if writing or syncing fails.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn write_temporary(path: &Path, content: &[u8], permissions: Permissions) -> Result<()> {
    // A file that an earlier run left at this path is removed instead of reused: another process that still has the old
    // file open could read the new content.
    remove_if_present(path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let write = || {
        file.set_permissions(permissions)?;
        file.write_all(content)?;
        // The time is set explicitly, because the kernel's own timestamps are coarse: two versions written in quick
        // succession may have the same timestamp.
        file.set_modified(SystemTime::now())?;
        file.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(path)))
}

/// Removes a file. A file that does not exist is not an error.
///
/// # Errors
/// Returns an error if the file cannot be removed.
pub fn remove_if_present(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn open_temporary_file_does_not_receive_the_new_content() {
        let dir = tempfile::tempdir().unwrap();
        let (path, temporary) = (dir.path().join("a"), dir.path().join("a.new"));
        fs::write(&temporary, "left").unwrap();
        let mut leftover = File::open(&temporary).unwrap();
        replace_file(&path, &temporary, b"new", Permissions::from_mode(0o640)).unwrap();
        let mut text = String::new();
        leftover.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), fs::read_to_string(&path).unwrap().as_str()), ("left", "new"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(!temporary.exists());
    }

    #[test]
    fn failure_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let (path, temporary) = (dir.path().join("a"), dir.path().join("a.new"));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("b"), "").unwrap();
        replace_file(&path, &temporary, b"new", Permissions::from_mode(0o600)).unwrap_err();
        assert!(!temporary.exists() && path.join("b").exists());
    }
}
