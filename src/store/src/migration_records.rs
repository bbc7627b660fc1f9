//! Stored migrations, one database row each. `machine_migration` decides how they change.

use super::json_columns::{parse_column, to_json_column};
use super::machine_migration::{CurrentBoots, Migration, MigrationState};
use super::registered_boots::current_boot;
use super::{ServerState, database_epoch};
use crate::sql::{self, Connection, OptionalExtension, Transaction, params};
use common::error::Result;
use std::collections::BTreeMap;

/// Query of the migrations after which the database records the allocation for its owner, and for no other machine.
const TRANSFERRED_QUERY: &str = "SELECT document FROM moves m WHERE state IN ('booting', 'done', 'cancelled')
     AND EXISTS (SELECT 1 FROM allocations a WHERE a.id = m.allocation AND a.succeeded = 1
         AND a.machine = CASE m.state WHEN 'cancelled' THEN m.a ELSE m.b END)
     AND NOT EXISTS (SELECT 1 FROM allocations a WHERE a.id = m.allocation
         AND a.machine <> CASE m.state WHEN 'cancelled' THEN m.a ELSE m.b END)
     ORDER BY m.rowid";

impl ServerState {
    /// Returns the migration that currently affects this machine, or `None`.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn find_live_migration(&self, machine: &str) -> Result<Option<Migration>> {
        let machine = machine.to_owned();
        self.run_job(move |connection| find_live(connection, &machine)).await
    }

    /// Blocking variant of [`ServerState::find_live_migration`].
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub fn find_live_migration_blocking(&self, machine: &str) -> Result<Option<Migration>> {
        let machine = machine.to_owned();
        self.run_job_blocking(move |connection| find_live(connection, &machine))
    }

    /// Returns all migrations that are open, or whose results are not yet applied to the operator's files.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn list_live_migrations(&self) -> Result<Vec<Migration>> {
        self.run_job(list_live).await
    }

    /// Blocking variant of [`ServerState::list_live_migrations`].
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub fn list_live_migrations_blocking(&self) -> Result<Vec<Migration>> {
        self.read_committed_blocking(list_live)
    }

    /// Returns, for each allocation, the newest migration that has transferred it. Servers that share the database, but
    /// not the operator's files, compare their own files with these migrations.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub fn list_transferred_migrations_blocking(&self) -> Result<Vec<Migration>> {
        self.read_committed_blocking(list_transferred)
    }

    /// Returns the machine's newest migration, even if it has ended.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn find_last_migration(&self, machine: &str) -> Result<Option<Migration>> {
        let machine = machine.to_owned();
        self.run_job(move |connection| find_last(connection, &machine)).await
    }

    /// Returns the current boots of the two machines of a migration.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn read_current_boots(&self, of: &Migration) -> Result<CurrentBoots> {
        let (a, b) = (of.source.clone(), of.target.clone());
        self.run_job(move |connection| read_current_boots(connection, &a, &b)).await
    }

    /// Records that the operator's files contain the result of the migration. Does nothing if the state of the
    /// migration is no longer `state`.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn record_files_updated(&self, id: &str, state: MigrationState) -> Result<()> {
        let id = id.to_owned();
        self.run_durably(move |transaction| {
            let select = "SELECT document FROM moves WHERE id = ?1";
            let migration: Option<Migration> =
                transaction.query_row(select, [&id], |row| parse_column(row, 0)).optional()?.flatten();
            match migration.filter(|migration| migration.state == state) {
                Some(migration) => store_migration(transaction, &Migration { files: false, ..migration }),
                None => Ok(()),
            }
        })
        .await
    }
}

/// Returns the message that refuses another order for the machine while it is part of this migration.
pub fn explain_migration_block(machine: &str, migration: &Migration) -> String {
    // The other machine is not named, because the operator of this machine may be unable to access it.
    let what = format!("machine {machine} is part of a migration ({state})", state = migration.state);
    match migration.state.is_open() {
        true => format!(
            "{what}: wait until the migration ends, or cancel the migration with `drophammer machine move {machine} --cancel`"
        ),
        false => format!("{what}, and the files of the two machines are not updated yet: see the server's output"),
    }
}

/// Returns the reason why nothing can be ordered for the machine now, or `None` if the machine is not part of a
/// migration.
pub(crate) fn explain_block(connection: &Connection, machine: &str) -> sql::Result<Option<String>> {
    Ok(find_live(connection, machine)?.map(|migration| explain_migration_block(machine, &migration)))
}

pub fn find_live(connection: &Connection, machine: &str) -> sql::Result<Option<Migration>> {
    let select = "SELECT document FROM moves WHERE live = 1 AND (a = ?1 OR b = ?1) LIMIT 1";
    let found = connection.prepare_cached(select)?.query_row([machine], |row| parse_column(row, 0)).optional()?;
    Ok(found.flatten())
}

pub fn find_last(connection: &Connection, machine: &str) -> sql::Result<Option<Migration>> {
    let select = "SELECT document FROM moves WHERE a = ?1 OR b = ?1 ORDER BY live DESC, rowid DESC LIMIT 1";
    let found = connection.prepare_cached(select)?.query_row([machine], |row| parse_column(row, 0)).optional()?;
    Ok(found.flatten())
}

pub fn list_live(connection: &Connection) -> sql::Result<Vec<Migration>> {
    let all = connection.prepare("SELECT document FROM moves WHERE live = 1 ORDER BY rowid")?;
    let all: Vec<Option<Migration>> = all.query_map([], |row| parse_column(row, 0))?.collect::<sql::Result<_>>()?;
    Ok(all.into_iter().flatten().collect())
}

/// Returns, for each allocation, the newest migration that has transferred it, or whose transfer was canceled. Omits
/// allocations that the database meanwhile records for another machine, and migrations from before a restore, because
/// the files may be newer than the restored database.
fn list_transferred(connection: &Connection) -> sql::Result<Vec<Migration>> {
    let epoch = database_epoch::read_epoch(connection)?.id;
    let select = connection.prepare_cached(TRANSFERRED_QUERY)?;
    let all: Vec<Option<Migration>> = select.query_map([], |row| parse_column(row, 0))?.collect::<sql::Result<_>>()?;
    let mut newest = BTreeMap::new();
    for migration in all.into_iter().flatten() {
        let is_of_epoch = migration.fencing.as_ref().is_some_and(|token| token.database == epoch);
        // A migration that was canceled before its copy has started has never changed a file.
        if is_of_epoch && (migration.state != MigrationState::Cancelled || migration.started_copy.is_some()) {
            newest.insert(migration.allocation.clone(), migration);
        }
    }
    Ok(newest.into_values().collect())
}

pub fn read_current_boots(connection: &Connection, a: &str, b: &str) -> sql::Result<CurrentBoots> {
    let [a, b] = [current_boot(connection, a)?, current_boot(connection, b)?];
    Ok(CurrentBoots { source: a.map(|boot| boot.hash), target: b.map(|boot| boot.hash) })
}

pub fn store_migration(transaction: &Transaction, migration: &Migration) -> sql::Result<()> {
    transaction.execute(
        "INSERT INTO moves (id, a, b, allocation, state, live, created, document) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT (id) DO UPDATE SET state = ?5, live = ?6, document = ?8",
        params![migration.id, migration.source, migration.target, migration.allocation, migration.state.name(), migration.is_live(), migration.created, to_json_column(migration)?],
    )?;
    Ok(())
}
