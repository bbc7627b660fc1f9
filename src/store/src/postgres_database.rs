//! Database in PostgreSQL, which any number of servers share.
//!
//! As with a SQLite file, the id file in the directory of each server contains the identity of the database. A server
//! therefore refuses another database, and an older copy of its own database.

use crate::boot_activity::BootActivity;
use crate::change_listener;
use crate::change_scope::ChangeScope;
use crate::database_file::{DatabaseFile, read_identity, store_identity};
use crate::database_id::{self, DatabaseIdentity, check_identity};
use crate::sql::postgres::PostgresConnection;
use crate::sql::{self, Connection, convert_error, params};
use crate::store_address::PostgresAddress;
use crate::{TokenHash, schema};
use common::error::Result;
use std::path::Path;
use std::time::Duration;
use tokio::sync::watch;

impl DatabaseFile {
    /// Opens the database, and creates or upgrades its tables. `path` is the path that a SQLite file would have, which
    /// determines the path of the id file. `origin` is the id of this server in its notifications.
    ///
    /// # Errors
    /// Returns an error if the database is unreachable or unsuitable, or does not belong to the directory.
    pub(crate) fn open_postgres(
        address: &PostgresAddress,
        path: &Path,
        origin: String,
        gone: watch::Sender<Option<String>>,
    ) -> Result<DatabaseFile> {
        let name = address.to_string();
        let failed = |error: sql::Error| convert_error(error, &format!("open the {name}"));
        let connection = Connection::from_postgres(PostgresConnection::connect(address.clone()).map_err(failed)?);
        schema::upgrade_schema(&connection).map_err(failed)?;
        // A transaction is used, because another server may start with the same empty database at the same time.
        let transaction = connection.transaction().map_err(failed)?;
        let own = read_identity(&transaction).map_err(failed)?;
        let identity = find_identity(path, &name, own.clone())?;
        if own.is_none() {
            store_identity(&transaction, &identity).map_err(failed)?;
        }
        transaction.commit().map_err(failed)?;
        if let Some(postgres) = connection.as_postgres() {
            postgres.expect_identity(&identity);
            postgres.group_transactions();
        }
        Ok(DatabaseFile {
            connection,
            path: path.to_owned(),
            file: None,
            identity,
            unsynced: false,
            unsent: ChangeScope::default(),
            origin,
            reader: None,
            gone,
        })
    }

    /// Commits the open transaction group. If `is_counted` is true, counts the group as a durable transaction, and
    /// notifies the other servers of the machines whose records have changed.
    ///
    /// # Errors
    /// Returns an error if the group was not committed, or the outcome is unknown.
    pub(crate) fn commit_postgres_group(&mut self, is_counted: bool) -> Result<()> {
        let Some(postgres) = self.connection.as_postgres() else { return Ok(()) };
        let payload = std::mem::take(&mut self.unsent).to_payload(&self.origin);
        let notification = is_counted.then_some([change_listener::CHANNEL, payload.as_str()]);
        let committed = postgres.commit_group(notification);
        let Some(transactions) = self.stop_or_convert(committed)? else { return Ok(()) };
        self.record_count(transactions)?;
        if let Some(postgres) = self.connection.as_postgres() {
            postgres.expect_identity(&self.identity);
        }
        Ok(())
    }

    /// Checks whether there is space again, if a statement has failed for lack of space. Does nothing on SQLite: there,
    /// every write needs space, and thus detects a full disk.
    ///
    /// # Errors
    /// Returns an error if there is no space, or the database is unavailable.
    pub(crate) fn check_space(&mut self) -> Result<()> {
        let Some(postgres) = self.connection.as_postgres().filter(|postgres| postgres.lacks_space()) else {
            return Ok(());
        };
        let checked = self.connection.transaction().and_then(|transaction| {
            postgres.allocate_pages()?;
            // Rolls back the transaction, which frees the allocated pages.
            drop(transaction);
            postgres.record_free_space();
            Ok(())
        });
        self.stop_or_convert(checked)
    }

    /// Exchanges the times of boots' last requests with the other servers of this database, and records the number of
    /// transactions that all servers have committed. Does nothing on SQLite.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written. If a server of a newer version has upgraded the
    /// schema, this server stops.
    pub(crate) fn exchange_calls(&mut self, heard: &BootActivity) -> Result<()> {
        if self.connection.as_postgres().is_none() {
            return Ok(());
        }
        let (calls, clock) = (heard.take_unshared(), heard.clock.clone());
        let kept = heard.quiet.as_millis().try_into().unwrap_or(i64::MAX);
        let (others, transactions) = self.run_deferred(|transaction| {
            schema::refuse_newer_version(transaction)?;
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
            let times =
                transaction.prepare(&select)?.query_map([], read)?.collect::<sql::Result<Vec<(TokenHash, i64)>>>();
            let time = transaction.query_row(&format!("SELECT {NOW}"), [], |row| row.get(0))?;
            clock.record(time);
            let transactions = transaction.query_row("SELECT transactions FROM identity", [], |row| row.get(0))?;
            Ok((times?, transactions))
        })?;
        self.record_observed_count(transactions)?;
        heard.record_shared(
            others.into_iter().map(|(boot, age)| (boot, Duration::from_millis(u64::try_from(age).unwrap_or_default()))),
        );
        Ok(())
    }
    /// Records the number of transactions that other servers have committed, so that this server detects the loss of
    /// their transactions, for example after a failover.
    fn record_observed_count(&mut self, transactions: i64) -> Result<()> {
        if transactions > self.identity.transactions {
            self.record_count(transactions)?;
            self.connection.as_postgres().iter().for_each(|postgres| postgres.expect_identity(&self.identity));
        }
        Ok(())
    }
}

/// Time of PostgreSQL's clock in milliseconds. The clocks of the servers may differ.
pub(crate) const NOW: &str = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)";

fn to_milliseconds(age: Duration) -> i64 {
    i64::try_from(age.as_millis()).unwrap_or(i64::MAX)
}

/// Checks the identity of the database against the id file. A directory without an id file accepts any database.
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
