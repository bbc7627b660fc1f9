//! Confirmations after a restore. The machines' disks may contain newer installations than a restored database
//! describes. Therefore every machine is unconfirmed at first, and no reinstall order, first installation or
//! migration is carried out on it. A machine is confirmed by the operator, or by a report that contains the install
//! marker that the database has recorded for the machine. Such a report does not confirm a reinstall order from before
//! the restore: the operator may have canceled the order after the backup, so only the operator can confirm it.

use super::{ServerState, database_epoch, now};
use crate::sql::{self, Connection, OptionalExtension, Transaction, params};
use common::error::Result;

/// Source of a machine's confirmation: the operator, or a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfirmedBy {
    Operator,
    /// A report of the machine with the recorded install marker.
    Marker,
}

impl ConfirmedBy {
    fn name(self) -> &'static str {
        match self {
            ConfirmedBy::Operator => "operator",
            ConfirmedBy::Marker => "marker",
        }
    }
}

/// Result of a confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfirmOutcome {
    Confirmed,
    /// The database was not restored, or all of its machines are confirmed.
    NothingToConfirm,
}

impl ServerState {
    /// Confirms that the database's record of the machine is up to date.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn confirm_machine(&self, machine: &str) -> Result<ConfirmOutcome> {
        let machine = machine.to_owned();
        self.run_durably(move |transaction| {
            if database_epoch::read_epoch(transaction)?.restored.is_none() {
                return Ok(ConfirmOutcome::NothingToConfirm);
            }
            insert_confirmation(transaction, &machine, ConfirmedBy::Operator)?;
            Ok(ConfirmOutcome::Confirmed)
        })
        .await
    }

    /// Confirms the records of all machines, including machines that are added later.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn confirm_all_machines(&self) -> Result<ConfirmOutcome> {
        self.run_durably(|transaction| {
            if database_epoch::read_epoch(transaction)?.restored.is_none() {
                return Ok(ConfirmOutcome::NothingToConfirm);
            }
            transaction.execute("DELETE FROM confirmed", [])?;
            transaction.execute("UPDATE epoch SET restored = NULL", [])?;
            Ok(ConfirmOutcome::Confirmed)
        })
        .await
    }

    /// Returns the reason why no installation or migration may be carried out on these machines, or `None` if none of
    /// them needs confirmation.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn explain_unconfirmed(&self, machines: Vec<String>) -> Result<Option<String>> {
        self.run_job(move |connection| explain_first_unconfirmed(connection, machines.iter().map(String::as_str))).await
    }
}

/// Returns whether the machine needs confirmation.
pub(crate) fn needs_confirmation(connection: &Connection, machine: &str) -> sql::Result<bool> {
    Ok(database_epoch::read_epoch(connection)?.restored.is_some() && read_source(connection, machine)?.is_none())
}

/// Returns whether a reinstall order was placed or confirmed after the last restore. `database` is the epoch in which
/// the reinstall order was placed.
pub(crate) fn is_confirmed_order(connection: &Connection, machine: &str, database: Option<&str>) -> sql::Result<bool> {
    let current = database_epoch::read_epoch(connection)?;
    let is_placed_since = database == Some(current.id.as_str());
    let is_by_operator = || Ok(read_source(connection, machine)?.as_deref() == Some(ConfirmedBy::Operator.name()));
    if current.restored.is_none() || is_placed_since { Ok(true) } else { is_by_operator() }
}

fn read_source(connection: &Connection, machine: &str) -> sql::Result<Option<String>> {
    let select = connection.prepare_cached("SELECT by FROM confirmed WHERE machine = ?1")?;
    select.query_row([machine], |row| row.get(0)).optional()
}

/// Returns the message that refuses a request because one of these machines needs confirmation. The message names the
/// first such machine. Returns `None` if there is no such machine.
pub(crate) fn explain_first_unconfirmed<'a>(
    connection: &Connection,
    machines: impl IntoIterator<Item = &'a str>,
) -> sql::Result<Option<String>> {
    Ok(find_unconfirmed(connection, machines)?.map(explain_confirmation))
}

/// Returns the first of these machines that needs confirmation, or `None` if there is no such machine.
pub(crate) fn find_unconfirmed<'a>(
    connection: &Connection,
    machines: impl IntoIterator<Item = &'a str>,
) -> sql::Result<Option<&'a str>> {
    for machine in machines {
        if needs_confirmation(connection, machine)? {
            return Ok(Some(machine));
        }
    }
    Ok(None)
}

/// Returns the message that refuses a request because the machine needs confirmation. The message contains the remedy.
pub fn explain_confirmation(machine: &str) -> String {
    format!(
        "machine {machine} needs confirmation: the server's database was restored from a backup, and its record of the machine may be outdated. Compare the record with the machine's disks, then run `drophammer machine confirm {machine}`"
    )
}

/// Records the confirmation of a machine.
pub(crate) fn insert_confirmation(transaction: &Transaction, machine: &str, by: ConfirmedBy) -> sql::Result<()> {
    let upsert = "INSERT INTO confirmed (machine, by, time) VALUES (?1, ?2, ?3)
         ON CONFLICT (machine) DO UPDATE SET by = ?2, time = ?3";
    transaction.execute(upsert, params![machine, by.name(), now()]).map(drop)
}

/// Transfers the confirmation of a machine from its old id to its new id. If the old id is not confirmed, the new id is
/// also not confirmed.
pub(crate) fn rename_confirmation(transaction: &Transaction, old: &str, new: &str) -> sql::Result<()> {
    transaction.execute("DELETE FROM confirmed WHERE machine = ?1", [new])?;
    transaction.execute("UPDATE confirmed SET machine = ?2 WHERE machine = ?1", [old, new]).map(drop)
}
