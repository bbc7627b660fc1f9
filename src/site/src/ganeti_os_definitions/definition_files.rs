//! Files of one OS definition, with limits on their size and number.

use model::ganeti_os_definition::{DefinitionFile, DefinitionFiles};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use store::FileStamp;

/// Maximum total size of a definition's files, in bytes. A definition consists of small scripts and lists, all of which
/// are sent to the agent.
const MAXIMUM_TOTAL_BYTES: u64 = 512 << 10;
/// Maximum number of files of a definition.
const MAXIMUM_FILES: usize = 200;
/// Maximum depth of nested folders.
const MAXIMUM_DIRECTORY_DEPTH: usize = 4;

/// Stamp of a definition's folder, which changes whenever a file in the folder changes. It contains the stamp of each
/// file, with the path in the definition, and the mode of the file, which is 0 for a definition in the database.
pub(crate) type FolderStamp = Vec<(FileStamp, u32)>;

/// Returns the stamp of a definition's folder.
///
/// # Errors
/// Returns an error if a file cannot be read, or a limit is exceeded.
pub(crate) fn stamp_folder(folder: &Path) -> io::Result<FolderStamp> {
    let mut stamp = FolderStamp::new();
    walk_files(folder, "", 0, &mut |path, metadata, _| {
        stamp.push((FileStamp::from_metadata(path, metadata), metadata.mode()));
        if stamp.len() > MAXIMUM_FILES {
            Err(io::Error::other(format!("the definition has more than {MAXIMUM_FILES} files")))
        } else {
            Ok(())
        }
    })?;
    stamp.sort();
    Ok(stamp)
}

/// Reads all files of a definition.
///
/// # Errors
/// Fails as [`stamp_folder`] does, or if a file is not UTF-8 text.
pub(crate) fn read_files(folder: &Path) -> io::Result<DefinitionFiles> {
    let (mut files, mut bytes) = (DefinitionFiles::new(), 0);
    walk_files(folder, "", 0, &mut |path, metadata, file| {
        bytes += metadata.len();
        if bytes > MAXIMUM_TOTAL_BYTES || files.len() >= MAXIMUM_FILES {
            return Err(too_large());
        }
        let text = fs::read_to_string(file).map_err(|error| {
            io::Error::other(match error.kind() {
                io::ErrorKind::InvalidData => {
                    format!("{path} is not UTF-8 text: a definition consists of scripts and lists")
                }
                _ => format!("{path}: {error}"),
            })
        })?;
        files.insert(path, DefinitionFile { executable: metadata.permissions().mode() & 0o100 != 0, text });
        Ok(())
    })?;
    Ok(files)
}

fn too_large() -> io::Error {
    let most = MAXIMUM_TOTAL_BYTES >> 10;
    io::Error::other(format!("the definition has more than {MAXIMUM_FILES} files, or more than {most} KiB"))
}

/// Checks the limits of a definition from the database, which consists of `files`.
///
/// # Errors
/// Returns an error if a limit is exceeded.
pub(crate) fn check_limits(files: &DefinitionFiles) -> io::Result<()> {
    let bytes: usize = files.values().map(|file| file.text.len()).sum();
    let is_good = files.len() <= MAXIMUM_FILES && bytes as u64 <= MAXIMUM_TOTAL_BYTES;
    if is_good { Ok(()) } else { Err(too_large()) }
}

/// Visits every file, with its path in the definition. Symbolic links are followed, since Debian's `variants.list` is a
/// symbolic link. Dangling links are skipped.
fn walk_files(
    folder: &Path,
    within: &str,
    depth: usize,
    see: &mut dyn FnMut(String, &Metadata, &Path) -> io::Result<()>,
) -> io::Result<()> {
    if depth > MAXIMUM_DIRECTORY_DEPTH {
        return Err(io::Error::other(format!(
            "the definition's folders are nested more than {MAXIMUM_DIRECTORY_DEPTH} levels deep"
        )));
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name =
            name.ok_or_else(|| io::Error::other(format!("the name of {path} is not UTF-8", path = path.display())))?;
        if name.starts_with('.') {
            continue;
        }
        let inner = format!("{within}{name}");
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io::Error::other(format!("{inner}: {error}"))),
            Ok(metadata) if metadata.is_dir() => walk_files(&path, &format!("{inner}/"), depth + 1, see)?,
            Ok(metadata) if metadata.is_file() => see(inner, &metadata, &path)?,
            Ok(_) => return Err(io::Error::other(format!("{inner} is not a regular file"))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn definition_files_are_read_through_links_and_folders() {
        let dir = tempfile::tempdir().unwrap();
        let (own, etc) = (dir.path().join("own"), dir.path().join("etc"));
        fs::create_dir_all(own.join("hooks")).unwrap();
        fs::write(&etc, "default\n").unwrap();
        fs::write(own.join("verify"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(own.join("verify"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(own.join("hooks/one"), "1").unwrap();
        fs::write(own.join(".verify.swp"), [0xff]).unwrap();
        symlink(&etc, own.join("variants.list")).unwrap();
        symlink("/no/such/file", own.join("dangling")).unwrap();
        let files = read_files(&own).unwrap();
        let seen: Vec<_> =
            files.iter().map(|(path, file)| (path.as_str(), file.executable, file.text.as_str())).collect();
        assert_eq!(
            seen,
            [("hooks/one", false, "1"), ("variants.list", false, "default\n"), ("verify", true, "#!/bin/sh\n")]
        );
        let before = stamp_folder(&own).unwrap();
        assert_eq!(stamp_folder(&own).unwrap(), before);
        fs::set_permissions(own.join("verify"), fs::Permissions::from_mode(0o644)).unwrap();
        assert_ne!(stamp_folder(&own).unwrap(), before);
    }

    #[test]
    fn replaced_file_with_equal_size_and_time_changes_the_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().join("own"), dir.path().join("other"));
        fs::create_dir(&own).unwrap();
        for (path, text) in [(&own.join("verify"), "one"), (&other, "two")] {
            fs::write(path, text).unwrap();
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        }
        let before = stamp_folder(&own).unwrap();
        fs::rename(&other, own.join("verify")).unwrap();
        assert_ne!(stamp_folder(&own).unwrap(), before);
    }

    #[test]
    fn invalid_or_oversized_definition_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path();
        fs::write(own.join("verify"), [0x7f, b'E', b'L', b'F', 0xff]).unwrap();
        assert!(read_files(own).unwrap_err().to_string().starts_with("verify is not UTF-8 text"));
        fs::write(own.join("verify"), "x".repeat(600 << 10)).unwrap();
        assert!(read_files(own).unwrap_err().to_string().contains("512 KiB"));
        fs::remove_file(own.join("verify")).unwrap();
        symlink(own, own.join("again")).unwrap();
        assert!(stamp_folder(own).unwrap_err().to_string().contains("more than 4 levels deep"));
        fs::remove_file(own.join("again")).unwrap();
        symlink("/dev/null", own.join("null")).unwrap();
        assert_eq!(stamp_folder(own).unwrap_err().to_string(), "null is not a regular file");
    }
}
