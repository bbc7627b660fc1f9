//! Database of the tests: SQLite or, if `DROPHAMMER_TEST_ENGINE=postgres`, PostgreSQL.

use std::path::Path;
use std::time::Duration;
use store::ServerState;
use store::store_address::PostgresAddress;
use testing::test_engine;

/// Opens the database of the server's directory `dir`.
pub(crate) fn open(dir: &Path) -> ServerState {
    let url = test_engine::database_url(&dir.join(store::DATABASE));
    let address = url.map(|url| PostgresAddress::parse(&url).unwrap());
    ServerState::open_store(address.as_ref(), dir, Duration::ZERO).unwrap()
}

#[test]
#[ignore = "runs all tests again; scripts/test --full runs it"]
fn engine_all_tests_pass_on_postgresql() {
    test_engine::run_all_tests_on_postgresql(&[]);
}
