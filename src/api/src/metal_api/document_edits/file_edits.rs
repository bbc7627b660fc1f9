//! Atomic changes of a file on disk. The new file is exchanged with the old one atomically, and the old file is read
//! afterwards. If the content of the old file differs from the expected content, another process has edited the file
//! concurrently, and the old file is restored.

use std::fs::{self, File, Permissions};
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Result of an attempt to change a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EditResult {
    Written,
    /// Another process has changed the file concurrently. The file was not written.
    Changed,
}

/// Creates a file that does not exist, with the permissions `mode`.
pub(crate) fn create_file(path: &Path, text: &str, mode: u32) -> std::io::Result<EditResult> {
    let new = write_temporary(path, text, Permissions::from_mode(mode))?;
    let made = match fs::hard_link(&new, path) {
        Ok(()) => Ok(EditResult::Written),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(EditResult::Changed),
        Err(error) => Err(error),
    };
    fs::remove_file(&new)?;
    sync_folder(path)?;
    made
}

/// New content of a file, which is written and synced, but not in effect. Unless the content is put into effect, it is
/// removed.
#[derive(Debug)]
pub(crate) struct StagedFile {
    path: PathBuf,
    /// Temporary file with the new content; `None` once the content was put into effect.
    temporary: Option<PathBuf>,
}

impl StagedFile {
    /// Writes the new content of an existing file next to this file.
    pub(crate) fn write(path: &Path, new: &str) -> std::io::Result<StagedFile> {
        let metadata = fs::symlink_metadata(path)?;
        if metadata.is_symlink() {
            return Err(Error::other("the file is a symbolic link: edit the file to which the link points"));
        }
        let temporary = write_temporary(path, new, metadata.permissions())?;
        Ok(StagedFile { path: path.to_owned(), temporary: Some(temporary) })
    }

    /// Puts the new content into effect if the content of the file is still `old`.
    pub(crate) fn replace(mut self, old: &str) -> std::io::Result<EditResult> {
        // From here on, the temporary file may contain a concurrent edit, which must not be removed after an error.
        let Some(new) = self.temporary.take() else { return Err(Error::other("the content is already in effect")) };
        let path = &self.path;
        match exchange_files(&new, path) {
            // Some filesystems, in particular network filesystems, do not support the exchange. On such a filesystem,
            // an edit between the comparison and the rename is lost.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return rename_over(&new, path, old),
            swapped => swapped.inspect_err(|_| drop(fs::remove_file(&new)))?,
        }
        if fs::read(&new)? != old.as_bytes() {
            exchange_files(&new, path)?;
            fs::remove_file(&new)?;
            return Ok(EditResult::Changed);
        }
        fs::remove_file(&new)?;
        sync_folder(path)?;
        Ok(EditResult::Written)
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        self.temporary.iter().for_each(|temporary| drop(fs::remove_file(temporary)));
    }
}

/// Replaces the content of a file if this content is still `old`.
pub(crate) fn replace_content(path: &Path, old: &str, new: &str) -> std::io::Result<EditResult> {
    StagedFile::write(path, new)?.replace(old)
}

fn rename_over(new: &Path, path: &Path, old: &str) -> std::io::Result<EditResult> {
    if fs::read(path)? != old.as_bytes() {
        fs::remove_file(new)?;
        return Ok(EditResult::Changed);
    }
    fs::rename(new, path)?;
    sync_folder(path)?;
    Ok(EditResult::Written)
}

/// Removes a file if its content is still `old`.
pub(crate) fn remove_unchanged(path: &Path, old: &str) -> std::io::Result<EditResult> {
    let aside = hidden_path(path, "gone")?;
    match fs::rename(path, &aside) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(EditResult::Changed),
        renamed => renamed?,
    }
    let done = match fs::read(&aside)? == old.as_bytes() {
        true => EditResult::Written,
        false => {
            // If a file exists at the path again, it is a newer edit, and is preserved.
            match fs::hard_link(&aside, path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => EditResult::Changed,
            }
        }
    };
    fs::remove_file(&aside)?;
    sync_folder(path)?;
    Ok(done)
}

/// Writes a temporary file next to the path, and syncs the file. Returns the path of the temporary file.
pub(crate) fn write_temporary(path: &Path, text: &str, permissions: Permissions) -> std::io::Result<PathBuf> {
    let new = hidden_path(path, "new")?;
    if let Some(folder) = path.parent() {
        match fs::create_dir(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    linux::atomic_file::write_temporary(&new, text.as_bytes(), permissions)?;
    Ok(new)
}

/// Returns a random hidden path in the same folder. The reader of the directory ignores hidden files.
fn hidden_path(path: &Path, suffix: &str) -> std::io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| Error::other("not the path of a file"))?;
    Ok(path.with_file_name(format!(".{}.{suffix}", name.display())))
}

/// Syncs the folder of this file, so that changes of file names in the folder are durable.
pub(crate) fn sync_folder(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Exchanges two files atomically.
fn exchange_files(one: &Path, other: &Path) -> std::io::Result<()> {
    let text = |path: &Path| std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(Error::other);
    let (one, other) = (text(one)?, text(other)?);
    // SAFETY: both are NUL-terminated and outlive the call.
    let result =
        unsafe { libc::renameat2(libc::AT_FDCWD, one.as_ptr(), libc::AT_FDCWD, other.as_ptr(), libc::RENAME_EXCHANGE) };
    match result {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_replaced_or_removed_only_if_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("layouts/a.yaml");
        let says = || fs::read_to_string(&path).unwrap();
        assert_eq!(create_file(&path, "a", 0o640).unwrap(), EditResult::Written);
        assert_eq!((create_file(&path, "b", 0o644).unwrap(), says().as_str()), (EditResult::Changed, "a"));
        assert_eq!((replace_content(&path, "a", "b").unwrap(), says().as_str()), (EditResult::Written, "b"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!((replace_content(&path, "a", "c").unwrap(), says().as_str()), (EditResult::Changed, "b"));
        assert_eq!((remove_unchanged(&path, "a").unwrap(), says().as_str()), (EditResult::Changed, "b"));
        assert_eq!(remove_unchanged(&path, "b").unwrap(), EditResult::Written);
        assert_eq!(remove_unchanged(&path, "b").unwrap(), EditResult::Changed);
        assert_eq!(fs::read_dir(dir.path().join("layouts")).unwrap().count(), 0, "no temporary file remains");
    }

    #[test]
    fn staged_content_is_not_in_effect_and_is_removed_if_unused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, "a").unwrap();
        let staged = StagedFile::write(&path, "b").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), fs::read_dir(dir.path()).unwrap().count()), ("a", 2));
        drop(staged);
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), fs::read_dir(dir.path()).unwrap().count()), ("a", 1));
        assert_eq!(StagedFile::write(&path, "b").unwrap().replace("a").unwrap(), EditResult::Written);
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), fs::read_dir(dir.path()).unwrap().count()), ("b", 1));
    }

    #[test]
    fn rename_without_exchange_compares_content_first() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("a.yaml"), dir.path().join(".a.yaml.new"));
        for (old, done, says) in [("other", EditResult::Changed, "a"), ("a", EditResult::Written, "b")] {
            fs::write(&path, "a").unwrap();
            fs::write(&new, "b").unwrap();
            assert_eq!(
                (rename_over(&new, &path, old).unwrap(), fs::read_to_string(&path).unwrap().as_str()),
                (done, says)
            );
            assert!(!new.exists());
        }
    }

    #[test]
    fn edits_of_links_missing_files_and_folders_fail() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(dir.path().join("real"), "a").unwrap();
        std::os::unix::fs::symlink("real", &path).unwrap();
        assert!(
            replace_content(&path, "a", "b")
                .unwrap_err()
                .to_string()
                .contains("edit the file to which the link points")
        );
        fs::remove_file(&path).unwrap();
        assert_eq!(replace_content(&path, "a", "b").unwrap_err().kind(), ErrorKind::NotFound);
        // The path is a folder instead of a file.
        fs::create_dir(&path).unwrap();
        assert!(remove_unchanged(&path, "a").is_err());
        assert!(create_file(&path.join("none/deeper.yaml"), "x", 0o644).is_err());
    }
}
