//! Machines whose disks contain an incomplete system, while their machine file changes.

use super::*;
use ::model::install_marker::InstallMarker;

fn allocated(allocation: &str) -> FileAllocation {
    FileAllocation::Allocated(allocation.to_owned())
}

/// Returns all contents of a machine file, including allocations that were never installed.
fn all_files() -> [FileAllocation; 4] {
    [allocated("a"), allocated("new"), FileAllocation::Free, FileAllocation::NoMachineFile]
}

fn decide(state: &ServerState, files: FileAllocation) -> BootDecision {
    wait(state.decide_next_boot("m", files))
}

/// Returns whether the machine may boot its disks, also through a NIC that its file does not list.
fn may_boot_disk(state: &ServerState, files: &FileAllocation) -> bool {
    let decision = decide(state, files.clone());
    let is_barred = wait(state.is_barred_from_disks("m", files.clone()));
    assert_eq!(is_barred, decision.excludes_disk, "{files:?}");
    assert!(!(is_barred && decision.next.boots_disk()), "{files:?}: {decision:?}");
    !is_barred
}

/// Serves the allocation to machine `m`, and starts its first installation.
fn start_first(state: &ServerState, allocation: &str) {
    let (layout, fields) = (serde_json::json!({"id": "default"}), InstalledAllocation::default());
    let served = ServedInstall { layout_id: "default", layout: &layout, image: "i0", order: "", fields: &fields };
    wait(state.record_served("m", allocation, served));
    register(state, "m", true);
    let started = wait(state.start_first_install("m", allocation, AttemptStart { by: [7; 32], ..start() }));
    assert_eq!(started, FirstStartOutcome::Permitted(true));
}

/// Reports the success of the first installation that was started last.
fn complete_first(state: &ServerState, allocation: &str) {
    let reported = wait(state.handle_report("m", allocation, [7; 32], &report(true, "")));
    assert_eq!(reported.unproven, None);
    register(state, "m", false);
}

fn place(state: &ServerState, allocation: &str) -> ReinstallOrder {
    match wait(state.place_order("m", allocation, "i1", ReinstallOverrides::default(), None)) {
        OrderOutcome::Placed { order, .. } => order,
        other => panic!("{other:?}"),
    }
}

fn start_reinstall(state: &ServerState, allocation: &str) -> ReinstallOrder {
    let order = place(state, allocation);
    let started = wait(state.start_order("m", allocation, &order.id, start()));
    assert!(matches!(started, OrderStart::Permitted(..)), "{started:?}");
    order
}

#[test]
fn started_first_installation_is_not_booted_whatever_the_machine_file_contains() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    assert!(all_files().iter().all(|files| may_boot_disk(&state, files)), "nothing was written");
    start_first(&state, "a");
    for files in all_files() {
        assert!(!may_boot_disk(&state, &files), "{files:?}");
        assert_eq!(decide(&state, files).next, BootTarget::Install);
    }
    complete_first(&state, "a");
    assert!(all_files().iter().all(|files| may_boot_disk(&state, files)));
    assert_eq!(decide(&state, allocated("a")).next, BootTarget::Disk);
}

#[test]
fn started_reinstall_is_not_booted_whatever_the_machine_file_contains() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    place(&state, "a");
    assert!(all_files().iter().all(|files| may_boot_disk(&state, files)), "the installed system is intact");
    start_reinstall(&state, "a");
    for files in all_files() {
        assert!(!may_boot_disk(&state, &files), "{files:?}");
    }
    assert!(matches!(decide(&state, allocated("a")).next, BootTarget::Attempt(_)));
}

#[test]
fn earlier_installation_is_not_booted_while_another_allocation_is_being_installed() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    start_first(&state, "b");
    assert!(!may_boot_disk(&state, &allocated("a")));
    assert_eq!(decide(&state, allocated("a")).next, BootTarget::Install);
    complete_first(&state, "b");
    assert!(may_boot_disk(&state, &allocated("b")));
    assert_eq!(decide(&state, allocated("b")).next, BootTarget::Disk);
}

/// The file of the machine contains an allocation that was installed before the reinstall has started.
#[test]
fn started_order_is_deleted_only_after_a_later_installation() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    start_first(&state, "b");
    complete_first(&state, "b");
    start_reinstall(&state, "a");
    assert_eq!(wait(state.cancel_removed_orders("m", "a", Some("b"))), None);
    assert!(!may_boot_disk(&state, &allocated("b")));
    // A reinstall of `b` is ordered later, and its marker is recorded.
    let fencing = place(&state, "b").fencing;
    assert!(matches!(wait(state.cancel_order("m", "b")), CancelOutcome::Done(_)));
    let marker = serde_json::to_string(&InstallMarker { fencing, ..InstallMarker::default() }).unwrap();
    wait(state.run_durably(move |transaction| {
        let update = "UPDATE allocations SET marker = ?1 WHERE machine = 'm' AND id = 'b'";
        transaction.execute(update, params![marker])
    }));
    assert!(may_boot_disk(&state, &allocated("b")), "the disks contain the later installation");
    assert!(!may_boot_disk(&state, &allocated("a")), "the order of `a` is still open");
    assert!(wait(state.cancel_removed_orders("m", "a", Some("b"))).is_some());
}
