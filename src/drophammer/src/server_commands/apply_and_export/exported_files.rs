//! Writer of exported documents to a directory. Since documents can contain secrets, only the owner and the group of
//! the files can read them.

use ::api::site_documents::SiteDocument;
use common::error::{Context, Error, Phase, Result};
use site::documents::check_document_path;
use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// Checks that the directory does not exist or is empty.
///
/// # Errors
/// Returns an error if the directory cannot be read, or contains files and `force` is false.
pub(super) fn check_directory(dir: &Path, force: bool) -> Result<()> {
    let what = || format!("read {}", dir.display());
    match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).context(Phase::Settings, what),
        Ok(mut entries) => match entries.next() {
            Some(_) if !force => {
                let why = format!(
                    "{}: cannot export documents: the directory is not empty; choose a new directory, or specify --force",
                    dir.display()
                );
                Err(Error::refusal(Phase::Settings, why))
            }
            _ => Ok(()),
        },
    }
}

/// Writes the documents exactly as they are stored.
///
/// # Errors
/// Returns an error if a path is not valid for a document, or a file cannot be written.
pub(super) fn write_documents(dir: &Path, documents: &[SiteDocument]) -> Result<()> {
    for SiteDocument { path, .. } in documents {
        // The server sends the paths, which must not lead out of the directory.
        check_document_path(path).map_err(|why| Error::new(Phase::Control, why))?;
    }
    for SiteDocument { path, text, executable } in documents {
        let file = dir.join(path);
        write_document(&file, text, *executable).context(Phase::Settings, || format!("write {}", file.display()))?;
    }
    Ok(())
}

fn write_document(file: &Path, text: &str, executable: bool) -> std::io::Result<()> {
    let folder = file.parent().ok_or(ErrorKind::InvalidInput)?;
    DirBuilder::new().recursive(true).mode(0o750).create(folder)?;
    if fs::symlink_metadata(folder)?.is_symlink()
        || fs::symlink_metadata(file).is_ok_and(|metadata| metadata.is_symlink())
    {
        return Err(std::io::Error::other("symbolic links are not followed; remove the link"));
    }
    let mode = if executable { 0o750 } else { 0o640 };
    let name = file.file_name().ok_or(ErrorKind::InvalidInput)?;
    let new = file.with_file_name(format!(".{}.new", name.display()));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    linux::atomic_file::write_temporary(&new, text.as_bytes(), Permissions::from_mode(mode))?;
    fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(path: &str, text: &str, executable: bool) -> SiteDocument {
        SiteDocument { path: path.to_owned(), text: text.to_owned(), executable }
    }

    #[test]
    fn files_are_written_unchanged_and_not_for_all_users() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("new");
        check_directory(&to, false).unwrap();
        let text = "# c\r\nid: \u{fc}\n\n";
        let documents = [document("machines/a.yaml", text, false), document("os/web/hooks/create", "#!\n", true)];
        write_documents(&to, &documents).unwrap();
        assert_eq!(fs::read(to.join("machines/a.yaml")).unwrap(), text.as_bytes());
        let mode = |name: &str| fs::metadata(to.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("machines/a.yaml"), mode("os/web/hooks/create")), (0o640, 0o750));
        let why = check_directory(&to, false).unwrap_err().to_string();
        assert!(why.contains("not empty"), "{why}");
        check_directory(&to, true).unwrap();
        write_documents(&to, &documents).unwrap();
        assert_eq!(fs::read_dir(to.join("machines")).unwrap().count(), 1);
    }

    #[test]
    fn no_document_is_written_out_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("new");
        for bad in ["../evil.yaml", "/tmp/evil.yaml", "machines/../../evil.yaml", "operator.token"] {
            let good = document("machines/a.yaml", "x", false);
            assert!(write_documents(&to, &[good, document(bad, "x", false)]).is_err(), "{bad}");
            assert!(!to.exists());
        }
        fs::create_dir(&to).unwrap();
        std::os::unix::fs::symlink(dir.path(), to.join("machines")).unwrap();
        assert!(write_documents(&to, &[document("machines/a.yaml", "x", false)]).is_err());
        assert!(!dir.path().join("a.yaml").exists());
    }
}
