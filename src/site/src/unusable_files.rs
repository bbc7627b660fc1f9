//! Objects that are not in force, because their files in the operator's directory are invalid or unreadable. A
//! reference to such an object is refused with the problem of its file.

use crate::operator_files::{MachineSpec, parse_unvalidated};
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

/// Machine file that has no version in force, so that the machine is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableMachine {
    /// Name of the machine or, if the file does not contain a readable name, the name of the file without its suffix.
    pub name: String,
    /// Problem of the file, with its path, line and code.
    pub problem: String,
}

/// Errors of machine files, by the id of the machine. If a file does not contain a readable id, its name without the
/// suffix counts as the id.
#[derive(Debug, Clone, Default)]
pub struct MachineFileErrors {
    /// Machines that the server does not know, because the error makes their files unusable.
    unusable: BTreeMap<String, UnusableMachine>,
    /// Problems of machines that the server knows nevertheless, for example from the last valid version of the file.
    known: BTreeMap<String, String>,
}

impl MachineFileErrors {
    /// Adds the error of the file of a machine that is known.
    pub(crate) fn add_known(&mut self, id: &str, problem: String) {
        self.known.insert(id.to_owned(), problem);
    }

    /// Adds the error of a file from which the machine is not known. `text` is the content of the file, if it can be
    /// read.
    pub(crate) fn add_unusable(&mut self, path: &Path, text: Option<&str>, problem: String) {
        let document = text.and_then(|text| parse_unvalidated(text).ok()).unwrap_or_default();
        let read = |field: &str| document[field].as_str().filter(|value| !value.is_empty()).map(str::to_owned);
        let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let id = read("id").unwrap_or_else(stem).to_lowercase();
        self.unusable.insert(id, UnusableMachine { name: read("name").unwrap_or_else(stem), problem });
    }

    /// Adds a machine that is not known, because several files contain its id.
    pub(crate) fn add_shared_id(&mut self, machine: &MachineSpec, problem: String) {
        self.unusable.insert(machine.id.clone(), UnusableMachine { name: machine.name.clone(), problem });
    }

    /// Returns the problem of the machine's file; `None` if the file is valid.
    pub fn problem(&self, id: &str) -> Option<&str> {
        let unusable = self.unusable.get(id).map(|machine| machine.problem.as_str());
        self.known.get(id).map(String::as_str).or(unusable)
    }

    /// Returns the machine with this id if its file has no version in force.
    pub fn find_unusable(&self, id: &str) -> Option<&UnusableMachine> {
        self.unusable.get(id)
    }

    /// Returns the machines whose files have no version in force, by their ids.
    pub fn unusable_machines(&self) -> impl Iterator<Item = (&str, &UnusableMachine)> {
        self.unusable.iter().map(|(id, machine)| (id.as_str(), machine))
    }

    /// Returns only the errors of these machines. Machines whose files have no version in force are omitted, since
    /// their projects are unknown.
    pub(crate) fn restrict_to(&self, is_visible: impl Fn(&str) -> bool) -> MachineFileErrors {
        let known = self.known.iter().filter(|(id, _)| is_visible(id));
        MachineFileErrors { known: known.map(|(id, why)| (id.clone(), why.clone())).collect(), ..Default::default() }
    }

    /// Removes machines that are known from another file.
    pub(crate) fn remove_known_ids(&mut self, is_known: impl Fn(&str) -> bool) {
        self.unusable.retain(|id, _| !is_known(id));
    }
}
