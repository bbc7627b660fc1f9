//! Tests of the database without a server: restarts, databases of earlier versions, and all sequences of events during
//! a reinstall.

mod address_ranges;
mod attempt_failures;
mod audit_retention;
mod change_notifications;
mod clock_steps;
mod database_files;
mod documents;
mod failed_syncs;
mod incomplete_systems;
mod installed_allocation_fields;
mod login_sessions;
mod lossy_proxy;
mod oidc_users;
mod order_model;
mod postgres;
mod postgres_failover;
mod postgres_faults;
mod postgres_limits;
mod postgres_restore;
mod recorded_database;
mod released_orders;
mod renamed_machines;
mod required_approvals;
mod rollouts;
mod server_leases;
pub(crate) mod test_engine;
mod unanswered_boots;
mod unknown_commits;
mod users_and_audit;

use self::order_model::{Actor, Expected, STEPS, Step};
use super::*;
use crate::sql::params;
use ::model::install_marker;
use common::error::Result;
use control::agent_api_types::InstallReport;
use std::fs;
use std::time::Duration;
use tempfile::TempDir;

thread_local! {
    static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
}

fn wait<T>(work: impl Future<Output = Result<T>>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(work)).unwrap()
}

fn open(dir: &TempDir) -> ServerState {
    ServerState::open(&dir.path().join("state.sqlite"), Duration::ZERO).unwrap()
}

/// Copies the files of the database as they are now, as a `kill -9` would leave them.
fn copy(dir: &TempDir) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in ["state.sqlite", "state.sqlite-wal", "state.id"] {
        let _ = fs::copy(dir.path().join(name), copy.path().join(name));
    }
    copy
}

fn report(success: bool, order: &str) -> InstallReport {
    InstallReport {
        success,
        message: "m".to_owned(),
        order: common::empty_string_as_none::non_empty(order.to_owned()),
        ..InstallReport::default()
    }
}

/// Returns the id of the machine's allocation, which differs between machines.
fn allocation(machine: &str) -> &str {
    if machine == "m" { "a" } else { machine }
}

fn install_state(state: &ServerState, machine: &str) -> InstallState {
    wait(state.read_install_state(machine, allocation(machine)))
}

/// Token of the boots in these tests.
const BOOT: TokenHash = [1; 32];

/// Announcement of a boot whose agent sends no digest.
fn start() -> AttemptStart {
    AttemptStart { by: BOOT, ..AttemptStart::default() }
}

/// Registers a boot with a fixed token for the machine, or removes it.
fn register(state: &ServerState, machine: &str, is_registered: bool) {
    let machine = machine.to_owned();
    wait(state.run_durably(move |transaction| {
        transaction.execute("DELETE FROM boots WHERE hash = ?1", [[7u8; 32]])?;
        let insert = "INSERT INTO boots (hash, machine, created, asked_by, while_heard, address)
            SELECT ?1, ?2, ?3, '', 0, '10.0.0.7' WHERE ?4 = 1";
        transaction.execute(insert, params![[7u8; 32], machine, now(), is_registered]).map(drop)
    }));
}

/// Requests a boot of the machine, whose agent then registers.
fn boot_and_register(state: &ServerState, machine: &str) -> BootTarget {
    let next = wait(state.decide_next_boot(machine, FileAllocation::Allocated(allocation(machine).to_owned()))).next;
    let machine = machine.to_owned();
    let registered = "UPDATE orders SET handed = NULL, unregistered = NULL WHERE machine = ?1";
    wait(state.run_durably(move |transaction| transaction.execute(registered, [machine])));
    next
}

/// Installs the machine for the first time, with image `i0`.
fn install(state: &ServerState, machine: &str) {
    let layout = serde_json::json!({"id": "default"});
    wait(state.record_served(
        machine,
        allocation(machine),
        ServedInstall {
            layout_id: "default",
            layout: &layout,
            image: "i0",
            order: "",
            fields: &InstalledAllocation::default(),
        },
    ));
    register(state, machine, true);
    let started =
        wait(state.start_first_install(machine, allocation(machine), AttemptStart { by: [7; 32], ..start() }));
    assert_eq!(started, FirstStartOutcome::Permitted(true));
    let reported = wait(state.handle_report(machine, allocation(machine), [7; 32], &report(true, "")));
    assert_eq!(reported.unproven, None);
    register(state, machine, false);
}

#[test]
fn acknowledged_records_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (path, mtime, inode) = ("/i".to_owned(), "1".to_owned(), "7 1".to_owned());
    let stamp = FileStamp { path, size: 3, mtime, inode, device: 2 };
    let state = open(&dir);
    assert_eq!(wait(state.decide_next_boot("m", FileAllocation::Allocated("a".to_owned()))).next, BootTarget::Install);
    assert_eq!(wait(state.decide_next_boot("m", FileAllocation::Free)).next, BootTarget::Install);
    install(&state, "m");
    state.store_digest(&stamp, "sha256:00").unwrap();
    drop(state);
    let state = open(&dir);
    assert_eq!(state.find_digest(&stamp).unwrap().as_deref(), Some("sha256:00"));
    let renumbered = FileStamp { device: 3, ..stamp.clone() };
    assert_eq!(state.find_digest(&renumbered).unwrap().as_deref(), Some("sha256:00"));
    assert_eq!(state.find_digest(&FileStamp { inode: "8 1".to_owned(), ..stamp.clone() }).unwrap(), None);
    assert_eq!(state.find_digest(&FileStamp { size: 4, ..stamp }).unwrap(), None);
    let now = install_state(&state, "m");
    assert_eq!((now.succeeded, now.image.as_deref()), (true, Some("i0")));
    assert_eq!(now.layout.unwrap()["id"], "default");
    assert_eq!(wait(state.read_install_state("m", "b")), InstallState::default());
    assert_eq!(install_state(&state, "n"), InstallState::default());
    use std::os::unix::fs::PermissionsExt;
    if test_engine::is_postgres("PostgreSQL has no database file in the directory") {
        return;
    }
    let mode = fs::metadata(dir.path().join("state.sqlite")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn marker_of_adopted_machine_determines_its_image() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    let layout = serde_json::json!({"id": "default"});
    wait(state.record_served(
        "m",
        "a",
        ServedInstall {
            layout_id: "default",
            layout: &layout,
            image: "newer",
            order: "",
            fields: &InstalledAllocation::default(),
        },
    ));
    // The machine was installed before its server lost its database. After the operator has adopted it, the machine
    // boots the installed system.
    assert_eq!(wait(state.adopt_allocation("m", "a", None)), AdoptOutcome::Adopted);
    let marker =
        install_marker::InstallMarker { image: "i0".to_owned(), allocation: "a".to_owned(), ..Default::default() };
    wait(state.handle_report("m", "a", BOOT, &InstallReport { marker: Some(marker.clone()), ..report(true, "") }));
    let now = install_state(&state, "m");
    assert_eq!((now.image.as_deref(), now.marker, now.is_claimed), (Some("i0"), Some(marker), true));
}

#[test]
fn unreadable_stored_layout_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    wait(state.run_durably(|other| other.execute("UPDATE allocations SET layout = '{'", [])));
    assert!(open(&dir).read_install_state_blocking("m", "a").is_err());
}

/// Tests all sequences of steps: only a success of the open order changes the image, and only permitted steps end an
/// order.
#[test]
fn every_sequence_of_steps_yields_the_expected_state() {
    // To save time, the longer sequences run on only one of the engines.
    let length = if test_engine::is_postgres("") { 2 } else { 3 };
    // The test runs thousands of durable transactions. It uses a filesystem in memory if there is one, since it does
    // not simulate power failures.
    let memory = std::path::Path::new("/dev/shm");
    let dir = TempDir::new_in(memory).or_else(|_| TempDir::new()).unwrap();
    let state = open(&dir);
    for prefix in [&[Step::Order, Step::Boot][..], &[Step::Order, Step::Boot, Step::Begin, Step::Boot, Step::Boot]] {
        for number in 0..STEPS.len().pow(length) {
            let machine = format!("{}-{number}", prefix.len());
            let mut actor = Actor { machine: machine.clone(), ..Actor::default() };
            install(&state, &machine);
            let mut expected = Expected { image: "i0".to_owned(), ..Expected::default() };
            let steps = (0..length).map(|digit| STEPS[number / STEPS.len().pow(digit) % STEPS.len()]);
            let all: Vec<Step> = prefix.iter().copied().chain(steps).collect();
            for step in &all {
                actor.act(&state, *step);
                expected = expected.after(*step);
            }
            assert_eq!(Expected::of(&install_state(&state, &machine), actor.orders), expected, "{all:?}");
        }
    }
}

/// The server is killed before a step is on disk, or after the step is on disk but before the client receives the
/// response. In both cases, the client repeats the request.
#[test]
fn a_kill_at_any_step_neither_loses_nor_repeats_a_reinstall() {
    if test_engine::is_postgres("the test copies the database file of a running server") {
        return;
    }
    use Step::*;
    let ways: [&[Step]; 8] = [
        &[Order, Boot, Begin, Success, Success, Stale, Boot],
        &[Order, Boot, Untouched, Untouched, Boot, Order, Boot, Begin, Success],
        &[Order, Boot, Boot, Boot, Boot, Boot],
        &[Order, Boot, Begin, Failed, Boot, Failed, Boot, Failed, Boot, Order, Boot, Success],
        &[Order, Cancel, Boot, Order, Order, Stale, Boot, StaleFailure, Begin, Cancel, Success],
        &[Order, Boot, Begin, Order, Nameless, Boot, Untouched, Boot, Success, Nameless],
        &[Order, Boot, Order, Begin, Boot, Success, StaleFailure],
        &[Boot, Begin, Success, Cancel, Order, Begin, Boot, Success, Begin, Boot],
    ];
    for way in ways {
        let dir = tempfile::tempdir().unwrap();
        let state = open(&dir);
        install(&state, "m");
        let mut actor = Actor { machine: "m".to_owned(), ..Actor::default() };
        for (done, step) in way.iter().enumerate() {
            let before = (copy(&dir), actor.clone());
            actor.act(&state, *step);
            let live = install_state(&state, "m");
            let (lost, mut asks_again) = before;
            let lost = open(&lost);
            asks_again.act(&lost, *step);
            let again = install_state(&lost, "m");
            let what = format!("{:?}", &way[..=done]);
            assert_eq!(Expected::of(&again, asks_again.orders), Expected::of(&live, actor.orders), "{what}");

            let unanswered = copy(&dir);
            let unanswered = open(&unanswered);
            assert_eq!(install_state(&unanswered, "m"), live, "{what}");
            let mut repeats = actor.clone();
            repeats.act(&unanswered, *step);
            let repeated = Expected::of(&install_state(&unanswered, "m"), actor.orders);
            match step {
                // Each boot whose agent registers counts as an attempt.
                Boot => assert_eq!(repeated, Expected::of(&live, actor.orders).after(Boot), "{what}"),
                // The same reinstall is ordered again, with another id.
                Order => assert_eq!(repeated.open.is_some(), live.order.is_some(), "{what}"),
                _ => assert_eq!(repeated, Expected::of(&live, actor.orders), "{what}"),
            }
        }
    }
}

#[test]
fn repeated_report_receives_the_same_response() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    install(&state, "m");
    let OrderOutcome::Placed { order, .. } = wait(state.place_order(
        "m",
        "a",
        "i1",
        ReinstallOverrides { without_marker: true, ..ReinstallOverrides::default() },
        None,
    )) else {
        panic!()
    };
    for attempt in 1..=3 {
        assert!(matches!(boot_and_register(&state, "m"), BootTarget::Attempt(_)));
        let started = wait(state.start_order("m", "a", &order.id, start()));
        assert!(matches!(started, OrderStart::Permitted(_, news) if news == (attempt == 1)), "{started:?}");
        let failed = InstallReport { message: format!("attempt {attempt}"), ..report(false, &order.id) };
        let first = wait(state.handle_report("m", "a", BOOT, &failed));
        let second = wait(state.handle_report("m", "a", BOOT, &failed));
        assert_eq!((first.news, second.news), (true, false));
        assert_eq!((first.retry, second.retry), (attempt < 3, attempt < 3));
    }
    assert!(
        matches!(wait(state.decide_next_boot("m", FileAllocation::Allocated("a".to_owned()))).next, BootTarget::AbandonedAfterErase(order) if order.without_marker)
    );
    let success = wait(state.handle_report("m", "a", BOOT, &report(true, &order.id)));
    assert!(success.news && !success.retry, "the operator may have finished it by hand");
    assert!(!wait(state.handle_report("m", "a", BOOT, &report(true, &order.id))).news);
    assert_eq!(wait(state.start_order("m", "a", &order.id, start())), OrderStart::NotInForce);
    let outcome = install_state(&state, "m").outcome.unwrap();
    assert_eq!((outcome.success, outcome.image.as_str(), &outcome.order), (true, "i1", &order.id));
}

#[test]
fn silent_last_attempt_is_served_again_for_its_report() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(&dir);
    for (machine, succeeds) in [("m", true), ("n", false)] {
        install(&state, machine);
        let OrderOutcome::Placed { order, .. } =
            wait(state.place_order(machine, allocation(machine), "i1", ReinstallOverrides::default(), None))
        else {
            panic!()
        };
        let boot = || boot_and_register(&state, machine);
        for attempt in [1, 2, 3, 3] {
            assert!(matches!(boot(), BootTarget::Attempt(order) if order.attempts == attempt), "{attempt}");
            assert!(matches!(
                wait(state.start_order(machine, allocation(machine), &order.id, start())),
                OrderStart::Permitted(..)
            ));
        }
        // The last boot may still succeed, so another order must not replace its order.
        let other = wait(state.place_order(machine, allocation(machine), "i2", ReinstallOverrides::default(), None));
        assert!(matches!(&other, OrderOutcome::Started(open) if open.id == order.id && !open.given_up), "{other:?}");
        if succeeds {
            wait(state.handle_report(machine, allocation(machine), BOOT, &report(true, &order.id)));
            assert!(matches!(boot(), BootTarget::Disk));
        } else {
            assert!(
                matches!(boot(), BootTarget::AbandonedAfterErase(_))
                    && matches!(boot(), BootTarget::AbandonedAfterErase(_))
            );
            let message = install_state(&state, machine).outcome.unwrap().message;
            assert!(message.starts_with("abandoned: the installation has started"), "{message}");
        }
    }
}
