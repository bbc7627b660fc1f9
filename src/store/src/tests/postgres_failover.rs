//! Failover from a PostgreSQL server to its synchronous standby.

use super::postgres::open_at;
use super::*;
use crate::store_address::PostgresAddress;
use ::testing::postgres::{self, PrivatePostgres};
use common::error_code::ErrorCode;
use std::collections::BTreeSet;

/// Orders a reinstall, which replaces the previous order. Returns the id of the order.
fn order(state: &ServerState, number: usize) -> Result<String> {
    let image = format!("i{number}");
    let placed = state.place_order("m", "a", &image, ReinstallOverrides::default(), None);
    match RUNTIME.with(|runtime| runtime.block_on(placed))? {
        OrderOutcome::Placed { order, .. } => Ok(order.id),
        other => panic!("{other:?}"),
    }
}

fn wait_until_available(state: &ServerState) {
    while RUNTIME.with(|runtime| runtime.block_on(state.check_pulse())).is_err() {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Places orders until one of them fails. Returns the acknowledged orders, and the error.
fn order_until_failure(state: &ServerState) -> (Vec<String>, common::error::Error) {
    let mut placed = Vec::new();
    // The history of a machine contains at most 200 entries, so the number of orders is limited.
    for number in 0..100 {
        match order(state, number) {
            Ok(id) => placed.push(id),
            Err(error) => return (placed, error),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no order has failed");
}

/// The primary is killed while a server places orders, and the standby is promoted. The URL of the servers contains
/// both hosts.
#[test]
fn acknowledged_orders_survive_the_failover_to_a_synchronous_standby() {
    if !postgres::is_installed() {
        return;
    }
    let primary = PrivatePostgres::start();
    primary.create_database("desk");
    let standby = primary.start_standby();
    let address = PostgresAddress::parse(&primary.url_with_standby("desk", &standby)).unwrap();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [state, other] = [open_at(&address, &dirs[0]), open_at(&address, &dirs[1])];
    install(&state, "m");
    let (acknowledged, error) = std::thread::scope(|scope| {
        let orders = scope.spawn(|| order_until_failure(&state));
        while wait(other.list_history("m")).len() < 20 {
            std::thread::sleep(Duration::from_millis(5));
        }
        primary.kill();
        orders.join().unwrap()
    });
    assert_eq!(error.code(), ErrorCode::DatabaseUnavailable, "{error}");
    let error = order(&state, 100).unwrap_err();
    assert_eq!(error.code(), ErrorCode::DatabaseUnavailable, "the standby does not accept writes yet: {error}");

    let mut changes = other.changes();
    let mut next_scope = || RUNTIME.with(|runtime| runtime.block_on(other.wait_for_change(&mut changes)));
    // Returns the changes before the failover.
    next_scope();
    standby.promote();
    wait_until_available(&state);
    let stored = wait(state.list_history("m")).into_iter().filter_map(|entry| entry.order);
    let stored: BTreeSet<String> = stored.collect();
    let lost: Vec<&String> = acknowledged.iter().filter(|id| !stored.contains(*id)).collect();
    assert!(lost.is_empty() && acknowledged.len() > 10, "{lost:?} of {} orders are lost", acknowledged.len());

    // Both servers continue with the standby. The connection for notifications is also opened again.
    while next_scope() != ChangeScope::All {}
    wait_until_available(&other);
    let placed = order(&state, 101).unwrap();
    assert_eq!(next_scope(), ChangeScope::from_machine("m"));
    assert_eq!(install_state(&other, "m").order.map(|order| order.id), Some(placed.clone()));
    let started = wait(other.start_order("m", "a", &placed, start()));
    assert!(matches!(started, OrderStart::Permitted(_, true)), "{started:?}");
}
