//! Records of the database at the end of a run.

use super::history_checker::{DatabaseRecords, StoredEntry};
use super::postgres_process::PostgresProcess;
use common::error::{Context, Error, Phase, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
struct StoredRow {
    machine: String,
    #[serde(default)]
    kind: String,
    /// Id of the reinstall order; `NULL` for the first installation.
    order: Option<String>,
}

/// Reads the records that the checker requires.
///
/// # Errors
/// Returns an error if the database cannot be read, or contains unknown machines.
pub fn read_records(postgres: &PostgresProcess) -> Result<DatabaseRecords> {
    let entries =
        "SELECT machine, entry::json->>'kind' AS kind, entry::json->>'order' AS order FROM history ORDER BY id";
    let entries: Vec<StoredRow> = read_rows(postgres, entries)?;
    let orders: Vec<StoredRow> = read_rows(postgres, "SELECT machine, id AS order FROM orders")?;
    let suspended: Vec<StoredRow> =
        read_rows(postgres, "SELECT machine, id AS order FROM orders WHERE given_up = 1 AND begun = 0")?;
    let installed: Vec<StoredRow> =
        read_rows(postgres, "SELECT machine, NULL AS order FROM allocations WHERE succeeded = 1")?;
    let entry = |row: StoredRow| {
        let machine = machine_number(&row.machine)?;
        Ok(StoredEntry { machine, kind: row.kind, order: row.order.unwrap_or_default() })
    };
    let order = |row: StoredRow| Ok((machine_number(&row.machine)?, row.order.unwrap_or_default()));
    Ok(DatabaseRecords {
        entries: entries.into_iter().map(entry).collect::<Result<_>>()?,
        open_orders: orders.into_iter().map(order).collect::<Result<_>>()?,
        suspended_orders: suspended.into_iter().map(order).collect::<Result<_>>()?,
        installed: installed.into_iter().map(|row| machine_number(&row.machine)).collect::<Result<_>>()?,
    })
}

fn read_rows<T: DeserializeOwned>(postgres: &PostgresProcess, select: &str) -> Result<Vec<T>> {
    let text = postgres.query(&format!("SELECT coalesce(json_agg(rows), '[]') FROM ({select}) AS rows"))?;
    serde_json::from_str(&text).context(Phase::Control, || "read the database")
}

/// Returns the number of the machine with this id.
fn machine_number(id: &str) -> Result<u32> {
    let number = id.rsplit('-').next().and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| Error::new(Phase::Control, format!("{id} is not a simulated machine")))
}
