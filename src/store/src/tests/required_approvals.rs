//! Reinstall orders that require the approval of their plan.

use super::*;
use crate::OrderBasis;
use crate::document_protection::{GuardedChange, GuardedChangeKind};
use crate::required_approval::RequiredApproval;

fn place(state: &ServerState, approval: Option<&str>) -> ReinstallOrder {
    let basis = OrderBasis { approval: approval.map(str::to_owned), machine_file: None };
    match wait(state.place_order("m", "a", "i1", ReinstallOverrides::default(), Some(basis))) {
        OrderOutcome::Placed { order, .. } => order,
        other => panic!("{other:?}"),
    }
}

fn approved(digest: Option<&str>) -> AttemptStart {
    AttemptStart { approved: digest.map(str::to_owned), ..start() }
}

fn open_order(state: &ServerState, machine: &str) -> Option<ReinstallOrder> {
    wait(state.read_install_state(machine, "a")).order
}

#[test]
fn order_starts_only_with_the_required_approval() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    let order = place(&state, Some("sha256:1"));
    assert_eq!(order.required_approval, Some(RequiredApproval::Plan("sha256:1".to_owned())));
    assert_eq!(open_order(&state, "m").unwrap().required_approval, order.required_approval);
    for other in [None, Some("sha256:2")] {
        assert_eq!(wait(state.start_order("m", "a", &order.id, approved(other))), OrderStart::Unapproved);
        assert!(!open_order(&state, "m").unwrap().started);
    }
    let started = wait(state.start_order("m", "a", &order.id, approved(Some("sha256:1"))));
    assert!(matches!(started, OrderStart::Permitted(_, true)));
    // The plan of a started order may be approved again, because the order can no longer be replaced.
    assert_eq!(wait(state.start_order("m", "a", &order.id, approved(None))), OrderStart::Unapproved);
    let again = wait(state.start_order("m", "a", &order.id, approved(Some("sha256:2"))));
    assert!(matches!(again, OrderStart::Permitted(_, false)));
}

#[test]
fn requirement_ends_with_the_order() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    let removal = || vec![GuardedChange { machine: "m".to_owned(), kind: GuardedChangeKind::RemovedApproval }];
    assert_eq!(wait(state.list_refused_changes(removal())), []);
    place(&state, Some("sha256:1"));
    let refused = wait(state.list_refused_changes(removal()));
    assert_eq!(refused[0].reason, "has an order that requires the approved plan");
    let order = place(&state, None);
    assert_eq!((order.required_approval, wait(state.list_refused_changes(removal()))), (None, vec![]));
    place(&state, Some("sha256:1"));
    assert!(matches!(wait(state.cancel_order("m", "a")), CancelOutcome::Done(_)));
    assert_eq!(wait(state.list_refused_changes(removal())), []);
}

#[test]
fn order_of_a_renamed_machine_requires_another_approval() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    place(&state, Some("sha256:1"));
    assert_eq!(wait(state.rename_machine("m", "n")), RenameOutcome::Done);
    let order = open_order(&state, "n").unwrap();
    assert_eq!(order.required_approval, Some(RequiredApproval::AnyPlan));
    assert!(!order.accepts_approval(None) && order.accepts_approval(Some("sha256:9")));
}
