//! Engine of the tests. One of the tests runs the whole test program a second time, with PostgreSQL.

use crate::store_address::PostgresAddress;
use crate::{database_id, store_transfer};
use common::error::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use testing::test_engine;
pub(crate) use testing::test_engine::is_postgres;

/// Returns the database and the directory that replace the SQLite file `path`, if the tests run on PostgreSQL. An
/// existing file is moved into the database first.
pub(crate) fn postgres_database(path: &Path) -> Result<Option<(PostgresAddress, PathBuf)>> {
    // The database gets a directory of its own, so that the id file can have the same name as in the directory of a
    // server.
    let dir = path.with_extension("dir");
    let url = test_engine::prepare_database::<Error>(path, |url| {
        fs::create_dir_all(&dir).unwrap();
        if path.exists() {
            store_transfer::move_file(path, &PostgresAddress::parse(url)?)?;
            fs::copy(database_id::id_path(path), database_id::id_path(&dir.join(crate::DATABASE))).unwrap();
        }
        Ok(())
    })?;
    url.map(|url| Ok((PostgresAddress::parse(&url)?, dir))).transpose()
}

#[test]
fn all_tests_pass_on_postgresql() {
    test_engine::run_all_tests_on_postgresql(&[]);
}
