//! Renames of machines while they are installed.

use super::*;
use crate::boot_activity::ACTIVE_BOOT_TIMEOUT;
use crate::machine_rename::RenameOutcome;

fn is_renamed(state: &ServerState, old: &str, new: &str) -> bool {
    wait(state.rename_machine(old, new)) == RenameOutcome::Done
}

#[test]
fn machine_is_not_renamed_while_its_installation_is_active() {
    let dir = tempfile::tempdir().unwrap();
    let state = ServerState::open(&dir.path().join("state.sqlite"), ACTIVE_BOOT_TIMEOUT).unwrap();
    install(&state, "m");
    let OrderOutcome::Placed { order, .. } =
        wait(state.place_order("m", "a", "i1", ReinstallOverrides::default(), None))
    else {
        panic!()
    };
    register(&state, "m", true);
    assert!(is_renamed(&state, "m", "n") && is_renamed(&state, "n", "m"), "the order has not started");
    register(&state, "m", true);
    let start = AttemptStart { by: [7; 32], ..AttemptStart::default() };
    assert!(matches!(wait(state.start_order("m", "a", &order.id, start)), OrderStart::Permitted(..)));
    assert!(!is_renamed(&state, "m", "n"), "the boot is active");
    wait(state.record_boot_end("m", [7; 32], false));
    assert!(is_renamed(&state, "m", "n"), "the boot has ended");
}

/// A rename with a mistyped id must not delete the record that protects another machine.
#[test]
fn adopted_machine_is_not_replaced_by_a_renamed_one() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    wait(state.adopt_allocation("n", "b", None));
    assert!(!is_renamed(&state, "m", "n"));
    assert!(wait(state.read_install_state("n", "b")).adopted);
}
