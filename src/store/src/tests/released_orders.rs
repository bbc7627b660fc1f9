//! Orders that end because their machine is freed, and are restored because its file cannot be changed.

use super::*;

#[test]
fn released_order_is_restored_unless_another_one_was_placed() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    let words = ReinstallOverrides { give_up: vec!["S1".to_owned()], ..ReinstallOverrides::default() };
    assert!(matches!(wait(state.place_order("m", "a", "i1", words, None)), OrderOutcome::Placed { .. }));
    let before = install_state(&state, "m").order.unwrap();
    assert_eq!(wait(state.release_allocation("m", "a")), ReleaseOutcome::Released(Some(before.clone())));
    assert_eq!(install_state(&state, "m").order, None);
    assert!(wait(state.restore_released_order("m", "a", before.clone())));
    assert_eq!(install_state(&state, "m").order, Some(before.clone()));
    assert!(!wait(state.restore_released_order("m", "a", before)), "the order is in force already");
    let kinds: Vec<HistoryKind> = wait(state.list_history("m")).iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds[kinds.len() - 3..], [HistoryKind::Ordered, HistoryKind::Cancelled, HistoryKind::Ordered]);
}
