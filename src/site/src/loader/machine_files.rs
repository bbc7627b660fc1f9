//! Machines of a scan: the version of each machine file that is in force, and the errors of the files.

use super::SiteLoader;
use super::allocation_check::{SettledMachine, apply_definition, check_machine_allocation};
use super::allocation_check_cache::CheckedAllocation;
use crate::duplicate_ids;
use crate::migrated_allocations::{AllocationOwners, find_outdated_files};
use crate::operator_files::MachineSpec;
use crate::snapshot::SiteSnapshot;
use crate::unusable_files::MachineFileErrors;
use crate::yaml_folder::{annotate_problem, format_problem};
use common::error::Error;
use common::format::os_error_messages::without_os_error_numbers;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::COPY_FROM;
use store::machine_migration::Migration;

impl SiteLoader {
    /// Adds the machines and the errors of their files to the snapshot.
    pub(super) fn add_machines(
        &mut self,
        directory: &mut SiteSnapshot,
        problems: &mut Vec<String>,
        notes: &mut Vec<String>,
    ) {
        self.machines.report_unread(problems);
        let moves = self.list_migrations(directory, problems);
        self.allocation_checks.remove_outdated(&self.state, !moves.is_empty());
        let overlay = AllocationOwners::new(&moves, self.described_machines());
        let mut errors = MachineFileErrors::default();
        let all = self.select_versions(directory, &overlay, &mut errors, problems, notes);
        let effective = |machine: &MachineSpec| overlay.effective_machine(machine).0;
        let all = all.into_iter().map(|(path, machine)| {
            let machine = apply_definition(&mut self.definitions, &effective(&machine)).0;
            (path, machine)
        });
        let all = all.collect();
        let dir = self.dir.clone();
        let describe = |problem: &str| describe_error(&dir, problem);
        for (id, (path, machine)) in duplicate_ids::remove_shared_ids(all, problems, &mut errors, &describe) {
            duplicate_ids::register_macs(&mut directory.macs, &path, &machine, problems);
            directory.controllers.add(&machine);
            directory.machine_files.insert_mut(id.clone(), path);
            directory.machines.insert_mut(id, Arc::new(machine));
        }
        problems.extend(directory.describe_controller_conflicts());
        errors.remove_known_ids(|id| directory.machines.contains_key(id));
        directory.machine_errors = Arc::new(errors);
    }

    /// Returns the machines as described in their files.
    fn described_machines(&self) -> impl Iterator<Item = MachineSpec> {
        let files = self.machines.entries.values();
        files.filter_map(|entry| entry.newest.as_ref().ok().or(entry.last_valid.as_ref()).cloned())
    }

    /// Returns the migrations that determine the allocations of machines. Migrations whose results are missing from the
    /// files of this server are added to the snapshot, and take precedence, because the live ones may be later.
    fn list_migrations(&self, directory: &mut SiteSnapshot, problems: &mut Vec<String>) -> Vec<Migration> {
        let mut report = |error: Error| {
            problems.push(error.to_string());
            Vec::new()
        };
        let live = self.state.list_live_migrations_blocking().unwrap_or_else(&mut report);
        if !self.documents.are_separate_files() {
            return live;
        }
        let transferred = self.state.list_transferred_migrations_blocking().unwrap_or_else(&mut report);
        if transferred.is_empty() {
            return live;
        }
        let outdated = find_outdated_files(transferred, &self.described_machines().collect::<Vec<_>>());
        directory.outdated_migrations = Arc::new(outdated.clone());
        outdated.into_iter().chain(live).collect()
    }

    /// Returns the version of each machine file that is in force. Files without such a version are only added to the
    /// errors.
    fn select_versions(
        &mut self,
        directory: &SiteSnapshot,
        overlay: &AllocationOwners<'_>,
        errors: &mut MachineFileErrors,
        problems: &mut Vec<String>,
        notes: &mut Vec<String>,
    ) -> Vec<(PathBuf, MachineSpec)> {
        let missing = self.machines.entries.len().saturating_sub(self.allocation_checks.len());
        // If the copy fails, the same error is reported for each machine whose records cannot be read.
        let copy = if missing < COPY_FROM { None } else { self.state.with_record_copy_blocking().ok() };
        let state = copy.as_ref().unwrap_or(&self.state);
        let (known, definitions) = (directory.known.clone(), &mut self.definitions);
        let checks = &mut self.allocation_checks;
        let mut check = |machine: &MachineSpec| -> Result<SettledMachine, String> {
            check_machine_allocation(definitions, state, &known, &overlay.effective_machine(machine).0)
        };
        let (mut all, mut unusable) = (Vec::new(), Vec::new());
        for (path, entry) in &mut self.machines.entries {
            let hidden = entry.newest.as_ref().ok().and_then(|machine| overlay.effective_machine(machine).1);
            problems.extend(hidden.map(|why| format_problem(path, &why, false)));
            let newest = entry.newest.as_ref().map_err(ToString::to_string);
            let newest = newest.and_then(|machine| checks.find_or_check(path, machine, &mut check));
            let machine = match newest {
                Ok(CheckedAllocation { notes: remarks, contradiction }) => {
                    problems.extend(contradiction.map(|why| format_problem(path, &why, false)));
                    notes.extend(remarks.iter().map(|note| format_problem(path, note, false)));
                    entry.last_valid = entry.newest.clone().ok();
                    entry.last_valid.clone()
                }
                Err(why) => {
                    let last = entry.last_valid.clone().filter(|last| check(last).is_ok());
                    let problem = format_problem(path, &why, last.is_some());
                    let error = describe_error(&self.dir, &problem);
                    problems.push(problem);
                    let machine = last.or_else(|| entry.newest.clone().ok()).or_else(|| entry.last_valid.clone());
                    match &machine {
                        Some(machine) => errors.add_known(&machine.id, error),
                        None => unusable.push((path.clone(), error)),
                    }
                    machine
                }
            };
            all.extend(machine.map(|machine| (path.clone(), machine)));
        }
        for (path, error) in unusable {
            errors.add_unusable(&path, self.machines.read_file(&path).as_deref(), error);
        }
        all
    }
}

/// Returns the problem of a machine file in one line, with its code, and with the path relative to the operator's
/// directory.
fn describe_error(dir: &Path, problem: &str) -> String {
    let folder = format!("{}/", dir.display());
    let lines = annotate_problem(problem, dir);
    let lines = lines.lines().map(|line| line.strip_prefix(&folder).unwrap_or(line));
    without_os_error_numbers(&lines.collect::<Vec<_>>().join("; ")).into_owned()
}
