//! Ids that occur in more than one file, and MAC addresses that occur in more than one machine file. An id or MAC
//! address that several machine files contain does not identify any of the machines.

use crate::operator_files::MachineSpec;
use crate::snapshot::SharedMap;
use crate::unusable_files::MachineFileErrors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Returns the machines by id. Omits machines whose id occurs in more than one file: one of these files may be an
/// unedited copy of another. The server cannot determine which file is the original, and must not serve its
/// allocation to another machine. The omitted machines are added to `errors`, with problems that `describe` formats.
pub(crate) fn remove_shared_ids(
    all: Vec<(PathBuf, MachineSpec)>,
    problems: &mut Vec<String>,
    errors: &mut MachineFileErrors,
    describe: &dyn Fn(&str) -> String,
) -> BTreeMap<String, (PathBuf, MachineSpec)> {
    let mut by_id: BTreeMap<String, Vec<(PathBuf, MachineSpec)>> = BTreeMap::new();
    for (path, machine) in all {
        by_id.entry(machine.id.clone()).or_default().push((path, machine));
    }
    let mut unshared = BTreeMap::new();
    for (id, mut files) in by_id {
        let first = files.first().map(|(path, _)| path.display().to_string()).unwrap_or_default();
        for (path, machine) in files.iter().skip(1) {
            let path = path.display();
            let problem = format!(
                "{path}: {first} also describes machine {id}: both files are ignored; give each machine its own id"
            );
            errors.add_shared_id(machine, describe(&problem));
            problems.push(problem);
        }
        if let (1, Some(file)) = (files.len(), files.pop()) {
            unshared.insert(id, file);
        }
    }
    unshared
}

/// Adds the MACs of a machine to `listed`, and reports each MAC that the file of another machine also lists.
pub(crate) fn register_macs(
    listed: &mut SharedMap<Vec<String>>,
    path: &Path,
    machine: &MachineSpec,
    problems: &mut Vec<String>,
) {
    for mac in &machine.macs {
        let mut ids = listed.get(mac).cloned().unwrap_or_default();
        if ids.contains(&machine.id) {
            continue;
        }
        problems.extend(ids.first().map(|other| {
            let path = path.display();
            format!("{path}: the MAC {mac} is also in the file of machine {other}, so this MAC identifies neither machine; remove the MAC from one of the files")
        }));
        ids.push(machine.id.clone());
        listed.insert_mut(mac.clone(), ids);
    }
}

/// Indexes values by id. If two files contain the same id, the file whose name sorts first takes precedence.
pub(crate) fn index_by_id<T>(
    kind: &str,
    all: Vec<(PathBuf, T)>,
    id: impl Fn(&T) -> &String,
    problems: &mut Vec<String>,
) -> BTreeMap<String, (PathBuf, T)> {
    let mut by_id: BTreeMap<String, (PathBuf, T)> = BTreeMap::new();
    for (path, value) in all {
        match by_id.get(id(&value)) {
            Some((first, _)) => problems.push(format!(
                "{file}: {kind} {id} is already defined in {first_file}, which takes precedence",
                file = path.display(),
                id = id(&value),
                first_file = first.display()
            )),
            None => drop(by_id.insert(id(&value).clone(), (path, value))),
        }
    }
    by_id
}
