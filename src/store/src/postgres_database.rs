//! Database in PostgreSQL, which any number of servers share.
//!
//! The id file in the directory of each server contains the identity of the database, as it does for a SQLite file. A
//! server therefore refuses another database, and an older copy of its own.

use crate::boot_activity::BootActivity;
use crate::change_listener;
use crate::database_file::{
    DatabaseFile, Durability, check_identity, count_transaction, read_identity, store_identity,
};
use crate::database_id::{self, DatabaseIdentity};
use crate::sql::postgres::PostgresConnection;
use crate::sql::{self, Connection, Transaction, convert_error, params};
use crate::store_address::PostgresAddress;
use crate::{ServerState, TokenHash, schema};
use common::error::Result;
use std::path::Path;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::watch;

impl DatabaseFile {
    /// Opens the database, and creates or upgrades its tables. `path` is the path that a SQLite file would have, which
    /// determines the path of the id file.
    ///
    /// # Errors
    /// Returns an error if the database is unreachable or unsuitable, or does not belong to the directory.
    pub(crate) fn open_postgres(
        address: &PostgresAddress,
        path: &Path,
        gone: watch::Sender<Option<String>>,
    ) -> Result<DatabaseFile> {
        let name = address.to_string();
        let failed = |error: sql::Error| convert_error(error, &format!("open the {name}"));
        let connection = Connection::from_postgres(PostgresConnection::connect(address.clone()).map_err(failed)?);
        schema::upgrade_schema(&connection).map_err(failed)?;
        // Another server may start with the same empty database.
        let transaction = connection.transaction().map_err(failed)?;
        let own = read_identity(&transaction).map_err(failed)?;
        let identity = find_identity(path, &name, own.clone())?;
        if own.is_none() {
            store_identity(&transaction, &identity).map_err(failed)?;
        }
        transaction.commit().map_err(failed)?;
        if let Some(postgres) = connection.as_postgres() {
            postgres.expect_identity(&identity);
        }
        Ok(DatabaseFile {
            connection,
            path: path.to_owned(),
            file: None,
            identity,
            unsynced: false,
            reader: None,
            gone,
        })
    }

    /// Runs one transaction on PostgreSQL. If `work` returns [`Durability::Synced`], counts the transaction as a durable
    /// one, notifies the other servers, and waits until it is on disk.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub(crate) fn run_on_postgres<T>(
        &mut self,
        work: impl FnOnce(&Transaction) -> sql::Result<(T, Durability)>,
    ) -> Result<T> {
        let committed = self.commit_counted(work);
        let (value, transactions) = self.add_context(committed)?;
        let Some(transactions) = transactions else { return Ok(value) };
        self.identity.transactions = transactions;
        if let Some(postgres) = self.connection.as_postgres() {
            postgres.expect_identity(&self.identity);
        }
        let counted = database_id::update_count(&database_id::id_path(&self.path), &self.identity);
        counted.map_err(|error| self.stop_server(error.to_string()))?;
        Ok(value)
    }

    /// Commits a transaction. If the transaction is a durable one, returns the new number of durable transactions.
    fn commit_counted<T>(
        &mut self,
        work: impl FnOnce(&Transaction) -> sql::Result<(T, Durability)>,
    ) -> sql::Result<(T, Option<i64>)> {
        let transaction = self.connection.transaction()?;
        let (value, durability) = work(&transaction)?;
        if durability == Durability::Deferred {
            return transaction.commit_deferred().map(|()| (value, None));
        }
        let transactions = count_transaction(&transaction)?;
        transaction.execute("SELECT pg_notify(?1, '')", [change_listener::CHANNEL])?;
        transaction.commit().map(|()| (value, Some(transactions)))
    }

    /// Exchanges the times of boots' last requests with the other servers of this database. Does nothing on SQLite.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub(crate) fn exchange_calls(&mut self, heard: &BootActivity) -> Result<()> {
        if self.connection.as_postgres().is_none() {
            return Ok(());
        }
        let calls = heard.take_unshared();
        let kept = heard.quiet.as_millis().try_into().unwrap_or(i64::MAX);
        let others = self.run_deferred(|transaction| {
            for (boot, age) in &calls {
                let upsert = format!(
                    "INSERT INTO boot_calls (boot, called) VALUES (?1, {NOW} - ?2)
                     ON CONFLICT (boot) DO UPDATE SET called = greatest(boot_calls.called, {NOW} - ?2)"
                );
                transaction.execute(&upsert, params![boot, to_milliseconds(*age)])?;
            }
            transaction.execute(&format!("DELETE FROM boot_calls WHERE called < {NOW} - ?1"), [kept])?;
            let select = format!("SELECT boot, {NOW} - called FROM boot_calls");
            let read = |row: &sql::Row| Ok((row.get(0)?, row.get::<_, i64>(1)?));
            transaction.prepare(&select)?.query_map([], read)?.collect::<sql::Result<Vec<(TokenHash, i64)>>>()
        })?;
        heard.record_shared(
            others.into_iter().map(|(boot, age)| (boot, Duration::from_millis(u64::try_from(age).unwrap_or_default()))),
        );
        Ok(())
    }
}

/// Returns the current time. Servers that share a PostgreSQL database use its clock, because their own clocks may differ.
pub(crate) fn read_clock(connection: &Connection) -> sql::Result<OffsetDateTime> {
    if connection.as_postgres().is_none() {
        return Ok(OffsetDateTime::now_utc());
    }
    let select = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)";
    let microseconds: i64 = connection.query_row(select, [], |row| row.get(0))?;
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(microseconds) * 1000);
    time.map_err(|error| sql::Error::conversion(0, error))
}

impl ServerState {
    /// Returns the current time by the clock that all servers of the database share.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn read_shared_clock(&self) -> Result<OffsetDateTime> {
        if !self.is_shared() {
            return Ok(OffsetDateTime::now_utc());
        }
        self.run_job(read_clock).await
    }
}

/// Time of PostgreSQL's clock in milliseconds. The clocks of the servers may differ.
const NOW: &str = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)";

fn to_milliseconds(age: Duration) -> i64 {
    i64::try_from(age.as_millis()).unwrap_or(i64::MAX)
}

/// Checks the identity of the database against the id file. A directory without an id file joins the database.
fn find_identity(path: &Path, name: &str, own: Option<DatabaseIdentity>) -> Result<DatabaseIdentity> {
    let file = database_id::id_path(path);
    match (own, database_id::read_id_file(&file)?) {
        (Some(own), None) => {
            database_id::write_id_file(&file, &own)?;
            Ok(own)
        }
        (own, _) => check_identity(path, name, false, own),
    }
}
