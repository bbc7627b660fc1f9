//! Only blank disks are erased if it is uncertain whether the machine is the one that its machine file describes.

use super::installation_identity::{claim, empty, marked, marker};
use super::*;
use model::allocation::Allocation;
use model::install_marker::{InstallMarker, RecordedDisk};
use operations::PlanAssignment;

fn planned(inventory: &Inventory, mode: InstallMode, claim: InstallClaim) -> Result<Plan, Box<PlanRefusal>> {
    let allocation = Allocation { blank_only: Some("UUID A is not B".to_owned()), ..Allocation::default() };
    let assigned = PlanAssignment { allocation, ..PlanAssignment::default() };
    let request = PlanRequest { mode, steps: StepList::default(), subject: subject(), assigned, claim: Some(claim) };
    super::super::make_plan(&layout(), inventory, request, &mut counting())
}

fn first() -> InstallClaim {
    InstallClaim { order: None, ..claim() }
}

fn blank() -> Inventory {
    let mut inventory = machine();
    inventory.disks.iter_mut().for_each(|disk| empty(disk, ""));
    inventory
}

#[test]
fn installs_on_blank_disks() {
    let plan = planned(&blank(), InstallMode::Install, first()).unwrap();
    assert!(plan.disks.iter().any(|disk| disk.verdict == DiskVerdict::Wipe));
    assert!(plan.to_string().contains("read all of sda"), "samples do not prove that a disk is blank: {plan}");
    // An unlisted disk may have any content.
    let mut other = blank();
    other.disks[2].blank = false;
    planned(&other, InstallMode::Install, first()).unwrap();
}

#[test]
fn names_each_nonblank_disk_with_the_reason() {
    type Change = fn(&mut inventory::InventoryDisk);
    let cases: [Change; 4] = [
        |disk| disk.blank = false,
        |disk| disk.table = Some(DiskTable { kind: "gpt".into(), ..DiskTable::default() }),
        |disk| disk.signatures.push(DeviceSignature { kind: "xfs".into(), ..DeviceSignature::default() }),
        |disk| disk.unreadable = Some("read error".into()),
    ];
    for (case, change) in cases.into_iter().enumerate() {
        for number in [0, 1] {
            let mut inventory = blank();
            change(&mut inventory.disks[number]);
            let device = inventory.disks[number].device.to_string();
            let why = reasons(planned(&inventory, InstallMode::Install, first()));
            let is_it = |line: &&String| line.starts_with(&format!("blank_only: {device} is not blank"));
            let found: Vec<&String> = why.iter().filter(is_it).collect();
            assert!(found.len() == 1 && found[0].contains("UUID A is not B"), "{case}: {why:?}");
        }
    }
    let mut inventory = machine();
    inventory.disks.iter_mut().for_each(|disk| disk.blank = false);
    assert_eq!(reasons(planned(&inventory, InstallMode::Install, first())).len(), 2);
}

#[test]
fn accepts_nonblank_disks_with_proof_of_ownership() {
    // The marker of an earlier installation of this machine records the disks.
    let mut inventory = marked();
    let of_machine = |inventory: &Inventory, machine: &str| {
        Some(InstallMarker { machine: machine.into(), allocation: "a-0".into(), ..marker(inventory) })
    };
    inventory.filesystems[0].marker = of_machine(&inventory, "m-1");
    planned(&inventory, InstallMode::Install, first()).unwrap();
    let renamed = InstallClaim { former_machines: vec!["m-0".to_owned()], ..first() };
    inventory.filesystems[0].marker = of_machine(&inventory, "m-0");
    planned(&inventory, InstallMode::Install, renamed).unwrap();
    inventory.filesystems[0].marker = of_machine(&inventory, "m-9");
    let why = reasons(planned(&inventory, InstallMode::Install, first()));
    assert!(why.iter().any(|line| line.starts_with("blank_only: /dev/sda ")), "{why:?}");

    // A started attempt continues on its disks.
    let disks: Vec<RecordedDisk> = marker(&installed()).disks.into_iter().take(2).collect();
    let started = InstallClaim { begun_on: disks, ..first() };
    planned(&installed(), InstallMode::Install, started).unwrap();

    // A reinstall is accepted if a marker of the machine exists, but not if the marker is only waived.
    let mut inventory = marked();
    planned(&inventory, InstallMode::Reinstall, claim()).unwrap();
    let mut forgotten = claim();
    super::installation_identity::forget_marker(&mut inventory, &mut forgotten);
    forgotten.waiver = Some(MarkerWaiver::Operator);
    let why = reasons(planned(&inventory, InstallMode::Reinstall, forgotten));
    assert!(why.iter().any(|line| line.starts_with("blank_only: /dev/sda ")), "{why:?}");
}

/// The disks have neither serial numbers nor partition tables, so they may not be the disks of the attempt.
#[test]
fn disks_that_only_look_like_those_of_a_started_attempt_are_not_erased() {
    let mut inventory = blank();
    for (disk, slot) in inventory.disks.iter_mut().zip(["1", "2", "3"]) {
        disk.by_path = format!("/dev/disk/by-path/pci-{slot}");
    }
    let records = inventory.disks.iter().take(2).map(|disk| RecordedDisk {
        device: disk.device.to_string(),
        size_bytes: disk.size_bytes,
        sector_bytes: disk.sector_bytes,
        by_path: disk.by_path.clone(),
        ..RecordedDisk::default()
    });
    let mut started = InstallClaim { begun_on: records.collect(), ..first() };
    planned(&inventory, InstallMode::Install, started.clone()).unwrap();
    for disk in &mut inventory.disks[..2] {
        disk.blank = false;
        disk.signatures = vec![DeviceSignature { kind: "ext4".into(), ..DeviceSignature::default() }];
    }
    let refused = |inventory: &Inventory, claim: InstallClaim| {
        let why = reasons(planned(inventory, InstallMode::Install, claim)).into_iter();
        why.filter(|line| line.starts_with("blank_only: ")).collect::<Vec<_>>()
    };
    assert_eq!(refused(&inventory, started.clone()).len(), 2);
    // A serial number proves that the attempt was started on the first disk.
    (inventory.disks[0].serial, started.begun_on[0].serial) = ("A0".to_owned(), "A0".to_owned());
    let found = refused(&inventory, started);
    assert!(found.len() == 1 && found[0].starts_with("blank_only: /dev/sdb "), "{found:?}");
}

/// A marker proves only that the disks that it records belong to the machine, and not that other disks do.
#[test]
fn marker_permits_the_erasure_of_recorded_disks_only() {
    let mut inventory = marked();
    let earlier = InstallMarker { allocation: "a-0".into(), ..marker(&inventory) };
    inventory.filesystems[0].marker = Some(earlier);
    planned(&inventory, InstallMode::Install, first()).unwrap();
    // sdb was replaced by a disk of another machine.
    inventory.disks[1].serial = "Z9".to_owned();
    let why = reasons(planned(&inventory, InstallMode::Install, first()));
    assert!(why.len() == 1 && why[0].starts_with("blank_only: /dev/sdb is not blank"), "{why:?}");
}
