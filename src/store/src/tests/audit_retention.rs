//! Retention of the audit log if the clock is ahead.

use super::users_and_audit::append_at;
use super::*;
use crate::audit::{AuditQuery, AuditRetention};
use time::{Duration as TimeSpan, OffsetDateTime};

const RETENTION: AuditRetention = AuditRetention { days: 400, entries: 1_000_000 };

fn count(state: &ServerState) -> usize {
    wait(state.list_audit(AuditQuery::default())).len()
}

/// Sets the clock that all servers share.
fn set_clock(state: &ServerState, time: OffsetDateTime) {
    state.heard.clock.record(i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap());
}

/// Also entries that are stored with the wrong time do not cause a deletion on the first day.
#[test]
fn clock_that_jumps_forward_deletes_no_entries() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let today = OffsetDateTime::now_utc();
    (0..10).for_each(|_| append_at(&state, today));
    let later = today + TimeSpan::days(5 * 365);
    set_clock(&state, later);
    for stored in 10..13 {
        let problem = wait(state.trim_audit(RETENTION)).unwrap();
        assert!(problem.contains("the clock may be ahead"), "{problem}");
        assert_eq!(count(&state), stored);
        append_at(&state, later);
    }
    set_clock(&state, today);
    assert_eq!((wait(state.trim_audit(RETENTION)), count(&state)), (None, 13));
    // The limit on the number of entries does not depend on the clock.
    set_clock(&state, later);
    wait(state.trim_audit(AuditRetention { entries: 5, ..RETENTION }));
    assert_eq!(count(&state), 5);
}

/// The clock of this server is ahead, but the clock of PostgreSQL is not.
#[test]
fn entries_expire_by_the_shared_clock() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let today = OffsetDateTime::now_utc();
    append_at(&state, today - TimeSpan::days(500));
    append_at(&state, today - TimeSpan::days(2));
    set_clock(&state, today - TimeSpan::days(200));
    assert_eq!((wait(state.trim_audit(RETENTION)), count(&state)), (None, 2));
    set_clock(&state, today);
    assert_eq!((wait(state.trim_audit(RETENTION)), count(&state)), (None, 1));
}

#[test]
fn few_entries_expire_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let today = OffsetDateTime::now_utc();
    (0..300).for_each(|_| append_at(&state, today - TimeSpan::days(500)));
    append_at(&state, today - TimeSpan::days(2));
    for left in [173, 45, 1, 1] {
        assert_eq!((wait(state.trim_audit(RETENTION)), count(&state)), (None, left));
    }
}
