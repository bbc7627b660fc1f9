//! Engine of the tests: SQLite or, if `DROPHAMMER_TEST_ENGINE=postgres`, PostgreSQL. One of the tests runs the whole
//! test program a second time, with PostgreSQL.

use super::*;
use rusqlite::types::ValueRef;
use testing::{postgres, test_engine};

/// Tests that run only with SQLite: a part of their names, and the reason.
const SQLITE_TESTS: [(&str, &str); 15] = [
    ("tests::database_checks::", "the tests damage, replace and restore the SQLite file"),
    ("tests::lost_database::", "the tests remove the SQLite file"),
    ("tests::restored_database::", "the tests restore backups into the SQLite file"),
    ("tests::restored_migration::", "the tests restore backups into the SQLite file"),
    ("tests::version_compatibility::", "the tests start with SQLite files of earlier versions"),
    ("tests::kill_durability::", "the server runs in another process, which has no access to the private PostgreSQL"),
    ("tests::unauthenticated_costs::eight_large_bodies", "the test measures the memory of another process"),
    ("tests::plan_approval::", "`drophammer site plan` reads the SQLite file"),
    ("tests::web_page::rack_plan::", "`drophammer site plan` reads the SQLite file"),
    ("plan_of_migration_target_is_shown_and_approved", "`drophammer site plan` reads the SQLite file"),
    ("an_order_with_a_plan_is_withheld_after_a_rename", "`drophammer site plan` reads the SQLite file"),
    ("check_considers_installations_of_a_running_server", "the test damages the SQLite file"),
    ("readiness_contains_no_details_of_the_database", "the trigger is written for SQLite"),
    ("request_succeeds_if_only_the_database_record_fails", "the trigger is written for SQLite"),
    ("with_sqlite_the_directory_remains_the_source", "the test checks a refusal of SQLite"),
];

#[test]
#[ignore = "runs all tests again; scripts/test --full runs it"]
fn engine_all_tests_pass_on_postgresql() {
    test_engine::run_all_tests_on_postgresql(&SQLITE_TESTS);
}

/// Returns the options with the database that replaces the SQLite file of the directory, unless the options already
/// specify a PostgreSQL database.
pub(super) fn with_engine(options: &ServerConfig) -> ServerConfig {
    let mut options = options.clone();
    if options.store.store.is_none() && options.store.store_file.is_none() {
        options.store.store = test_engine::database_url(&options.dir.join(store::DATABASE));
    }
    options
}

/// Executes a statement in the database of a server's directory. Returns the first value of the result as text; empty
/// if there is none.
pub(super) fn run_sql(dir: &Path, sql: &str) -> String {
    let path = dir.join(store::DATABASE);
    if let Some(name) = test_engine::database_name(&path) {
        return postgres::shared().unwrap().run_sql(&name, sql);
    }
    let database = rusqlite::Connection::open(&path).unwrap();
    let mut statement = database.prepare(sql).unwrap();
    if statement.column_count() == 0 {
        statement.execute([]).unwrap();
        return String::new();
    }
    let read = |row: &rusqlite::Row<'_>| {
        Ok(match row.get_ref(0)? {
            ValueRef::Integer(number) => number.to_string(),
            ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        })
    };
    statement.query_row([], read).unwrap()
}

/// Returns everything that the database of a server's directory stores, as text.
pub(super) fn stored_text(dir: &Path) -> String {
    let path = dir.join(store::DATABASE);
    if let Some(name) = test_engine::database_name(&path) {
        return postgres::shared().unwrap().dump(&name);
    }
    let read = |name: String| std::fs::read(dir.join(name)).unwrap_or_default();
    let files = ["", "-wal"].map(|ending| read(format!("{}{ending}", store::DATABASE)));
    String::from_utf8_lossy(&files.concat()).into_owned()
}
