//! Tests that every record in a database written by commit 7cf8cba (`testdata/recorded`) keeps its meaning.

use super::*;
use crate::machine_migration::MigrationState;
use ::model::install_marker::{RecordedDisk, WipePolicy};
use std::path::PathBuf;

const OLDER: &str = "debian-12.0.20251101";
const NEWER: &str = "debian-13.1.20251201";

fn recorded() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let from: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../testdata/recorded"].iter().collect();
    fs::copy(from.join("backup.sqlite"), dir.path().join("state.sqlite")).unwrap();
    fs::copy(from.join("site/drophammer.id"), dir.path().join("state.id")).unwrap();
    dir
}

fn id(number: u32) -> String {
    format!("4c4c4544-0051-3010-8052-b4c04f4d{number:04x}")
}

fn state_of(state: &ServerState, number: u32, allocation: &str) -> InstallState {
    wait(state.read_install_state(&id(number), allocation))
}

fn next_boot(state: &ServerState, number: u32, allocation: &str) -> BootTarget {
    wait(state.decide_next_boot(&id(number), FileAllocation::Allocated(allocation.to_owned()))).next
}

/// Disks of `storage`, as announced by a started attempt.
fn storage_disks(number: u32) -> Vec<(String, String, Option<WipePolicy>, usize)> {
    let disk = |device: &str, letter: &str, promise, creations| {
        (format!("/dev/{device}"), format!("S{number:02x}{letter}"), Some(promise), creations)
    };
    vec![disk("sda", "A", WipePolicy::Wiped, 0), disk("sdb", "B", WipePolicy::Kept, 1)]
}

fn summarize_disks(disks: &[RecordedDisk]) -> Vec<(String, String, Option<WipePolicy>, usize)> {
    let show = |disk: &RecordedDisk| (disk.device.clone(), disk.serial.clone(), disk.promise, disk.making.len());
    disks.iter().map(show).collect()
}

#[test]
fn installed_machines_keep_image_layout_marker_and_outcome() {
    let dir = recorded();
    for _ in 0..2 {
        let state = open(&dir);
        for (number, allocation, image, layout) in [
            (0x01, "a-installed", NEWER, "default"),
            (0x02, "a-ordered", OLDER, "default"),
            (0x04, "a-reinstalling", OLDER, "storage"),
            (0x05, "a-freed", OLDER, "default"),
            (0x09, "a-volumes", OLDER, "default"),
            (0x0d, "a-given-up", OLDER, "storage"),
            (0x0e, "a-renamed", OLDER, "default"),
            (0x11, "a-done", OLDER, "default"),
        ] {
            let found = state_of(&state, number, allocation);
            assert!(found.succeeded && !found.unconfirmed && !found.is_claimed && !found.unremembered, "{allocation}");
            assert_eq!((found.image.as_deref(), &found.layout.unwrap()["id"]), (Some(image), &layout.into()));
            let marker = found.marker.unwrap();
            assert_eq!((marker.image.as_str(), marker.allocation.as_str()), (image, allocation));
            assert_eq!((marker.fencing, marker.secret, found.first), (None, None, None));
            assert!(found.created.starts_with("2026-01-15T10:"), "{}", found.created);
        }
        let reinstalled = state_of(&state, 0x01, "a-installed");
        let outcome = reinstalled.outcome.unwrap();
        assert_eq!((outcome.success, outcome.image.as_str(), outcome.message.as_str()), (true, NEWER, "installed"));
        assert_eq!(reinstalled.marker.unwrap().order, Some(outcome.order));
        assert_eq!(state_of(&state, 0x0e, "a-renamed").former, [id(0xff)]);
        let volumes = state_of(&state, 0x09, "a-volumes").volumes;
        assert_eq!((volumes[0].name.as_str(), volumes[0].size_bytes), ("db-1", 42_949_672_960));
        assert_eq!(next_boot(&state, 0x01, "a-installed"), BootTarget::Disk);
    }
}

#[test]
fn orders_keep_their_options_attempts_and_disks() {
    let dir = recorded();
    let state = open(&dir);
    let ordered = state_of(&state, 0x02, "a-ordered").order.unwrap();
    assert_eq!((ordered.image.as_str(), ordered.attempts, ordered.started, ordered.given_up), (NEWER, 0, false, false));
    assert_eq!((ordered.change_promise, &ordered.give_up[..]), (true, &["S02A".to_owned()][..]));
    assert!(!ordered.without_marker && !ordered.replace_newer && ordered.confirmed);
    assert!(ordered.fencing.is_some_and(|token| token.is_plausible()), "an open order receives a fencing token");

    let started = state_of(&state, 0x04, "a-reinstalling");
    let order = started.order.clone().unwrap();
    assert_eq!((order.image.as_str(), order.attempts, order.started, order.given_up), (NEWER, 1, true, false));
    assert_eq!((summarize_disks(&order.disks), &order.attempt), (storage_disks(0x04), &None));
    assert_eq!(started.outcome.as_ref().map(|last| last.message.as_str()), Some("image.burn: cut off"));
    assert_eq!(started.pinned_layout().unwrap()["id"], "storage");
    let BootTarget::Attempt(next) = next_boot(&state, 0x04, "a-reinstalling") else { panic!() };
    assert_eq!((next.id, next.attempts, next.started), (order.id, 2, true));

    let given_up = state_of(&state, 0x0d, "a-given-up").order.unwrap();
    assert_eq!(
        (given_up.attempts, given_up.started, given_up.given_up, given_up.without_marker),
        (3, true, true, true)
    );
}

#[test]
fn installing_and_waiting_machines_keep_their_state() {
    let dir = recorded();
    let state = open(&dir);
    let started = state_of(&state, 0x03, "a-first");
    let first = started.first.clone().unwrap();
    assert_eq!((started.succeeded, first.only, first.heard, &first.record), (false, true, false, &None));
    assert_eq!(summarize_disks(&first.disks), storage_disks(0x03));
    assert_eq!(started.pinned_layout().unwrap()["id"], "storage");
    assert_eq!(first.to_attempt().by, first.by, "the started boot may still report its success");

    let waiting = state_of(&state, 0x06, "a-waiting");
    assert_eq!(waiting.waits.as_ref().map(|marker| marker.image.as_str()), Some(OLDER));
    assert!(!waiting.is_installed());
    let adopted = state_of(&state, 0x07, "a-adopted");
    assert!(adopted.adopted && !adopted.succeeded && adopted.adopted_marker.is_none());
    let served = state_of(&state, 0x08, "a-full").handed_out.unwrap();
    assert_eq!((&served.layout["id"], served.order.as_str()), (&"mirror".into(), ""));
    for (number, is_there) in [(0xee, true), (0xed, true), (0xec, false)] {
        assert_eq!(wait(state.is_recorded(&id(number))), is_there, "{number:#x}");
    }
}

#[test]
fn migrations_keep_their_state_and_the_owner_of_the_allocation() {
    let dir = recorded();
    let state = open(&dir);
    for number in [0x0b, 0x0c] {
        let copying = wait(state.find_live_migration(&id(number))).unwrap();
        assert_eq!((copying.state, copying.allocation.as_str()), (MigrationState::Copying, "a-moved"));
        assert_eq!((copying.source, copying.target), (id(0x0b), id(0x0c)));
        let started = copying.started_copy.unwrap();
        assert_eq!((started.disks[0].serial.as_str(), started.only, started.secret_digest), ("S0cA", true, None));
        assert_eq!(copying.carried.unwrap().filesystems[0].size_bytes, 20_000_000_000);
        assert!(copying.source_endpoint.unwrap().certificate.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(copying.target_endpoint.unwrap().address.ends_with(":4711"));
        assert_eq!((copying.marker.unwrap().machine, copying.fencing), (id(0x0b), None));
    }
    let done = wait(state.find_last_migration(&id(0x10))).unwrap();
    assert_eq!((done.state, done.files, done.target), (MigrationState::Done, false, id(0x11)));
    let (former, owner) = (state_of(&state, 0x10, "a-done"), state_of(&state, 0x11, "a-done"));
    assert!(former.barred && !former.succeeded && owner.succeeded && !owner.barred);
    assert_eq!(former.elsewhere, Some(id(0x11)));
    assert!(owner.marker.unwrap().received_from.is_some_and(|digest| digest.starts_with("sha256:")));
}
