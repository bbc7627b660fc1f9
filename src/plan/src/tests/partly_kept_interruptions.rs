//! Interrupted reinstalls of disks with preserved partitions.

use super::installation_identity::{claim, marker};
use super::interrupted_mkfs::next;
use super::partly_kept_disks::{MIRRORED, data_of, installed_with};
use super::*;
use crate::simulator::cut;
use model::inventory::FilesystemContents;
use operations::{DeviceOp, Operation, SessionOp};

/// Returns the plan of an attempt, with UUIDs that differ from those of the other attempts.
fn attempt(yaml: &str, left: &Inventory, claim: InstallClaim, ids: u128) -> Result<Plan, Box<PlanRefusal>> {
    let (steps, assigned, mode) = (StepList::default(), Default::default(), InstallMode::Reinstall);
    let request = PlanRequest { mode, steps, subject: subject(), assigned, claim: Some(claim) };
    super::super::make_plan(&layout_of(yaml), left, request, &mut counting_from(ids))
}

/// Returns the states in which the machine may be after an interruption: one state after each operation, beginning with
/// the announcement of the attempt.
fn all_cuts(plan: &Plan, before: &Inventory) -> Vec<Inventory> {
    let operations: Vec<&Operation> = plan.stages.iter().flat_map(|stage| &stage.operations).collect();
    let begin = operations
        .iter()
        .position(|operation| matches!(operation, Operation::Run(SessionOp::AnnouncePointOfNoReturn(_))));
    let after = |done: usize| Inventory { filesystems: Vec::new(), ..cut(plan, before.clone(), done) };
    (begin.unwrap()..=operations.len()).map(after).collect()
}

fn installed() -> Inventory {
    let mut machine = installed_with(MIRRORED);
    for (disk, serial) in machine.disks.iter_mut().zip(["A", "B"]) {
        disk.serial = serial.to_owned();
    }
    machine
}

/// The first layout does not change the partition tables. The second layout makes the root partition smaller.
#[test]
fn a_reinstall_that_is_interrupted_twice_anywhere_preserves_the_data() {
    let smaller = MIRRORED.replace("{number: 2, size: 5000, gpttype: fd00}", "{number: 2, size: 4000, gpttype: fd00}");
    for yaml in [MIRRORED, &smaller] {
        let machine = installed();
        let data = data_of(&machine);
        let installed = Some(marker(&machine));
        let waived = InstallClaim { waiver: Some(MarkerWaiver::Operator), installed, ..claim() };
        let first = attempt(yaml, &machine, waived, 1000).unwrap_or_else(|refusal| panic!("{refusal}"));
        let is_edit = |operation: &Operation| matches!(operation, Operation::Device(DeviceOp::EditTable(_)));
        assert_eq!(first.stages.iter().flat_map(|stage| &stage.operations).filter(|is| is_edit(is)).count(), 2);
        for (index, left) in all_cuts(&first, &machine).into_iter().enumerate() {
            assert_eq!(data_of(&left), data);
            let second = attempt(yaml, &left, next(&first), 2000).unwrap_or_else(|refusal| panic!("{refusal}"));
            assert_eq!(verdicts(&second), [DiskVerdict::PartlyKept; 2]);
            // To save time, only every fifth combination is tested.
            for left in all_cuts(&second, &left).into_iter().skip(index % 5).step_by(5) {
                assert_eq!(data_of(&left), data);
                let third = attempt(yaml, &left, next(&second), 3000).unwrap_or_else(|refusal| panic!("{refusal}"));
                assert_eq!(data_of(&after(&third, left)), data);
            }
        }
    }
}

/// The interrupted attempt has removed the root filesystem with the marker.
#[test]
fn an_interrupted_reinstall_is_not_repeated_without_its_order() {
    let machine = installed();
    let installed = Some(marker(&machine));
    let waived = InstallClaim { waiver: Some(MarkerWaiver::Operator), installed, ..claim() };
    let first = attempt(MIRRORED, &machine, waived, 1000).unwrap();
    let left = Inventory { filesystems: Vec::new(), ..cut(&first, machine, usize::MAX) };
    let refused = reasons(attempt(MIRRORED, &left, claim(), 2000));
    assert!(refused.iter().any(|why| why.contains("no filesystem there has the marker")), "{refused:#?}");
}

/// Layout with the system and preserved data on one disk.
const ONE_DISK: &str = "id: one-disk
constraints: {sizes: [], images: {}}
disks:
- device: /dev/sda
  wipeonreinstall: true
  partitions: [{number: 1, label: efi, size: 500, gpttype: ef00}, {number: 2, size: 5000}, {number: 3, size: 0, preserve: true}]
filesystems:
- {path: /, device: /dev/sda2, format: ext4, label: root}
- {path: /boot/efi, device: /dev/sda1, format: vfat}
- {path: /srv, device: /dev/sda3, format: ext4, label: srv}
";

fn data_partition(machine: &mut Inventory) -> &mut inventory::DiskPartition {
    &mut machine.disks[0].table.as_mut().unwrap().partitions[2]
}

/// The server recorded the start of the attempt, but its response was lost. The old system continued to run, and may
/// have written to the preserved partition that the attempt had found empty.
#[test]
fn a_partition_that_the_old_system_may_have_written_is_not_recreated() {
    let mut machine = installed_with(ONE_DISK);
    machine.disks[0].serial = "A".to_owned();
    let data = data_partition(&mut machine);
    (data.signatures, data.blank) = (Vec::new(), true);
    let (device, marker) = ("/dev/sda2".into(), Some(marker(&machine)));
    machine.filesystems = vec![FilesystemContents { device, marker, ..FilesystemContents::default() }];
    let first = attempt(ONE_DISK, &machine, claim(), 1000).unwrap_or_else(|refusal| panic!("{refusal}"));
    let again = attempt(ONE_DISK, &machine, next(&first), 2000).unwrap_or_else(|refusal| panic!("{refusal}"));
    for plan in [&first, &again] {
        assert!(plan.to_string().contains("read all of sda3"), "{plan}");
    }
    data_partition(&mut machine).blank = false;
    let refused = reasons(attempt(ONE_DISK, &machine, next(&first), 2000));
    assert!(refused.iter().any(|why| why.contains("unrecognized data")), "{refused:#?}");
    // The attempt has erased the old system, so the unrecognized data is an unfinished filesystem.
    machine.filesystems.clear();
    attempt(ONE_DISK, &machine, next(&first), 2000).unwrap_or_else(|refusal| panic!("{refusal}"));
}

/// The second copy of the data disappears between two attempts.
#[test]
fn a_preserved_partition_that_is_missing_in_the_next_attempt_is_refused() {
    let machine = installed();
    let installed = Some(marker(&machine));
    let waived = InstallClaim { waiver: Some(MarkerWaiver::Operator), installed, ..claim() };
    let first = attempt(MIRRORED, &machine, waived, 1000).unwrap();
    for mut left in all_cuts(&first, &machine) {
        let table = left.disks[1].table.as_mut().unwrap();
        table.partitions.retain(|part| part.number != 3);
        let refused = reasons(attempt(MIRRORED, &left, next(&first), 2000));
        assert!(
            refused.iter().any(|why| why.contains("/dev/sdb3 must be preserved, but /dev/sdb lacks")),
            "{refused:#?}"
        );
    }
}
