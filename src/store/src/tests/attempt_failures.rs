//! Tests when the failure of an attempt is removed from the record of the machine.

use super::*;

/// Reports a failed attempt of the open order, or of the first installation if `order` is empty.
fn report_failure(state: &ServerState, order: &str) {
    let failure = InstallReport { message: "no space".to_owned(), untouched: true, ..report(false, order) };
    wait(state.handle_report("m", "a", BOOT, &failure));
    assert_eq!(standing(state, "m").failure.unwrap().message, "no space");
}

#[test]
fn an_adoption_clears_the_failure() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    report_failure(&state, "");
    assert_eq!(wait(state.adopt_allocation("m", "a")), AdoptOutcome::Adopted);
    assert_eq!(standing(&state, "m").failure, None);
}

#[test]
fn a_reinstall_order_clears_the_failure() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    let place = || wait(state.place_order("m", "a", "i1", ReinstallOverrides::default()));
    let OrderOutcome::Placed(order) = place() else { panic!() };
    report_failure(&state, &order.id);
    assert!(matches!(place(), OrderOutcome::Placed(_)));
    assert_eq!(standing(&state, "m").failure, None);
}
