//! Backup and restore of the database. A consistent copy can be made while the server runs. A restore refuses
//! outdated copies, unless the operator permits them.

use super::post_restore_steps;
use super::postgres_backup;
use super::store_transfer::{self, run_outside_runtime};
use crate::database_id::{self, DatabaseIdentity};
use crate::sql::Connection;
use crate::store_address::PostgresAddress;
use crate::{DATABASE, database_file};
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::output;
use linux::atomic_file;
use nix::errno::Errno;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// File that the server locks while it runs.
const LOCK: &str = "drophammer.lock";

/// Lock on a server's directory, held until this value is dropped. Closing the file is not sufficient for the
/// release: a forked child process holds the open file, and thus the lock, until its `execve`. The lock is therefore
/// released explicitly.
#[derive(Debug)]
pub struct DirectoryLock(File);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // If the unlock fails, the lock is released when the file is closed.
        let _ = self.0.unlock();
    }
}

/// Locks the directory, so that no other server or restore can use it at the same time. Returns `None` if the
/// filesystem does not support locks.
///
/// # Errors
/// Returns an error if another process holds the lock.
pub fn lock_directory(dir: &Path) -> Result<Option<DirectoryLock>> {
    let path = dir.join(LOCK);
    let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = opened.context(Phase::Serve, || format!("open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(DirectoryLock(file))),
        Err(TryLockError::Error(error)) if is_unsupported(&error) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error).context(Phase::Serve, || format!("lock {}", path.display())),
        Err(TryLockError::WouldBlock) => {
            let message = format!(
                "another `drophammer serve` is running in {folder}: stop that server first",
                folder = dir.display()
            );
            Err(Error::new(Phase::Serve, message).with_code(ErrorCode::AddressInUse))
        }
    }
}

/// Returns whether the error means that the filesystem does not support locks. Some network filesystems do not support
/// them (flock(2)).
fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::ENOTSUP | Errno::ENOLCK | Errno::ENOSYS))
}

/// Copies the database of `dir` to a new file that only its owner can read. The server may be running.
///
/// # Errors
/// Returns an error if there is no database, it is damaged, or the copy cannot be made.
pub fn back_up_database(dir: &Path, to: &Path) -> Result<()> {
    back_up_store(None, dir, to)
}

/// Copies the database `store`, or the SQLite database of `dir` if `store` is `None`, to a new file.
///
/// # Errors
/// Fails as [`back_up_database`] does.
pub fn back_up_store(store: Option<&PostgresAddress>, dir: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        let message = format!(
            "{file} already exists: specify another file, because backups are never overwritten",
            file = to.display()
        );
        return Err(Error::refusal(Phase::Serve, message).with_code(ErrorCode::Backup));
    }
    let made = copy_store(store, dir, to)?;
    output::print_line(&format!(
        "{file} contains database {id} after {transactions} transactions",
        file = to.display(),
        id = made.id,
        transactions = made.transactions
    ));
    Ok(())
}

/// Copies the database `store`, or the SQLite database of `dir`, to a SQLite file, and returns the identity of the
/// database.
///
/// # Errors
/// Returns an error if the database cannot be read, or the file cannot be written.
pub fn copy_store(store: Option<&PostgresAddress>, dir: &Path, to: &Path) -> Result<DatabaseIdentity> {
    match store {
        Some(address) => write_copy(to, |part| run_outside_runtime(|| store_transfer::copy_to_file(address, part))),
        None => copy_database(&dir.join(DATABASE), to),
    }
}

/// Replaces the database with a backup. The server must not be running.
///
/// # Errors
/// Returns an error if the backup is damaged, or is a backup of another directory. Also returns an error if the backup
/// is older than the last state of the directory, unless `older` is true.
pub fn restore_database(dir: &Path, from: &Path, older: bool) -> Result<()> {
    restore_store(None, dir, from, older)
}

/// Restores a backup into the database `store`, which must be empty, or replaces the SQLite database of `dir` if
/// `store` is `None`.
///
/// # Errors
/// Fails as [`restore_database`] does.
pub fn restore_store(store: Option<&PostgresAddress>, dir: &Path, from: &Path, older: bool) -> Result<()> {
    let _lock = lock_directory(dir)?;
    let database = dir.join(DATABASE);
    let beside = database_id::id_path(&database);
    let new = database.with_extension("sqlite.new");
    remove_if_present(&new)?;
    let mut restored = copy_database(from, &new)?;
    let known = database_id::read_id_file(&beside).or_else(|error| if older { Ok(None) } else { Err(error) })?;
    let known = known.filter(|known| known.transactions > 0);
    if let Some(why) = known.as_ref().and_then(|known| explain_contradiction(known, &restored, (dir, from), older)) {
        remove_if_present(&new)?;
        return Err(Error::refusal(Phase::Serve, why).with_code(ErrorCode::Backup));
    }
    // If the identities are equal, the backup contains everything that the server of this directory has recorded.
    // Otherwise, or if other servers have used the database, the backup may be older than the systems on the machines'
    // disks.
    let is_shared = store.is_some() || is_postgres_backup(&new)?;
    let is_complete = known.as_ref() == Some(&restored) && !is_shared;
    let mut instructions = String::new();
    if !is_complete {
        // The counter of the restored database must exceed the counters of all earlier backups, including this one.
        restored.transactions =
            restored.transactions.max(known.map_or(0, |known| known.transactions)).saturating_add(1);
        let why = if is_shared { SHARED_DATABASE } else { "" };
        instructions = format!("{why}{}", mark_unconfirmed(&new, &restored, dir)?);
    }
    let name = match store {
        Some(address) => {
            let copied = run_outside_runtime(|| store_transfer::copy_from_file(&new, address));
            remove_if_present(&new)?;
            copied?;
            address.to_string()
        }
        None => {
            replace_database(&new, &database)?;
            database.display().to_string()
        }
    };
    database_id::write_id_file(&beside, &restored)?;
    output::print_line(&format!(
        "{name}: restored database {id} after {transactions} transactions",
        id = restored.id,
        transactions = restored.transactions
    ));
    output::print_text(&instructions)
}

/// Reason why a complete backup of PostgreSQL cannot be recognized, for the operator.
const SHARED_DATABASE: &str = "Several servers can use a PostgreSQL database, and the directory of this server does not \
    record the transactions of the other servers. The backup may therefore lack transactions.\n";

fn is_postgres_backup(copy: &Path) -> Result<bool> {
    let what = || format!("read {}", copy.display());
    let connection = database_file::open_existing(copy).context(Phase::Serve, what)?;
    postgres_backup::is_marked(&connection).context(Phase::Serve, what)
}

/// Returns the reason why the backup must not replace the database that has the identity `known`, or `None` if the
/// replacement is permitted.
fn explain_contradiction(
    known: &DatabaseIdentity,
    backup: &DatabaseIdentity,
    (dir, from): (&Path, &Path),
    older: bool,
) -> Option<String> {
    if known.id != backup.id {
        return Some(format!(
            "{file} is a backup of another directory: its id is {backup_id}, but the id of {folder} is {own_id}. Nothing was changed",
            file = from.display(),
            backup_id = backup.id,
            folder = dir.display(),
            own_id = known.id
        ));
    }
    let missing = known.transactions.saturating_sub(backup.transactions);
    (missing > 0 && !older).then(|| {
        format!(
            "{} is older than the state of {}: it lacks {missing} durable transactions, possibly with orders and \
            installations, which would be lost. Nothing was changed; --older restores it anyway, and every machine then needs \
            confirmation",
            from.display(),
            dir.display()
        )
    })
}

/// Marks every machine of a restored database as unconfirmed. Returns instructions that describe how the operator
/// confirms the machines.
fn mark_unconfirmed(new: &Path, identity: &DatabaseIdentity, dir: &Path) -> Result<String> {
    let what = || format!("write {}", new.display());
    let connection = Connection::open(new).context(Phase::Serve, what)?;
    database_file::store_identity(&connection, identity).context(Phase::Serve, what)?;
    let (records, newest) = post_restore_steps::mark_unconfirmed(&connection).context(Phase::Serve, what)?;
    Ok(post_restore_steps::describe_restore(&records, newest.as_deref(), dir))
}

/// Copies the whole database, syncs the copy, and returns the identity of the database.
pub fn copy_database(database: &Path, to: &Path) -> Result<DatabaseIdentity> {
    write_copy(to, |part| copy_into(database, part))
}

/// Writes a new file with `copy`. The file is synced before it gets its final name.
fn write_copy(to: &Path, copy: impl FnOnce(&Path) -> Result<DatabaseIdentity>) -> Result<DatabaseIdentity> {
    let what = || format!("write {}", to.display());
    let part = to.with_extension("part");
    OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&part).context(Phase::Serve, what)?;
    let made = copy(&part).and_then(|identity| {
        let synced = File::open(&part).and_then(|file| file.sync_all()).and_then(|()| fs::rename(&part, to));
        synced.context(Phase::Serve, what)?;
        database_id::sync_folder(to)?;
        Ok(identity)
    });
    if made.is_err() {
        remove_if_present(&part)?;
    }
    made
}

fn copy_into(database: &Path, part: &Path) -> Result<DatabaseIdentity> {
    let what = || format!("read {}", database.display());
    let connection = database_file::open_existing(database).context(Phase::Serve, what)?;
    connection.execute_batch("PRAGMA busy_timeout=5000").context(Phase::Serve, what)?;
    database_file::check_integrity(&connection, database)?;
    database_file::refuse_newer_schema(&connection, database)?;
    // `VACUUM INTO` reads in one transaction: the copy contains each concurrent write either completely or not at all.
    connection.execute("VACUUM INTO ?1", [part.to_string_lossy().as_ref()]).context(Phase::Serve, what)?;
    let copy = Connection::open(part).context(Phase::Serve, what)?;
    database_file::check_integrity(&copy, part)?;
    match database_file::read_identity(&copy).context(Phase::Serve, what)? {
        Some(identity) => Ok(identity),
        None => Err(Error::refusal(
            Phase::Serve,
            format!(
                "{file} is not a database of `drophammer serve`, or was created by a version that did not assign an id",
                file = database.display()
            ),
        )
        .with_code(ErrorCode::Backup)),
    }
}

/// Replaces the old database with the new one. First removes the write-ahead log of the old database, because SQLite
/// would apply this log to the new database.
fn replace_database(new: &Path, database: &Path) -> Result<()> {
    for ending in ["-wal", "-shm"] {
        let mut log = database.as_os_str().to_owned();
        log.push(ending);
        remove_if_present(&PathBuf::from(log))?;
    }
    fs::rename(new, database).context(Phase::Serve, || format!("rename {}", new.display()))?;
    database_id::sync_folder(database)
}

fn remove_if_present(path: &Path) -> Result<()> {
    atomic_file::remove_if_present(path).context(Phase::Serve, || format!("remove {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_lock_is_released_despite_inherited_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock_directory(dir.path()).unwrap().unwrap();
        let of_a_child = held.0.try_clone().unwrap();
        let refused = lock_directory(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("stop that server first"), "{refused}");
        drop(held);
        assert!(lock_directory(dir.path()).unwrap().is_some());
        drop(of_a_child);
    }
}
