//! YAML files in one of the operator's folders. If a file is invalid, or the file or its folder is temporarily
//! unreadable, the last valid version of the file stays in force.

use crate::documents::{DOCUMENT_BYTES, SiteDocuments};
use common::error_code::ErrorCode;
use common::format::os_error_messages::without_os_error_numbers;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use store::FileStamp;
use time::OffsetDateTime;
use time::macros::format_description;

/// Reason why the newest version of a file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileFault {
    /// The file is invalid. The message contains line and column.
    Invalid(String),
    /// The file cannot be read. Each scan tries to read it again.
    Unreadable(ReadFault),
}

/// Error of a file or folder that cannot be read, and the time of the first failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReadFault {
    since: String,
    why: String,
}

impl ReadFault {
    /// Creates a read error. If the previous scan also failed, even for another reason, the new error gets the time of
    /// the previous one.
    fn continue_fault(before: Option<&ReadFault>, why: String) -> ReadFault {
        let since = before.map(|before| before.since.clone()).unwrap_or_else(|| {
            let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second] UTC");
            OffsetDateTime::now_utc().format(format).unwrap_or_default()
        });
        ReadFault { since, why: without_os_error_numbers(&why).into_owned() }
    }
}

impl std::fmt::Display for ReadFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unreadable since {}: {}", self.since, self.why)
    }
}

impl std::fmt::Display for FileFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FileFault::Invalid(why) => f.write_str(why),
            FileFault::Unreadable(unread) => unread.fmt(f),
        }
    }
}

/// Newest version of a YAML file, and the version in force.
pub(crate) struct VersionedFile<T> {
    stamp: Option<FileStamp>,
    pub newest: Result<T, FileFault>,
    /// Newest valid version of the file; `None` if no version was valid yet.
    pub last_valid: Option<T>,
}

/// Folder of YAML files of one type.
pub(crate) struct YamlFolder<T> {
    path: PathBuf,
    read: fn(&str) -> Result<T, String>,
    pub entries: BTreeMap<PathBuf, VersionedFile<T>>,
    unread: Option<ReadFault>,
    /// True if the folder may be missing. Once files have been read from the folder, it must exist.
    optional: bool,
    documents: SiteDocuments,
}

/// Changes of a folder since its last scan.
#[derive(Debug, Default)]
pub(crate) struct FolderChanges {
    /// True if a file was removed, or the folder became readable or unreadable.
    pub affects_others: bool,
    /// Paths of the files that are new or have changed.
    pub files: Vec<PathBuf>,
}

impl FolderChanges {
    fn is_empty(&self) -> bool {
        !self.affects_others && self.files.is_empty()
    }
}

impl<T: Clone> YamlFolder<T> {
    pub(crate) fn new(path: PathBuf, read: fn(&str) -> Result<T, String>) -> YamlFolder<T> {
        let documents = SiteDocuments::of_directory(&path);
        YamlFolder { path, read, entries: BTreeMap::new(), unread: None, optional: false, documents }
    }

    /// Sets the source from which the files are read.
    pub(crate) fn set_documents(&mut self, documents: &SiteDocuments) {
        self.documents = documents.clone();
    }

    /// Creates the reader of a folder that may be missing, because operator directories of earlier versions do not
    /// contain the folder.
    pub(crate) fn optional(path: PathBuf, read: fn(&str) -> Result<T, String>) -> YamlFolder<T> {
        YamlFolder { optional: true, ..YamlFolder::new(path, read) }
    }

    /// Reads changed files, and returns whether anything has changed.
    pub(crate) fn rescan(&mut self) -> bool {
        !self.find_changes().is_empty()
    }

    /// Reads the files that are new or have changed, and returns what has changed.
    pub(crate) fn find_changes(&mut self) -> FolderChanges {
        let affects_others = |affects_others| FolderChanges { affects_others, files: Vec::new() };
        let found = match self.documents.list_yaml(&self.path) {
            Ok(found) => found,
            Err(error) if self.optional && self.entries.is_empty() && error.kind() == ErrorKind::NotFound => {
                return affects_others(self.unread.take().is_some());
            }
            Err(error) => {
                let now = Some(ReadFault::continue_fault(self.unread.as_ref(), error.to_string()));
                let changed = now != self.unread;
                self.unread = now;
                return affects_others(changed);
            }
        };
        let was_unread = self.unread.take().is_some();
        let before = self.entries.len();
        self.entries.retain(|path, _| found.contains(path));
        let mut changes = affects_others(was_unread || self.entries.len() != before);
        changes.files = found.into_iter().filter(|path| self.rescan_file(path.clone())).collect();
        changes
    }

    /// Reads the file if it has changed, and returns whether anything has changed.
    pub(crate) fn rescan_file(&mut self, path: PathBuf) -> bool {
        let stamp = self.documents.stamp(&path);
        let known = self.entries.get(&path);
        if let (Some(VersionedFile { newest: Ok(_) | Err(FileFault::Invalid(_)), stamp: Some(before), .. }), Ok(now)) =
            (known, &stamp)
            && before == now
        {
            return false;
        }
        let before = known.and_then(|entry| match &entry.newest {
            Err(FileFault::Unreadable(unread)) => Some(unread.clone()),
            _ => None,
        });
        let newest =
            match stamp.as_ref().map_err(|error| error.to_string()).and_then(|_| read_text(&self.documents, &path)) {
                Ok(text) => text.and_then(|text| (self.read)(&text)).map_err(FileFault::Invalid),
                Err(why) => Err(FileFault::Unreadable(ReadFault::continue_fault(before.as_ref(), why))),
            };
        let is_old_news =
            matches!((&newest, &before), (Err(FileFault::Unreadable(now)), Some(before)) if now == before);
        let last_valid = self.entries.remove(&path).and_then(|entry| entry.last_valid);
        self.entries.insert(path, VersionedFile { stamp: stamp.ok(), newest, last_valid });
        !is_old_news
    }

    /// Returns the files of which no valid version has been read, each with the error of its newest version.
    pub(crate) fn unusable_files(&self) -> impl Iterator<Item = (&Path, String)> {
        let unusable = self.entries.iter().filter(|(_, entry)| entry.last_valid.is_none());
        unusable.filter_map(|(path, entry)| Some((path.as_path(), entry.newest.as_ref().err()?.to_string())))
    }

    /// Returns the text of a file; `None` if the file cannot be read.
    pub(crate) fn read_file(&self, path: &Path) -> Option<String> {
        read_text(&self.documents, path).ok()?.ok()
    }

    /// Adds a problem if the folder cannot be read.
    pub(crate) fn report_unread(&self, problems: &mut Vec<String>) {
        if let Some(unread) = &self.unread {
            let folder = self.path.display();
            problems.push(match self.entries.is_empty() {
                true => format!("{folder}/: {unread}"),
                false => format!("{folder}/: {unread} (its last good files stay in force)"),
            });
        }
    }

    /// Returns the newest usable version of every file, and reports files whose newest version cannot be used.
    pub(crate) fn take_last_valid(&mut self, problems: &mut Vec<String>) -> Vec<(PathBuf, T)> {
        self.report_unread(problems);
        let mut all = Vec::new();
        for (path, entry) in &mut self.entries {
            match &entry.newest {
                Ok(newest) => entry.last_valid = Some(newest.clone()),
                Err(why) => problems.push(format_problem(path, &why.to_string(), entry.last_valid.is_some())),
            }
            all.extend(entry.last_valid.clone().map(|value| (path.clone(), value)));
        }
        all
    }
}

/// Lists all YAML files in a folder. Fails if an entry cannot be read, since files that are missing in a partial list
/// would be treated as deleted.
///
/// # Errors
/// Returns an error if the folder or an entry cannot be read.
pub fn list_yaml_files(folder: &Path) -> std::io::Result<BTreeSet<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let paths: BTreeSet<PathBuf> = paths.collect::<std::io::Result<_>>()?;
    Ok(paths.into_iter().filter(|path| is_yaml(path)).collect())
}

/// Returns whether the directory contains a machine file, valid or not. If the folder cannot be read, returns true,
/// since the folder may contain a machine file.
pub fn has_machine_files(dir: &Path) -> bool {
    match list_yaml_files(&dir.join("machines")) {
        Ok(found) => !found.is_empty(),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// Formats a problem of a file. Each line begins with the path of the file.
pub fn format_problem(path: &Path, why: &str, has_good: bool) -> String {
    let consequence = if has_good { " (its last good version stays in force)" } else { "" };
    let lines: Vec<String> = why.lines().map(|line| format!("{}:{}", path.display(), add_space(line))).collect();
    lines.join("\n") + consequence
}

/// Adds an error code to each line that does not contain one. Lines about files in `layouts/` get the code of layouts,
/// and other lines the code of the operator's files.
pub fn annotate_problem(problem: &str, dir: &Path) -> String {
    let layouts = format!("{}/", dir.join("layouts").display());
    let annotate = |line: &str| {
        let general = if line.starts_with(&layouts) { ErrorCode::Layout } else { ErrorCode::SiteFile };
        if line.contains(" (DH-") { line.to_owned() } else { general.annotate(line) }
    };
    problem.lines().map(annotate).collect::<Vec<_>>().join("\n")
}

/// Inserts a space between the path and a message without a position: `FILE: why`. A message with a position follows
/// the path directly: `FILE:LINE:COLUMN: why`.
fn add_space(line: &str) -> String {
    if line.starts_with(|c: char| c.is_ascii_digit()) { line.to_owned() } else { format!(" {line}") }
}

pub(crate) fn is_yaml(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// Reads the text of a file. The outer error means that the file cannot be read. The inner error means that its content
/// is invalid: too long, or not UTF-8.
pub(crate) fn read_text(documents: &SiteDocuments, path: &Path) -> Result<Result<String, String>, String> {
    const LIMIT: i64 = DOCUMENT_BYTES as i64;
    let size = documents.stamp(path).map_err(|error| error.to_string())?.size;
    if size > LIMIT {
        return Ok(Err(format!("the file is {size} bytes long; the limit is {LIMIT} bytes")));
    }
    match documents.read(path) {
        Ok(text) => Ok(Ok(text)),
        Err(error) if error.kind() == ErrorKind::InvalidData => Ok(Err(error.to_string())),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(folder: &mut YamlFolder<String>) -> (Vec<String>, Vec<String>) {
        folder.rescan();
        let mut problems = Vec::new();
        let values = folder.take_last_valid(&mut problems).into_iter().map(|(_, value)| value).collect();
        (values, problems)
    }

    #[test]
    fn each_line_of_a_problem_has_one_code() {
        for (problem, expected) in [
            ("/d/machines/a.yaml:1:1: no", "/d/machines/a.yaml:1:1: no (DH-705)"),
            (
                "/d/layouts/a.yaml:1:1: no\n/d/layouts/a.yaml: nor",
                "/d/layouts/a.yaml:1:1: no (DH-200)\n/d/layouts/a.yaml: nor (DH-200)",
            ),
            (
                "/d/machines/a.yaml: no (DH-706) (its last good version stays in force)",
                "/d/machines/a.yaml: no (DH-706) (its last good version stays in force)",
            ),
        ] {
            assert_eq!(annotate_problem(problem, Path::new("/d")), expected);
        }
    }

    #[test]
    fn optional_folder_may_be_missing_until_it_existed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deploy-templates");
        let mut folder: YamlFolder<String> = YamlFolder::optional(path.clone(), |text| Ok(text.to_owned()));
        assert!(!folder.rescan());
        assert_eq!(all(&mut folder), (vec![], vec![]));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("a.yaml"), "a").unwrap();
        assert_eq!(all(&mut folder), (vec!["a".to_owned()], vec![]));
        fs::remove_dir_all(&path).unwrap();
        let (values, problems) = all(&mut folder);
        assert!(values == ["a"] && problems.len() == 1, "{problems:?}");
    }

    /// The other file has the same size and modification time, as in a Nix store or after `cp -p`.
    #[test]
    fn replaced_file_with_equal_size_and_time_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a.yaml"), dir.path().join(".a.yaml.new"));
        for (path, text) in [(&path, "one"), (&other, "two")] {
            fs::write(path, text).unwrap();
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        }
        let mut folder: YamlFolder<String> = YamlFolder::new(dir.path().to_owned(), |text| Ok(text.to_owned()));
        assert_eq!(all(&mut folder), (vec!["one".to_owned()], vec![]));
        fs::rename(&other, &path).unwrap();
        assert_eq!(all(&mut folder), (vec!["two".to_owned()], vec![]));
    }

    #[test]
    fn unreadable_folder_keeps_its_last_values_with_a_timestamp() {
        let dir = tempfile::tempdir().unwrap();
        let (path, aside) = (dir.path().join("machines"), dir.path().join("aside"));
        let mut folder: YamlFolder<String> = YamlFolder::new(path.clone(), |text| Ok(text.to_owned()));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("a.yaml"), "a").unwrap();
        assert_eq!(all(&mut folder), (vec!["a".to_owned()], vec![]));

        fs::rename(&path, &aside).unwrap();
        assert!(folder.rescan());
        let (values, problems) = all(&mut folder);
        assert_eq!(values, ["a"]);
        assert!(problems[0].contains("machines/: unreadable since 20"), "{problems:?}");
        assert!(!folder.rescan() && all(&mut folder).1 == problems, "the problem is reported once");
        fs::rename(&aside, &path).unwrap();
        assert!(folder.rescan());
        assert_eq!(all(&mut folder), (vec!["a".to_owned()], vec![]));

        // If a folder is at the path of the file, the file counts as unreadable. The next scan reports no further
        // change.
        fs::remove_file(path.join("a.yaml")).unwrap();
        fs::create_dir(path.join("a.yaml")).unwrap();
        let (values, problems) = all(&mut folder);
        assert_eq!(values, ["a"]);
        assert!(problems[0].contains("a.yaml: unreadable since 20"), "{problems:?}");
        assert!(!folder.rescan());
        // A file that was removed is no longer in force.
        fs::remove_dir(path.join("a.yaml")).unwrap();
        assert_eq!(all(&mut folder), (vec![], vec![]));
    }
}
