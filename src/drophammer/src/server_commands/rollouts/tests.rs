use super::*;
use serde_json::json;

fn rollout() -> RolloutView {
    serde_json::from_value(json!({
        "id": 7, "state": "stopped", "reason": "1 member has failed\u{1b}", "created": "2026-11-28T18:00:05.1Z",
        "created_by": "ann", "at_most": 2, "stop_after": 1, "start": "2026-12-01T02:00:00Z", "window": "01:00-05:00",
        "power_cycle": true, "images": ["debian-13"], "total": 3,
        "counts": {"waiting": 1, "ordered": 0, "installing": 1, "done": 0, "failed": 1, "skipped": 0},
        "members": [
            {"machine": "4c-1", "name": "one", "image": "debian-13", "state": "failed", "reason": "disk\nsecond line",
             "ordered": "2026-12-01T02:00:01Z", "ended": "2026-12-01T02:10:00Z", "lost_bytes": 10},
            {"machine": "4c-2", "name": "", "image": "debian-13", "state": "installing", "ordered": "2026-12-01T02:00:01Z"},
            {"machine": "4c-3", "name": "three", "image": "debian-13", "state": "waiting"}]
    }))
    .unwrap()
}

#[test]
fn a_rollout_is_printed_with_its_members_and_the_next_steps() {
    let text = format_rollout(&rollout(), 3);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("rollout 7: stopped, 0 of 3 done, 1 in progress, 1 failed: 1 member has failed"),
        "{text}"
    );
    assert_eq!(
        lines[1],
        "debian-13; at most 2 in progress, stops after 1 failure, not before 2026-12-01 02:00 UTC, only 01:00-05:00 UTC, machines are power-cycled"
    );
    assert!(lines[4].starts_with("MACHINE") && lines[5].contains("failed") && lines[5].ends_with("disk"), "{text}");
    assert!(lines[6].starts_with("4c-2") && lines[6].contains("installing") && lines[6].contains("unknown"), "{text}");
    assert!(
        text.ends_with("  drophammer rollout resume 7\n  drophammer rollout cancel 7\n") && !text.contains('\u{1b}')
    );
    let running = RolloutView { state: RolloutState::Running, ..rollout() };
    assert!(format_rollout(&running, 3).ends_with("drophammer rollout halt 7\n"));
    assert!(
        !format_rollout(&RolloutView { state: RolloutState::Finished, ..running }, 3).contains("drophammer rollout")
    );
}

#[test]
fn members_fit_the_terminal() {
    let mut members = rollout().members;
    members[0].reason = "storage.format: mkfs.ext4: Input/output error while writing out and closing".to_owned();
    let table = format_members(&members, TableFormat { width: Some(80), has_titles: true, is_styled: false });
    assert!(table.lines().all(|line| line.chars().count() <= 80) && table.contains("storage.format:"), "{table}");
}

#[test]
fn rollout_without_started_members_is_scheduled() {
    let mut scheduled = RolloutView { state: RolloutState::Running, ..rollout() };
    assert_eq!(state_word(&scheduled), "running");
    scheduled.counts = RolloutCounts { waiting: 3, ..RolloutCounts::default() };
    assert_eq!(state_word(&scheduled), "scheduled");
    let table = crate::object_list::format_wide(&rollout_columns(), &[scheduled]);
    assert!(table.contains("scheduled  0 of 3 done  debian-13  ann   2026-11-28 18:00  2026-12-01 02:00"), "{table}");
}

#[test]
fn a_long_rollout_is_summarized_unless_it_is_shown() {
    let text = format_rollout(&rollout(), 2);
    assert!(
        !text.contains("MACHINE") && text.contains("\n\nList the machines:\n  drophammer rollout show 7\n\nContinue"),
        "{text}"
    );
    assert!(format_rollout(&rollout(), usize::MAX).contains("MACHINE"));
}

#[test]
fn filtered_machines_are_in_the_order_of_the_list() {
    let machine = |name: &str| MachineSummary { name: name.to_owned(), ..MachineSummary::default() };
    let all = ["rack-10", "rack-100", "rack-9"].map(machine);
    let sorted = sort_naturally(all.iter().collect());
    assert_eq!(sorted.iter().map(|machine| &*machine.name).collect::<Vec<_>>(), ["rack-9", "rack-10", "rack-100"]);
}
