//! Tests which record of an allocation's fields becomes that of the installation.

use super::*;
use crate::{AllocationFields, InstalledAllocation};
use std::collections::BTreeMap;

fn fields(hostname: &str, user_data: &str) -> InstalledAllocation {
    let plain = serde_json::json!({"hostname": hostname}).as_object().cloned().unwrap();
    let secrets = BTreeMap::from([("user_data".to_owned(), user_data.to_owned())]);
    InstalledAllocation::from_fields(AllocationFields { plain, secrets })
}

fn serve(state: &ServerState, order: &str, fields: &InstalledAllocation) {
    let layout = serde_json::json!({"id": "default"});
    let what = ServedInstall { layout_id: "default", layout: &layout, image: "i0", order, fields };
    wait(state.record_served("m", "a", what));
}

fn installed_hostname(state: &ServerState) -> Option<String> {
    Some(install_state(state, "m").installed_allocation?.plain["hostname"].as_str()?.to_owned())
}

fn order(state: &ServerState, apply_allocation: bool) -> String {
    let words = ReinstallOverrides { apply_allocation, ..ReinstallOverrides::default() };
    let OrderOutcome::Placed { order, .. } = wait(state.place_order("m", "a", "i1", words, None)) else { panic!() };
    assert_eq!(install_state(state, "m").order.unwrap().apply_allocation, apply_allocation);
    order.id
}

fn install_with(state: &ServerState, fields: &InstalledAllocation) {
    serve(state, "", fields);
    register(state, "m", true);
    let boot = AttemptStart { by: [7; 32], ..start() };
    assert!(matches!(wait(state.start_first_install("m", "a", boot)), FirstStartOutcome::Permitted(_)));
    wait(state.handle_report("m", "a", [7; 32], &report(true, "")));
    register(state, "m", false);
}

#[test]
fn fields_served_at_the_start_are_recorded_as_installed() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    serve(&state, "", &fields("h0", "u"));
    register(&state, "m", true);
    serve(&state, "", &fields("h1", "u"));
    wait(state.start_first_install("m", "a", AttemptStart { by: [7; 32], ..start() }));
    // The file was edited, and the next boot was served, before the success of the attempt was reported.
    serve(&state, "", &fields("h2", "u"));
    assert_eq!(installed_hostname(&state), None, "nothing is installed yet");
    wait(state.handle_report("m", "a", [7; 32], &report(true, "")));
    assert_eq!(installed_hostname(&state).as_deref(), Some("h1"));
    drop(state);
    assert_eq!(installed_hostname(&open(&dir)).as_deref(), Some("h1"));
}

#[test]
fn only_a_completed_order_changes_the_installed_fields() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install_with(&state, &fields("h1", "u"));
    let is_kept = || install_state(&state, "m").preserved_allocation().is_some();
    assert!(is_kept());
    let cancelled = order(&state, true);
    assert!(!is_kept());
    serve(&state, &cancelled, &fields("h2", "u"));
    assert!(matches!(wait(state.cancel_order("m", "a")), CancelOutcome::Done(_)));
    assert_eq!((installed_hostname(&state).as_deref(), is_kept()), (Some("h1"), true));

    let failed = order(&state, true);
    serve(&state, &failed, &fields("h3", "u"));
    assert!(matches!(wait(state.start_order("m", "a", &failed, start())), OrderStart::Permitted(..)));
    let failure = InstallReport { untouched: true, ..report(false, &failed) };
    wait(state.handle_report("m", "a", BOOT, &failure));
    assert_eq!((installed_hostname(&state).as_deref(), is_kept()), (Some("h1"), true));

    assert!(!order(&state, true).is_empty());
    let done = order(&state, true);
    serve(&state, &done, &fields("h4", "u"));
    assert!(matches!(wait(state.start_order("m", "a", &done, start())), OrderStart::Permitted(..)));
    wait(state.handle_report("m", "a", BOOT, &report(true, &done)));
    assert_eq!((installed_hostname(&state).as_deref(), is_kept()), (Some("h4"), true));
}

#[test]
fn secrets_sent_to_the_installing_boot_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let send = |has_begun: bool, value: &str| {
        let secrets = BTreeMap::from([("user_data".to_owned(), value.to_owned())]);
        wait(state.record_sent_secrets("m", "a", has_begun, secrets));
    };
    // Neither call fails if there is no record.
    send(false, "u0");
    send(true, "u0");
    serve(&state, "", &fields("h", "u0"));
    register(&state, "m", true);
    send(false, "u1");
    wait(state.start_first_install("m", "a", AttemptStart { by: [7; 32], ..start() }));
    send(true, "u2");
    send(false, "of a later boot");
    wait(state.handle_report("m", "a", [7; 32], &report(true, "")));
    let record = install_state(&state, "m").installed_allocation.unwrap();
    let was = |value| record.is_same_secret("user_data", Some(value));
    assert_eq!(["u0", "u1", "u2", "of a later boot"].map(was), [false, false, true, false]);
}

#[test]
fn an_adopted_installation_has_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    serve(&state, "", &fields("h", "u"));
    assert_eq!(wait(state.adopt_allocation("m", "a", None)), AdoptOutcome::Adopted);
    let marker =
        install_marker::InstallMarker { image: "i0".to_owned(), allocation: "a".to_owned(), ..Default::default() };
    wait(state.handle_report("m", "a", BOOT, &InstallReport { marker: Some(marker), ..report(true, "") }));
    assert!(install_state(&state, "m").succeeded);
    assert_eq!(installed_hostname(&state), None);
}

/// An adopted machine has not proven that it is installed, even after an order without a marker. If that order ends
/// before it starts, the next order must permit the missing marker as well.
#[test]
fn a_canceled_order_leaves_an_adoption_unproven() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    serve(&state, "", &fields("h", "u"));
    assert_eq!(wait(state.adopt_allocation("m", "a", None)), AdoptOutcome::Adopted);
    let place = |without_marker| {
        let words = ReinstallOverrides { without_marker, ..ReinstallOverrides::default() };
        wait(state.place_order("m", "a", "i1", words, None))
    };
    assert!(matches!(place(true), OrderOutcome::Placed { .. }));
    assert!(install_state(&state, "m").is_claimed);
    assert!(matches!(wait(state.cancel_order("m", "a")), CancelOutcome::Done(_)));
    assert!(install_state(&state, "m").is_claimed, "without the order, the machine boots its disks");
    assert!(matches!(place(false), OrderOutcome::NotInstalled));
    // The agent refuses the plan, and nothing was written.
    let OrderOutcome::Placed { order, .. } = place(true) else { panic!() };
    let refused = InstallReport { untouched: true, ..report(false, &order.id) };
    wait(state.handle_report("m", "a", BOOT, &refused));
    assert!(install_state(&state, "m").order.is_none());
    assert!(matches!(place(false), OrderOutcome::NotInstalled));
}

#[test]
fn rename_preserves_the_installed_fields() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install_with(&state, &fields("h1", "u"));
    assert_eq!(wait(state.rename_machine("m", "n")), RenameOutcome::Done);
    assert_eq!(wait(state.read_install_state("n", "a")).installed_allocation.unwrap().plain["hostname"], "h1");
}
