//! Tests of each row in the tables of `docs/migration.md` and `docs/migration-interruptions.md`.

use super::testing::{carried, end, ordered, start};
use super::*;
use model::machine_migration;

const A: &str = "a";
const B: &str = "b";
/// Tokens of the first and the second boot of A and of B.
const A1: TokenHash = [1; 32];
const A2: TokenHash = [2; 32];
const B1: TokenHash = [11; 32];
const B2: TokenHash = [12; 32];

fn a_stands(boot: TokenHash) -> MigrationEvent {
    MigrationEvent::Waiting(MigrationSide::Source, end(boot), Some(Box::new(carried())))
}

fn b_stands(boot: TokenHash) -> MigrationEvent {
    MigrationEvent::Waiting(MigrationSide::Target, end(boot), None)
}

fn begins(boot: TokenHash) -> MigrationEvent {
    MigrationEvent::StartRequested {
        start: start(boot, &ordered().disks),
        now: CurrentBoots { source: Some(A1), target: Some(boot) },
    }
}

fn succeeds(part: MigrationSide, boot: TokenHash) -> MigrationEvent {
    succeeds_from(part, boot, Some(A1), Some(A1))
}

/// Returns the event with which B reports that it has received all data from A's boot `from`. `now` is A's current
/// boot.
fn succeeds_from(
    part: MigrationSide,
    boot: TokenHash,
    from: Option<TokenHash>,
    now: Option<TokenHash>,
) -> MigrationEvent {
    let received_from = from.map(|boot| machine_migration::certificate_digest(&end(boot).certificate));
    MigrationEvent::Succeeded { part, boot, received_from, now: CurrentBoots { source: now, target: Some(boot) } }
}

fn fails(part: MigrationSide, boot: TokenHash, untouched: bool) -> MigrationEvent {
    MigrationEvent::Failed { part, boot, untouched, message: "why".to_owned() }
}

fn after(words: &[MigrationEvent]) -> Migration {
    words
        .iter()
        .fold(ordered(), |migration, word| migration.apply_event(word).unwrap_or_else(|why| panic!("{word:?}: {why}")))
}

/// Returns a migration in this state.
fn in_state(state: MigrationState) -> Migration {
    let copying = [a_stands(A1), b_stands(B1), begins(B1)];
    let mut words = copying.to_vec();
    match state {
        MigrationState::Ordered => words.clear(),
        MigrationState::Planned => drop(words.pop()),
        MigrationState::Copying => {}
        MigrationState::Booting => words.push(succeeds(MigrationSide::Target, B1)),
        MigrationState::Done => words.extend([succeeds(MigrationSide::Target, B1), MigrationEvent::Finished]),
        MigrationState::Cancelled => words.push(MigrationEvent::Cancelled { off: false }),
        MigrationState::Refused => words[2] = fails(MigrationSide::Target, B1, true),
    }
    let migration = after(&words);
    assert_eq!(migration.state, state);
    migration
}

/// Tests the table of states, row by row: which machine may run the system, and which events end each state.
#[test]
fn every_migration_state_follows_the_state_table() {
    use MigrationBoot::{Disk, Ramdisk, Unaffected};
    use MigrationState::*;
    for (state, of_a, of_b, owner, is_open) in [
        (Ordered, Ramdisk, Ramdisk, MigrationSide::Source, true),
        (Planned, Ramdisk, Ramdisk, MigrationSide::Source, true),
        (Copying, Ramdisk, Ramdisk, MigrationSide::Source, true),
        (Booting, Ramdisk, Disk, MigrationSide::Target, true),
        (Done, Unaffected, Unaffected, MigrationSide::Target, false),
        (Cancelled, Unaffected, Unaffected, MigrationSide::Source, false),
        (Refused, Unaffected, Unaffected, MigrationSide::Source, false),
    ] {
        let migration = in_state(state);
        assert_eq!((migration.boot_target(A), migration.boot_target(B)), (of_a, of_b), "{state}");
        assert_eq!((state.owner_role(), state.is_open()), (owner, is_open), "{state}");
    }
    let ends = |state, word: MigrationEvent| in_state(state).apply_event(&word).map(|migration| migration.state);
    for (state, word, to) in [
        // Both machines have registered, or the operator cancels.
        (Ordered, a_stands(A1), Ordered),
        (Ordered, MigrationEvent::Cancelled { off: false }, Cancelled),
        (Ordered, fails(MigrationSide::Source, A1, true), Refused),
        // The target passes the point of no return, the target refuses, or the operator cancels.
        (Planned, begins(B1), Copying),
        (Planned, fails(MigrationSide::Target, B1, true), Refused),
        (Planned, fails(MigrationSide::Source, A1, true), Refused),
        (Planned, MigrationEvent::Cancelled { off: false }, Cancelled),
        // All data is received, or the operator cancels.
        (Copying, succeeds(MigrationSide::Target, B1), Booting),
        (Copying, MigrationEvent::Cancelled { off: false }, Cancelled),
        // The target's system has phoned home, or the operator finishes or cancels the migration.
        (Booting, MigrationEvent::PhonedHome(B1), Done),
        (Booting, MigrationEvent::Finished, Done),
        (Booting, MigrationEvent::Cancelled { off: true }, Cancelled),
    ] {
        assert_eq!(ends(state, word.clone()), Ok(to), "{state} {word:?}");
    }
    assert_eq!(after(&[a_stands(A1), b_stands(B1)]).state, Planned);
}

/// Tests which role each machine receives, with and without the peer in its ramdisk.
#[test]
fn target_receives_only_after_the_source_waits() {
    use MigrationState::*;
    let both = CurrentBoots { source: Some(A1), target: Some(B1) };
    let only_b = CurrentBoots { source: Some(A2), target: Some(B1) };
    let stood = after(&[a_stands(A1)]);
    assert_eq!(
        (ordered().role_in(A, both), ordered().role_in(B, both)),
        (MigrationRole::Source, MigrationRole::Waiting)
    );
    assert_eq!((stood.role_in(B, both), stood.role_in(B, only_b)), (MigrationRole::Target, MigrationRole::Waiting));
    for (state, of_a, of_b) in [
        (Planned, MigrationRole::Source, MigrationRole::Target),
        (Copying, MigrationRole::Source, MigrationRole::Target),
        (Booting, MigrationRole::Waiting, MigrationRole::Unaffected),
        (Done, MigrationRole::Unaffected, MigrationRole::Unaffected),
        (Cancelled, MigrationRole::Unaffected, MigrationRole::Unaffected),
        (Refused, MigrationRole::Unaffected, MigrationRole::Unaffected),
    ] {
        let migration = in_state(state);
        assert_eq!((migration.role_in(A, both), migration.role_in(B, both)), (of_a, of_b), "{state}");
        assert_eq!((migration.role_in(A, only_b), migration.role_in(B, only_b)), (of_a, of_b), "{state}");
    }
    let migration = in_state(Copying);
    assert_eq!(migration.present_endpoint(MigrationSide::Source, both).unwrap().certificate, "certificate 1");
    assert_eq!(
        (
            migration.present_endpoint(MigrationSide::Source, only_b),
            migration.present_endpoint(MigrationSide::Target, only_b).is_some()
        ),
        (None, true)
    );
}

/// Tests the table of power failures, row by row. The table of server restarts needs no test, since each change is
/// stored in one transaction.
#[test]
fn every_power_failure_follows_the_recovery_table() {
    use MigrationState::*;
    let again = |migration: &Migration, word: MigrationEvent| migration.apply_event(&word).unwrap();
    // A loses power in `ordered`: its next boot has another key.
    let migration = again(&after(&[a_stands(A1)]), a_stands(A2));
    assert_eq!((migration.state, migration.source_endpoint.as_ref().unwrap().boot), (Ordered, A2));
    // A loses power in `copying`: the copy is resumed with its next boot.
    let migration = again(&in_state(Copying), a_stands(A2));
    assert_eq!(
        (migration.state, migration.source_endpoint.as_ref().unwrap().boot, &migration.started_copy),
        (Copying, A2, &in_state(Copying).started_copy)
    );
    // B loses power in `planned`: nothing was written, and its next boot makes a new plan.
    let migration = again(&in_state(Planned), b_stands(B2));
    assert_eq!((migration.state, migration.started_copy.is_none()), (Planned, true));
    assert!(migration.apply_event(&begins(B1)).is_err(), "the interrupted boot can no longer start");
    assert_eq!(again(&migration, begins(B2)).state, Copying);
    // B loses power in `copying`: the copy remains started, whatever the next boot reports.
    let migration = again(&in_state(Copying), b_stands(B2));
    assert!(
        migration.apply_event(&succeeds(MigrationSide::Target, B2)).is_err()
            && migration.boot_target(B) == MigrationBoot::Ramdisk
    );
    let migration = again(&migration, begins(B2));
    assert!(!migration.started_copy.as_ref().unwrap().only);
    assert_eq!(again(&migration, fails(MigrationSide::Target, B2, true)).state, Copying, "the first boot has written");
    // B loses power between its report and its boot, or later: B boots from its disk, and A cannot get its system back.
    let migration = in_state(Booting);
    for word in
        [a_stands(A2), b_stands(B2), MigrationEvent::Cancelled { off: false }, succeeds(MigrationSide::Source, A2)]
    {
        assert!(migration.apply_event(&word).is_err(), "{word:?}");
    }
    for word in [
        fails(MigrationSide::Target, B1, false),
        fails(MigrationSide::Source, A1, true),
        MigrationEvent::PhonedHome(B2),
    ] {
        assert_eq!(again(&migration, word).state, Booting);
    }
    // The server fails between B's report and the response: a repeated report changes nothing.
    assert_eq!(again(&migration, succeeds(MigrationSide::Target, B1)), migration);
    assert_eq!(again(&in_state(Copying), begins(B1)), in_state(Copying));
    // A and B lose power at the same time.
    let migration = after(&[a_stands(A1), b_stands(B1), begins(B1), b_stands(B2), a_stands(A2)]);
    assert_eq!(migration.state, Copying);
    // A loses power after B has received all data from A's first boot. A's system may have run since then, so B must
    // receive the data again.
    let again_at = again(&in_state(Copying), a_stands(A2));
    for (migration, from, now, counts) in [
        (&in_state(Copying), Some(A1), Some(A1), true),
        (&in_state(Copying), Some(A1), None, true),
        (&in_state(Copying), Some(A1), Some(A2), false),
        (&again_at, Some(A1), Some(A2), false),
        (&again_at, Some(A2), Some(A2), true),
        // An agent of an earlier version does not report the certificate of the source.
        (&in_state(Copying), None, Some(A1), true),
        (&in_state(Copying), None, Some(A2), false),
    ] {
        let after = migration.apply_event(&succeeds_from(MigrationSide::Target, B1, from, now));
        assert_eq!(after.is_ok(), counts, "{from:?} {now:?}");
        assert!(counts || after.is_err_and(|why| why.contains("machine a has booted again")));
    }
    assert_eq!(
        again(&in_state(Booting), succeeds_from(MigrationSide::Target, B1, Some(A1), Some(A2))),
        in_state(Booting)
    );
    // A's disk cannot be read: the message is stored, and nothing else changes. The message is removed once the problem
    // is solved.
    let says = |boot, words: &str| MigrationEvent::ProblemReported(MigrationSide::Source, boot, words.to_owned());
    let migration = again(&in_state(Copying), says(A1, "sda2 cannot be read"));
    assert_eq!(migration, Migration { source_problem: "sda2 cannot be read".to_owned(), ..in_state(Copying) });
    assert_eq!(again(&migration, says(A2, "another boot")), migration);
    assert_eq!(again(&migration, says(A1, "")), in_state(Copying));
    assert_eq!(again(&migration, succeeds(MigrationSide::Target, B1)).source_problem, "");
    assert_eq!(again(&in_state(Done), says(A1, "late")), in_state(Done));
    let migration = again(&in_state(Copying), fails(MigrationSide::Source, A1, true));
    assert_eq!((migration.state, migration.source_problem.as_str()), (Copying, "why"));
}

#[test]
fn start_requires_waiting_machines_and_the_ordered_disks() {
    let migration = in_state(MigrationState::Planned);
    let with = |boot, disks: &[RecordedDisk], now| {
        migration
            .apply_event(&MigrationEvent::StartRequested { start: start(boot, disks), now })
            .map(|migration| migration.state)
    };
    let disks = ordered().disks;
    let both = CurrentBoots { source: Some(A1), target: Some(B1) };
    assert_eq!(with(B1, &disks, both), Ok(MigrationState::Copying));
    assert!(with(B2, &disks, CurrentBoots { target: Some(B2), ..both }).is_err());
    assert!(with(B1, &disks, CurrentBoots { source: Some(A2), ..both }).is_err());
    assert!(with(B1, &disks, CurrentBoots { source: None, ..both }).is_err());
    let other = [RecordedDisk { serial: "N2".to_owned(), ..disks[0].clone() }];
    assert!(with(B1, &other, both).unwrap_err().contains("put the disk back"));
    for state in MigrationState::ALL
        .into_iter()
        .filter(|state| !matches!(state, MigrationState::Planned | MigrationState::Copying))
    {
        assert!(in_state(state).apply_event(&begins(B1)).is_err(), "{state}");
    }
}

#[test]
fn source_with_foreign_marker_and_early_target_are_refused() {
    let other = MigratedMachine {
        marker: InstallMarker { allocation: "a0".to_owned(), ..InstallMarker::default() },
        ..carried()
    };
    assert!(
        ordered()
            .apply_event(&MigrationEvent::Waiting(MigrationSide::Source, end(A1), Some(Box::new(other))))
            .unwrap_err()
            .contains("\"a0\"")
    );
    assert!(ordered().apply_event(&MigrationEvent::Waiting(MigrationSide::Source, end(A1), None)).is_err());
    assert!(ordered().apply_event(&b_stands(B1)).is_err());
}

/// A delayed request of the source's earlier boot must not permit the target to copy the disks of a running system.
#[test]
fn source_cannot_wait_in_a_boot_that_reported_success() {
    let left = after(&[succeeds(MigrationSide::Source, [1; 32])]);
    assert_eq!((left.state, left.left), (MigrationState::Ordered, Some([1; 32])));
    assert!(left.apply_event(&a_stands([1; 32])).unwrap_err().contains("has already reported success in this boot"));
    assert!(left.apply_event(&a_stands([2; 32])).is_ok());
}

#[test]
fn failures_are_counted_once_per_boot_and_limited() {
    let mut migration = in_state(MigrationState::Copying);
    for number in 1..=ATTEMPTS {
        let boot = [100 + number as u8; 32];
        migration = migration.apply_event(&b_stands(boot)).unwrap();
        migration = migration.apply_event(&begins(boot)).unwrap();
        for _ in 0..2 {
            migration = migration.apply_event(&fails(MigrationSide::Target, boot, false)).unwrap();
        }
        assert_eq!((migration.failures, migration.should_retry()), (number, number < ATTEMPTS));
    }
    assert_eq!((migration.state, migration.target_problem.as_str()), (MigrationState::Copying, "why"));
    // A target that has written without permission has started the copy.
    let migration = in_state(MigrationState::Planned).apply_event(&fails(MigrationSide::Target, B1, false)).unwrap();
    assert_eq!((migration.state, migration.boot_target(B)), (MigrationState::Copying, MigrationBoot::Ramdisk));
    assert!(migration.apply_event(&succeeds(MigrationSide::Target, B1)).is_err(), "A may run");
}
