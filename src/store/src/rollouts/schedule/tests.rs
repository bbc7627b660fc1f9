use super::super::{MemberRecord, Rollout, RolloutLimits, RolloutMember, RolloutRecord, start_window::StartWindow};
use super::*;
use proptest::prelude::*;

const NOW: &str = "2026-11-28T03:00:00Z";

fn now() -> OffsetDateTime {
    OffsetDateTime::parse(NOW, &Rfc3339).unwrap()
}

/// Returns the state of each letter: `w`aiting, `o`rdered, `i`nstalling, `d`one, `f`ailed, `s`kipped.
fn parse_states(letters: &str) -> Vec<MemberState> {
    let state = |letter| match letter {
        'w' => MemberState::Waiting,
        'o' => MemberState::Ordered,
        'i' => MemberState::Installing,
        'd' => MemberState::Done,
        'f' => MemberState::Failed,
        _ => MemberState::Skipped,
    };
    letters.chars().map(state).collect()
}

fn rollout(letters: &str, at_most: u32, stop_after: u32) -> Rollout {
    let member = |state| RolloutMember { machine: "m".to_owned(), state, record: MemberRecord::default() };
    let limits = RolloutLimits { at_most, stop_after, ..RolloutLimits::default() };
    Rollout {
        id: 1,
        state: RolloutState::Running,
        record: RolloutRecord { limits, ..RolloutRecord::default() },
        members: parse_states(letters).into_iter().map(member).collect(),
    }
}

fn next(rollout: &Rollout) -> Option<usize> {
    next_member(&rollout.summarize(), now())
}

/// Starts members until no further member may start. Returns their numbers.
fn start_members(mut rollout: Rollout) -> Vec<usize> {
    let mut started = Vec::new();
    while let Some(number) = next(&rollout) {
        rollout.members[number].state = MemberState::Ordered;
        started.push(number);
    }
    started
}

#[test]
fn members_start_in_their_order_within_the_limits() {
    for (letters, at_most, stop_after, expected) in [
        ("wwww", 2, 1, &[0, 1][..]),
        ("owww", 2, 1, &[1]),
        ("oiww", 2, 1, &[]),
        ("diww", 2, 1, &[2]),
        ("dddd", 2, 1, &[]),
        ("fwww", 2, 1, &[]),
        ("swww", 2, 1, &[]),
        ("fwww", 2, 2, &[1, 2]),
        ("fsww", 2, 2, &[]),
        ("wdwo", 3, 1, &[0, 2]),
        ("ww", 0, 1, &[]),
        ("ww", 2, 0, &[]),
        ("oow", 1, 1, &[]),
        ("", 2, 1, &[]),
    ] {
        assert_eq!(start_members(rollout(letters, at_most, stop_after)), expected, "{letters}");
    }
}

#[test]
fn only_a_running_rollout_starts_members() {
    for state in [RolloutState::Halted, RolloutState::Stopped, RolloutState::Canceled, RolloutState::Finished] {
        let halted = Rollout { state, ..rollout("ww", 2, 1) };
        assert_eq!(next(&halted), None, "{state:?}");
    }
}

#[test]
fn a_resumed_rollout_tolerates_the_earlier_failures() {
    let mut resumed = rollout("ffwww", 1, 2);
    assert!(has_failed(&resumed.summarize()));
    resumed.record.accepted_failures = 2;
    assert_eq!(next(&resumed), Some(2));
    resumed.members[2].state = MemberState::Failed;
    assert_eq!(next(&resumed), Some(3));
    resumed.members[3].state = MemberState::Skipped;
    assert_eq!(next(&resumed), None);
}

#[test]
fn the_start_and_the_window_are_awaited() {
    let with = |letters: &str, start: Option<&str>, window: Option<&str>| {
        let mut rollout = rollout(letters, 1, 1);
        rollout.record.limits.start = start.map(str::to_owned);
        rollout.record.limits.window = window.map(|window| StartWindow::parse(window).unwrap());
        next(&rollout).is_some()
    };
    assert!(with("ww", Some("2026-11-28T02:59:59Z"), None));
    assert!(with("ww", Some(NOW), None));
    assert!(!with("ww", Some("2026-11-28T03:00:01Z"), None));
    assert!(with("dw", Some("2026-11-28T03:00:01Z"), None), "the clock was set back after the start");
    assert!(!with("ww", Some("tomorrow"), None));
    assert!(with("ww", None, Some("01:00-05:00")));
    assert!(!with("dw", None, Some("04:00-05:00")), "a new member waits for the next window");
}

#[test]
fn the_state_follows_from_the_members() {
    let state = |letters: &str, state| resulting_state(&Rollout { state, ..rollout(letters, 2, 1) }.summarize()).0;
    use RolloutState::{Canceled, Finished, Halted, Running, Stopped};
    for (letters, before, after) in [
        ("dow", Running, Running),
        ("dfw", Running, Stopped),
        ("iww", Stopped, Stopped),
        ("ddd", Running, Finished),
        ("dfs", Running, Finished),
        ("ddd", Halted, Finished),
        ("dfi", Running, Running),
        ("dww", Halted, Halted),
        ("fww", Halted, Halted),
        ("sss", Canceled, Canceled),
    ] {
        assert_eq!(state(letters, before), after, "{letters}");
    }
    let (_, why) = resulting_state(&rollout("fw", 2, 1).summarize());
    assert_eq!(why, "1 member has failed or was skipped, so no further members are started");
}

proptest! {
    /// Runs a rollout with random results. A member starts at most once, never more than `at_most` are in progress, and
    /// nothing starts after `stop_after` failures. Without failures, all members start.
    #[test]
    fn random_rollouts_respect_their_limits(
        count in 0usize..12, at_most in 1u32..5, stop_after in 1u32..4,
        events in prop::collection::vec((0usize..12, 0u8..6), 0..120),
    ) {
        let mut rollout = rollout(&"w".repeat(count), at_most, stop_after);
        let mut starts = vec![0; count];
        let mut failures = 0;
        for (at, event) in events {
            let next = next(&rollout);
            prop_assert!(failures < stop_after || next.is_none());
            match (event, rollout.members.get(at).map(|member| member.state)) {
                // The decision is computed again before each start, as in the transaction that stores the start.
                (0, _) => if let Some(number) = next {
                    starts[number] += 1;
                    rollout.members[number].state = MemberState::Ordered;
                },
                (1, _) => if let Some(number) = next {
                    failures += 1;
                    rollout.members[number].state = MemberState::Skipped;
                },
                (2, Some(MemberState::Ordered)) => rollout.members[at].state = MemberState::Installing,
                (3 | 4, Some(state)) if state.is_in_progress() => rollout.members[at].state = MemberState::Done,
                (5, Some(state)) if state.is_in_progress() => {
                    failures += 1;
                    rollout.members[at].state = MemberState::Failed;
                }
                _ => {}
            }
            prop_assert!(rollout.count(MemberState::is_in_progress) <= at_most);
            prop_assert!(starts.iter().all(|starts| *starts <= 1));
        }
        while failures == 0 && resulting_state(&rollout.summarize()).0 == RolloutState::Running {
            let Some(number) = next(&rollout) else {
                let done = rollout.members.iter_mut().filter(|member| member.state.is_in_progress());
                done.for_each(|member| member.state = MemberState::Done);
                if rollout.count(|state| state == MemberState::Waiting) == 0 { break; }
                continue;
            };
            starts[number] += 1;
            rollout.members[number].state = MemberState::Ordered;
        }
        prop_assert!(failures > 0 || starts.iter().all(|starts| *starts == 1), "{starts:?}");
    }
}
