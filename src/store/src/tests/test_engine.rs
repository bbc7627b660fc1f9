//! Engine of the tests. One of the tests runs the whole test program a second time, with PostgreSQL.

use crate::store_address::PostgresAddress;
use crate::{database_id, store_transfer};
use common::error::Result;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};
use std::{env, fs, process};
use testing::postgres;

/// Variable that selects PostgreSQL.
const ENGINE: &str = "DROPHAMMER_TEST_ENGINE";

/// Returns whether the tests run on PostgreSQL, and prints the reason why the calling test is skipped there.
pub(crate) fn is_postgres(why: &str) -> bool {
    let is_postgres = env::var(ENGINE).is_ok_and(|engine| engine == "postgres");
    if is_postgres && !why.is_empty() {
        println!("skipped on PostgreSQL: {why}");
    }
    is_postgres
}

/// Returns the database and the directory that replace the SQLite file `path`, if the tests run on PostgreSQL. An
/// existing file is moved into the database first.
pub(crate) fn postgres_database(path: &Path) -> Result<Option<(PostgresAddress, PathBuf)>> {
    static DATABASES: LazyLock<Mutex<HashMap<PathBuf, PostgresAddress>>> = LazyLock::new(Mutex::default);
    if !is_postgres("") {
        return Ok(None);
    }
    let server = postgres::shared().unwrap();
    // The database gets a directory of its own, so that the id file can have the same name as in the directory of a
    // server.
    let dir = path.with_extension("dir");
    let mut databases = DATABASES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(address) = databases.get(path) {
        return Ok(Some((address.clone(), dir)));
    }
    let address = PostgresAddress::parse(&server.create_database(&format!("test{}", databases.len())))?;
    fs::create_dir_all(&dir).unwrap();
    if path.exists() {
        store_transfer::move_file(path, &address)?;
        fs::copy(database_id::id_path(path), database_id::id_path(&dir.join(crate::DATABASE))).unwrap();
    }
    databases.insert(path.to_owned(), address.clone());
    Ok(Some((address, dir)))
}

#[test]
fn all_tests_pass_on_postgresql() {
    if is_postgres("this test starts the others") {
        return;
    }
    if !postgres::is_installed() {
        println!("skipped: PostgreSQL 15 is not installed");
        return;
    }
    let tests = env::current_exe().unwrap();
    let run = process::Command::new(tests).env(ENGINE, "postgres").args(["--test-threads", "4"]).output().unwrap();
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{output}{}", String::from_utf8_lossy(&run.stderr));
}
