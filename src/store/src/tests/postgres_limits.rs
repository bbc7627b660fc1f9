//! Limits of PostgreSQL: the number of its connections.

use super::postgres::{error_of, open_at};
use super::*;
use crate::store_address::PostgresAddress;
use ::testing::postgres::{self, PrivatePostgres};
use common::error_code::ErrorCode;
use std::time::Instant;

/// The server loses its sessions, and other clients take all connections before it can connect again. Requests fail
/// with the reason, and succeed without a restart once a connection is free.
#[test]
fn a_server_connects_again_after_there_were_too_many_connections() {
    if !postgres::is_installed() {
        return;
    }
    let server = PrivatePostgres::start();
    let address = PostgresAddress::parse(&server.create_database("desk")).unwrap();
    let access = "local all all trust\n";
    server.restart_with("max_connections = 12\nsuperuser_reserved_connections = 0", access);
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&address, &dir);
    install(&state, "m");
    let others = server.take_all_connections("desk", 12);
    for _ in 0..3 {
        let error = error_of(state.place_order("m", "a", "i1", ReinstallOverrides::default(), None));
        assert_eq!(error.code(), ErrorCode::DatabaseUnavailable, "{error}");
        assert!(error.to_string().contains("too many clients already (53300)"), "{error}");
        assert_eq!(error_of(state.check_pulse()).code(), ErrorCode::DatabaseUnavailable);
    }
    assert_eq!(error_of(state.count_rollouts()).code(), ErrorCode::DatabaseUnavailable, "the connection for reading");
    drop(others);
    let began = Instant::now();
    while RUNTIME.with(|runtime| runtime.block_on(state.check_pulse())).is_err() {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(
        install_state(&state, "m").succeeded && install_state(&state, "m").order.is_none(),
        "nothing was stored or lost"
    );
    assert!(matches!(
        wait(state.place_order("m", "a", "i1", ReinstallOverrides::default(), None)),
        OrderOutcome::Placed { .. }
    ));
    let began = Instant::now();
    while RUNTIME.with(|runtime| runtime.block_on(state.count_rollouts())).is_err() {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(50));
    }
}
