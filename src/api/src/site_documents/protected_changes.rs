//! Protection of changes that were made at the server after the operator copied the documents. `apply` does not remove
//! machines in use. `apply` removes a lock, replaces a disk key, and changes or restores an allocation only if the
//! operator confirms this for the machine.

mod refusal_text;

use super::candidate_set::Documents;
use site::operator_files::ProtectedFields;
use site::snapshot::SiteSnapshot;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use store::document_protection::{GuardedChange, GuardedChangeKind};

pub(super) use refusal_text::refuse_changes;

/// Folder of the machine files.
const MACHINE_FOLDER: &str = "machines/";
/// Folder of the approvals, which are named after the ids of the machines.
const APPROVAL_FOLDER: &str = "approved/";

/// Changes of machine files and approvals that need a confirmation, or depend on the states of the machines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ProtectedChanges {
    /// Changes without the required confirmation, one line each.
    pub(super) unconfirmed: Vec<String>,
    /// Changes that are permitted only in certain states of the machines.
    pub(super) guarded: Vec<GuardedChange>,
    /// Ids of the machines with a change that the operator has confirmed.
    pub(super) overwritten: BTreeSet<String>,
}

/// Protected fields of all machine files of a set of documents.
struct MachineDocuments<'a> {
    by_path: BTreeMap<&'a str, ProtectedFields>,
    /// Path of the first machine file with each id.
    paths: BTreeMap<String, &'a str>,
}

impl<'a> MachineDocuments<'a> {
    /// Reads the machine files. If the text of a file is not YAML, the fields of its last valid version, which is in
    /// force, are used; without such a version, the file is omitted.
    fn read(documents: &'a Documents, present: &SiteSnapshot, dir: &Path) -> MachineDocuments<'a> {
        let in_force = |path: &str| {
            let path = dir.join(path);
            let id = present.machine_files.iter().find(|(_, file)| **file == path).map(|(id, _)| id)?;
            present.find_machine(id).map(ProtectedFields::from_machine)
        };
        let files = documents.iter().filter(|(path, _)| path.starts_with(MACHINE_FOLDER));
        let by_path: BTreeMap<&str, ProtectedFields> = files
            .filter_map(|(path, content)| {
                Some((path.as_str(), ProtectedFields::read(&content.text).or_else(|| in_force(path))?))
            })
            .collect();
        let paths = by_path.iter().rev().map(|(path, fields)| (fields.id.clone(), *path)).collect();
        MachineDocuments { by_path, paths }
    }

    /// Returns the file of the machine with this id; if several files contain the id, preferably the file at `path`.
    fn find(&self, id: &str, path: &str) -> Option<&ProtectedFields> {
        let at_path = self.by_path.get(path).filter(|fields| fields.id == id);
        at_path.or_else(|| self.by_path.get(self.paths.get(id)?))
    }
}

/// Returns the ids of the machines whose changes the operator has confirmed by id or name.
///
/// # Errors
/// Returns a line for each word that is neither the id nor the name of a machine in the present documents.
pub(super) fn resolve_confirmed(
    words: &[String],
    documents: &Documents,
    present: &SiteSnapshot,
    dir: &Path,
) -> Result<BTreeSet<String>, Vec<String>> {
    let machines = MachineDocuments::read(documents, present, dir);
    let (mut confirmed, mut unknown) = (BTreeSet::new(), Vec::new());
    for word in words {
        let id = word.to_lowercase();
        let named: Vec<&str> =
            present.machines().filter(|machine| machine.name == *word).map(|machine| machine.id.as_str()).collect();
        match &named[..] {
            _ if machines.paths.contains_key(&id) => drop(confirmed.insert(id)),
            [named] => drop(confirmed.insert((*named).to_owned())),
            [] => unknown.push(format!("overwrite: the stored documents contain no machine {word:?}")),
            _ => unknown.push(format!("overwrite: several machines have the name {word:?}: specify the id")),
        }
    }
    if unknown.is_empty() { Ok(confirmed) } else { Err(unknown) }
}

/// Compares the machine files and approvals before and after the change. `dir` is the server's directory, and
/// `confirmed` contains the ids of the machines whose changes the operator has confirmed.
pub(super) fn find_changes(
    (before, after): (&Documents, &Documents),
    present: &SiteSnapshot,
    dir: &Path,
    confirmed: &BTreeSet<String>,
) -> ProtectedChanges {
    let [old, new] = [before, after].map(|documents| MachineDocuments::read(documents, present, dir));
    let mut changes = ProtectedChanges::default();
    for (path, fields) in &old.by_path {
        // A file in which only the id has changed describes the machine under its new id.
        let renamed = || new.by_path.get(path).filter(|fields| !old.paths.contains_key(&fields.id));
        changes.compare_machine(fields, (new.find(&fields.id, path), renamed), present, confirmed);
    }
    let is_removed = |path: &&String| !after.contains_key(*path);
    for path in before.keys().filter(is_removed) {
        let is_machine = path.starts_with(MACHINE_FOLDER);
        if is_machine && !old.by_path.contains_key(path.as_str()) {
            changes.unconfirmed.push(format!(
                "{path}: the stored document is invalid, so the machine that it describes is unknown; include the document, or correct it first"
            ));
        }
        if let Some(name) = path.strip_prefix(APPROVAL_FOLDER) {
            let machine = Path::new(name).file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
            changes.guarded.push(GuardedChange { machine, kind: GuardedChangeKind::RemovedApproval });
        }
    }
    changes
}

impl ProtectedChanges {
    /// Compares the fields of a machine with its file after the change, or with the file that describes the machine
    /// under a new id.
    fn compare_machine<'a>(
        &mut self,
        fields: &ProtectedFields,
        (successor, renamed): (Option<&'a ProtectedFields>, impl FnOnce() -> Option<&'a ProtectedFields>),
        present: &SiteSnapshot,
        confirmed: &BTreeSet<String>,
    ) {
        let id = &fields.id;
        let (mut lines, mut guarded) = (Vec::new(), Vec::new());
        match successor {
            Some(successor) => compare_allocations(fields, successor, &mut lines, &mut guarded),
            None => self.guarded.push(GuardedChange {
                machine: id.clone(),
                kind: GuardedChangeKind::RemovedMachine(fields.allocation.clone()),
            }),
        }
        let next = successor.or_else(renamed);
        lines.extend(explain_lost_lock(fields, next));
        lines.extend(explain_lost_key(fields, next));
        if confirmed.contains(id) {
            if !lines.is_empty() || !guarded.is_empty() {
                self.overwritten.insert(id.clone());
            }
            return;
        }
        let describe = |line: String| format!("machine {name} ({id}): {line}", name = present.display_name(id));
        self.unconfirmed.extend(lines.into_iter().map(describe));
        let guard = |kind| GuardedChange { machine: id.clone(), kind };
        self.guarded.extend(guarded.into_iter().map(guard));
    }
}

/// Compares the allocations of a machine. The allocation of a locked machine is never removed without a confirmation.
fn compare_allocations(
    old: &ProtectedFields,
    new: &ProtectedFields,
    lines: &mut Vec<String>,
    guarded: &mut Vec<GuardedChangeKind>,
) {
    if old.allocation == new.allocation {
        return;
    }
    match &old.allocation {
        Some(allocation) if old.locked.is_some() => {
            lines.push(format!("allocation {allocation} would be removed or replaced, but the machine is locked"));
        }
        Some(allocation) => guarded.push(GuardedChangeKind::EndedAllocation(allocation.clone())),
        None => {}
    }
    guarded.extend(new.allocation.clone().map(GuardedChangeKind::AddedAllocation));
}

fn explain_lost_lock(old: &ProtectedFields, new: Option<&ProtectedFields>) -> Option<String> {
    let reason = old.locked.as_ref()?;
    let is_locked = new.is_some_and(|new| new.locked.is_some());
    (!is_locked).then(|| format!("the machine would be unlocked; the reason of the lock is: {reason}"))
}

fn explain_lost_key(old: &ProtectedFields, new: Option<&ProtectedFields>) -> Option<String> {
    let key = old.disk_key.as_ref()?;
    match new.and_then(|new| new.disk_key.as_ref()) {
        Some(new) if new == key => None,
        Some(_) => Some("the disk key would be replaced".to_owned()),
        None => Some("the disk key would be removed".to_owned()),
    }
}

#[cfg(test)]
mod tests;
