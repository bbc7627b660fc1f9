//! Events and reports of machines, for the operator.

use super::ServerState;
use common::error::Result;
use rusqlite::{OptionalExtension, params};

impl ServerState {
    /// Returns the last events of the machine with their times, the oldest first. An event is JSON.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn list_events(&self, machine: &str, most: u32) -> Result<Vec<(String, String)>> {
        let machine = machine.to_owned();
        self.run_job(move |connection| {
            let select = "SELECT time, event FROM events WHERE machine = ?1 ORDER BY id DESC LIMIT ?2";
            let mut select = connection.prepare_cached(select)?;
            let rows = select.query_map(params![machine, most], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let mut events = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            events.reverse();
            Ok(events)
        })
        .await
    }

    /// Returns the last report of the allocation, as JSON.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn last_report(&self, machine: &str, allocation: &str) -> Result<Option<String>> {
        let key = [machine.to_owned(), allocation.to_owned()];
        self.run_job(move |connection| {
            let select = "SELECT report FROM allocations WHERE machine = ?1 AND id = ?2";
            let report = connection.query_row(select, key, |row| row.get::<_, Option<String>>(0)).optional()?;
            Ok(report.flatten())
        })
        .await
    }
}
