//! Ranges of addresses that several servers assign.

use super::postgres::{new_database, open_at};
use super::*;
use crate::address_ranges::{RangeClaim, RegisteredRange};
use std::net::Ipv4Addr;

fn register_range(state: &ServerState, first: u8, last: u8) -> RangeClaim {
    let address = |last| Ipv4Addr::new(10, 0, 0, last);
    wait(state.register_address_range(address(first), address(last)))
}

fn is_registered(claim: &RangeClaim) -> bool {
    matches!(claim, RangeClaim::Registered(server) if server.contains("(process "))
}

#[test]
fn no_address_is_assigned_by_two_servers() {
    let Some(address) = new_database() else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [a, b] = dirs.each_ref().map(|dir| open_at(&address, dir));
    assert!(is_registered(&register_range(&a, 100, 199)));
    for (first, last) in [(100, 199), (199, 250), (50, 100), (120, 130), (1, 254)] {
        let RangeClaim::Overlaps(RegisteredRange { server, first, last }) = register_range(&b, first, last) else {
            panic!("{first} to {last}")
        };
        assert!(server.contains("(process "), "{server}");
        assert_eq!((first.octets()[3], last.octets()[3]), (100, 199));
    }
    // Ranges that do not overlap, and a renewal.
    assert!(is_registered(&register_range(&b, 200, 250)) && is_registered(&register_range(&a, 100, 199)));
    assert!(matches!(register_range(&a, 100, 200), RangeClaim::Overlaps(_)));
    wait(a.release_address_range());
    assert!(is_registered(&register_range(&b, 100, 250)));
    assert!(matches!(register_range(&a, 100, 199), RangeClaim::Overlaps(_)));
    // The registration of a server that has ended without a release expires.
    wait(b.run_durably(|transaction| transaction.execute("UPDATE address_ranges SET expires = 1", [])));
    assert!(is_registered(&register_range(&a, 100, 199)));
    assert!(matches!(register_range(&b, 100, 250), RangeClaim::Overlaps(_)));
}

#[test]
fn concurrent_range_registrations_succeed_once() {
    let Some(address) = new_database() else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let states = dirs.each_ref().map(|dir| open_at(&address, dir));
    let claims: Vec<RangeClaim> = std::thread::scope(|scope| {
        let claims = states.each_ref().map(|state| scope.spawn(move || register_range(state, 100, 199)));
        claims.into_iter().map(|claim| claim.join().unwrap()).collect()
    });
    assert_eq!(claims.iter().filter(|claim| is_registered(claim)).count(), 1, "{claims:?}");
}

#[test]
fn the_only_server_of_a_sqlite_file_registers_after_each_restart() {
    if super::test_engine::is_postgres("several servers share the database, and each range belongs to one of them") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let state = open(&dir);
        assert!(is_registered(&register_range(&state, 100, 199)) && is_registered(&register_range(&state, 100, 150)));
        wait(async {
            state.close().await;
            Ok(())
        });
    }
}
