//! Boot targets of machines that take part in a migration.

use super::ServerState;
use super::boot_target::{BootTarget, FileAllocation};
use super::disk_boot_prohibitions::{ALL_BARRED_QUERY, is_barred};
use super::incomplete_installations::has_incomplete_system;
use super::machine_migration::MigrationBoot;
use super::migration_records::find_live;
use super::restore_confirmation::find_unconfirmed;
use crate::sql::{self, Connection, params};
use common::error::Result;

/// SQL query that returns a row if the machine has barred allocations, and all of its installed allocations are barred.
/// If the machine file contains an allocation, the query considers only this allocation.
const BARRED_MACHINE_QUERY: &str = "SELECT 1 FROM barred WHERE machine = ?1 AND NOT EXISTS (
     SELECT 1 FROM allocations a WHERE a.machine = ?1 AND a.succeeded = 1 AND (?2 IS NULL OR a.id = ?2)
         AND NOT EXISTS (SELECT 1 FROM barred b WHERE b.machine = a.machine AND b.allocation = a.id))";

impl ServerState {
    /// Returns whether the machine must not boot anything from its disks because of a migration or an incomplete
    /// installation. Writes nothing, because any client can trigger this call.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn is_barred_from_disks(&self, machine: &str, files: FileAllocation) -> Result<bool> {
        let machine = machine.to_owned();
        self.run_job(move |connection| {
            let files = effective_files(connection, &machine, files)?;
            match migration_boot(connection, &machine, &files)? {
                Some(BootTarget::Disk) => return Ok(false),
                Some(_) => return Ok(true),
                None => {}
            }
            let allocation = files.allocation();
            let is_barred = connection.prepare_cached(BARRED_MACHINE_QUERY)?.exists(params![machine, allocation])?;
            Ok(is_barred || has_incomplete_system(connection, &machine, allocation)?)
        })
        .await
    }
}

/// Returns the allocation of a machine according to the operator's files. If the files do not reflect the machine's
/// migration yet, returns the allocation that the updated files will contain.
pub fn effective_files(connection: &Connection, machine: &str, files: FileAllocation) -> sql::Result<FileAllocation> {
    let ended = find_live(connection, machine)?
        .filter(|migration| !migration.state.is_open() && migration.role_of(machine) == migration.state.owner_role());
    Ok(ended.map_or(files, |migration| FileAllocation::Allocated(migration.allocation)))
}

/// Returns the target that the machine boots because of a migration, or `None` if no migration affects the machine's
/// boot. While a machine of the migration needs confirmation after a restore, neither machine boots from its disks: the
/// migration may have ended, or may have been repeated in the other direction, after the backup.
pub(crate) fn migration_boot(
    connection: &Connection,
    machine: &str,
    files: &FileAllocation,
) -> sql::Result<Option<BootTarget>> {
    if let Some(migration) = find_live(connection, machine)? {
        let machines = [migration.source.as_str(), &migration.target];
        if let Some(unconfirmed) = find_unconfirmed(connection, machines)? {
            return Ok(Some(BootTarget::UnconfirmedMigration(unconfirmed.to_owned())));
        }
        match migration.boot_target(machine) {
            MigrationBoot::Ramdisk => {
                return Ok(Some(BootTarget::MigrationRamdisk(migration.role_of(machine), migration.state)));
            }
            MigrationBoot::Disk => return Ok(Some(BootTarget::Disk)),
            MigrationBoot::Unaffected => {}
        }
    }
    let is_barred = match files {
        FileAllocation::Allocated(allocation) => is_barred(connection, machine, allocation)?,
        FileAllocation::Free => false,
        FileAllocation::NoMachineFile => connection.prepare_cached(ALL_BARRED_QUERY)?.exists([machine])?,
    };
    Ok(is_barred.then_some(BootTarget::MigratedAway))
}
