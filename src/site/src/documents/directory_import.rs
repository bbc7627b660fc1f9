//! Reads all documents of a directory, to store them in a database. Files that cannot be stored unchanged are refused:
//! symbolic links, files that are too large or not UTF-8, and files in unknown folders.

use super::document_paths::{DOCUMENT_BYTES, check_document_path, is_document_folder, is_single_document};
use crate::readable_secrets::{can_contain_secrets, is_world_readable};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use store::operator_documents::DocumentContent;

/// Files and folders of a server's directory that are not documents, and stay in the directory.
const SERVER_FILES: [&str; 5] = ["boot", "tls", "operator.token", "metrics.token", "README.md"];
/// Maximum number of documents.
const DOCUMENTS: usize = 100_000;
/// Maximum depth of folders below a document folder.
const DEPTH: usize = 6;

/// Documents of a directory, by their path relative to the directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ImportedDirectory {
    pub documents: Vec<(String, DocumentContent)>,
    /// Files in document folders that are not documents, such as images.
    pub ignored: Vec<PathBuf>,
    /// Problems, each of which begins with the path. A directory with problems must not be stored.
    pub problems: Vec<String>,
    /// Documents that contain secrets and are readable by all users.
    pub readable_secrets: Vec<PathBuf>,
}

/// Reads all documents of a directory.
///
/// # Errors
/// Returns an error if the directory itself cannot be read.
pub fn read_directory(dir: &Path) -> io::Result<ImportedDirectory> {
    let mut imported = ImportedDirectory::default();
    for name in sorted_names(dir)? {
        let is_server_file = SERVER_FILES.contains(&name.as_str()) || name.starts_with("drophammer.");
        if is_document_folder(&name) || is_single_document(&name) {
            imported.add_entry(dir, &name, 0);
        } else if !is_server_file {
            let why = "unknown file or folder; remove it, or choose another directory";
            imported.problems.push(format!("{}: {why}", dir.join(&name).display()));
        }
    }
    imported.documents.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(imported)
}

/// Returns the documents in a server's directory, by their path relative to the directory. For an OS definition, only
/// its folder is returned. Files that cannot be listed are omitted.
pub fn find_document_files(dir: &Path) -> Vec<String> {
    let names = sorted_names(dir).unwrap_or_default();
    let mut found = Vec::new();
    for name in names.iter().filter(|name| is_document_folder(name) || is_single_document(name)) {
        if is_single_document(name) {
            found.push(name.clone());
        }
        for file in sorted_names(&dir.join(name)).unwrap_or_default() {
            let relative = format!("{name}/{file}");
            if check_document_path(&relative).is_ok() || (name == "os" && dir.join(&relative).is_dir()) {
                found.push(relative);
            }
        }
    }
    found
}

/// Returns the names in a folder, without hidden files.
fn sorted_names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().into_string();
        let name = name.map_err(|name| io::Error::other(format!("the name {name:?} is not UTF-8")))?;
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

impl ImportedDirectory {
    fn add_entry(&mut self, dir: &Path, relative: &str, depth: usize) {
        let path = dir.join(relative);
        match fs::symlink_metadata(&path) {
            Err(error) => self.add_problem(&path, &error.to_string()),
            Ok(metadata) if metadata.is_symlink() => {
                self.add_problem(&path, "symbolic links are not supported; replace the link with a copy of the file");
            }
            // Folders below `images/` contain only images, which are not documents.
            Ok(metadata) if metadata.is_dir() && depth > 0 && relative.starts_with("images/") => {
                self.ignored.push(path)
            }
            Ok(metadata) if metadata.is_dir() && depth >= DEPTH => {
                self.add_problem(&path, "the folders are nested too deeply")
            }
            Ok(metadata) if metadata.is_dir() => match sorted_names(&path) {
                Ok(names) => {
                    names.iter().for_each(|name| self.add_entry(dir, &format!("{relative}/{name}"), depth + 1));
                }
                Err(error) => self.add_problem(&path, &error.to_string()),
            },
            Ok(metadata) => self.add_file(path, relative, &metadata),
        }
    }

    fn add_file(&mut self, path: PathBuf, relative: &str, metadata: &Metadata) {
        if let Err(why) = check_document_path(relative) {
            match why.ends_with("not a YAML file") {
                true => self.ignored.push(path),
                false => self.problems.push(why),
            }
            return;
        }
        if !metadata.is_file() {
            return self.add_problem(&path, "not a regular file");
        }
        if metadata.len() > DOCUMENT_BYTES {
            let why = format!("the file is {} bytes long; the limit is {DOCUMENT_BYTES} bytes", metadata.len());
            return self.add_problem(&path, &why);
        }
        if self.documents.len() >= DOCUMENTS {
            return self.add_problem(&path, &format!("the directory contains more than {DOCUMENTS} documents"));
        }
        let text = match fs::read_to_string(&path) {
            Ok(text) if text.contains('\0') => return self.add_problem(&path, "the file contains a NUL character"),
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return self.add_problem(&path, "the file is not UTF-8 text");
            }
            Err(error) => return self.add_problem(&path, &error.to_string()),
        };
        if can_contain_secrets(relative, &text) && is_world_readable(&path) {
            self.readable_secrets.push(path);
        }
        // Only files of OS definitions can be executable.
        let executable = relative.starts_with("os/") && metadata.permissions().mode() & 0o100 != 0;
        self.documents.push((relative.to_owned(), DocumentContent { text, executable }));
    }

    fn add_problem(&mut self, path: &Path, why: &str) {
        self.problems.push(format!("{}: {why}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn documents_are_imported_and_server_files_skipped() {
        let dir = directory(&[
            ("machines/b.yaml", "id: b\r\n# \u{fc}\n"),
            ("machines/a.yaml", "bmc: {}\n"),
            ("machines/.a.yaml.swp", "x"),
            ("machines/notes.txt", "x"),
            ("images/debian.yaml", "id: debian\n"),
            ("images/debian.tar", "\u{0}"),
            ("images/sub/other.yaml", "x"),
            ("os/web/create", "#!/bin/sh\n"),
            ("os/web/hooks/one", "1"),
            ("operator.token", "secret"),
            ("drophammer.sqlite", "x"),
            ("boot/vmlinuz", "x"),
            ("image-states.yaml", ""),
        ]);
        let at = |name: &str| dir.path().join(name);
        fs::set_permissions(at("os/web/create"), fs::Permissions::from_mode(0o755)).unwrap();
        let read = read_directory(dir.path()).unwrap();
        assert_eq!(read.problems, Vec::<String>::new());
        let paths: Vec<_> = read.documents.iter().map(|(path, one)| (path.as_str(), one.executable)).collect();
        let expected = [
            ("image-states.yaml", false),
            ("images/debian.yaml", false),
            ("machines/a.yaml", false),
            ("machines/b.yaml", false),
            ("os/web/create", true),
            ("os/web/hooks/one", false),
        ];
        assert_eq!(paths, expected);
        assert_eq!(read.documents[3].1.text, "id: b\r\n# \u{fc}\n");
        assert_eq!(read.ignored, [at("images/debian.tar"), at("images/sub"), at("machines/notes.txt")]);
        assert_eq!(read.readable_secrets, [at("machines/a.yaml")]);
        let files = ["image-states.yaml", "images/debian.yaml", "machines/a.yaml", "machines/b.yaml", "os/web"];
        assert_eq!(find_document_files(dir.path()), files);
    }

    #[test]
    fn refuses_files_that_cannot_be_stored_unchanged() {
        let dir = directory(&[("machines/ok.yaml", "id: a\n"), ("extra/a.yaml", "x"), ("layouts/sub/a.yaml", "x")]);
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("sizes")).unwrap();
        symlink(at("machines/ok.yaml"), at("machines/link.yaml")).unwrap();
        symlink("/etc", at("os")).unwrap();
        fs::write(at("machines/latin1.yaml"), [b'i', b'd', 0xe9]).unwrap();
        fs::write(at("machines/nul.yaml"), "id: \0").unwrap();
        fs::File::create(at("sizes/large.yaml")).unwrap().set_len(DOCUMENT_BYTES + 1).unwrap();
        let read = read_directory(dir.path()).unwrap();
        let problems = read.problems.join("\n");
        for expected in [
            "extra: unknown file or folder",
            "layouts/ cannot contain folders",
            "link.yaml: symbolic links are not supported",
            "os: symbolic links are not supported",
            "latin1.yaml: the file is not UTF-8 text",
            "nul.yaml: the file contains a NUL character",
            "large.yaml: the file is 4194305 bytes long",
        ] {
            assert!(problems.contains(expected), "{expected}: {problems}");
        }
        assert_eq!(read.problems.len(), 7, "{problems}");
        assert_eq!(read.documents.len(), 1);
        assert!(read_directory(&at("none")).is_err());
    }
}
