//! Machines that have no machine file. Any client that sends a request with a new UUID creates the record of such a
//! machine. The number of these records is limited, and each record is deleted a day after the machine's last request.

use super::boot_activity::BootActivity;
use super::boots::current_boot;
use super::{ServerState, now};
use crate::sql::{self, OptionalExtension, Transaction, params};
use common::error::Result;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

/// Maximum number of unknown machines. Operators rarely install more machines in their racks before they write the
/// machine files.
const MOST: u32 = 256;
/// Duration after which the record of an unknown machine is deleted if the machine has sent no further request.
const KEPT: Duration = Duration::hours(24);

/// SQL condition for unknown machines. A machine with an allocation in the database is not unknown, even if its machine
/// file was removed.
const ALL: &str =
    "stranger IS NOT NULL AND id NOT IN (SELECT machine FROM allocations UNION SELECT machine FROM barred)";

/// Records an unknown machine. Deletes the records of outdated unknown machines and, if the limit is reached, of
/// inactive ones. Returns false if the limit is reached and all unknown machines are active.
pub(crate) fn admit_machine(transaction: &Transaction, machine: &str, heard: &BootActivity) -> sql::Result<bool> {
    let there = transaction.query_row("SELECT 1 FROM machines WHERE id = ?1", [machine], |_| Ok(())).optional()?;
    if there.is_none() && !make_room(transaction, heard)? {
        return Ok(false);
    }
    transaction.execute(
        "INSERT INTO machines (id, last_seen, stranger) VALUES (?1, ?2, '1')
         ON CONFLICT (id) DO UPDATE SET last_seen = ?2, stranger = '1'",
        params![machine, now()],
    )?;
    Ok(true)
}

/// Records that the machine has a machine file.
pub(crate) fn mark_known(transaction: &Transaction, machine: &str) -> sql::Result<()> {
    transaction.execute("UPDATE machines SET stranger = NULL WHERE id = ?1", [machine]).map(drop)
}

impl ServerState {
    /// Records that the machine has a machine file, so that its events and its console log are stored.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn record_machine_file(&self, machine: &str) -> Result<()> {
        let machine = machine.to_owned();
        self.run_durably(move |transaction| mark_known(transaction, &machine)).await
    }

    /// Returns the ids of the unknown machines that have registered, sorted.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn list_unknown_machines(&self) -> Result<Vec<String>> {
        self.run_job(|connection| {
            let select = "SELECT id FROM machines WHERE stranger IS NOT NULL AND registered IS NOT NULL ORDER BY id";
            connection.prepare_cached(select)?.query_map([], |row| row.get(0))?.collect()
        })
        .await
    }
}

fn make_room(transaction: &Transaction, heard: &BootActivity) -> sql::Result<bool> {
    let long_ago = (OffsetDateTime::now_utc() - KEPT).format(&Rfc3339).unwrap_or_default();
    let select = format!("SELECT id, coalesce(last_seen, '') FROM machines WHERE {ALL} ORDER BY last_seen");
    let select = transaction.prepare(&select)?;
    let all: Vec<(String, String)> =
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<sql::Result<_>>()?;
    let mut left = all.len();
    for (id, seen) in all {
        let is_old = seen < long_ago;
        if !is_old && left < MOST as usize {
            break;
        }
        if is_old || !current_boot(transaction, &id)?.is_some_and(|boot| heard.is_active(&boot)) {
            delete_machine(transaction, &id)?;
            left -= 1;
        }
    }
    Ok(left < MOST as usize)
}

fn delete_machine(transaction: &Transaction, machine: &str) -> sql::Result<()> {
    transaction.execute("DELETE FROM machines WHERE id = ?1", [machine])?;
    for table in ["boots", "events", "log", "history"] {
        transaction.execute(&format!("DELETE FROM {table} WHERE machine = ?1"), [machine])?;
    }
    Ok(())
}
