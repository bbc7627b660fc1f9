//! SQLite file with the server's database. The file is opened only if it is undamaged and belongs to the directory.
//! Durable transactions are synced together (group commit, `group_commit`), before they are acknowledged. If the file
//! is removed, the server stops.
//!
//! With the write-ahead log (WAL), the frequent events of machines need not be synced. Transactions that must not be
//! lost are synced, and then copied from the log into the database file, so that a copy of this file contains all of
//! them.

use super::change_scope::ChangeScope;
use super::database_id::{self, DatabaseIdentity, check_identity};
use super::database_loss_stop::{stop_or_convert, stop_server};
use super::moved_database_mark::refuse_moved_database;
use super::read_connection::ReadConnection;
use super::sql::{self, Connection, OptionalExtension, RESTORE_REMEDY, Row, Transaction, TransactionKind, params};
use super::{lost_records, schema};
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use rusqlite::OpenFlags;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tokio::sync::watch;

/// Durability of a transaction's result if the server loses power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// The result is on disk before the caller gets a response.
    Synced,
    /// The result survives a crash of the server, but a power failure may undo it. Once a later transaction is synced,
    /// this result is on disk as well, since the log is sequential.
    Deferred,
}

pub(crate) struct DatabaseFile {
    pub connection: Connection,
    /// Path of the SQLite file. On PostgreSQL, the path that such a file would have, next to the id file.
    pub(crate) path: PathBuf,
    /// Device number and inode number of the file that was opened; `None` on PostgreSQL.
    pub(crate) file: Option<(u64, u64)>,
    pub(crate) identity: DatabaseIdentity,
    /// True if a transaction that must be durable is not synced yet.
    pub(crate) unsynced: bool,
    /// Scope of the durable transactions of which the other servers are not notified yet. Empty on SQLite.
    pub(crate) unsent: ChangeScope,
    /// Id of this server in notifications. The server ignores notifications that contain its own id. Empty on SQLite.
    pub(crate) origin: String,
    /// Second connection, through which other threads read.
    pub(crate) reader: Option<ReadConnection>,
    /// Reason why the server must stop.
    pub(crate) gone: watch::Sender<Option<String>>,
}

impl DatabaseFile {
    /// Opens or creates the database. Only its owner can read the file, since reports contain passwords.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created, is not a database of this server, is damaged, or does not
    /// belong to the directory.
    pub fn open(path: &Path, gone: watch::Sender<Option<String>>) -> Result<DatabaseFile> {
        let file = DatabaseFile::open_even_if_moved(path, gone)?;
        refuse_moved_database(&file.connection, path)?;
        Ok(file)
    }

    /// Opens or creates the database, even if its content was moved to PostgreSQL.
    ///
    /// # Errors
    /// Fails as [`DatabaseFile::open`] does.
    pub(crate) fn open_even_if_moved(path: &Path, gone: watch::Sender<Option<String>>) -> Result<DatabaseFile> {
        let what = || format!("open the database {}", path.display());
        let is_new = is_new_database(path)?;
        OpenOptions::new().create(true).append(true).mode(0o600).open(path).context(Phase::Serve, what)?;
        let connection = Connection::open(path).context(Phase::Serve, what)?;
        let settings = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=5000;";
        connection.execute_batch(settings).context(Phase::Serve, what)?;
        check_integrity(&connection, path)?;
        refuse_newer_schema(&connection, path)?;
        let own = read_identity(&connection).context(Phase::Serve, what)?;
        let replaces_lost = is_new && database_id::had_transactions(path);
        let identity = check_identity(path, &path.display().to_string(), is_new, own.clone())?;
        schema::upgrade_schema(&connection).context(Phase::Serve, what)?;
        if own.is_none() {
            store_identity(&connection, &identity).context(Phase::Serve, what)?;
        }
        if replaces_lost {
            lost_records::record_loss(&connection).context(Phase::Serve, what)?;
        }
        checkpoint_log(&connection).context(Phase::Serve, what)?;
        let file = Some(read_inode(path).context(Phase::Serve, what)?);
        Ok(DatabaseFile {
            connection,
            path: path.to_owned(),
            file,
            identity,
            unsynced: false,
            unsent: ChangeScope::default(),
            origin: String::new(),
            reader: None,
            gone,
        })
    }

    /// Closes both connections.
    pub(crate) fn close(self) {
        self.reader.iter().for_each(ReadConnection::close);
    }

    /// Opens the database of a server for reading only. Does not create or upgrade it. Each read is a short
    /// transaction, which does not block the server.
    ///
    /// # Errors
    /// Returns an error if the database does not exist, is not that of a server, was moved to PostgreSQL, or was
    /// written by an earlier version.
    pub fn open_to_read(path: &Path, gone: watch::Sender<Option<String>>) -> Result<DatabaseFile> {
        let what = || format!("open the database {}", path.display());
        if is_new_database(path)? {
            let message = format!(
                "{file} does not exist: no server has run in that directory, or its records are in PostgreSQL: use \
                 the page Plan of such a server",
                file = path.display()
            );
            return Err(Error::refusal(Phase::Serve, message).with_code(ErrorCode::DatabaseMissing));
        }
        // The file is opened for writing, because even a reader must write the shared-memory file of the write-ahead
        // log.
        let connection = open_existing(path).context(Phase::Serve, what)?;
        let settings = "PRAGMA busy_timeout=5000; PRAGMA query_only=ON;";
        connection.execute_batch(settings).context(Phase::Serve, what)?;
        refuse_newer_schema(&connection, path)?;
        refuse_moved_database(&connection, path)?;
        let own = read_identity(&connection).context(Phase::Serve, what)?;
        let is_current = schema::is_current_schema(&connection).context(Phase::Serve, what)?;
        let Some(identity) = own.filter(|_| is_current) else {
            let message = format!(
                "{file} was written by an earlier version: start its server once to upgrade the database",
                file = path.display()
            );
            return Err(Error::refusal(Phase::Serve, message));
        };
        let file = Some(read_inode(path).context(Phase::Serve, what)?);
        Ok(DatabaseFile {
            connection,
            path: path.to_owned(),
            file,
            identity,
            unsynced: false,
            unsent: ChangeScope::default(),
            origin: String::new(),
            reader: None,
            gone,
        })
    }

    /// Runs one transaction whose result a power failure may undo.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub(crate) fn run_deferred<T>(&mut self, work: impl FnOnce(&Transaction) -> sql::Result<T>) -> Result<T> {
        let done = (|| {
            let transaction = self.connection.transaction()?;
            let value = work(&transaction)?;
            transaction.commit_deferred().map(|()| value)
        })();
        self.stop_or_convert(done)
    }

    /// Runs `work` in one transaction that only reads, so that all its reads see the same state.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub(crate) fn read<T>(&mut self, work: impl FnOnce(&Connection) -> sql::Result<T>) -> Result<T> {
        let done = (|| {
            let transaction = self.connection.begin(TransactionKind::Read)?;
            let value = work(&transaction)?;
            transaction.commit().map(|()| value)
        })();
        self.stop_or_convert(done)
    }

    /// Stops the server if the error shows that the database was replaced. Converts the error to the error of the
    /// request.
    pub(crate) fn stop_or_convert<T>(&self, result: sql::Result<T>) -> Result<T> {
        stop_or_convert(result, &self.gone)
    }

    /// If a transaction since the last sync must be durable, syncs all transactions so far, and adds one to the number
    /// of durable transactions. On SQLite, does nothing otherwise. On PostgreSQL, commits the open transaction group in
    /// either case.
    ///
    /// For a SQLite file, an explicit sync is needed because `synchronous=NORMAL` with a WAL survives a crash of the
    /// server, but not a power failure.
    ///
    /// # Errors
    /// Returns an error if the database cannot be synced. The transactions in a SQLite file are then visible, but may
    /// be lost. They remain unsynced, so that nothing that depends on them is acknowledged, until a later sync
    /// succeeds. If the operating system reports that the sync has failed, or the file is missing, the server stops.
    pub(crate) fn sync_transactions(&mut self) -> Result<()> {
        if self.file.is_none() {
            let is_counted = std::mem::take(&mut self.unsynced);
            return self.commit_postgres_group(is_counted);
        }
        if !self.unsynced {
            return Ok(());
        }
        // After a failed sync, another sync may succeed although the data was not written, so it proves nothing.
        if let Some(why) = self.gone.borrow().clone() {
            return Err(Error::new(Phase::Serve, why));
        }
        self.check_file()?;
        let counted = self.count_and_sync();
        let transactions = self.stop_or_convert(counted)?;
        self.unsynced = false;
        // If the file was deleted or replaced in the meantime, the transactions are lost with it.
        self.check_file()?;
        self.record_count(transactions)
    }

    /// Records the number of durable transactions in the id file.
    pub(crate) fn record_count(&mut self, transactions: i64) -> Result<()> {
        self.identity.transactions = transactions;
        let counted = database_id::update_count(&database_id::id_path(&self.path), &self.identity);
        counted.map_err(|error| self.stop_server(error.to_string()))
    }

    /// Adds one to the number of durable transactions, and returns the new number. The log is sequential, so the sync
    /// of this transaction also covers all earlier ones.
    fn count_and_sync(&mut self) -> sql::Result<i64> {
        self.set_synchronous("FULL")?;
        let counted = (|| {
            let transaction = self.connection.transaction()?;
            let transactions = count_transaction(&transaction)?;
            transaction.commit().map(|()| transactions)
        })();
        self.set_synchronous("NORMAL")?;
        let transactions = counted?;
        match &self.reader {
            Some(reader) => reader.exclude_reads(|| checkpoint_log(&self.connection))?,
            None => checkpoint_log(&self.connection)?,
        }
        Ok(transactions)
    }

    /// Sets how SQLite syncs commits. On PostgreSQL, the commit itself specifies this.
    pub(crate) fn set_synchronous(&self, mode: &str) -> sql::Result<()> {
        match self.connection.as_sqlite() {
            Some(connection) => Ok(connection.pragma_update(None, "synchronous", mode)?),
            None => Ok(()),
        }
    }

    /// Writes and reads one row, to check that the database works.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub fn check_pulse(&mut self) -> Result<()> {
        let update = "UPDATE identity SET transactions = transactions";
        self.run_deferred(|transaction| transaction.execute(update, []).map(drop))
    }

    /// Checks that the file at the path is still the one that was opened.
    ///
    /// # Errors
    /// Returns an error if the file is missing or has been replaced. The server then stops.
    pub fn check_file(&self) -> Result<()> {
        let Some(opened) = self.file else { return Ok(()) };
        match read_inode(&self.path) {
            Ok(file) if file == opened => Ok(()),
            Ok(_) => Err(self.stop_server(format!(
                "{file} is no longer the file that the server opened: it was replaced",
                file = self.path.display()
            ))),
            Err(error) => Err(self.stop_server(format!("{} is missing: {error}", self.path.display()))),
        }
    }

    pub(crate) fn stop_server(&self, why: String) -> Error {
        stop_server(why, &self.gone)
    }
}

/// Adds one to the number of durable transactions, and returns the new number.
fn count_transaction(transaction: &Transaction) -> sql::Result<i64> {
    let count = "UPDATE identity SET transactions = transactions + 1 RETURNING transactions";
    transaction.query_row(count, [], |row| row.get(0))
}

/// Moves the content of the write-ahead log into the database file, and syncs the file. If a backup is reading the
/// database, the log is emptied only after a later transaction. Until then, the content is durable in the log, which is
/// synced.
fn checkpoint_log(connection: &Connection) -> sql::Result<()> {
    match connection.as_sqlite() {
        Some(connection) => Ok(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?),
        None => Ok(()),
    }
}

/// Opens a SQLite file that exists.
pub(crate) fn open_existing(path: &Path) -> sql::Result<Connection> {
    let connection = rusqlite::Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    Ok(Connection::from_sqlite(connection))
}

fn read_inode(path: &Path) -> std::io::Result<(u64, u64)> {
    fs::metadata(path).map(|is| (is.dev(), is.ino()))
}

/// Returns whether the file has never contained a server's state: it is missing or empty, or lacks the server's tables.
///
/// # Errors
/// Returns an error if the file is not a database.
pub fn is_new_database(path: &Path) -> Result<bool> {
    if fs::metadata(path).map_or(true, |is| is.len() == 0) {
        return Ok(true);
    }
    let what = || format!("open the database {}", path.display());
    let connection = open_existing(path).context(Phase::Serve, what)?;
    match schema::has_table(&connection, "allocations") {
        // The table that lists all tables (`sqlite_master`) cannot be read, so the database is damaged.
        Err(sql::Error::Sqlite(error)) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseCorrupt) => {
            Err(damaged_error(path, &error.to_string()))
        }
        there => Ok(!there.context(Phase::Serve, what)?),
    }
}

/// Checks the integrity of the database.
///
/// # Errors
/// Returns an error if the database is damaged.
pub(crate) fn check_integrity(connection: &Connection, path: &Path) -> Result<()> {
    let said: sql::Result<String> = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
    let said = said.unwrap_or_else(|error| error.to_string());
    match said.as_str() {
        "ok" => Ok(()),
        damage => Err(damaged_error(path, damage)),
    }
}

/// Refuses a file that a newer version of drophammer has written. The message contains both versions of the schema.
pub(crate) fn refuse_newer_schema(connection: &Connection, path: &Path) -> Result<()> {
    match schema::refuse_newer_version(connection) {
        Err(error @ sql::Error::NewerSchema { .. }) => {
            Err(Error::refusal(Phase::Serve, format!("{path}: {error}", path = path.display())))
        }
        checked => checked.map(drop).context(Phase::Serve, || format!("open the database {}", path.display())),
    }
}

fn damaged_error(path: &Path, damage: &str) -> Error {
    let (path, damage) = (path.display(), damage.replace('\n', " "));
    let damage = damage.trim_end_matches(RESTORE_REMEDY);
    let message = format!("{path} is damaged: {damage}{RESTORE_REMEDY}");
    Error::new(Phase::Serve, message)
}

/// Returns the identity that is stored in the database, or `None` in a database of an earlier version.
pub(crate) fn read_identity(connection: &Connection) -> sql::Result<Option<DatabaseIdentity>> {
    if !schema::has_table(connection, "identity")? {
        return Ok(None);
    }
    let read = |row: &Row| Ok(DatabaseIdentity { id: row.get(0)?, transactions: row.get(1)? });
    connection.query_row("SELECT id, transactions FROM identity", [], read).optional()
}

/// Stores the identity in the database.
pub(crate) fn store_identity(connection: &Connection, identity: &DatabaseIdentity) -> sql::Result<()> {
    connection.execute(
        "INSERT INTO identity (one, id, transactions) VALUES (1, ?1, ?2)
         ON CONFLICT (one) DO UPDATE SET id = ?1, transactions = ?2",
        params![identity.id, identity.transactions],
    )?;
    Ok(())
}
