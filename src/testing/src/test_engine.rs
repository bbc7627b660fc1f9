//! Engine of the tests that open a database: SQLite or, if `DROPHAMMER_TEST_ENGINE=postgres`, PostgreSQL. A database
//! of the shared PostgreSQL server replaces each SQLite file.

use crate::postgres::{self, PrivatePostgres};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Variable that selects PostgreSQL.
const VARIABLE: &str = "DROPHAMMER_TEST_ENGINE";

/// Names of the databases, by the path of the SQLite file that each replaces.
static DATABASES: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());

/// Returns whether the tests run on PostgreSQL, and prints the reason why the calling test is skipped there.
pub fn is_postgres(why: &str) -> bool {
    let is_postgres = std::env::var(VARIABLE).is_ok_and(|engine| engine == "postgres");
    if is_postgres && !why.is_empty() {
        println!("skipped on PostgreSQL: {why}");
    }
    is_postgres
}

/// Returns the URL of the database that replaces the SQLite file `path`; `None` if the tests run on SQLite. The first
/// call creates the database.
pub fn database_url(path: &Path) -> Option<String> {
    let prepared = prepare_database(path, |_| Ok::<(), Infallible>(()));
    prepared.unwrap_or_else(|never| match never {})
}

/// Returns the URL as [`database_url`] does. After the database was created, calls `prepare` with its URL.
///
/// # Errors
/// Returns the error of `prepare`.
///
/// # Panics
/// Panics if PostgreSQL is not installed, or the database cannot be created.
pub fn prepare_database<E>(path: &Path, prepare: impl FnOnce(&str) -> Result<(), E>) -> Result<Option<String>, E> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if !is_postgres("") {
        return Ok(None);
    }
    let server = postgres::shared().expect("PostgreSQL 15 is not installed");
    let mut databases = DATABASES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = databases.get(path) {
        return Ok(Some(server.url(name)));
    }
    drop_unused(server, &mut databases);
    let name = format!("test{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let url = server.create_database(&name);
    prepare(&url)?;
    databases.insert(path.to_owned(), name);
    Ok(Some(url))
}

/// Returns the name of the database that replaces the SQLite file `path`; `None` if there is none.
pub fn database_name(path: &Path) -> Option<String> {
    DATABASES.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
}

/// Drops the databases of tests that have ended, and have removed their directories.
fn drop_unused(server: &PrivatePostgres, databases: &mut BTreeMap<PathBuf, String>) {
    databases.retain(|path, name| {
        let is_used = path.parent().is_some_and(Path::exists);
        if !is_used {
            server.run_sql("postgres", &format!("DROP DATABASE \"{name}\" WITH (FORCE)"));
        }
        is_used
    });
}

/// Runs all tests of the calling test program again, with PostgreSQL. Skips the tests whose names contain one of the
/// texts in `sqlite_tests`, and prints the reasons. Does nothing if the tests already run on PostgreSQL, or PostgreSQL
/// is not installed.
///
/// # Panics
/// Panics if a test fails, or a text in `sqlite_tests` matches no test.
pub fn run_all_tests_on_postgresql(sqlite_tests: &[(&str, &str)]) {
    if is_postgres("this test starts the others") {
        return;
    }
    if !postgres::is_installed() {
        println!("skipped: PostgreSQL 15 is not installed");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let listed = Command::new(&program).arg("--list").output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout);
    let names: Vec<&str> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let mut run = Command::new(program);
    run.env(VARIABLE, "postgres").args(["--test-threads", "4"]);
    for (text, why) in sqlite_tests {
        let count = names.iter().filter(|name| name.contains(text)).count();
        assert!(count > 0, "the name of no test contains {text:?}");
        println!("skipped on PostgreSQL: {text} ({count}): {why}");
        run.args(["--skip", text]);
    }
    let output = run.output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_use_sqlite_unless_the_variable_selects_postgresql() {
        let path = Path::new("/nowhere/drophammer.sqlite");
        assert_eq!((database_url(path), database_name(path)), (None, None));
        let failed = prepare_database(path, |_| Err("is not called"));
        assert_eq!(failed, Ok(None));
    }
}
