//! Orders and events of migrations, and their effects on allocations. `migration_records` stores migrations.
//!
//! Each change is one durable transaction, and the response to the request is sent after the transaction. The
//! transaction that records the target's success also transfers the allocation's rows to the target machine.

pub mod install_reports;

use super::disk_boot_prohibitions::{bar_allocations, remove_prohibition};
use super::install_attempt::AttemptStart;
use super::json_columns::to_json_column;
use super::machine_migration::{Migration, MigrationEvent, MigrationState};
use super::migration_records::{explain_migration_block, find_live, read_current_boots, store_migration};
use super::{ServerState, database_epoch, operator_documents, restore_confirmation};
use crate::sql::{self, Connection, OptionalExtension, Transaction, params};
use common::error::Result;

/// Result of ordering a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MigrationPlacement {
    Placed,
    /// The migration cannot be ordered, because a record has changed after the order was checked. Contains the reason.
    Rejected(String),
}

/// Response to a target machine that requests permission to pass the point of no return of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "each request contains only one value of this enum")]
pub enum CopyStart {
    /// The machine is not the target of a live migration.
    NotTarget,
    /// The decision was based on outdated documents, and must be repeated.
    Outdated,
    /// The started migration, or the reason why the target must not start to copy.
    Decided(Result<MigrationUpdate, String>),
}

/// State of a migration after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationUpdate {
    pub migration: Migration,
    /// True if the event has changed the migration.
    pub news: bool,
}

impl ServerState {
    /// Stores the order of a migration. If an order or a migration is already open for one of the machines, stores
    /// nothing and returns the reason.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn place_migration(&self, new: Migration) -> Result<MigrationPlacement> {
        self.run_durably(move |transaction| insert_migration(transaction, &new)).await
    }

    /// Records an event of the machine's migration, with all its effects. A system that reports that it runs does not
    /// finish a migration that needs confirmation after a restore. Returns `None` if the machine has no live
    /// migration with this id (see `Migration::is_live`). An empty id matches any migration. The inner error is the
    /// reason why the event is rejected.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn apply_migration_event(
        &self,
        machine: &str,
        id: &str,
        word: MigrationEvent,
    ) -> Result<Option<Result<MigrationUpdate, String>>> {
        let (machine, id) = (machine.to_owned(), id.to_owned());
        self.run_durably(move |transaction| {
            let Some(migration) =
                find_live(transaction, &machine)?.filter(|migration| id.is_empty() || migration.id == id)
            else {
                return Ok(None);
            };
            if matches!(word, MigrationEvent::PhonedHome(_))
                && let Some(why) = explain_unconfirmed(transaction, &migration)?
            {
                return Ok(Some(Err(why)));
            }
            apply_event(transaction, &migration, &word).map(Some)
        })
        .await
    }

    /// Records that the target machine passes its point of no return. If the target must not start to copy, records
    /// nothing.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn start_migration_copy(&self, machine: &str, start: AttemptStart) -> Result<CopyStart> {
        let machine = machine.to_owned();
        self.run_durably(move |transaction| {
            if operator_documents::has_changed(transaction, &start.based_on)? {
                return Ok(CopyStart::Outdated);
            }
            let Some(migration) = find_live(transaction, &machine)?.filter(|migration| migration.target == machine)
            else {
                return Ok(CopyStart::NotTarget);
            };
            if let Some(why) = explain_unconfirmed(transaction, &migration)? {
                return Ok(CopyStart::Decided(Err(why)));
            }
            let now = read_current_boots(transaction, &migration.source, &migration.target)?;
            let word = MigrationEvent::StartRequested { start, now };
            apply_event(transaction, &migration, &word).map(CopyStart::Decided)
        })
        .await
    }
}

/// Returns the reason why the migration must not proceed, or `None` if neither of its machines needs confirmation after
/// a restore.
fn explain_unconfirmed(connection: &Connection, migration: &Migration) -> sql::Result<Option<String>> {
    let machines = [migration.source.as_str(), &migration.target];
    restore_confirmation::explain_first_unconfirmed(connection, machines)
}

pub fn insert_migration(transaction: &Transaction, new: &Migration) -> sql::Result<MigrationPlacement> {
    let no = |why: String| Ok(MigrationPlacement::Rejected(why));
    if let Some(why) = explain_unconfirmed(transaction, new)? {
        return no(why);
    }
    for machine in [&new.source, &new.target] {
        if let Some(other) = find_live(transaction, machine)? {
            return no(explain_migration_block(machine, &other));
        }
        // Orders of other allocations are ignored, because those allocations were removed from the machine file, unless
        // such an order has started and is not abandoned: its attempt may still write to the disks.
        let open =
            "SELECT 1 FROM orders WHERE machine = ?1 AND (allocation = ?2 OR (begun > 0 AND given_up = 0)) LIMIT 1";
        if transaction.query_row(open, [machine, &new.allocation], |_| Ok(())).optional()?.is_some() {
            return no(format!("a reinstall of machine {machine} is ordered"));
        }
    }
    let installed = "SELECT 1 FROM allocations WHERE machine = ?1 AND id = ?2 AND succeeded = 1";
    if transaction.query_row(installed, [&new.source, &new.allocation], |_| Ok(())).optional()?.is_none() {
        return no(format!(
            "allocation {allocation} of machine {machine} is not installed",
            allocation = new.allocation,
            machine = new.source
        ));
    }
    store_migration(
        transaction,
        &Migration { fencing: Some(database_epoch::issue_token(transaction)?), ..new.clone() },
    )?;
    Ok(MigrationPlacement::Placed)
}

/// Applies an event, and stores the result with all its effects. The inner error is the reason of a rejection.
pub fn apply_event(
    transaction: &Transaction,
    migration: &Migration,
    word: &MigrationEvent,
) -> sql::Result<Result<MigrationUpdate, String>> {
    let after = match migration.apply_event(word) {
        Ok(after) => after,
        Err(why) => return Ok(Err(why)),
    };
    let news = after != *migration;
    if news {
        apply_transition(transaction, migration, &after)?;
        store_migration(transaction, &after)?;
        if let (MigrationState::Copying, Some(sender)) = (after.state, &after.source_endpoint) {
            // As with a started installation, the source's boot must not expire after a day.
            transaction.execute("UPDATE boots SET begun = 1 WHERE hash = ?1", [sender.boot])?;
        }
    }
    Ok(Ok(MigrationUpdate { migration: after, news }))
}

/// Applies the effects of a state change to the rows of the allocation, and to the records of allocations that machines
/// must not boot from their disks.
fn apply_transition(transaction: &Transaction, before: &Migration, after: &Migration) -> sql::Result<()> {
    let Migration { id, source, target, allocation, .. } = after;
    match (before.state, after.state) {
        (before, after) if before == after => Ok(()),
        (_, MigrationState::Copying) => bar_allocations(transaction, target, allocation, id),
        (_, MigrationState::Booting) => {
            transfer_allocation(transaction, allocation, source, target)?;
            remove_prohibition(transaction, target, Some(allocation))?;
            bar_allocations(transaction, source, allocation, id)
        }
        (MigrationState::Booting, MigrationState::Cancelled) => {
            transfer_allocation(transaction, allocation, target, source)?;
            let marker = after.marker.as_ref().map(to_json_column).transpose()?;
            let update = "UPDATE allocations SET marker = ?3 WHERE machine = ?1 AND id = ?2";
            transaction.execute(update, params![source, allocation, marker])?;
            // Permits the source to boot what this migration has forbidden.
            transaction.execute("DELETE FROM barred WHERE machine = ?1 AND move = ?2", [source, id])?;
            bar_allocations(transaction, target, allocation, id)
        }
        // Nothing was written to the target, so both machines may boot from their disks again.
        (_, MigrationState::Refused) => transaction.execute("DELETE FROM barred WHERE move = ?1", [id]).map(drop),
        _ => Ok(()),
    }
}

/// Transfers all rows of the allocation to another machine, and replaces the rows that the other machine already has
/// for this allocation.
fn transfer_allocation(transaction: &Transaction, allocation: &str, from: &str, to: &str) -> sql::Result<()> {
    for (table, column) in [("allocations", "id"), ("layouts", "allocation"), ("orders", "allocation")] {
        let delete = format!("DELETE FROM {table} WHERE machine = ?1 AND {column} = ?2");
        transaction.execute(&delete, [to, allocation])?;
        let update = format!("UPDATE {table} SET machine = ?3 WHERE machine = ?1 AND {column} = ?2");
        transaction.execute(&update, [from, allocation, to])?;
    }
    Ok(())
}
