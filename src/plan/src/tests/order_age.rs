//! Age of an order relative to the installation on the disks: tests each row of the table in `plan/order_age.rs`.

use super::installation_identity::{claim, empty, install, marked, planned, reinstall};
use super::*;
use model::install_marker::{FencingToken, InstallMarker};
use operations::{Operation, SessionOp, WriteMarker};

const ONE: &str = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff";
const TWO: &str = "7f9619ff-8b86-4d01-b42d-00cf4fc964ff";
const REPLACE: &str = "if the new image must replace that installation, order the reinstall again with --replace-newer";

fn token(database: &str, sequence: u64) -> Option<FencingToken> {
    Some(FencingToken { database: database.to_owned(), sequence })
}

/// Returns a machine whose root filesystem has a marker of order `o-2` with this token.
fn installed_with(fencing: Option<FencingToken>) -> Inventory {
    let mut inventory = marked();
    let marker = inventory.filesystems[0].marker.as_mut().unwrap();
    (marker.order, marker.image, marker.fencing) = (Some("o-2".to_owned()), "debian-13".to_owned(), fencing);
    inventory
}

fn found(inventory: &Inventory) -> InstallMarker {
    inventory.filesystems[0].marker.clone().unwrap()
}

/// Returns the claim of order `o-1` with this token.
fn ordered(fencing: Option<FencingToken>) -> InstallClaim {
    InstallClaim { fencing, ..claim() }
}

#[test]
fn refuses_order_older_than_the_installation_on_the_disk() {
    let newer = installed_with(token(ONE, 6));
    for confirmed in [false, true] {
        let claim = InstallClaim { confirmed, ..ordered(token(ONE, 5)) };
        let expected = format!(
            "disks: /dev/sda2: order o-1 (number 5 of database {ONE}) is older than the installation on the disk, image debian-13 of 2026-11-01T00:00:00Z (number 6 of database {ONE}; /etc/metal/drophammer.json); {REPLACE}"
        );
        assert_eq!(reasons(reinstall(&layout(), &newer, claim)), [expected]);
    }
}

#[test]
fn fencing_tokens_decide_acceptance_of_the_order() {
    type Row = (&'static str, Option<FencingToken>, Option<FencingToken>, [bool; 3]);
    // The three flags show whether the order is accepted in these cases: without further conditions; if the
    // operator has confirmed the order; if the control plane has a record of the installation.
    let rows: [Row; 12] = [
        ("no token at all", None, None, [true; 3]),
        ("a control plane without tokens", None, token(ONE, 6), [true; 3]),
        ("newer", token(ONE, 7), token(ONE, 6), [true; 3]),
        ("the same number", token(ONE, 6), token(ONE, 6), [false; 3]),
        ("older", token(ONE, 5), token(ONE, 6), [false; 3]),
        ("a huge number", token(ONE, 5), token(ONE, FencingToken::LIMIT), [false; 3]),
        ("another database", token(TWO, 7), token(ONE, 6), [false, true, true]),
        ("an older installation without a number", token(ONE, 7), None, [false, true, true]),
        ("a number out of range", token(ONE, 7), token(ONE, u64::MAX), [false; 3]),
        ("number zero", token(ONE, 7), token(ONE, 0), [false; 3]),
        ("no database", token(ONE, 7), token("", 6), [false; 3]),
        ("an impossible order", token("", 0), token(ONE, 6), [false; 3]),
    ];
    for (name, order, installed, expected) in rows {
        let inventory = installed_with(installed);
        let remembered = Some(found(&inventory));
        let claims = [
            ordered(order.clone()),
            InstallClaim { confirmed: true, ..ordered(order.clone()) },
            InstallClaim { installed: remembered, ..ordered(order.clone()) },
        ];
        let accepted = claims.map(|claim| reinstall(&layout(), &inventory, claim).is_ok());
        assert_eq!(accepted, expected, "{name}");
        // With `replace_newer`, an order is refused only if no server can have issued it.
        let plan = reinstall(&layout(), &inventory, InstallClaim { replace_newer: true, ..ordered(order.clone()) });
        assert_eq!(plan.is_ok(), order.as_ref().is_none_or(FencingToken::is_plausible), "{name}");
        if let Ok(plan) = plan {
            let is_told = plan
                .warnings
                .iter()
                .any(|warning| warning.ends_with("the installation will be replaced, as requested by the operator"));
            assert_eq!(is_told, !expected[0], "{name}: {:?}", plan.warnings);
        }
    }
}

#[test]
fn boots_marker_of_the_current_attempt_despite_its_token() {
    for fencing in [None, token(ONE, 5), token(ONE, 6), token(TWO, 1), token("", 0)] {
        let mut inventory = installed_with(fencing.clone());
        let marker = inventory.filesystems[0].marker.as_mut().unwrap();
        marker.secret = Some(secret());
        let attempt = record_of(marker);
        let claim = InstallClaim { order: Some("o-2".to_owned()), attempt, ..ordered(token(ONE, 5)) };
        let plan = reinstall(&layout(), &inventory, claim.clone()).unwrap();
        assert!(plan.already.is_some(), "{fencing:?}");
        // If the control plane has no record of an attempt, the same marker proves nothing.
        let unproven = reinstall(&layout(), &inventory, InstallClaim { attempt: None, ..claim });
        assert!(!unproven.is_ok_and(|plan| plan.already.is_some()), "{fencing:?}");
    }
}

#[test]
fn newer_installation_on_an_unlisted_disk_is_considered() {
    let mut inventory = installed_with(token(ONE, 4));
    let elsewhere = InstallMarker { fencing: token(ONE, 9), ..found(&inventory) };
    let on_sdc = model::inventory::FilesystemContents {
        device: "/dev/sdc1".into(),
        marker: Some(elsewhere.clone()),
        ..Default::default()
    };
    inventory.filesystems.push(on_sdc);
    let reasons = reasons(reinstall(&layout(), &inventory, ordered(token(ONE, 5))));
    assert!(reasons.len() == 1 && reasons[0].starts_with("disks: /dev/sdc1: order o-1"), "{reasons:?}");
    // The order is compared only with markers of its own allocation and machine.
    for (machine, allocation) in [("m-1", "a-9"), ("m-9", "a-1")] {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        inventory.filesystems[1].marker = Some(InstallMarker { machine, allocation, ..elsewhere.clone() });
        let refusal = reinstall(&layout(), &inventory, ordered(token(ONE, 5)));
        assert!(refusal.is_ok_and(|plan| plan.warnings.is_empty()), "not about the order's age");
    }
}

#[test]
fn marker_records_its_fencing_token() {
    for (mode, order) in [(InstallMode::Install, None), (InstallMode::Reinstall, Some("o-1".to_owned()))] {
        let mut inventory = marked();
        if mode == InstallMode::Install {
            inventory.filesystems.clear();
            inventory.disks.iter_mut().for_each(|disk| empty(disk, &disk.serial.clone()));
        }
        let claim = InstallClaim { order, confirmed: true, ..ordered(token(ONE, 7)) };
        let plan = planned(&layout(), &inventory, mode, claim).unwrap();
        let operations = plan.stages.iter().flat_map(|stage| &stage.operations);
        let markers: Vec<&InstallMarker> = operations
            .filter_map(|operation| match operation {
                Operation::Run(SessionOp::WriteMarker(WriteMarker(marker))) => Some(marker),
                _ => None,
            })
            .collect();
        assert_eq!(markers.iter().map(|marker| marker.fencing.clone()).collect::<Vec<_>>(), [token(ONE, 7)]);
    }
}

/// The server was reset to a snapshot of its virtual machine: its database is the same, but older than the disks.
#[test]
fn first_installation_older_than_an_earlier_allocation_on_the_disks_is_refused() {
    for (requested, installed, is_planned) in [
        (token(ONE, 7), token(ONE, 6), true),
        (token(ONE, 6), token(ONE, 6), false),
        (token(ONE, 5), token(ONE, 6), false),
        (token(TWO, 5), token(ONE, 6), true),
        (token(ONE, 5), token(ONE, 0), true),
        (token(ONE, 5), None, true),
        (None, token(ONE, 6), true),
    ] {
        let case = format!("{requested:?} {installed:?}");
        let claim = InstallClaim { allocation: "a-2".to_owned(), ..ordered(requested) };
        let plan = install(&layout(), &installed_with(installed), claim);
        assert_eq!(plan.is_ok(), is_planned, "{case}");
        if let Err(refusal) = plan {
            assert_eq!(refusal.code(), ErrorCode::OrderOutdated, "{case}");
            assert!(refusal.problems[0].message.contains("is newer (number 6) than this request (number"), "{refusal}");
        }
    }
}
