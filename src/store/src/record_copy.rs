//! Copy of the records of all machines in memory, for lists and scans of a PostgreSQL database. Each query to
//! PostgreSQL costs a round trip, and the records of a machine take about fifteen queries: for ten thousand machines,
//! more than ten seconds. Copying the tables takes about a second.
//!
//! The copy contains only tables that the records of machines are read from, and no registrations, which are large. A
//! query that needs anything else fails, instead of returning nothing.

use super::ServerState;
use super::read_connection::ReadConnection;
use crate::schema;
use crate::sql::{self, Connection, TransactionKind};
use crate::table_copy;
use common::error::{Error, Phase, Result};

/// Tables that are copied.
const TABLES: [&str; 12] = [
    "allocations",
    "barred",
    "boots",
    "confirmed",
    "epoch",
    "former",
    "identity",
    "layouts",
    "machines",
    "moves",
    "orders",
    "out_of_band",
];

/// Columns of `machines` that are not copied.
const OMITTED_COLUMNS: [&str; 2] = ["registered", "macs"];

/// Number of machines from which copying all records is faster than reading the records of each machine.
pub const COPY_FROM: usize = 500;

/// Copies the records of all machines into a new database in memory.
pub(crate) fn copy_records(from: &Connection) -> sql::Result<Connection> {
    let to = Connection::from_sqlite(rusqlite::Connection::open_in_memory()?);
    let target = to.transaction()?;
    schema::create_tables(&target)?;
    remove_other_parts(&target)?;
    let source = from.begin(TransactionKind::Read)?;
    for table in TABLES {
        table_copy::copy_table(&source, &target, table)?;
    }
    source.commit()?;
    target.commit()?;
    Ok(to)
}

/// Removes all triggers, other tables, and omitted columns.
fn remove_other_parts(target: &Connection) -> sql::Result<()> {
    let select = "SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'table') AND name NOT LIKE 'sqlite_%'
         ORDER BY type DESC";
    let parts: Vec<(String, String)> =
        target.prepare(select)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<sql::Result<_>>()?;
    for (kind, name) in parts.iter().filter(|(kind, name)| kind == "trigger" || !TABLES.contains(&name.as_str())) {
        target.execute_batch(&format!("DROP {kind} {name}"))?;
    }
    for column in OMITTED_COLUMNS {
        target.execute_batch(&format!("ALTER TABLE machines DROP COLUMN {column}"))?;
    }
    Ok(())
}

impl ServerState {
    /// Returns a handle that reads install states and the records for lists from a copy of the current records in
    /// memory. Returns an ordinary handle if the database is a SQLite file, whose records are read fast enough.
    /// Blocks the calling thread. The copy is freed with the handle.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub fn with_record_copy_blocking(&self) -> Result<ServerState> {
        let copy = match &self.reader {
            Some(reader) => reader.copy_records()?,
            None => None,
        };
        let mut state = self.clone();
        state.record_copy = copy;
        Ok(state)
    }

    /// Variant of [`ServerState::with_record_copy_blocking`] that does not block the calling thread.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn with_record_copy(&self) -> Result<ServerState> {
        let state = self.clone();
        let copied = tokio::task::spawn_blocking(move || state.with_record_copy_blocking()).await;
        copied.unwrap_or_else(|_| Err(Error::new(Phase::Serve, "copying the records panicked")))
    }

    /// Reads records of machines from the copy or, if there is none, with the second connection.
    pub(crate) async fn read_records<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> sql::Result<T> + Send + 'static,
    ) -> Result<T> {
        let Some(copy) = self.record_copy.clone() else { return self.read_committed(work).await };
        let read = tokio::task::spawn_blocking(move || copy.read(work)).await;
        read.unwrap_or_else(|_| Err(Error::new(Phase::Serve, "reading the copied records panicked")))
    }

    /// Blocking variant of [`ServerState::read_records`].
    pub(crate) fn read_records_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> sql::Result<T> + Send + 'static,
    ) -> Result<T> {
        match &self.record_copy {
            Some(copy) => copy.read(work),
            None => self.read_committed_blocking(work),
        }
    }
}

impl ReadConnection {
    /// Copies the records of a PostgreSQL database with a connection of its own, so that other reads do not wait.
    /// Returns `None` for a SQLite file.
    fn copy_records(&self) -> Result<Option<ReadConnection>> {
        let Some(postgres) = self.connect_again()? else { return Ok(None) };
        self.with_connection(copy_records(&postgres)).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_address::PostgresAddress;
    use std::time::Duration;

    const RECORDS: &str = "
        INSERT INTO machines (id, last_seen, last_event) VALUES ('m', 't', '{\"event\": \"Alive\"}');
        INSERT INTO allocations (machine, id, created, succeeded, image) VALUES ('m', 'a', 't', 1, 'i'), ('n', 'b', 't', 0, NULL);
        INSERT INTO layouts (machine, allocation, layout) VALUES ('m', 'a', 'l');
        INSERT INTO orders (machine, allocation, id, image, created, without_marker) VALUES ('m', 'a', 'o', 'i', 't', 0);
        INSERT INTO confirmed (machine, by, time) VALUES ('m', 'x', 't');
        INSERT INTO former (former, machine) VALUES ('old', 'm');
        INSERT INTO barred (machine, allocation, move) VALUES ('n', 'b', '1');";

    #[tokio::test(flavor = "multi_thread")]
    async fn copied_records_equal_those_in_the_database() {
        let Some(server) = testing::postgres::shared() else { return };
        let address = PostgresAddress::parse(&server.create_database("record_copy")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let open = move || ServerState::open_postgres(&address, &path, Duration::ZERO).unwrap();
        let state = tokio::task::spawn_blocking(open).await.unwrap();
        state.run_deferred(|transaction| transaction.execute_batch(RECORDS)).await.unwrap();
        let copy = state.with_record_copy().await.unwrap();
        let machines: Vec<(String, Option<String>)> =
            [("m", Some("a")), ("n", Some("b")), ("n", None), ("absent", Some("a"))]
                .map(|(machine, allocation)| (machine.to_owned(), allocation.map(str::to_owned)))
                .to_vec();
        let copied = format!("{:?}", copy.read_machine_records(machines.clone()).await.unwrap());
        assert_eq!(copied, format!("{:?}", state.read_machine_records(machines).await.unwrap()));
        assert!(copied.contains("\"o\"") && copied.contains("Alive") && copied.contains("\"old\""), "{copied}");
        // The copy does not change with the database, and refuses to read what it does not contain.
        state.run_deferred(|transaction| transaction.execute_batch("DELETE FROM orders")).await.unwrap();
        let machine = || ("m".to_owned(), Some("a".to_owned()));
        let read = format!("{:?}", copy.read_machine_records(vec![machine()]).await.unwrap());
        assert!(read.contains("\"o\"") && !copied.is_empty());
        for absent in ["SELECT count(*) FROM users", "SELECT count(registered) FROM machines"] {
            let count = move |connection: &Connection| connection.query_row(absent, [], |row| row.get::<_, i64>(0));
            assert!(copy.read_records(count).await.is_err(), "{absent}");
            assert!(state.read_records(count).await.is_ok(), "{absent}");
        }
    }

    #[test]
    fn only_a_postgresql_database_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        let state = ServerState::open(&dir.path().join("drophammer.sqlite"), Duration::ZERO).unwrap();
        assert_eq!(state.with_record_copy_blocking().unwrap().record_copy.is_some(), state.is_shared());
    }
}
