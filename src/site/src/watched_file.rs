//! Single file in the operator's directory that is read again whenever it changes. While its content is invalid or
//! unreadable, the last valid content stays in force.

use crate::documents::SiteDocuments;
use crate::yaml_folder;
use std::io;
use std::path::PathBuf;
use store::FileStamp;

/// File with its last valid content.
pub(crate) struct WatchedFile<T> {
    path: PathBuf,
    read: fn(&str) -> Result<T, String>,
    /// Stamp of the file at the last scan.
    stamp: Option<FileStamp>,
    newest: Result<(), String>,
    /// Last valid content; the default value if the file does not exist.
    pub last_valid: T,
    documents: SiteDocuments,
}

impl<T: Default + Clone + PartialEq> WatchedFile<T> {
    pub(crate) fn new(path: PathBuf, read: fn(&str) -> Result<T, String>) -> WatchedFile<T> {
        let documents = SiteDocuments::of_directory(&path);
        WatchedFile { path, read, stamp: None, newest: Ok(()), last_valid: T::default(), documents }
    }

    /// Sets the source from which the file is read.
    pub(crate) fn set_documents(&mut self, documents: &SiteDocuments) {
        self.documents = documents.clone();
    }

    /// Reads the file if it has changed on disk. Returns whether the content in force or the reported problem has
    /// changed.
    pub(crate) fn rescan(&mut self) -> bool {
        let stamp = self.documents.stamp(&self.path).ok();
        if stamp == self.stamp && (stamp.is_some() || self.newest.is_ok()) {
            return false;
        }
        self.stamp = stamp;
        let before = (self.newest.clone(), self.last_valid.clone());
        let read = match self.documents.read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
            read => read.map_err(|error| error.to_string()).and_then(|text| (self.read)(&text)),
        };
        self.newest = read.map(|read| self.last_valid = read);
        before != (self.newest.clone(), self.last_valid.clone())
    }

    pub(crate) fn describe_problem(&self) -> Option<String> {
        Some(yaml_folder::format_problem(&self.path, self.newest.as_ref().err()?, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn invalid_file_keeps_its_last_value() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        let mut file =
            WatchedFile::new(path.clone(), |text| text.trim().parse::<u8>().map_err(|why| format!("1:1: {why}")));
        assert!(!file.rescan());
        fs::write(&path, "7\n").unwrap();
        assert!(file.rescan() && !file.rescan() && file.last_valid == 7 && file.describe_problem().is_none());
        fs::write(&path, "seven\n").unwrap();
        assert!(file.rescan() && !file.rescan() && file.last_valid == 7);
        assert!(
            file.describe_problem().unwrap().contains("number:1:1: invalid digit"),
            "{:?}",
            file.describe_problem()
        );
        fs::remove_file(&path).unwrap();
        assert!(file.rescan() && file.last_valid == 0 && file.describe_problem().is_none());
    }
}
