//! Leases on management controllers: servers that end, are paused, or cannot reach the database.

use super::postgres::{error_of, new_database, open_at};
use super::rollouts::{advance, create, limits};
use super::*;
use crate::server_leases::{ActionOrigin, LEASE, LeaseClaim, LeasedAction, ServerLease};
use crate::store_address::PostgresAddress;
use ::testing::postgres::{self as postgres_server, PrivatePostgres};

fn cycle(user: &str) -> LeasedAction {
    LeasedAction::new(ActionOrigin::Operator, "cycle", user)
}

fn claimed(claim: LeaseClaim) -> ServerLease {
    match claim {
        LeaseClaim::Claimed(lease) => lease,
        other => panic!("{other:?}"),
    }
}

/// Expires all leases, as if their duration had passed.
fn end_leases(state: &ServerState) {
    wait(state.run_durably(|transaction| transaction.execute("UPDATE server_leases SET expires = 1", [])));
}

/// Opens the database at two servers.
fn two_servers(address: &PostgresAddress) -> ([TempDir; 2], [ServerState; 2]) {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let states = dirs.each_ref().map(|dir| open_at(address, dir));
    (dirs, states)
}

#[test]
fn only_one_server_obtains_the_lease_of_an_action() {
    let Some(address) = new_database() else { return };
    let (_dirs, states) = two_servers(&address);
    let claims: Vec<LeaseClaim> = std::thread::scope(|scope| {
        let claims = [("ann", &states[0]), ("bob", &states[1])]
            .map(|(user, state)| scope.spawn(move || wait(state.claim_lease("m", cycle(user), None))));
        claims.into_iter().map(|claim| claim.join().unwrap()).collect()
    });
    let owner = usize::from(!matches!(claims[0], LeaseClaim::Claimed(_)));
    let lease = claimed(claims[owner].clone());
    let LeaseClaim::Busy(other) = &claims[1 - owner] else { panic!("{claims:?}") };
    assert_eq!(other, &lease.action);
    let words = format!("cycle, requested by {} at 2", ["ann", "bob"][owner]);
    assert!(other.describe().starts_with(&words) && other.describe().contains("(process "), "{}", other.describe());
    assert!(wait(states[owner].permit_request(&lease, true)));
    assert!(!wait(states[1 - owner].permit_request(&lease, true)), "another server cannot use the lease");
    assert!(wait(states[owner].release_lease(&lease)) && !wait(states[owner].release_lease(&lease)));
    assert_eq!(claimed(wait(states[1 - owner].claim_lease("m", cycle("x"), None))).sequence, lease.sequence + 1);
    assert!(matches!(wait(states[0].claim_lease("n", cycle("x"), None)), LeaseClaim::Claimed(_)), "other machines");
}

/// The owner exits before a request, between a request and its response, or after the response.
#[test]
fn expired_lease_is_taken_over_once_with_sent_requests() {
    let Some(address) = new_database() else { return };
    let (_dirs, [a, b]) = two_servers(&address);
    for (permits, is_confirmed, expected) in [
        (&[][..], false, (false, false)),
        (&[false], false, (false, true)),
        (&[false], true, (false, false)),
        (&[false, true], false, (true, true)),
        (&[true], true, (true, false)),
    ] {
        let lease = claimed(wait(a.claim_lease("m", cycle("ann"), None)));
        for switches in permits {
            assert!(wait(a.permit_request(&lease, *switches)));
        }
        if is_confirmed {
            wait(a.confirm_request(&lease));
        }
        assert_eq!(wait(b.list_abandoned_leases()), []);
        end_leases(&b);
        // The paused owner continues.
        assert!(!wait(a.permit_request(&lease, true)) && !wait(a.renew_lease(&lease)));
        let abandoned = wait(b.list_abandoned_leases());
        assert_eq!((abandoned[0].may_have_switched, abandoned[0].is_pending), expected, "{permits:?}");
        assert!(matches!(wait(b.claim_lease("m", cycle("bob"), None)), LeaseClaim::Busy(_)), "not without a decision");
        let takeovers = [&a, &b].map(|state| wait(state.claim_lease("m", cycle("bob"), Some(lease.clone()))));
        let new = claimed(takeovers[0].clone());
        assert!(matches!(takeovers[1], LeaseClaim::Busy(_)), "{takeovers:?}");
        assert!(!wait(b.release_lease(&lease)), "the former owner cannot release it");
        assert!(wait(a.permit_request(&new, true)) && wait(a.release_lease(&new)));
        assert_eq!(wait(a.claim_lease("m", cycle("x"), Some(new))), LeaseClaim::Refused, "it was released");
    }
}

#[test]
fn lease_expiry_depends_only_on_the_database_clock() {
    let Some(address) = new_database() else { return };
    let (_dirs, [a, b]) = two_servers(&address);
    for since in ["2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"] {
        let lease = claimed(wait(a.claim_lease("m", LeasedAction { since: since.to_owned(), ..cycle("ann") }, None)));
        assert!(matches!(wait(b.claim_lease("m", cycle("bob"), None)), LeaseClaim::Busy(_)));
        let remaining = || {
            let now = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)";
            let select = format!("SELECT expires - {now} FROM server_leases");
            wait(b.run_job(move |connection| connection.query_row(&select, [], |row| row.get::<_, i64>(0))))
        };
        let longest = i64::try_from(LEASE.as_millis()).unwrap();
        let before = remaining();
        assert!(before > longest / 2 && before <= longest, "{before}");
        std::thread::sleep(Duration::from_millis(50));
        assert!(remaining() < before);
        assert!(wait(a.renew_lease(&lease)) && remaining() > before - 50);
        assert!(wait(a.release_lease(&lease)));
    }
}

#[test]
fn without_the_database_no_request_is_permitted() {
    if !postgres_server::is_installed() {
        return;
    }
    let server = PrivatePostgres::start();
    let address = PostgresAddress::parse(&server.create_database("desk")).unwrap();
    let (_dirs, [a, b]) = two_servers(&address);
    let lease = claimed(wait(a.claim_lease("m", cycle("ann"), None)));
    assert!(wait(a.permit_request(&lease, false)));
    server.stop();
    assert_eq!(error_of(a.permit_request(&lease, true)).code(), common::error_code::ErrorCode::DatabaseUnavailable);
    assert!(RUNTIME.with(|runtime| runtime.block_on(a.renew_lease(&lease))).is_err());
    assert!(RUNTIME.with(|runtime| runtime.block_on(b.claim_lease("m", cycle("bob"), None))).is_err());
    server.resume();
    while RUNTIME.with(|runtime| runtime.block_on(b.check_pulse())).is_err() {
        std::thread::sleep(Duration::from_millis(100));
    }
    end_leases(&b);
    let abandoned = wait(b.list_abandoned_leases());
    assert_eq!((abandoned[0].may_have_switched, abandoned[0].is_pending), (false, true), "the refused request");
}

#[test]
fn canceled_power_cycle_is_permitted_only_after_power_off() {
    let Some(address) = new_database() else { return };
    let (_dirs, [a, b]) = two_servers(&address);
    for (machine, has_switched) in [("m1", false), ("m2", true)] {
        let id = create(&a, &[machine], limits(1, 9));
        assert_eq!(advance(&a, id), "o");
        let lease = claimed(wait(a.claim_power_cycle((id, 0))));
        assert!(matches!(wait(b.claim_power_cycle((id, 0))), LeaseClaim::Refused));
        assert!(wait(a.permit_power_cycle((id, 0), &lease, has_switched)));
        assert!(wait(b.has_pending_requests(id)), "a cancellation waits for the response");
        let change = crate::rollouts::RolloutChange::Cancel("canceled".to_owned());
        wait(b.change_rollout(id, change));
        wait(a.confirm_request(&lease));
        assert!(!wait(b.has_pending_requests(id)));
        // A machine that was switched off must be switched on again.
        assert_eq!(wait(a.permit_power_cycle((id, 0), &lease, true)), has_switched);
        end_leases(&a);
        assert_eq!(wait(b.resume_power_cycle((id, 0), lease.clone())), LeaseClaim::Refused);
        assert!(wait(b.release_lease(&lease)));
    }
}

#[test]
fn an_interrupted_power_cycle_is_resumed_by_one_server() {
    let Some(address) = new_database() else { return };
    let (_dirs, [a, b]) = two_servers(&address);
    let id = create(&a, &["m1"], limits(1, 9));
    advance(&a, id);
    let lease = claimed(wait(a.claim_power_cycle((id, 0))));
    assert!(matches!(wait(b.resume_power_cycle((id, 0), lease.clone())), LeaseClaim::Busy(_)), "still in force");
    end_leases(&a);
    let claims = [&a, &b].map(|state| wait(state.resume_power_cycle((id, 0), lease.clone())));
    assert!(matches!(claims, [LeaseClaim::Claimed(_), LeaseClaim::Busy(_)]), "{claims:?}");
    wait(b.record_member_problem((id, 0), "look after it".to_owned()));
    let rollout = wait(a.find_rollout(id)).unwrap();
    assert_eq!(rollout.members[0].record.reason, "look after it");
}

/// A SQLite file belongs to one server, whose earlier process has ended.
#[test]
fn sqlite_lease_ends_with_its_process() {
    if test_engine::is_postgres("tests of SQLite") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let open = || ServerState::open(&dir.path().join(DATABASE), Duration::ZERO).unwrap();
    let state = open();
    let lease = claimed(wait(state.claim_lease("m", cycle("ann"), None)));
    end_leases(&state);
    assert!(wait(state.permit_request(&lease, true)) && wait(state.renew_lease(&lease)));
    assert_eq!(wait(state.list_abandoned_leases()), []);
    wait(async {
        state.close().await;
        Ok::<_, common::error::Error>(())
    });
    let state = open();
    assert!(!wait(state.permit_request(&lease, true)));
    let abandoned = wait(state.list_abandoned_leases());
    assert!(abandoned[0].may_have_switched && abandoned[0].lease == lease);
    assert!(wait(state.release_lease(&lease)));
}
