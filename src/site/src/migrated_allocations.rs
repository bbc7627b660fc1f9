//! Effective allocations of machines in a migration. The database determines which machine owns the migrated
//! allocation, even while the operator's files do not reflect the migration yet. The module performs no I/O.

use crate::operator_files::{AllocationSpec, MachineSpec};
use model::machine_migration::MigrationSide;
use store::machine_migration::{Migration, MigrationState};

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

/// Returns the migrations whose results the files do not contain: the file of the owner contains no allocation, and the
/// file of another machine contains the migrated one. `transferred` are migrations according to the database. If the
/// allocation was migrated several times in the meantime, the result names the machine whose file contains it as the
/// source.
pub(crate) fn find_outdated_files(transferred: Vec<Migration>, files: &[MachineSpec]) -> Vec<Migration> {
    let find = |migration: Migration| {
        let owner = match migration.state.owner_role() {
            MigrationSide::Source => &migration.source,
            MigrationSide::Target => &migration.target,
        };
        files.iter().find(|file| file.id == *owner && file.allocation.is_none())?;
        let contains =
            |file: &&MachineSpec| file.allocation.as_ref().is_some_and(|own| *own.id == migration.allocation);
        let holder = files.iter().find(contains)?;
        if holder.id == *migration.other_machine(owner) {
            return Some(migration);
        }
        let (source, target) = (holder.id.clone(), owner.clone());
        Some(Migration { source, target, state: MigrationState::Done, ..migration })
    };
    transferred.into_iter().filter_map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator_files;
    use store::machine_migration::testing::ordered;

    const IDS: [&str; 3] = [
        "4c4c4544-0051-3010-8031-b2c04f333631",
        "4c4c4544-0051-3010-8031-b2c04f333632",
        "4c4c4544-0051-3010-8031-b2c04f333633",
    ];

    /// Returns machines whose files contain these allocations.
    fn files(allocations: [Option<&str>; 3]) -> Vec<MachineSpec> {
        let texts = IDS.iter().zip(allocations).map(|(id, allocation)| match allocation {
            Some(own) => format!("id: {id}\nname: m\nallocation: {{id: {own}, hostname: h, image: i}}\n"),
            None => format!("id: {id}\nname: m\n"),
        });
        texts.map(|text| operator_files::parse_machine(&text).unwrap()).collect()
    }

    /// Returns the migration of allocation a1 from the first machine to the second one.
    fn migration(state: MigrationState) -> Migration {
        Migration { source: IDS[0].to_owned(), target: IDS[1].to_owned(), state, ..ordered() }
    }

    fn effective(moves: &[Migration], files: &[MachineSpec]) -> Vec<Option<String>> {
        let owners = AllocationOwners::new(moves, files.iter().cloned());
        let allocation = |file| owners.effective_machine(file).0.allocation.map(|own| own.id.to_string());
        files.iter().map(allocation).collect()
    }

    #[test]
    fn files_of_a_late_server_do_not_change_the_owner() {
        let (old, new) = ([Some("a1"), None, None], [None, Some("a1"), None]);
        let owned = |machine: usize| (0..3).map(|one| (one == machine).then(|| "a1".to_owned())).collect::<Vec<_>>();
        for (state, files_of, owner) in [
            (MigrationState::Booting, old, Some(1)),
            (MigrationState::Done, old, Some(1)),
            (MigrationState::Cancelled, new, Some(0)),
            (MigrationState::Done, new, None),
            (MigrationState::Cancelled, old, None),
            // The owner has another allocation, so the file of the other machine is invalid.
            (MigrationState::Done, [Some("a1"), Some("a2"), None], None),
            (MigrationState::Done, [None, None, None], None),
        ] {
            let files = files(files_of);
            let outdated = find_outdated_files(vec![migration(state)], &files);
            assert_eq!(outdated.is_empty(), owner.is_none(), "{state} {files_of:?}");
            if let Some(owner) = owner {
                assert_eq!(effective(&outdated, &files), owned(owner), "{state} {files_of:?}");
            }
        }
    }

    /// The server was stopped during two migrations: from the third machine to the first one, and on to the second one.
    #[test]
    fn files_may_lack_several_migrations_of_one_allocation() {
        let files = files([None, None, Some("a1")]);
        let outdated = find_outdated_files(vec![migration(MigrationState::Done)], &files);
        assert_eq!((outdated[0].source.as_str(), outdated[0].target.as_str()), (IDS[2], IDS[1]));
        assert_eq!(effective(&outdated, &files), [None, Some("a1".to_owned()), None]);
    }
}
