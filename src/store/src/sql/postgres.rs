//! Statements on PostgreSQL, through one session that is opened again after it was lost.
//!
//! * Transactions that write exclude each other across all processes: each acquires the same advisory lock first.
//! * Each call has a deadline. A session whose call exceeds the deadline is closed.
//! * If the session is lost before a commit, PostgreSQL rolls the transaction back, and nothing was changed. If it is
//!   lost during a commit, the outcome is unknown. The caller gets an error in both cases, and nothing is repeated.
//! * After a failed connection, calls fail immediately until the next attempt is due.
//! * If the host no longer accepts writes, for example because it has become a standby, all sessions of the process are
//!   closed, and the next ones are opened on a host that accepts writes.
//! * Transactions that wait at the same time can share one commit (`transaction_group`).

mod retry_delay;
pub(crate) mod session;
mod space_check;
mod transaction_group;
mod value_conversion;

use super::{Error, Result, Row, TransactionKind, Value};
use crate::database_id::DatabaseIdentity;
use crate::store_address::PostgresAddress;
use common::sync::lock_mutex;
use retry_delay::RetryDelay;
use session::Session;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::error::SqlState;
use transaction_group::{MAXIMUM_GROUP_DURATION, TransactionGroup};

/// Duration after which a call is abandoned. Longer than the timeouts of the session, because the errors of those
/// timeouts are more precise.
const CALL_DEADLINE: Duration = Duration::from_secs(20);

/// Time for which a transaction may hold the advisory lock without executing a statement. PostgreSQL then ends the
/// session, so a server that was paused or cut off within a transaction blocks the other servers only for this time.
const HOLDS_LOCK: Duration = Duration::from_secs(2);
/// Limit that replaces [`HOLDS_LOCK`] while a database is copied, because the copy reads its source between two
/// statements. The longer lock blocks no server, because no server uses the new database yet.
const COPIES: Duration = Duration::from_secs(60);

/// Key of the advisory lock that transactions hold while they write. PostgreSQL keeps the advisory locks of different
/// databases apart.
const WRITE_LOCK: i64 = 0x6472_6f70_6861_6d6d;

pub(crate) struct PostgresConnection {
    address: PostgresAddress,
    runtime: Runtime,
    session: RefCell<Option<Session>>,
    /// Reason why the latest session has ended.
    end_reason: RefCell<String>,
    delay: RefCell<RetryDelay>,
    /// Identity that the database must have when a session is opened again.
    expected: Arc<Mutex<Option<DatabaseIdentity>>>,
    /// Number of sessions that were closed because their host no longer accepted writes; shared with the connections
    /// that [`PostgresConnection::connect_again`] has opened.
    demotions: Arc<AtomicU64>,
    /// Value of `demotions` when the session was opened.
    demotions_at_open: Cell<u64>,
    /// True if transactions that write are committed in transaction groups.
    is_grouping: Cell<bool>,
    /// Time after which a transaction group accepts no further transaction.
    group_limit: Cell<Duration>,
    group: RefCell<Option<TransactionGroup>>,
    /// True if a statement failed for lack of space, and no later check found free space.
    lacks_space: Cell<bool>,
}

impl PostgresConnection {
    /// Connects to the database. Must be called on the thread that uses the connection, outside of any runtime.
    pub(crate) fn connect(address: PostgresAddress) -> Result<PostgresConnection> {
        PostgresConnection::connect_to(address, Arc::default(), Arc::default())
    }

    /// Opens another connection, which expects the same identity of the database.
    pub(crate) fn connect_again(&self) -> Result<PostgresConnection> {
        PostgresConnection::connect_to(self.address.clone(), self.expected.clone(), self.demotions.clone())
    }

    fn connect_to(
        address: PostgresAddress,
        expected: Arc<Mutex<Option<DatabaseIdentity>>>,
        demotions: Arc<AtomicU64>,
    ) -> Result<PostgresConnection> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::Unavailable(error.to_string()))?;
        let connection = PostgresConnection {
            address,
            runtime,
            session: RefCell::default(),
            end_reason: RefCell::default(),
            delay: RefCell::default(),
            expected,
            demotions,
            demotions_at_open: Cell::default(),
            is_grouping: Cell::default(),
            group_limit: Cell::new(MAXIMUM_GROUP_DURATION),
            group: RefCell::default(),
            lacks_space: Cell::default(),
        };
        connection.open_session()?;
        Ok(connection)
    }

    /// Sets the identity that the database must have in later sessions. The database's number of transactions may be
    /// higher.
    pub(crate) fn expect_identity(&self, identity: &DatabaseIdentity) {
        *lock_mutex(&self.expected) = Some(identity.clone());
    }

    pub(super) fn begin(&self, kind: TransactionKind) -> Result<()> {
        if self.has_group() || (kind == TransactionKind::Write && self.is_grouping.get()) {
            return self.begin_in_group(kind);
        }
        self.begin_transaction(kind)
    }

    fn begin_transaction(&self, kind: TransactionKind) -> Result<()> {
        let begin = match kind {
            TransactionKind::Read => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY".to_owned(),
            // At this isolation level, each statement sees everything that was committed before it began. The
            // statements after the lock therefore see everything that other processes committed before the lock was
            // acquired.
            TransactionKind::Write => format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED; {} SELECT pg_advisory_xact_lock({WRITE_LOCK})",
                limit_idle_time(HOLDS_LOCK)
            ),
        };
        if self.demotions.load(Ordering::Relaxed) != self.demotions_at_open.get() {
            self.session.replace(None);
        }
        let was_open = self.session.borrow().is_some();
        if !was_open {
            self.open_session()?;
        }
        let began = Instant::now();
        match self.execute_batch(&begin) {
            // The session was lost while it was idle, so nothing was executed in this transaction, and a new session is
            // opened. After a timeout, no second attempt is made, because it would also time out if PostgreSQL hangs.
            Err(Error::Unavailable(_))
                if was_open && self.session.borrow().is_none() && began.elapsed() < CALL_DEADLINE =>
            {
                self.open_session()?;
                self.execute_batch(&begin)
            }
            started => started,
        }
        .inspect_err(|_| self.roll_back_transaction())
    }

    /// Raises the limit on pauses between statements ([`HOLDS_LOCK`]) for a transaction that copies a database.
    pub(crate) fn permit_pauses(&self) -> Result<()> {
        self.execute_batch(&limit_idle_time(COPIES))
    }

    pub(super) fn execute(&self, sql: &str, values: &[Value]) -> Result<usize> {
        let changed = self.call(async |session| session.execute(sql, values).await)?;
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }

    pub(super) fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>> {
        let rows = self.call(async |session| session.query(sql, values).await)?;
        rows.iter().map(value_conversion::read_row).collect()
    }

    pub(super) fn execute_batch(&self, sql: &str) -> Result<()> {
        self.call(async |session| session.execute_batch(sql).await)
    }

    pub(super) fn commit(&self, is_synced: bool) -> Result<()> {
        if self.session.borrow().as_ref().is_some_and(|session| session.has_failed) {
            // A failed transaction is rolled back explicitly. PostgreSQL would report its commit as successful,
            // although it rolls the transaction back.
            self.roll_back();
            return Err(Error::Unavailable("a statement of the transaction has failed".to_owned()));
        }
        if self.has_group() {
            return self.commit_in_group(is_synced);
        }
        self.run_commit(|| self.execute_batch(&format!("{}COMMIT", synchronous_commit(is_synced))))
    }

    /// Runs a call that contains a commit. If the session is lost during the call, the outcome is unknown.
    fn run_commit<T>(&self, commit: impl FnOnce() -> Result<T>) -> Result<T> {
        let was_open = self.session.borrow().is_some();
        commit().map_err(|error| match error {
            Error::Unavailable(why) if was_open && self.session.borrow().is_none() => Error::UnknownOutcome(why),
            error => error,
        })
    }

    pub(super) fn roll_back(&self) {
        match self.has_group() {
            true => self.roll_back_in_group(),
            false => self.roll_back_transaction(),
        }
    }

    fn roll_back_transaction(&self) {
        self.roll_back_with("ROLLBACK");
    }

    fn roll_back_with(&self, roll_back: &str) {
        if self.session.borrow().is_some() && self.execute_batch(roll_back).is_err() {
            // The session is closed, because PostgreSQL rolls the transaction back at the end of the session.
            self.session.replace(None);
        }
    }

    /// Runs one call. Closes the session if the call was not answered.
    fn call<T>(&self, work: impl AsyncFnOnce(&mut Session) -> Result<T, tokio_postgres::Error>) -> Result<T> {
        let mut slot = self.session.borrow_mut();
        let Some(session) = slot.as_mut() else {
            return Err(self.session_ended());
        };
        let done = self.runtime.block_on(async { tokio::time::timeout(CALL_DEADLINE, work(session)).await });
        match done {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                    self.demotions.fetch_add(1, Ordering::Relaxed);
                }
                let (error, is_lost) = classify_error(error);
                self.lacks_space.set(self.lacks_space.get() || matches!(error, Error::OutOfSpace(_)));
                session.has_failed = true;
                if is_lost || session.is_broken {
                    self.end_reason.replace(error.to_string());
                    *slot = None;
                }
                Err(error)
            }
            Err(_) => {
                let why = format!("no response within {} s", CALL_DEADLINE.as_secs());
                self.end_reason.replace(why.clone());
                *slot = None;
                Err(Error::Unavailable(why))
            }
        }
    }

    fn session_ended(&self) -> Error {
        Error::Unavailable(format!("the session has ended: {}", self.end_reason.borrow()))
    }

    fn open_session(&self) -> Result<()> {
        self.delay.borrow().check()?;
        self.demotions_at_open.set(self.demotions.load(Ordering::Relaxed));
        let opened = self.runtime.block_on(async {
            let expected = lock_mutex(&self.expected).clone();
            let opening = Session::open(&self.address, expected);
            tokio::time::timeout(CALL_DEADLINE, opening).await.unwrap_or_else(|_| {
                Err(Error::Unavailable(format!("no response within {} s", CALL_DEADLINE.as_secs())))
            })
        });
        match opened {
            Ok(session) => {
                self.session.replace(Some(session));
                self.delay.borrow_mut().reset();
                Ok(())
            }
            Err(error) => {
                self.delay.borrow_mut().postpone(&error);
                Err(error)
            }
        }
    }
}

/// Returns the statement that makes a commit not wait for the disk; empty if the commit must be synced.
fn synchronous_commit(is_synced: bool) -> &'static str {
    if is_synced { "" } else { "SET LOCAL synchronous_commit TO off; " }
}

/// Returns the statement that limits the time between two statements of the current transaction.
fn limit_idle_time(limit: Duration) -> String {
    format!("SET LOCAL idle_in_transaction_session_timeout TO '{}ms';", limit.as_millis())
}

/// Converts an error. Also returns whether the session was lost.
fn classify_error(error: tokio_postgres::Error) -> (Error, bool) {
    let Some(refused) = error.as_db_error() else {
        let is_lost =
            error.is_closed() || std::error::Error::source(&error).is_some_and(|source| source.is::<std::io::Error>());
        return (if is_lost { Error::Unavailable(describe_error(&error)) } else { Error::Postgres(error) }, is_lost);
    };
    let code = refused.code();
    // SQLSTATE class 08: connection exception. 57P01 to 57P05 and 25P03: PostgreSQL ends the session. 25006: the host
    // does not accept writes, so the session is useless.
    let is_lost = code.code().starts_with("08")
        || code.code().starts_with("57P")
        || code.code() == "25P03"
        || *code == SqlState::READ_ONLY_SQL_TRANSACTION;
    // SQLSTATE class 53: insufficient resources, such as too many connections. Class 58: I/O error.
    let is_passing = code.code().starts_with("53")
        || code.code().starts_with("58")
        || [SqlState::QUERY_CANCELED, SqlState::LOCK_NOT_AVAILABLE].contains(code);
    let message = format!("{} ({})", refused.message(), code.code());
    if *code == SqlState::DISK_FULL {
        return (Error::OutOfSpace(message), false);
    }
    (if is_lost || is_passing { Error::Unavailable(message) } else { Error::Postgres(error) }, is_lost)
}

/// Returns the message of an error, followed by the message of its source. Neither message contains the connection's
/// parameters.
fn describe_error(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}").replace(&format!(": {source}: {source}"), &format!(": {source}")),
        None => error.to_string(),
    }
}
