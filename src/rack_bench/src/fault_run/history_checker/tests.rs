//! Tests of the checker with handwritten histories. `scripts/bench faults --planted` tests the checker with real
//! servers.

use super::*;
use proptest::prelude::*;

fn order(id: &str) -> String {
    id.to_owned()
}

/// Returns the events of one installation by one boot.
fn installation(boot: u32, id: &str, sequence: u64) -> Vec<HistoryEvent> {
    vec![
        HistoryEvent::InstallationServed { boot, order: order(id), sequence },
        HistoryEvent::StartPermitted { boot, order: order(id) },
        HistoryEvent::SuccessReported { boot, order: order(id) },
        HistoryEvent::SuccessAcknowledged { boot, order: order(id) },
    ]
}

/// Returns the correct history of a machine that is installed and reinstalled.
fn correct_events(machine: u32) -> Vec<HistoryEvent> {
    let id = format!("o{machine}");
    let sequence = u64::from(machine) * 2 + 1;
    let mut events = vec![HistoryEvent::WaitBegan, HistoryEvent::WokenUp];
    events.extend(installation(1, "", sequence));
    events.push(HistoryEvent::OrderAcknowledged { order: id.clone() });
    events.extend(installation(2, &id, sequence + 1));
    events.push(HistoryEvent::Finished);
    events
}

fn records(machine: u32, events: &[HistoryEvent]) -> Vec<HistoryRecord> {
    events.iter().map(|event| HistoryRecord { machine, event: event.clone() }).collect()
}

fn entry(machine: u32, kind: &str, of: &str) -> StoredEntry {
    StoredEntry { machine, kind: kind.to_owned(), order: of.to_owned() }
}

fn correct_database(machines: u32) -> DatabaseRecords {
    let entries = (0..machines).flat_map(|machine| {
        let id = format!("o{machine}");
        [entry(machine, "installed", ""), entry(machine, "ordered", &id), entry(machine, "installed", &id)]
    });
    let (entries, installed) = (entries.collect(), (0..machines).collect());
    DatabaseRecords { entries, installed, ..DatabaseRecords::default() }
}

fn found(records: &[HistoryRecord], database: &DatabaseRecords, machines: u32) -> Vec<HistoryInvariant> {
    let mut found: Vec<_> =
        check_history(records, database, machines).into_iter().map(|violation| violation.invariant).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Checks the history of one machine after `change` has modified its events and the database.
fn after(change: impl Fn(&mut Vec<HistoryEvent>, &mut DatabaseRecords)) -> Vec<HistoryInvariant> {
    let (mut events, mut database) = (correct_events(0), correct_database(1));
    change(&mut events, &mut database);
    found(&records(0, &events), &database, 1)
}

#[test]
fn a_correct_history_has_no_violation() {
    assert_eq!(after(|_, _| ()), []);
    assert_eq!(found(&[], &DatabaseRecords::default(), 0), []);
}

#[test]
fn each_invariant_detects_a_faulty_history() {
    use HistoryInvariant as Wrong;
    let lost_order = after(|events, database| {
        events.truncate(7);
        events.push(HistoryEvent::Finished);
        database.entries.truncate(1);
    });
    assert_eq!(lost_order, [Wrong::OrderKept]);
    let lost_report =
        after(|_, database| database.entries.retain(|entry| entry.kind != "installed" || entry.order.is_empty()));
    assert_eq!(lost_report, [Wrong::OrderKept, Wrong::ReportKept]);
    let unreported = after(|events, _| {
        events.retain(|event| {
            !matches!(
                event,
                HistoryEvent::SuccessReported { boot: 2, .. } | HistoryEvent::SuccessAcknowledged { boot: 2, .. }
            )
        });
    });
    assert_eq!(unreported, [Wrong::CompletionReported]);
    let unreported_first = after(|events, database| {
        events.retain(|event| matches!(event, HistoryEvent::Finished));
        database.entries.clear();
    });
    assert_eq!(unreported_first, [Wrong::CompletionReported]);
    let remained_open = after(|_, database| {
        database.open_orders.insert((0, order("o0")));
    });
    assert_eq!(remained_open, [Wrong::InstalledOnce]);
    let twice = after(|_, database| database.entries.push(entry(0, "installed", "o0")));
    assert_eq!(twice, [Wrong::InstalledOnce]);
    let repeated = after(|events, _| events.push(HistoryEvent::StartPermitted { boot: 3, order: order("o0") }));
    assert_eq!(repeated, [Wrong::InstalledOnce]);
    let unordered = after(|events, _| events.push(HistoryEvent::StartPermitted { boot: 3, order: order("other") }));
    assert_eq!(unordered, [Wrong::InstallationOrdered]);
    let unfinished = after(|events, _| drop(events.pop()));
    assert_eq!(unfinished, [Wrong::MachineFinished]);
    let asleep = after(|events, _| drop(events.remove(1)));
    assert_eq!(asleep, [Wrong::MachineWoken]);
}

/// A suspended order counts as stored, but its machine is not reinstalled.
#[test]
fn a_suspended_order_is_kept_and_its_machine_is_not_finished() {
    let (mut events, mut database) = (correct_events(0), correct_database(1));
    events.truncate(7);
    database.entries.truncate(2);
    database.entries.push(entry(0, "failed", "o0"));
    database.open_orders.insert((0, order("o0")));
    database.suspended_orders.insert((0, order("o0")));
    let violations = check_history(&records(0, &events), &database, 1);
    let [violation] = violations.as_slice() else { panic!("{violations:?}") };
    assert_eq!(violation.invariant, HistoryInvariant::MachineFinished);
    assert!(violation.detail.ends_with("order o0 is suspended"), "{}", violation.detail);
}

#[test]
fn only_one_live_boot_may_start_an_installation() {
    let with = |inserted: &[HistoryEvent]| {
        after(|events, _| {
            let at = events.iter().position(|event| matches!(event, HistoryEvent::SuccessReported { boot: 2, .. }));
            events.splice(at.unwrap()..at.unwrap(), inserted.iter().cloned());
        })
    };
    let permitted = |boot| HistoryEvent::StartPermitted { boot, order: order("o0") };
    assert_eq!(with(&[permitted(2)]), [], "the repetition of a request");
    assert_eq!(with(&[permitted(3)]), [HistoryInvariant::StartUnique], "two boots at the same time");
    let restarted = [HistoryEvent::BootEnded { boot: 2 }, permitted(3)];
    assert_eq!(with(&restarted), [], "the machine has lost power before");
    let stale = [HistoryEvent::BootEnded { boot: 2 }, permitted(3), permitted(2)];
    assert_eq!(with(&stale), [HistoryInvariant::StartUnique], "a delayed request of the earlier boot");
}

#[test]
fn unacknowledged_order_may_replace_an_acknowledged_one() {
    let replaced = after(|_, database| {
        database.entries.retain(|entry| entry.kind != "installed" || entry.order.is_empty());
        database.entries.push(entry(0, "ordered", "later"));
    });
    assert_eq!(replaced, [HistoryInvariant::ReportKept], "the report is lost, not the order");
}

#[test]
fn fencing_tokens_are_unique_and_increase() {
    let with = |first: u64, second: u64| {
        let served = |id: &str, sequence| HistoryEvent::InstallationServed { boot: 1, order: order(id), sequence };
        let events = [served("", first), served("", first), served("o0", second)];
        let mut violations = Vec::new();
        check_fencing(&records(0, &events), &mut violations);
        violations.len()
    };
    assert_eq!((with(1, 2), with(2, 1), with(3, 3)), (0, 1, 1));
    let mut shared = records(0, &installation(1, "", 7));
    shared.extend(records(1, &installation(1, "", 7)));
    let mut violations = Vec::new();
    check_fencing(&shared, &mut violations);
    assert_eq!(violations[0].machine, 1);
}

proptest! {
    /// The interleaving of the events of different machines does not matter. If the database record of an
    /// acknowledged request is deleted, the checker must report this.
    #[test]
    fn interleaved_histories_are_correct_until_a_record_is_deleted(
        turns in proptest::collection::vec(0_u32..5, 0..200), deleted in 0_usize..15,
    ) {
        let mut rest: Vec<_> = (0..5).map(|machine| records(machine, &correct_events(machine)).into_iter()).collect();
        let mut all: Vec<HistoryRecord> = turns.iter().filter_map(|turn| rest[*turn as usize].next()).collect();
        rest.into_iter().for_each(|machine| all.extend(machine));
        let mut database = correct_database(5);
        prop_assert_eq!(found(&all, &database, 5), []);
        let removed = database.entries.remove(deleted);
        let violations = check_history(&all, &database, 5);
        prop_assert_eq!(violations.is_empty(), removed.kind == "ordered");
        prop_assert!(violations.iter().all(|violation| violation.machine == removed.machine));
    }
}
