//! Boots of a machine whose records contain times in the future, because the clock of a server was ahead.

use super::*;
use crate::boot_activity::MachineBoot;
use crate::boot_registration::{EnrollOutcome, RegisteringClient};
use crate::boot_token::RequestedBoot;
use time::{Duration as TimeSpan, OffsetDateTime};

/// Returns the time that the server records for a boot requested now.
fn request(state: &ServerState) -> OffsetDateTime {
    wait(state.decide_next_boot("m", FileAllocation::Allocated("a".to_owned()))).requested
}

/// Registers a boot with this token hash and request time. The boot then ends.
fn register(state: &ServerState, hash: u8, created: OffsetDateTime) -> EnrollOutcome {
    let requested = RequestedBoot { machine: "m".to_owned(), created, while_active: false };
    let by = RegisteringClient { address: "10.0.0.7".to_owned(), allocation: Some("a".to_owned()), has_file: true };
    let outcome = wait(state.enroll_boot(MachineBoot::from_request([hash; 32], requested), by));
    wait(state.record_boot_end("m", [hash; 32], false));
    outcome
}

#[test]
fn boot_follows_a_boot_that_was_requested_in_the_future() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let ahead = OffsetDateTime::now_utc() + TimeSpan::minutes(10);
    assert!(matches!(register(&state, 1, ahead), EnrollOutcome::Registered(_)));
    for hash in 2..5 {
        assert!(matches!(register(&state, hash, request(&state)), EnrollOutcome::Registered(_)), "boot {hash}");
    }
}

#[test]
fn boot_follows_a_release_that_was_recorded_in_the_future() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let milliseconds = |time: OffsetDateTime| i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap();
    let before = request(&state);
    state.heard.clock.record(milliseconds(OffsetDateTime::now_utc() + TimeSpan::minutes(10)));
    wait(state.free_machine("m"));
    state.heard.clock.record(milliseconds(OffsetDateTime::now_utc()));
    assert!(matches!(register(&state, 1, before), EnrollOutcome::Rejected), "requested before the release");
    assert!(matches!(register(&state, 2, request(&state)), EnrollOutcome::Registered(_)));
}

#[test]
fn boot_that_was_requested_before_the_registered_boot_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let (first, second) = (request(&state), request(&state));
    assert!(matches!(register(&state, 2, second), EnrollOutcome::Registered(_)));
    assert!(matches!(register(&state, 1, first), EnrollOutcome::Rejected));
    let third = request(&state);
    assert!(third > second && matches!(register(&state, 3, third), EnrollOutcome::Registered(_)));
}

/// The clock of this server is behind the shared clock.
#[test]
fn rollout_starts_by_the_shared_clock() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let milliseconds = |time: OffsetDateTime| i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap();
    let start = OffsetDateTime::now_utc() + TimeSpan::minutes(10);
    let start = start.format(&time::format_description::well_known::Rfc3339).ok();
    let limits = crate::rollouts::RolloutLimits { start, ..rollouts::limits(1, 1) };
    let id = rollouts::create(&state, &["m"], limits);
    assert_eq!(rollouts::advance(&state, id), "w");
    state.heard.clock.record(milliseconds(OffsetDateTime::now_utc() + TimeSpan::minutes(11)));
    assert_eq!(rollouts::advance(&state, id), "o");
}
