//! Boot requests of a machine with a reinstall order: requests whose response does not arrive, machines whose agent
//! never registers, and attempts that do not start.

use super::*;
use crate::boot_registration::{EnrollOutcome, RegisteringClient};
use crate::boot_token::RequestedBoot;
use crate::install_attempt::UNREGISTERED_BOOTS;

/// Installs the machine, and orders a reinstall.
fn ordered(dir: &TempDir) -> (ServerState, ReinstallOrder) {
    let state = open(dir);
    install(&state, "m");
    assert!(matches!(request(&state), BootTarget::Disk));
    let order = place(&state);
    (state, order)
}

fn place(state: &ServerState) -> ReinstallOrder {
    match wait(state.place_order("m", "a", "i1", ReinstallOverrides::default(), None)) {
        OrderOutcome::Placed { order, .. } => order,
        other => panic!("{other:?}"),
    }
}

/// Requests a boot. The response does not arrive, or the agent does not register.
fn request(state: &ServerState) -> BootTarget {
    wait(state.decide_next_boot("m", FileAllocation::Allocated("a".to_owned()))).next
}

/// Registers the agent of a boot that was requested now.
fn register_agent(state: &ServerState, number: u8, while_active: bool) -> Option<BootTarget> {
    let requested = RequestedBoot { machine: "m".to_owned(), created: state.shared_time(), while_active };
    let boot = MachineBoot::from_request([100 + number; 32], requested);
    let by = RegisteringClient { address: "10.0.0.7".to_owned(), allocation: Some("a".to_owned()), has_file: true };
    let EnrollOutcome::Registered(next) = wait(state.enroll_boot(boot, by)) else { panic!() };
    // The boot ends, so that it does not block the next one.
    wait(state.record_boot_end("m", [100 + number; 32], false));
    next
}

fn attempts(state: &ServerState) -> u32 {
    install_state(state, "m").order.unwrap().attempts
}

#[test]
fn requests_that_are_not_answered_do_not_end_an_order() {
    let dir = tempfile::tempdir().unwrap();
    let (state, order) = ordered(&dir);
    for number in 1..=3 {
        // The server is slow or has failed, and the firmware repeats its request. Only the last response arrives.
        for _ in 0..4 {
            assert!(matches!(request(&state), BootTarget::Attempt(open) if open.attempts == number));
        }
        register_agent(&state, u8::try_from(number).unwrap(), false);
        assert_eq!(attempts(&state), number);
    }
    assert_eq!(install_state(&state, "m").order.unwrap().id, order.id);
}

#[test]
fn attempts_that_do_not_start_suspend_the_order_until_the_operator_decides() {
    let dir = tempfile::tempdir().unwrap();
    let (state, order) = ordered(&dir);
    for _ in 0..3 {
        assert!(matches!(boot_and_register(&state, "m"), BootTarget::Attempt(_)));
    }
    for _ in 0..3 {
        assert!(matches!(request(&state), BootTarget::Suspended(open) if open.id == order.id));
    }
    let now = install_state(&state, "m");
    assert!(now.order.as_ref().is_some_and(ReinstallOrder::is_suspended) && !now.will_install(), "{now:?}");
    assert_eq!(now.clone().without_withheld_order().order, None);
    let outcome = now.outcome.unwrap();
    assert!(
        !outcome.success && outcome.message.starts_with("suspended: none of 3 attempts has reached"),
        "{outcome:?}"
    );
    let history = wait(state.list_history("m"));
    let last = history.last().unwrap();
    assert_eq!((last.kind, &last.message), (HistoryKind::Failed, &outcome.message));
    assert_eq!(history.iter().filter(|entry| entry.kind == HistoryKind::Failed).count(), 1);
    // The announcement of a boot of an earlier attempt arrives late.
    assert_eq!(wait(state.start_order("m", "a", &order.id, start())), OrderStart::NotInForce);

    let next = place(&state);
    assert!(matches!(boot_and_register(&state, "m"), BootTarget::Attempt(open) if open.id == next.id));
    for _ in 0..3 {
        boot_and_register(&state, "m");
    }
    assert!(matches!(wait(state.cancel_order("m", "a")), CancelOutcome::Done(open) if open.id == next.id));
    assert_eq!(request(&state), BootTarget::Disk);
}

#[test]
fn a_ramdisk_whose_agent_never_registers_suspends_the_order() {
    let dir = tempfile::tempdir().unwrap();
    let (state, _) = ordered(&dir);
    for number in 1..=UNREGISTERED_BOOTS {
        assert!(
            matches!(request(&state), BootTarget::Attempt(open) if (open.attempts, open.unregistered) == (1, number))
        );
    }
    assert!(matches!(request(&state), BootTarget::Suspended(_)));
    let message = install_state(&state, "m").outcome.unwrap().message;
    assert!(message.starts_with("suspended: no agent has registered after 10 boots of the ramdisk"), "{message}");
}

/// After the point of no return, the disk does not contain a complete system, so the machine must not boot it.
#[test]
fn a_started_order_whose_agent_no_longer_registers_is_abandoned() {
    let dir = tempfile::tempdir().unwrap();
    let (state, order) = ordered(&dir);
    boot_and_register(&state, "m");
    assert!(matches!(wait(state.start_order("m", "a", &order.id, start())), OrderStart::Permitted(..)));
    for number in 1..=UNREGISTERED_BOOTS {
        assert!(
            matches!(request(&state), BootTarget::Attempt(open) if (open.attempts, open.unregistered) == (2, number))
        );
    }
    assert!(matches!(request(&state), BootTarget::Attempt(open) if open.started && !open.given_up), "for its report");
    assert!(
        matches!(request(&state), BootTarget::AbandonedAfterErase(_))
            && matches!(request(&state), BootTarget::AbandonedAfterErase(_))
    );
}

/// Any client can send boot requests. Requests that follow each other quickly are therefore counted once, even if the
/// clocks of the servers that answer them differ.
#[test]
fn quick_requests_at_servers_with_different_clocks_are_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let state = ServerState::open(&dir.path().join("state.sqlite"), Duration::from_secs(180)).unwrap();
    install(&state, "m");
    place(&state);
    let count = || match request(&state) {
        BootTarget::Attempt(open) => open.unregistered,
        other => panic!("{other:?}"),
    };
    assert_eq!((count(), count()), (1, 1));
    // The time of the shared clock is stored, not the time of this server, whose clock is 10 minutes behind.
    let milliseconds = |time: time::OffsetDateTime| i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap();
    let database = time::OffsetDateTime::now_utc() + time::Duration::minutes(10);
    state.heard.clock.record(milliseconds(database));
    assert_eq!((count(), count()), (2, 2), "10 minutes have passed at the database");
    let handed = install_state(&state, "m").order.unwrap().handed.unwrap();
    assert!(state.heard.clock.time_since(&handed) < Duration::from_secs(60), "{handed}");
}

/// A boot was counted while the clock of a server was ahead, so its recorded time is in the future. Later boots must be
/// counted even before that time is reached.
#[test]
fn boots_are_counted_after_a_request_in_the_future() {
    let dir = tempfile::tempdir().unwrap();
    let state = ServerState::open(&dir.path().join("state.sqlite"), Duration::from_secs(180)).unwrap();
    install(&state, "m");
    place(&state);
    let count = || match request(&state) {
        BootTarget::Attempt(open) => open.unregistered,
        other => panic!("{other:?}"),
    };
    let milliseconds = |time: time::OffsetDateTime| i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap();
    state.heard.clock.record(milliseconds(time::OffsetDateTime::now_utc() + time::Duration::days(365)));
    assert_eq!((count(), count()), (1, 1));
    state.heard.clock.record(milliseconds(time::OffsetDateTime::now_utc()));
    assert_eq!((count(), count()), (2, 2));
}

/// A boot that was requested while another one was active belongs to the attempt of earlier requests.
#[test]
fn a_boot_that_registers_begins_one_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let (state, _) = ordered(&dir);
    request(&state);
    assert!(matches!(register_agent(&state, 1, true), Some(BootTarget::Attempt(open)) if open.attempts == 1));
    assert!(matches!(register_agent(&state, 2, true), Some(BootTarget::Attempt(open)) if open.attempts == 2));
    assert!(matches!(request(&state), BootTarget::Attempt(open) if open.attempts == 3));
    assert!(matches!(register_agent(&state, 3, true), Some(BootTarget::Attempt(open)) if open.attempts == 3));
    assert!(matches!(register_agent(&state, 4, true), Some(BootTarget::Suspended(_))));
}
