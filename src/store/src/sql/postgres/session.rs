//! Session with PostgreSQL: opening, settings and prepared statements.

use super::{classify_error, describe_error, value_conversion};
use crate::database_id::DatabaseIdentity;
use crate::schema;
use crate::sql::{Error, Result, Value, ValueKind};
use crate::store_address::PostgresAddress;
use std::collections::HashMap;
use std::sync::Arc;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage, Statement};

/// Settings of each session. They are set explicitly, because the configuration of the PostgreSQL server may turn off
/// synchronous commits, or lack timeouts.
const SETTINGS: &str = "SET synchronous_commit TO on; SET statement_timeout TO '15s'; SET lock_timeout TO '10s';
     SET idle_in_transaction_session_timeout TO '60s'; SET standard_conforming_strings TO on";

/// Oldest supported version of PostgreSQL, in the form of `server_version_num`.
const OLDEST_VERSION: u32 = 150_000;
/// Maximum number of prepared statements per session. It exceeds the number of different statements in this crate.
const STATEMENTS_CACHED: usize = 512;

pub(super) struct Session {
    client: Arc<Client>,
    statements: HashMap<(String, Vec<ValueKind>), Statement>,
    /// Savepoint statements that are sent together with the next statement, which saves a round trip.
    pub(super) pending: String,
    /// True if a pending statement has failed. The state of the transaction is then unknown.
    pub(super) is_broken: bool,
    /// True if a statement of the current transaction has failed.
    pub(super) has_failed: bool,
}

impl Session {
    pub(super) async fn open(address: &PostgresAddress, expected: Option<DatabaseIdentity>) -> Result<Session> {
        let client = connect(address, |_| ()).await?;
        client.batch_execute(SETTINGS).await.map_err(|error| classify_error(error).0)?;
        check_server(&client).await?;
        if let Some(expected) = expected {
            check_identity(&client, &expected).await?;
            check_schema_version(&client).await?;
        }
        let (client, statements, pending) = (Arc::new(client), HashMap::new(), String::new());
        Ok(Session { client, statements, pending, is_broken: false, has_failed: false })
    }

    pub(super) async fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64, tokio_postgres::Error> {
        let statement = self.prepare(sql, values).await?;
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
        let client = self.client.clone();
        self.run_after_pending(client.execute(&statement, &values)).await
    }

    pub(super) async fn query(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
        let statement = self.prepare(sql, values).await?;
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
        let client = self.client.clone();
        self.run_after_pending(client.query(&statement, &values)).await
    }

    pub(super) async fn execute_batch(&mut self, sql: &str) -> Result<(), tokio_postgres::Error> {
        let client = self.client.clone();
        self.run_after_pending(client.batch_execute(sql)).await?;
        self.has_failed = false;
        Ok(())
    }

    /// Executes a query and a commit in one round trip, and returns the rows of the query. If the query fails,
    /// PostgreSQL rolls the transaction back.
    pub(super) async fn query_and_commit(
        &mut self,
        sql: &str,
        values: &[Value],
        commit: &str,
    ) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
        let statement = self.prepare(sql, values).await?;
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as _).collect();
        let client = self.client.clone();
        let both = async {
            let (rows, committed) =
                tokio::join!(biased; client.query(&statement, &values), client.batch_execute(commit));
            rows.and_then(|rows| committed.map(|()| rows))
        };
        self.run_after_pending(both).await
    }

    /// Sends the pending statements and those of `work` together, and then waits for the responses of both.
    async fn run_after_pending<T>(
        &mut self,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, tokio_postgres::Error> {
        if self.pending.is_empty() {
            return work.await;
        }
        let pending = std::mem::take(&mut self.pending);
        let (sent, done) = tokio::join!(biased; self.client.batch_execute(&pending), work);
        self.is_broken |= sent.is_err();
        sent.and(done)
    }

    async fn prepare(&mut self, sql: &str, values: &[Value]) -> Result<Statement, tokio_postgres::Error> {
        let key = (sql.to_owned(), values.iter().map(Value::kind).collect::<Vec<_>>());
        if let Some(statement) = self.statements.get(&key) {
            return Ok(statement.clone());
        }
        let types: Vec<_> = key.1.iter().map(|kind| value_conversion::column_type(*kind)).collect();
        let (client, sql) = (self.client.clone(), number_parameters(sql));
        let statement = self.run_after_pending(client.prepare_typed(&sql, &types)).await?;
        if self.statements.len() >= STATEMENTS_CACHED {
            self.statements.clear();
        }
        self.statements.insert(key, statement.clone());
        Ok(statement)
    }
}

/// Connects to the database. `on_message` receives the notifications that arrive later.
pub(crate) async fn connect(
    address: &PostgresAddress,
    mut on_message: impl FnMut(AsyncMessage) + Send + 'static,
) -> Result<Client> {
    let failed = |error: tokio_postgres::Error| match error.as_db_error() {
        Some(_) => classify_error(error).0,
        None => Error::Unavailable(describe_error(&error)),
    };
    let (client, mut connection) = address.config().connect(address.tls()?).await.map_err(failed)?;
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            on_message(message);
        }
    });
    Ok(client)
}

async fn check_server(client: &Client) -> Result<()> {
    let version: u32 = show(client, "server_version_num").await?.parse().unwrap_or_default();
    if version < OLDEST_VERSION {
        return Err(Error::Unsuitable(format!(
            "the server has version {version}, but at least version {minimum} is required",
            version = version / 10_000,
            minimum = OLDEST_VERSION / 10_000
        )));
    }
    match show(client, "server_encoding").await?.as_str() {
        "UTF8" => Ok(()),
        other => Err(Error::Unsuitable(format!("the database has encoding {other}: create a database with UTF8"))),
    }
}

/// Returns whether the session can write. A session on a host that has become a standby cannot.
pub(crate) async fn accepts_writes(client: &Client) -> bool {
    show(client, "transaction_read_only").await.is_ok_and(|value| value == "off")
}

async fn show(client: &Client, setting: &str) -> Result<String> {
    read_first_row(client, &format!("SHOW {setting}")).await.map(|row| row.into_iter().next().unwrap_or_default())
}

async fn read_first_row(client: &Client, sql: &str) -> Result<Vec<String>> {
    let messages = client.simple_query(sql).await.map_err(|error| classify_error(error).0)?;
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.ok_or(Error::NoRows)?;
    Ok((0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect())
}

/// Checks that the database is the one that this server used before, and has not lost transactions.
async fn check_identity(client: &Client, expected: &DatabaseIdentity) -> Result<()> {
    let row = read_first_row(client, "SELECT id, transactions FROM identity").await.map_err(|error| match error {
        Error::Postgres(_) | Error::NoRows => {
            Error::Replaced("the database no longer contains the server's tables".to_owned())
        }
        error => error,
    })?;
    let [id, transactions] = row.as_slice() else { return Err(Error::NoRows) };
    let transactions: i64 = transactions.parse().unwrap_or_default();
    if *id != expected.id {
        return Err(Error::Replaced(format!(
            "the database was replaced: its id is {id}, not {expected}",
            expected = expected.id
        )));
    }
    if transactions < expected.transactions {
        return Err(Error::Replaced(format!(
            "the database has lost acknowledged changes: it contains {transactions} transactions instead of {expected}",
            expected = expected.transactions
        )));
    }
    Ok(())
}

/// Checks that no server of a newer version has upgraded the schema since the last session.
async fn check_schema_version(client: &Client) -> Result<()> {
    let row = read_first_row(client, schema::VERSION_QUERY).await?;
    let version = row.first().and_then(|version| version.parse().ok()).ok_or(Error::NoRows)?;
    schema::compare_version(version)
}

/// Converts the parameters `?1` to `$1`.
fn number_parameters(sql: &str) -> String {
    let mut converted = String::with_capacity(sql.len());
    let mut rest = sql.chars().peekable();
    while let Some(next) = rest.next() {
        let is_parameter = next == '?' && rest.peek().is_some_and(char::is_ascii_digit);
        converted.push(if is_parameter { '$' } else { next });
    }
    converted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbered_parameters_are_converted() {
        assert_eq!(number_parameters("SELECT '?', ?1, ?12 WHERE a = ?1"), "SELECT '?', $1, $12 WHERE a = $1");
    }
}
