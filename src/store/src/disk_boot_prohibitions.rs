//! Allocations that a machine must no longer boot from its disks after a migration.

use crate::sql::{self, Connection, Transaction, params};

/// Forbids the machine to boot this allocation, and all other allocations on record for the machine, from its disks.
/// Called when the machine's disks contain the system of this allocation, or a part of that system.
pub(crate) fn bar_allocations(transaction: &Transaction, machine: &str, allocation: &str, by: &str) -> sql::Result<()> {
    transaction.execute(
        "INSERT INTO barred (machine, allocation, move)
         SELECT ?1, ?2, ?3 UNION SELECT ?1, id, ?3 FROM allocations WHERE machine = ?1
         ON CONFLICT DO NOTHING",
        [machine, allocation, by],
    )?;
    Ok(())
}

/// Permits one allocation again, or all allocations if `allocation` is `None`. Called when the machine owns the
/// allocation again, or has been reinstalled.
pub fn remove_prohibition(transaction: &Transaction, machine: &str, allocation: Option<&str>) -> sql::Result<()> {
    let delete = "DELETE FROM barred WHERE machine = ?1 AND (?2 IS NULL OR allocation = ?2)";
    transaction.execute(delete, params![machine, allocation]).map(drop)
}

/// Returns whether the machine must not boot this allocation from its disks.
pub fn is_barred(connection: &Connection, machine: &str, allocation: &str) -> sql::Result<bool> {
    let select = connection.prepare_cached("SELECT 1 FROM barred WHERE machine = ?1 AND allocation = ?2")?;
    select.exists([machine, allocation])
}

/// SQL query that returns a row if the machine has barred allocations, and all of its installed allocations are barred.
pub(crate) const ALL_BARRED_QUERY: &str = "SELECT 1 FROM barred WHERE machine = ?1 AND NOT EXISTS (
     SELECT 1 FROM allocations a WHERE a.machine = ?1 AND a.succeeded = 1
         AND NOT EXISTS (SELECT 1 FROM barred b WHERE b.machine = a.machine AND b.allocation = a.id))";
