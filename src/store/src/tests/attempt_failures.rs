//! Tests when the stored failure of an attempt is removed.

use super::*;

/// Reports a failed attempt of the open order, or of the first installation if `order` is empty.
fn report_failure(state: &ServerState, order: &str) {
    let failure = InstallReport { message: "no space".to_owned(), untouched: true, ..report(false, order) };
    wait(state.handle_report("m", "a", BOOT, &failure));
    assert_eq!(install_state(state, "m").failure.unwrap().message, "no space");
}

#[test]
fn an_adoption_clears_the_failure() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    report_failure(&state, "");
    assert_eq!(wait(state.adopt_allocation("m", "a", None)), AdoptOutcome::Adopted);
    assert_eq!(install_state(&state, "m").failure, None);
}

#[test]
fn a_reinstall_order_clears_the_failure() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    let place = || wait(state.place_order("m", "a", "i1", ReinstallOverrides::default(), None));
    let OrderOutcome::Placed { order, .. } = place() else { panic!() };
    report_failure(&state, &order.id);
    assert!(matches!(place(), OrderOutcome::Placed { .. }));
    assert_eq!(install_state(&state, "m").failure, None);
}

/// The agent repeats its report if the response was lost.
#[test]
fn repeated_report_does_not_restore_a_cleared_failure() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    register(&state, "m", true);
    let report = |order: &str, message: &str| {
        let failure = InstallReport { message: message.to_owned(), untouched: true, ..report(false, order) };
        let reported = wait(state.handle_report("m", "a", [7; 32], &failure));
        reported.over.into_iter().for_each(|success| wait(state.record_boot_end("m", [7; 32], success)));
        install_state(&state, "m").failure.map(|failure| failure.message)
    };
    let place = || match wait(state.place_order("m", "a", "i1", ReinstallOverrides::default(), None)) {
        OrderOutcome::Placed { order, .. } => order.id,
        _ => panic!(),
    };
    let first = place();
    assert_eq!(report(&first, "no space").as_deref(), Some("no space"));
    assert_eq!(report(&first, "no space").as_deref(), Some("no space"));
    let second = place();
    assert_eq!(report(&first, "no space"), None);
    assert_eq!(report(&first, "another message"), None);
    // The boot has started another attempt, for the open order.
    assert_eq!(report(&second, "no disk").as_deref(), Some("no disk"));
}

/// Another boot has registered since, and its attempt has started.
#[test]
fn failure_of_an_earlier_boot_does_not_end_the_attempt_of_a_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    let OrderOutcome::Placed { order, .. } =
        wait(state.place_order("m", "a", "i1", ReinstallOverrides::default(), None))
    else {
        panic!()
    };
    register(&state, "m", true);
    let start = AttemptStart { by: [7; 32], ..AttemptStart::default() };
    assert!(matches!(wait(state.start_order("m", "a", &order.id, start)), OrderStart::Permitted(..)));
    let open = install_state(&state, "m").order;
    for untouched in [true, false] {
        let late = InstallReport { message: "no space".to_owned(), untouched, ..report(false, &order.id) };
        let reported = wait(state.handle_report("m", "a", BOOT, &late));
        assert_eq!((reported.order, reported.retry, reported.over), (None, false, None));
        assert_eq!(install_state(&state, "m").order, open);
    }
    let own = InstallReport { untouched: true, ..report(false, &order.id) };
    wait(state.handle_report("m", "a", [7; 32], &own));
    assert_eq!(install_state(&state, "m").order, None);
}
