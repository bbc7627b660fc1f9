//! Access to the database through one interface for both engines, SQLite and PostgreSQL. The functions and types have
//! the same names as in rusqlite, as far as the store uses them.
//!
//! Statements are written once, in the common subset of both engines:
//!
//! * parameters are `?1`, `?2`, …, and booleans are the integers 0 and 1, which a statement compares explicitly
//!   (`begun = 1`);
//! * `ON CONFLICT … DO` replaces `INSERT OR …`, and `IS DISTINCT FROM` replaces `IS NOT`; in `DO UPDATE`, columns of
//!   the existing row are qualified with the name of their table;
//! * neither JSON functions nor `PRAGMA` nor `sqlite_master` are used, and subqueries in `FROM` have an alias.

mod error;
pub(crate) mod postgres;
mod sqlite;
mod statement;
mod value;

pub use error::{Error, OptionalExtension, Result, may_lack_space};
pub(crate) use error::{RESTORE_REMEDY, convert_error};
pub use statement::{Row, Statement};
pub use value::{ColumnIndex, FromValue, Params, ToValue, Value, ValueKind};

use postgres::PostgresConnection;
use std::cell::Cell;
use std::ops::Deref;

/// Parameters of a statement, of different types.
#[macro_export]
macro_rules! params {
    () => { [] as [$crate::sql::Value; 0] };
    ($($value:expr),+ $(,)?) => { [$($crate::sql::ToValue::to_value(&$value)),+] };
}
pub use params;

enum Engine {
    Sqlite(rusqlite::Connection),
    Postgres(Box<PostgresConnection>),
}

/// Connection to the database.
pub struct Connection {
    engine: Engine,
    /// Number of rows that were inserted, updated or deleted through this connection.
    changes: Cell<u64>,
}

/// Type of a transaction, which determines its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionKind {
    /// Snapshot of the database. On PostgreSQL, the transaction must not change anything.
    Read,
    /// Excludes all other transactions that write, including those of other processes.
    Write,
}

/// Transaction. Rolled back when it is dropped without a commit.
pub struct Transaction<'c> {
    connection: &'c Connection,
    is_open: bool,
    kind: TransactionKind,
}

impl Connection {
    pub(crate) fn from_sqlite(connection: rusqlite::Connection) -> Connection {
        connection.set_prepared_statement_cache_capacity(sqlite::STATEMENTS_CACHED);
        Connection { engine: Engine::Sqlite(connection), changes: Cell::new(0) }
    }

    pub(crate) fn from_postgres(connection: PostgresConnection) -> Connection {
        Connection { engine: Engine::Postgres(Box::new(connection)), changes: Cell::new(0) }
    }

    /// Opens a SQLite file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn open(path: &std::path::Path) -> Result<Connection> {
        Ok(Connection::from_sqlite(rusqlite::Connection::open(path)?))
    }

    /// Opens an empty SQLite database in memory.
    ///
    /// # Errors
    /// Returns an error if SQLite cannot allocate the database.
    #[cfg(any(test, feature = "testing"))]
    pub fn open_in_memory() -> Result<Connection> {
        Ok(Connection::from_sqlite(rusqlite::Connection::open_in_memory()?))
    }

    /// Returns the SQLite connection; `None` on PostgreSQL.
    pub(crate) fn as_sqlite(&self) -> Option<&rusqlite::Connection> {
        match &self.engine {
            Engine::Sqlite(connection) => Some(connection),
            Engine::Postgres(_) => None,
        }
    }

    /// Returns the PostgreSQL connection; `None` on SQLite.
    pub(crate) fn as_postgres(&self) -> Option<&PostgresConnection> {
        match &self.engine {
            Engine::Sqlite(_) => None,
            Engine::Postgres(connection) => Some(connection),
        }
    }

    /// Begins a transaction that writes.
    ///
    /// # Errors
    /// Returns an error if the lock for writing cannot be acquired.
    pub fn transaction(&self) -> Result<Transaction<'_>> {
        self.begin(TransactionKind::Write)
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// Returns an error if the database is unavailable, or its lock cannot be acquired.
    pub fn begin(&self, kind: TransactionKind) -> Result<Transaction<'_>> {
        match (&self.engine, kind) {
            (Engine::Sqlite(connection), TransactionKind::Read) => connection.execute_batch("BEGIN")?,
            (Engine::Sqlite(connection), TransactionKind::Write) => connection.execute_batch("BEGIN IMMEDIATE")?,
            (Engine::Postgres(connection), kind) => connection.begin(kind)?,
        }
        Ok(Transaction { connection: self, is_open: true, kind })
    }

    /// Executes a statement, and returns the number of rows that it changed.
    ///
    /// # Errors
    /// Returns an error if the statement fails.
    pub fn execute(&self, sql: &str, params: impl Params) -> Result<usize> {
        let values = params.to_values();
        let changed = match &self.engine {
            Engine::Sqlite(connection) => sqlite::execute(connection, sql, &values)?,
            Engine::Postgres(connection) => connection.execute(sql, &values)?,
        };
        self.count_changes(changed);
        Ok(changed)
    }

    /// Executes statements that have no parameters.
    ///
    /// # Errors
    /// Returns an error if a statement fails. The statements before it have been executed.
    pub fn execute_batch(&self, sql: &str) -> Result<()> {
        match &self.engine {
            Engine::Sqlite(connection) => Ok(connection.execute_batch(sql)?),
            Engine::Postgres(connection) => connection.execute_batch(sql),
        }
    }

    /// Returns the first row of a query, mapped by `map`.
    ///
    /// # Errors
    /// Returns [`Error::NoRows`] if the query returns no row, and another error if the query or `map` fails.
    pub fn query_row<T>(&self, sql: &str, params: impl Params, map: impl FnOnce(&Row) -> Result<T>) -> Result<T> {
        let rows = self.query(sql, &params.to_values())?;
        rows.first().map_or(Err(Error::NoRows), map)
    }

    /// Returns a statement that can be executed later.
    ///
    /// # Errors
    /// Always succeeds. If the statement is invalid, executing it returns an error.
    pub fn prepare(&self, sql: &str) -> Result<Statement<'_>> {
        Ok(Statement::new(self, sql))
    }

    /// Does the same as [`Connection::prepare`], because both engines cache all prepared statements.
    ///
    /// # Errors
    /// Fails as [`Connection::prepare`] does.
    pub fn prepare_cached(&self, sql: &str) -> Result<Statement<'_>> {
        self.prepare(sql)
    }

    /// Returns the number of rows that were changed through this connection.
    pub fn total_changes(&self) -> u64 {
        self.changes.get()
    }

    pub(crate) fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>> {
        let rows = match &self.engine {
            Engine::Sqlite(connection) => sqlite::query(connection, sql, values)?,
            Engine::Postgres(connection) => connection.query(sql, values)?,
        };
        // Of the statements that change rows, only those with `RETURNING` return rows and are executed here. `execute`
        // counts the rows that all others change.
        if !sql.trim_start().starts_with("SELECT") && sql.contains("RETURNING") {
            self.count_changes(rows.len());
        }
        Ok(rows)
    }

    fn count_changes(&self, changed: usize) {
        self.changes.set(self.changes.get().saturating_add(changed as u64));
    }
}

impl Transaction<'_> {
    /// Commits the transaction.
    ///
    /// # Errors
    /// Returns an error if the transaction was not committed, or if its outcome is unknown
    /// ([`Error::UnknownOutcome`]).
    pub fn commit(self) -> Result<()> {
        self.finish(true)
    }

    /// Commits the transaction. On PostgreSQL, a power failure may undo it until a later transaction is committed with
    /// [`Transaction::commit`].
    ///
    /// # Errors
    /// Fails as [`Transaction::commit`] does.
    pub fn commit_deferred(self) -> Result<()> {
        self.finish(false)
    }

    fn finish(mut self, is_synced: bool) -> Result<()> {
        self.is_open = false;
        match &self.connection.engine {
            Engine::Sqlite(connection) => {
                let done = connection.execute_batch("COMMIT");
                if done.is_err() {
                    sqlite::roll_back(connection);
                }
                Ok(done?)
            }
            Engine::Postgres(connection) => connection.commit(is_synced).map_err(|error| match error {
                Error::UnknownOutcome(why) if self.kind == TransactionKind::Read => Error::Unavailable(why),
                error => error,
            }),
        }
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.is_open {
            match &self.connection.engine {
                Engine::Sqlite(connection) => sqlite::roll_back(connection),
                Engine::Postgres(connection) => connection.roll_back(),
            }
        }
    }
}

impl Deref for Transaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}
