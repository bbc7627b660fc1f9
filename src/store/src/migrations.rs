//! Migrations of machines, one row each, and their effects on allocations.
//!
//! Each step is one durable transaction. The allocation's rows are transferred to the target machine in the transaction that records its
//! success, and the response is sent afterwards.

mod barred_allocations;
mod install_reports;

pub use barred_allocations::{is_barred, lift_bar};
pub use install_reports::handle_report;

use super::install_state::parse_column;
use super::next_boot::{BootTarget, FileAllocation};
use super::orders::to_json_column;
use super::success_proof::AttemptStart;
use super::{ServerState, TokenHash, boots, confirmation, epoch, to_json};
use crate::migration::{CurrentBoots, Migration, MigrationBoot, MigrationEvent, MigrationState};
use barred_allocations::{NOTHING_OF_ITS_OWN, bar_allocations};
use common::error::Result;
use control::api_types::InstallReport;
use rusqlite::{Connection, OptionalExtension, Transaction, params};

/// Result of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MigrationPlacement {
    Yes,
    /// Something has changed since the order was checked.
    No(String),
}

/// Migration after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationUpdate {
    pub is: Migration,
    /// True if the event has changed the migration.
    pub news: bool,
}

impl ServerState {
    /// Orders a migration, unless something else is open for one of the machines.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn place_migration(&self, new: Migration) -> Result<MigrationPlacement> {
        self.run_durably(move |transaction| insert_migration(transaction, &new)).await
    }

    /// Returns the migration that currently affects this machine.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn find_live_migration(&self, machine: &str) -> Result<Option<Migration>> {
        let machine = machine.to_owned();
        self.run_job(move |connection| find_live(connection, &machine)).await
    }

    /// Blocking variant of [`ServerState::find_live_migration`].
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub fn find_live_migration_blocking(&self, machine: &str) -> Result<Option<Migration>> {
        let machine = machine.to_owned();
        self.run_job_blocking(move |connection| find_live(connection, &machine))
    }

    /// Returns all migrations that affect machines, or are not yet applied to the operator's files.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn list_live_migrations(&self) -> Result<Vec<Migration>> {
        self.run_job(|connection| list_live(connection)).await
    }

    /// Blocking variant of [`ServerState::list_live_migrations`].
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub fn list_live_migrations_blocking(&self) -> Result<Vec<Migration>> {
        self.run_job_blocking(|connection| list_live(connection))
    }

    /// Returns the newest migration of this machine, even if it has ended.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn find_last_migration(&self, machine: &str) -> Result<Option<Migration>> {
        let machine = machine.to_owned();
        self.run_job(move |connection| find_last(connection, &machine)).await
    }

    /// Returns the current boots of the two machines.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn read_current_boots(&self, of: &Migration) -> Result<CurrentBoots> {
        let (a, b) = (of.a.clone(), of.b.clone());
        self.run_job(move |connection| read_current_boots(connection, &a, &b)).await
    }

    /// Records an event of the machine's migration, with all its effects. Returns `None` if no live migration has this id; an empty id
    /// matches any. The inner error is the reason why the event is rejected.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn apply_migration_event(
        &self,
        machine: &str,
        id: &str,
        word: MigrationEvent,
    ) -> Result<Option<Result<MigrationUpdate, String>>> {
        let (machine, id) = (machine.to_owned(), id.to_owned());
        self.run_durably(move |transaction| {
            let Some(is) = find_live(transaction, &machine)?.filter(|is| id.is_empty() || is.id == id) else {
                return Ok(None);
            };
            apply_event(transaction, &is, &word).map(Some)
        })
        .await
    }

    /// Records that the target machine passes its point of no return, if it may. Returns `None` if the machine is not the target of a live
    /// migration.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn start_migration_copy(
        &self,
        machine: &str,
        start: AttemptStart,
    ) -> Result<Option<Result<MigrationUpdate, String>>> {
        let machine = machine.to_owned();
        self.run_durably(move |transaction| {
            let Some(is) = find_live(transaction, &machine)?.filter(|is| is.b == machine) else { return Ok(None) };
            if let Some(why) = confirmation::explain_first_unconfirmed(transaction, [is.a.as_str(), &is.b])? {
                return Ok(Some(Err(why)));
            }
            let now = read_current_boots(transaction, &is.a, &is.b)?;
            apply_event(transaction, &is, &MigrationEvent::Begins { start, now }).map(Some)
        })
        .await
    }

    /// Stores a report of a machine in a migration, with all its effects. Returns `None` if the report is about something else.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn handle_migration_report(
        &self,
        machine: &str,
        boot: TokenHash,
        report: &InstallReport,
    ) -> Result<Option<Result<MigrationUpdate, String>>> {
        let (machine, report, text) = (machine.to_owned(), report.clone(), to_json(report)?);
        self.run_durably(move |transaction| handle_report(transaction, &machine, boot, &report, &text)).await
    }

    /// Records that the operator's files reflect the result of the migration.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn record_files_updated(&self, id: &str, state: MigrationState) -> Result<()> {
        let id = id.to_owned();
        self.run_durably(move |transaction| {
            let select = "SELECT document FROM moves WHERE id = ?1";
            let is: Option<Migration> =
                transaction.query_row(select, [&id], |row| parse_column(row, 0)).optional()?.flatten();
            match is.filter(|is| is.state == state) {
                Some(is) => store_migration(transaction, &Migration { files: false, ..is }),
                None => Ok(()),
            }
        })
        .await
    }
}

pub fn insert_migration(transaction: &Transaction, new: &Migration) -> rusqlite::Result<MigrationPlacement> {
    let no = |why: String| Ok(MigrationPlacement::No(why));
    if let Some(why) = confirmation::explain_first_unconfirmed(transaction, [new.a.as_str(), &new.b])? {
        return no(why);
    }
    for machine in [&new.a, &new.b] {
        if let Some(other) = find_live(transaction, machine)? {
            return no(explain_migration_block(machine, &other));
        }
        let open = "SELECT 1 FROM orders WHERE machine = ?1 LIMIT 1";
        if transaction.query_row(open, [machine], |_| Ok(())).optional()?.is_some() {
            return no(format!("a reinstall of machine {machine} is ordered"));
        }
    }
    let installed = "SELECT 1 FROM allocations WHERE machine = ?1 AND id = ?2 AND succeeded = 1";
    if transaction.query_row(installed, [&new.a, &new.allocation], |_| Ok(())).optional()?.is_none() {
        return no(format!("allocation {} of machine {} is not installed", new.allocation, new.a));
    }
    store_migration(transaction, &Migration { fencing: Some(epoch::issue_token(transaction)?), ..new.clone() })?;
    Ok(MigrationPlacement::Yes)
}

/// Returns why nothing else can be ordered for a machine in a migration.
pub fn explain_migration_block(machine: &str, is: &Migration) -> String {
    let what = format!("machine {machine} is part of a migration of {} to {} ({})", is.a, is.b, is.state);
    match is.state.is_open() {
        true => format!("{what}: wait for its end, or cancel it with `drophammer machine move {} --cancel`", is.a),
        false => format!("{what}, and the files of the two machines are not updated yet: see the server's output"),
    }
}

/// Returns why nothing else can be ordered for this machine now.
pub(crate) fn explain_block(connection: &Connection, machine: &str) -> rusqlite::Result<Option<String>> {
    Ok(find_live(connection, machine)?.map(|is| explain_migration_block(machine, &is)))
}

pub fn find_live(connection: &Connection, machine: &str) -> rusqlite::Result<Option<Migration>> {
    let select = "SELECT document FROM moves WHERE live = 1 AND (a = ?1 OR b = ?1) LIMIT 1";
    let found = connection.prepare_cached(select)?.query_row([machine], |row| parse_column(row, 0)).optional()?;
    Ok(found.flatten())
}

pub fn find_last(connection: &Connection, machine: &str) -> rusqlite::Result<Option<Migration>> {
    let select = "SELECT document FROM moves WHERE a = ?1 OR b = ?1 ORDER BY live DESC, rowid DESC LIMIT 1";
    let found = connection.prepare_cached(select)?.query_row([machine], |row| parse_column(row, 0)).optional()?;
    Ok(found.flatten())
}

pub fn list_live(connection: &Connection) -> rusqlite::Result<Vec<Migration>> {
    let mut all = connection.prepare("SELECT document FROM moves WHERE live = 1 ORDER BY rowid")?;
    let all: Vec<Option<Migration>> =
        all.query_map([], |row| parse_column(row, 0))?.collect::<rusqlite::Result<_>>()?;
    Ok(all.into_iter().flatten().collect())
}

pub fn read_current_boots(connection: &Connection, a: &str, b: &str) -> rusqlite::Result<CurrentBoots> {
    let [a, b] = [boots::current_boot(connection, a)?, boots::current_boot(connection, b)?];
    Ok(CurrentBoots { a: a.map(|boot| boot.hash), b: b.map(|boot| boot.hash) })
}

/// Applies an event to the migration, and stores the result with all its effects.
pub fn apply_event(
    transaction: &Transaction,
    is: &Migration,
    word: &MigrationEvent,
) -> rusqlite::Result<Result<MigrationUpdate, String>> {
    let after = match is.apply_event(word) {
        Ok(after) => after,
        Err(why) => return Ok(Err(why)),
    };
    let news = after != *is;
    if news {
        apply_transition(transaction, is, &after)?;
        store_migration(transaction, &after)?;
        if let (MigrationState::Copying, Some(sender)) = (after.state, &after.sender) {
            // Like the boot of an installation that has started, it does not end after a day.
            transaction.execute("UPDATE boots SET begun = 1 WHERE hash = ?1", [sender.boot])?;
        }
    }
    Ok(Ok(MigrationUpdate { is: after, news }))
}

/// Applies a change of state to the rows of the allocation, and to what the machines may boot.
fn apply_transition(transaction: &Transaction, before: &Migration, after: &Migration) -> rusqlite::Result<()> {
    let Migration { id, a, b, allocation, .. } = after;
    match (before.state, after.state) {
        (before, after) if before == after => Ok(()),
        (_, MigrationState::Copying) => bar_allocations(transaction, b, allocation, id),
        (_, MigrationState::Booting) => {
            transfer_allocation(transaction, allocation, a, b)?;
            lift_bar(transaction, b, Some(allocation))?;
            bar_allocations(transaction, a, allocation, id)
        }
        (MigrationState::Booting, MigrationState::Cancelled) => {
            transfer_allocation(transaction, allocation, b, a)?;
            let marker = after.marker.as_ref().map(to_json_column).transpose()?;
            let update = "UPDATE allocations SET marker = ?3 WHERE machine = ?1 AND id = ?2";
            transaction.execute(update, params![a, allocation, marker])?;
            // Allocations that the source must not boot because of this migration.
            transaction.execute("DELETE FROM barred WHERE machine = ?1 AND move = ?2", [a, id])?;
            bar_allocations(transaction, b, allocation, id)
        }
        // Nothing was written.
        (_, MigrationState::Refused) => transaction.execute("DELETE FROM barred WHERE move = ?1", [id]).map(drop),
        _ => Ok(()),
    }
}

/// Transfers all rows of the allocation to another machine.
fn transfer_allocation(transaction: &Transaction, allocation: &str, from: &str, to: &str) -> rusqlite::Result<()> {
    for (table, column) in [("allocations", "id"), ("layouts", "allocation"), ("orders", "allocation")] {
        let delete = format!("DELETE FROM {table} WHERE machine = ?1 AND {column} = ?2");
        transaction.execute(&delete, [to, allocation])?;
        let update = format!("UPDATE {table} SET machine = ?3 WHERE machine = ?1 AND {column} = ?2");
        transaction.execute(&update, [from, allocation, to])?;
    }
    Ok(())
}

/// Returns what the files contain about a machine, or will contain when they are updated after the end of its migration.
pub fn effective_files(
    connection: &Connection,
    machine: &str,
    files: FileAllocation,
) -> rusqlite::Result<FileAllocation> {
    let ended = find_live(connection, machine)?
        .filter(|is| !is.state.is_open() && is.role_of(machine) == is.state.owner_role());
    Ok(ended.map_or(files, |is| FileAllocation::Allocated(is.allocation)))
}

/// Returns what the machine boots because of a migration; `None` if migrations do not affect it.
pub(crate) fn migration_boot(
    connection: &Connection,
    machine: &str,
    files: &FileAllocation,
) -> rusqlite::Result<Option<BootTarget>> {
    if let Some(is) = find_live(connection, machine)? {
        match is.boot_target(machine) {
            MigrationBoot::Ramdisk => return Ok(Some(BootTarget::Moving(is.role_of(machine), is.state))),
            MigrationBoot::Disk => return Ok(Some(BootTarget::Disk)),
            MigrationBoot::AsEver => {}
        }
    }
    let is_barred = match files {
        FileAllocation::Allocated(allocation) => is_barred(connection, machine, allocation)?,
        FileAllocation::Free => false,
        FileAllocation::Nothing => connection.prepare_cached(NOTHING_OF_ITS_OWN)?.exists([machine])?,
    };
    Ok(is_barred.then_some(BootTarget::Released))
}

pub fn store_migration(transaction: &Transaction, is: &Migration) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT INTO moves (id, a, b, allocation, state, live, created, document) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT (id) DO UPDATE SET state = ?5, live = ?6, document = ?8",
        params![is.id, is.a, is.b, is.allocation, is.state.name(), is.is_live(), is.created, to_json_column(is)?],
    )?;
    Ok(())
}
