//! SQLite files that cannot be synced.

use super::*;
use crate::database_file::DatabaseFile;
use crate::database_loss_stop::stop_or_convert;
use common::error_code::ErrorCode;
use rusqlite::ffi;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

fn error_of<T>(work: impl Future<Output = Result<T>>) -> common::error::Error {
    RUNTIME.with(|runtime| runtime.block_on(work)).err().unwrap()
}

/// Another process locks the file between a transaction and its sync.
#[test]
fn reads_fail_until_earlier_transactions_are_synced() {
    if test_engine::is_postgres("a group of PostgreSQL is rolled back if its commit fails") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let other = Arc::new(Mutex::new(rusqlite::Connection::open(dir.path().join("state.sqlite")).unwrap()));
    let locking = other.clone();
    let stored = state.submit_job(move |store| {
        store.run_durably(ChangeScope::All, |transaction| {
            transaction.execute("INSERT INTO former (former, machine) VALUES ('a', 'b')", [])
        })?;
        store.connection.execute_batch("PRAGMA busy_timeout=0").unwrap();
        locking.lock().unwrap().execute_batch("BEGIN IMMEDIATE").unwrap();
        Ok(())
    });
    let error = error_of(async { database_handle::flatten_answer(stored.await) });
    assert_eq!(error.code(), ErrorCode::DatabaseUnavailable, "{error}");
    for _ in 0..3 {
        assert_eq!(error_of(state.is_recorded("m")).code(), ErrorCode::DatabaseUnavailable);
    }
    other.lock().unwrap().execute_batch("ROLLBACK").unwrap();
    assert!(!wait(state.is_recorded("m")));
    let select = "SELECT transactions FROM identity";
    let count = wait(state.run_job(|connection| connection.query_row(select, [], |row| row.get::<_, i64>(0))));
    assert_eq!(count, 1, "the transaction was synced once");
}

#[test]
fn failed_fsync_stops_the_server() {
    let sqlite = |code| sql::Error::Sqlite(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
    for (code, stops) in [
        (ffi::SQLITE_IOERR_FSYNC, true),
        (ffi::SQLITE_IOERR_DIR_FSYNC, true),
        (ffi::SQLITE_IOERR_WRITE, false),
        (ffi::SQLITE_FULL, false),
        (ffi::SQLITE_BUSY, false),
    ] {
        let (gone, reason) = watch::channel(None);
        assert!(stop_or_convert::<()>(Err(sqlite(code)), &gone).is_err());
        let reason = reason.borrow().clone();
        assert_eq!(reason.is_some(), stops, "{code}");
        assert!(reason.is_none_or(|why| why.contains("cannot be repeated safely") && why.contains("dmesg")), "{code}");
    }
}

/// A later sync might succeed although the data was lost.
#[test]
fn nothing_is_synced_after_a_failed_fsync() {
    let dir = tempfile::tempdir().unwrap();
    let (gone, _reason) = watch::channel(None);
    let mut file = DatabaseFile::open(&dir.path().join("state.sqlite"), gone.clone()).unwrap();
    let store = "INSERT INTO former (former, machine) VALUES (?1, 'm')";
    file.run_durably(ChangeScope::All, |transaction| transaction.execute(store, ["a"])).unwrap();
    gone.send_replace(Some("the sync has failed".to_owned()));
    for _ in 0..2 {
        assert!(file.sync_transactions().unwrap_err().to_string().contains("the sync has failed"));
    }
    assert_eq!(file.identity.transactions, 0);
}
