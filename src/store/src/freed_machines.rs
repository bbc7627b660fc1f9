//! Machines that the operator has freed. The system of the previous tenant may still run on such a machine.

use super::{ServerState, out_of_band_runs};
use crate::sql::{self, Connection, OptionalExtension, Transaction, params};
use common::error::Result;

/// SQL query that returns a row if the system of a previous tenant may run: an allocation other than the one in the
/// machine file is installed. The query returns no row if the allocation in the machine file is installed or its
/// installation has started, or if a registered boot of the machine has not ended.
const PREVIOUS_SYSTEM_QUERY: &str = "SELECT 1 FROM allocations a WHERE a.machine = ?1 AND a.id IS DISTINCT FROM ?2
         AND (a.succeeded = 1 OR a.adopted IS NOT NULL)
         AND NOT EXISTS (SELECT 1 FROM allocations b WHERE b.machine = ?1 AND b.id = ?2
             AND (b.succeeded = 1 OR b.adopted IS NOT NULL OR b.begun IS NOT NULL))
         AND NOT EXISTS (SELECT 1 FROM boots WHERE machine = ?1 AND address IS NOT NULL AND over IS NULL)";

impl ServerState {
    /// Records that the operator frees the machine. A boot that was requested before the machine was freed can no
    /// longer register.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn free_machine(&self, machine: &str) -> Result<()> {
        let (machine, time) = (machine.to_owned(), self.shared_timestamp());
        self.run_durably(move |transaction| {
            out_of_band_runs::delete_run(transaction, &machine)?;
            record_freed(transaction, &machine, &time)
        })
        .await
    }

    /// Returns whether the system of a previous tenant may still run on the machine. `allocation` is the allocation in
    /// the machine file.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn may_run_previous_system(&self, machine: &str, allocation: Option<&str>) -> Result<bool> {
        let (machine, allocation) = (machine.to_owned(), allocation.map(str::to_owned));
        self.run_job(move |connection| may_run_previous_system(connection, &machine, allocation.as_deref())).await
    }
}

/// Returns whether the system of a previous tenant may still run on the machine, according to
/// [`PREVIOUS_SYSTEM_QUERY`]. `allocation` is the allocation in the machine file.
pub(crate) fn may_run_previous_system(
    connection: &Connection,
    machine: &str,
    allocation: Option<&str>,
) -> sql::Result<bool> {
    connection.prepare_cached(PREVIOUS_SYSTEM_QUERY)?.exists(params![machine, allocation])
}

fn record_freed(transaction: &Transaction, machine: &str, time: &str) -> sql::Result<()> {
    let upsert = "INSERT INTO machines (id, freed) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET freed = ?2";
    transaction.execute(upsert, params![machine, time]).map(drop)
}

/// Returns the time at which the machine was last freed, as RFC 3339; `None` if it was never freed.
pub(crate) fn last_freed(connection: &Connection, machine: &str) -> sql::Result<Option<String>> {
    let select = "SELECT freed FROM machines WHERE id = ?1";
    connection.prepare_cached(select)?.query_row([machine], |row| row.get(0)).optional().map(Option::flatten)
}
