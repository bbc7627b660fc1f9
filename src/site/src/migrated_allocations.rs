//! Effective allocations of machines in a migration. The database determines which machine owns the migrated
//! allocation, even while the operator's files do not reflect the migration yet. The module performs no I/O.

use crate::operator_files::{AllocationSpec, MachineSpec};
use model::machine_migration::MigrationSide;
use store::machine_migration::Migration;

/// Effective allocations of machines that are part of an open migration, or whose files do not reflect the result of
/// a migration yet.
pub struct AllocationOwners<'a> {
    moves: &'a [Migration],
    /// Machines as described in their files.
    files: Vec<MachineSpec>,
}

impl<'a> AllocationOwners<'a> {
    pub fn new(moves: &'a [Migration], files: impl Iterator<Item = MachineSpec>) -> AllocationOwners<'a> {
        let files = if moves.is_empty() { Vec::new() } else { files.collect() };
        AllocationOwners { moves, files }
    }

    /// Returns the machine with its effective allocation, and a warning if the machine file contains another
    /// allocation.
    pub fn effective_machine(&self, machine: &MachineSpec) -> (MachineSpec, Option<String>) {
        let Some(migration) =
            self.moves.iter().find(|migration| migration.source == machine.id || migration.target == machine.id)
        else {
            return (machine.clone(), None);
        };
        let own = machine.allocation.as_ref();
        let has_it = own.is_some_and(|own| *own.id == migration.allocation);
        let owns = migration.role_of(&machine.id) == migration.state.owner_role();
        let other = own.filter(|_| !has_it);
        let said = other.map(|other| {
            format!(
                "allocation {allocation} in this file is ignored: the machine is part of a migration from {source} to {target} ({state})", allocation = *other.id, source = migration.source, target = migration.target, state = migration.state)
        });
        let counts = match (owns, migration.role_of(&machine.id), migration.state.is_open()) {
            (true, ..) if has_it => own.cloned(),
            (true, MigrationSide::Source, true) => own.cloned(),
            (true, ..) => self.allocation_in_file(migration.other_machine(&machine.id), &migration.allocation),
            // After the end of a migration, only the migrated allocation is ignored; any other allocation in the file
            // applies.
            (false, _, false) => other.cloned(),
            (false, ..) => None,
        };
        let is_left = counts.as_ref().map(|counts| &*counts.id) == other.map(|other| &*other.id);
        (MachineSpec { allocation: counts, ..machine.clone() }, said.filter(|_| !is_left))
    }

    fn allocation_in_file(&self, machine: &str, allocation: &str) -> Option<AllocationSpec> {
        let file = self.files.iter().find(|file| file.id == machine)?;
        file.allocation.clone().filter(|own| *own.id == allocation)
    }
}
