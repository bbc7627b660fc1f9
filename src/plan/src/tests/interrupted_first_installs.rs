//! Tests that an interrupted first installation continues only on the disks on which it was started.

use super::arrays_and_groups::operations;
use super::installation_identity::{claim, empty, install};
use super::*;
use crate::simulator::cut;
use model::install_marker::RecordedDisk;
use operations::{AnnouncePointOfNoReturn, Operation, SessionOp, StageName};

fn with_serials() -> Inventory {
    let mut machine = machine();
    for (disk, serial) in machine.disks.iter_mut().zip(["A0", "B0", "C0"]) {
        disk.serial = serial.to_owned();
    }
    machine
}

fn announced(plan: &Plan) -> Vec<RecordedDisk> {
    let [Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { disks, .. }))] =
        operations(plan, StageName::ReportBegin)
    else {
        panic!("{plan}")
    };
    disks.clone()
}

/// Power fails after each operation, and another attempt follows. Tested for disks with and without serial numbers.
#[test]
fn first_installation_continues_after_any_power_failure() {
    let mut without = machine();
    for (disk, slot) in without.disks.iter_mut().zip(["1", "2", "3"]) {
        disk.by_path = format!("/dev/disk/by-path/pci-{slot}");
    }
    for machine in [with_serials(), without] {
        let plan = install(&layout(), &machine, claim()).unwrap();
        let claim = InstallClaim { begun_on: announced(&plan), ..claim() };
        let all: usize = plan.stages.iter().map(|stage| stage.operations.len()).sum();
        for done in 0..=all {
            let after = cut(&plan, machine.clone(), done);
            install(&layout(), &after, claim.clone()).unwrap_or_else(|refusal| panic!("{done} operations: {refusal}"));
        }
    }
}

/// Only slot, model and size show that the disk with data is the disk on which the installation was started.
#[test]
fn continued_first_installation_warns_about_a_disk_without_identifiers() {
    let mut machine = machine();
    machine.disks[0].by_path = "/dev/disk/by-path/pci-1".to_owned();
    machine.disks[1].serial = "B0".to_owned();
    let plan = install(&layout(), &machine, claim()).unwrap();
    let claim = InstallClaim { begun_on: announced(&plan), ..claim() };
    let warnings = |machine: &Inventory| install(&layout(), machine, claim.clone()).unwrap().warnings;
    let said = "no identifier proves that this installation was started on this disk";
    let found = warnings(&machine);
    let found: Vec<&String> = found.iter().filter(|warning| warning.contains(said)).collect();
    assert!(found.len() == 1 && found[0].contains("/dev/sda"), "{found:?}");
    machine.disks[0].blank = true;
    assert!(!warnings(&machine).iter().any(|warning| warning.contains(said)));
}

type Case = (&'static str, fn(&mut Inventory), &'static str);

#[test]
fn continued_first_installation_refuses_other_disks() {
    let cases: [Case; 5] = [
        (
            "another one",
            |inventory| inventory.disks[0].serial = "Z9".to_owned(),
            "disks[0].device: /dev/sda is the disk with serial Z9",
        ),
        (
            "another one, blank",
            |inventory| empty(&mut inventory.disks[0], "Z9"),
            "disks[0].device: /dev/sda is the disk with serial Z9",
        ),
        (
            "nobody can tell",
            |inventory| inventory.disks[0].serial.clear(),
            "disks[0].device: /dev/sda is a disk without serial number",
        ),
        (
            "another size",
            |inventory| inventory.disks[0].size_bytes += MIB,
            "disks[0].device: /dev/sda is the disk with serial A0",
        ),
        (
            "swapped",
            |inventory| {
                inventory.disks[1].serial = "C0".to_owned();
                inventory.disks[2].serial = "B0".to_owned();
            },
            "disks[1].device: /dev/sdb is the disk with serial C0",
        ),
    ];
    let machine = with_serials();
    let plan = install(&layout(), &machine, claim()).unwrap();
    let claim = InstallClaim { begun_on: announced(&plan), ..claim() };
    for (name, change, expected) in cases {
        let mut machine = machine.clone();
        change(&mut machine);
        let reasons = reasons(install(&layout(), &machine, claim.clone()));
        assert_eq!(reasons.len(), 1, "{name}: {reasons:?}");
        assert!(reasons[0].starts_with(expected), "{name}: {reasons:?}");
        for side in ["serial ", "this installation was started on a disk with serial", "attach the old disk"] {
            assert!(reasons[0].contains(side), "{name}: {reasons:?}");
        }
    }
    // One of the disks was not in the layout when the installation started.
    let fewer = InstallClaim { begun_on: claim.begun_on[..1].to_vec(), ..claim };
    let reasons = reasons(install(&layout(), &machine, fewer));
    assert!(
        reasons[0].contains("disks[1].device") && reasons[0].contains("was started without this disk"),
        "{reasons:?}"
    );
}
