//! The database as a file. It is opened only if it is undamaged and belongs here. Every durable transaction is in this one file
//! when it ends. If somebody takes the file away, the server stops.
//!
//! With a write-ahead log (WAL), the many events of many machines cost no sync each. What must not get lost is synced, and then
//! moved from the log into the database file, so that a copy of this one file has all that matters.

use super::identity::{self, Identity};
use super::{schema, unremembered};
use crate::error::{Context, Error, Phase, Result};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, TransactionBehavior};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tokio::sync::watch;

/// Survival of a transaction's result when the power of the server fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The result is on the disk before its caller gets an answer.
    Synced,
    /// The result survives a crash of the server. A failure of its power may undo it, until a later transaction is synced: the log is in
    /// order.
    Deferred,
}

pub struct Store {
    pub connection: Connection,
    path: PathBuf,
    /// Device and inode of the file that was opened.
    file: (u64, u64),
    identity: Identity,
    /// Why the server has to stop.
    gone: watch::Sender<Option<String>>,
}

impl Store {
    /// Opens or creates the database, readable for its owner only: reports hold passwords.
    ///
    /// # Errors
    /// The file cannot be made, is no database of ours, is damaged, or is not the one that belongs here.
    pub fn open(path: &Path, gone: watch::Sender<Option<String>>) -> Result<Store> {
        let what = || format!("open the state file {}", path.display());
        let is_new = is_new(path)?;
        OpenOptions::new().create(true).append(true).mode(0o600).open(path).context(Phase::Serve, what)?;
        let mut connection = Connection::open(path).context(Phase::Serve, what)?;
        let settings = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=5000;";
        connection.execute_batch(settings).context(Phase::Serve, what)?;
        check(&connection, path)?;
        let own = of_database(&connection).context(Phase::Serve, what)?;
        let replaces_lost = is_new && identity::was_counting(path);
        let identity = belongs(path, is_new, own.clone())?;
        schema::bring_up_to_date(&mut connection).context(Phase::Serve, what)?;
        if own.is_none() {
            keep(&connection, &identity).context(Phase::Serve, what)?;
        }
        if replaces_lost {
            unremembered::note_loss(&connection).context(Phase::Serve, what)?;
        }
        into_the_file(&connection).context(Phase::Serve, what)?;
        let file = inode(path).context(Phase::Serve, what)?;
        Ok(Store { connection, path: path.to_owned(), file, identity, gone })
    }

    /// Opens the database of a server for reading alone: nothing is made, and nothing brought up to date. Each answer is one short
    /// transaction, for which the server waits nowhere.
    ///
    /// # Errors
    /// There is none, it is no database of ours, or of an earlier version.
    pub fn open_to_read(path: &Path, gone: watch::Sender<Option<String>>) -> Result<Store> {
        let what = || format!("open the state file {}", path.display());
        if is_new(path)? {
            let message = format!("{} is not there: no server has run in that directory", path.display());
            return Err(Error::refusal(Phase::Serve, message));
        }
        // A log can be read only with the file beside it that its readers share.
        let connection =
            Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).context(Phase::Serve, what)?;
        let settings = "PRAGMA busy_timeout=5000; PRAGMA query_only=ON;";
        connection.execute_batch(settings).context(Phase::Serve, what)?;
        let own = of_database(&connection).context(Phase::Serve, what)?;
        let is_current = schema::is_up_to_date(&connection).context(Phase::Serve, what)?;
        let Some(identity) = own.filter(|_| is_current) else {
            let message = format!("{} is of an earlier version: start its server once", path.display());
            return Err(Error::refusal(Phase::Serve, message));
        };
        let file = inode(path).context(Phase::Serve, what)?;
        Ok(Store { connection, path: path.to_owned(), file, identity, gone })
    }

    /// Runs one transaction, and syncs it if it says so. Transactions that any client can cause are deferred: a sync costs as
    /// much as hundreds of transactions.
    ///
    /// # Errors
    /// The database's. If the file is gone, the server stops.
    pub fn as_durable_as_needed<T>(
        &mut self,
        work: impl FnOnce(&Transaction) -> rusqlite::Result<(T, Durability)>,
    ) -> Result<T> {
        self.must_be_there()?;
        let done = (|| {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit().map(|()| done)
        })();
        let (value, durability) = done.context(Phase::Serve, || "the state file")?;
        if durability == Durability::Synced {
            self.sync()?;
        }
        Ok(value)
    }

    /// Syncs all transactions before this one.
    fn sync(&mut self) -> Result<()> {
        self.counted(|_| Ok(((), true)))
    }

    /// Runs one transaction, which is on the disk, in the one file, when this returns. One that changes nothing costs no sync. With the log, `synchronous=NORMAL`
    /// survives a crash of the server but not a failure of its power. What is acknowledged must survive both.
    ///
    /// # Errors
    /// The database's. If the file is gone, the server stops.
    pub fn durably<T>(&mut self, work: impl FnOnce(&Transaction) -> rusqlite::Result<T>) -> Result<T> {
        self.counted(|transaction| {
            let before = transaction.total_changes();
            let value = work(transaction)?;
            Ok((value, transaction.total_changes() > before))
        })
    }

    /// Runs one transaction; if it returns true, it is counted and synced.
    fn counted<T>(&mut self, work: impl FnOnce(&Transaction) -> rusqlite::Result<(T, bool)>) -> Result<T> {
        self.must_be_there()?;
        let (value, transactions) = self.commit(work).context(Phase::Serve, || "the state file")?;
        // If the file was deleted or replaced meanwhile, what was just written is gone with it.
        self.must_be_there()?;
        let Some(transactions) = transactions else { return Ok(value) };
        self.identity.transactions = transactions;
        let counted = identity::count(&identity::path(&self.path), &self.identity);
        counted.map_err(|error| self.stop(error.to_string()))?;
        Ok(value)
    }

    /// Returns the new count of transactions, if this one is counted.
    fn commit<T>(
        &mut self,
        work: impl FnOnce(&Transaction) -> rusqlite::Result<(T, bool)>,
    ) -> rusqlite::Result<(T, Option<i64>)> {
        self.connection.pragma_update(None, "synchronous", "FULL")?;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let result = work(&transaction).and_then(|(value, is_counted)| {
            let count = "UPDATE identity SET transactions = transactions + 1 RETURNING transactions";
            let count = || transaction.query_row(count, [], |row| row.get(0));
            let transactions = is_counted.then(count).transpose()?;
            transaction.commit().map(|()| (value, transactions))
        });
        self.connection.pragma_update(None, "synchronous", "NORMAL")?;
        let (value, transactions) = result?;
        if transactions.is_some() {
            into_the_file(&self.connection)?;
        }
        Ok((value, transactions))
    }

    /// Reads and writes one row, as a sign of life.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub fn pulse(&mut self) -> Result<()> {
        let update = "UPDATE identity SET transactions = transactions";
        self.connection.execute(update, []).map(drop).context(Phase::Serve, || "the state file")
    }

    /// Is the file at its place still the one that was opened?
    ///
    /// # Errors
    /// The file is gone or another one: the server stops.
    pub fn must_be_there(&self) -> Result<()> {
        match inode(&self.path) {
            Ok(file) if file == self.file => Ok(()),
            Ok(_) => Err(self.stop(format!("{} is another file than the one that was opened", self.path.display()))),
            Err(error) => Err(self.stop(format!("{} is gone: {error}", self.path.display()))),
        }
    }

    fn stop(&self, why: String) -> Error {
        let message = format!(
            "{why}. Nothing that machines and operators say would be remembered, so the server stops. Put the database back \
             (`drophammer serve restore`), and start again"
        );
        self.gone.send_replace(Some(message.clone()));
        Error::new(Phase::Serve, message)
    }
}

/// Moves the log into the database file, synced. While a backup reads the database, the log stays, which is as durable. The next
/// transaction moves it.
fn into_the_file(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

fn inode(path: &Path) -> std::io::Result<(u64, u64)> {
    fs::metadata(path).map(|is| (is.dev(), is.ino()))
}

/// Has this file never held what a server remembers? It does not exist, is empty, or lacks the tables.
///
/// # Errors
/// It is not a database.
pub fn is_new(path: &Path) -> Result<bool> {
    if fs::metadata(path).map_or(true, |is| is.len() == 0) {
        return Ok(true);
    }
    let what = || format!("open the state file {}", path.display());
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).context(Phase::Serve, what)?;
    let select = "SELECT 1 FROM sqlite_master WHERE name = 'allocations'";
    match connection.query_row(select, [], |_| Ok(())).optional() {
        // The list of tables itself is damaged.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt) => {
            Err(damaged(path, &error.to_string()))
        }
        there => Ok(there.context(Phase::Serve, what)?.is_none()),
    }
}

/// # Errors
/// The database is damaged.
pub fn check(connection: &Connection, path: &Path) -> Result<()> {
    let said: rusqlite::Result<String> = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
    let said = said.unwrap_or_else(|error| error.to_string());
    match said.as_str() {
        "ok" => Ok(()),
        damage => Err(damaged(path, damage)),
    }
}

fn damaged(path: &Path, damage: &str) -> Error {
    let (path, damage) = (path.display(), damage.replace('\n', " "));
    let message = format!("{path} is damaged: {damage}. Put a backup in its place with `drophammer serve restore`");
    Error::new(Phase::Serve, message)
}

/// The identity that is stored in the database itself; databases of earlier versions have none.
pub fn of_database(connection: &Connection) -> rusqlite::Result<Option<Identity>> {
    let select = "SELECT 1 FROM sqlite_master WHERE name = 'identity'";
    if connection.query_row(select, [], |_| Ok(())).optional()?.is_none() {
        return Ok(None);
    }
    let read = |row: &rusqlite::Row| Ok(Identity { id: row.get(0)?, transactions: row.get(1)? });
    connection.query_row("SELECT id, transactions FROM identity", [], read).optional()
}

/// Stores the identity in the database itself.
pub fn keep(connection: &Connection, identity: &Identity) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO identity (one, id, transactions) VALUES (1, ?1, ?2)
         ON CONFLICT (one) DO UPDATE SET id = ?1, transactions = ?2",
        rusqlite::params![identity.id, identity.transactions],
    )?;
    Ok(())
}

/// Checks that the database belongs to the id beside it. A database without an id gets one.
fn belongs(database: &Path, is_new: bool, own: Option<Identity>) -> Result<Identity> {
    let file = identity::path(database);
    let beside = if is_new { None } else { identity::read(&file)? };
    let what = match (own, beside) {
        (Some(own), Some(beside)) if own.id == beside.id && own.transactions >= beside.transactions => return Ok(own),
        (Some(own), Some(beside)) if own.id == beside.id => format!(
            "is older than what this directory knows: {} counts {} transactions, the database has {}",
            file.display(),
            beside.transactions,
            own.transactions
        ),
        (Some(own), Some(beside)) => format!("is of another directory: its id is {}, not {}", own.id, beside.id),
        (Some(own), None) => format!("has the id {}, but there is no {} beside it", own.id, file.display()),
        (None, Some(beside)) if beside.transactions > 0 => {
            format!(
                "has no id, but {} has the id {}: the database is older than that file, or of another directory",
                file.display(),
                beside.id
            )
        }
        // The first start was cut off between writing the id file and the database.
        (None, Some(beside)) => return Ok(beside),
        (None, None) => {
            let fresh = Identity::fresh();
            identity::make(&file, &fresh)?;
            return Ok(fresh);
        }
    };
    let message = format!(
        "{} {what}. The server does not start: machines whose installation is not in the database would be installed again, \
         and lose what they keep. Put the right database back with `drophammer serve restore`, which refuses a wrong one",
        database.display()
    );
    Err(Error::new(Phase::Serve, message))
}
