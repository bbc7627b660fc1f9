//! Objects that are not in force, because their files in the operator's directory are invalid or unreadable. A
//! reference to such an object is refused with the problem of its file.

use crate::operator_files::parse_unvalidated;
use crate::yaml_folder::{YamlFolder, format_problem};
use std::collections::BTreeMap;
use std::path::Path;

/// Files of one folder that have no version in force: the problem of each file, keyed by the id of the object.
#[derive(Debug, Clone, Default)]
pub struct UnusableFiles(BTreeMap<String, String>);

impl UnusableFiles {
    /// Collects the problems of the files. `dir` is the operator's directory, which is omitted from the paths. If a
    /// file does not contain a readable id, the file name counts as the id.
    pub(crate) fn collect<T: Clone>(folder: &YamlFolder<T>, dir: &Path) -> UnusableFiles {
        let mut all = BTreeMap::new();
        for (path, why) in folder.unusable_files() {
            let document = folder.read_file(path).and_then(|text| parse_unvalidated(&text).ok());
            let id = document.and_then(|document| document["id"].as_str().map(str::to_owned));
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let problem = format_problem(path.strip_prefix(dir).unwrap_or(path), &why, false);
            all.insert(id.unwrap_or(name), problem.replace('\n', "; "));
        }
        UnusableFiles(all)
    }

    /// Returns the problem of the object's file; `None` if the object has no file, or a version of it is in force.
    pub fn problem(&self, id: &str) -> Option<&str> {
        self.0.get(id).map(String::as_str)
    }

    /// Lists the problems of all files, as an appendix to a message; empty if there are none.
    pub fn list_problems(&self) -> String {
        self.0.values().map(|problem| format!("; {problem}")).collect()
    }
}
