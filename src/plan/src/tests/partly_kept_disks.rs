//! Reinstalls that preserve some partitions of a disk and renew the others.

use super::*;
use common::diagnostic::Diagnostic;
use model::inventory::FirmwareType;
use operations::{ByteRange, ClearRanges, DeviceOp, Operation, PlanStage, StageName, TableEdit};

const MIRRORED: &str = "id: mirrored
constraints: {sizes: [], images: {}}
disks:
- device: /dev/sda
  wipeonreinstall: true
  partitions: [{number: 1, label: efi, size: 500, gpttype: ef00}, {number: 2, size: 5000, gpttype: fd00}, {number: 3, size: 0, gpttype: fd00}]
- device: /dev/sdb
  wipeonreinstall: true
  partitions: [{number: 1, size: 500}, {number: 2, size: 5000, gpttype: fd00}, {number: 3, size: 0, gpttype: fd00}]
raid:
- {arrayname: /dev/md/root, level: \"1\", devices: [/dev/sda2, /dev/sdb2]}
- {arrayname: /dev/md/data, level: \"1\", devices: [/dev/sda3, /dev/sdb3], preserve: true}
filesystems:
- {path: /, device: /dev/md/root, format: ext4, label: root}
- {path: /boot/efi, device: /dev/sda1, format: vfat}
- {path: /srv, device: /dev/md/data, format: xfs, label: srv}
";

fn blank_machine() -> Inventory {
    let mut machine = Inventory { disks: vec![disk("sda", 20_000), disk("sdb", 20_000)], ..Inventory::default() };
    machine.system.firmware = FirmwareType::Uefi;
    machine
}

fn installed_with(yaml: &str) -> Inventory {
    after(&make(&layout_of(yaml), &blank_machine(), InstallMode::Install).unwrap(), blank_machine())
}

/// Makes the plan of a reinstall, without the refusal of its execution.
fn renew(yaml: &str, inventory: &Inventory) -> Result<Plan, Vec<Diagnostic>> {
    let (layout, mode) = (layout_of(yaml), InstallMode::Reinstall);
    let request =
        PlanRequest { mode, steps: StepList::default(), subject: subject(), assigned: Default::default(), claim: None };
    let decided =
        crate::planner::decide_plan(&layout, inventory, &request, &Default::default(), &mut counting_from(1000));
    match decided.problems.is_empty() {
        true => Ok(crate::stages::arrange_stages(&layout, inventory, request, decided)),
        false => Err(decided.problems),
    }
}

fn problems_of(yaml: &str, inventory: &Inventory) -> Vec<String> {
    renew(yaml, inventory).unwrap_err().iter().map(ToString::to_string).collect()
}

fn operations_of(plan: &Plan) -> impl Iterator<Item = &Operation> {
    plan.stages.iter().flat_map(|stage: &PlanStage| &stage.operations)
}

fn edits(plan: &Plan) -> Vec<&TableEdit> {
    let edit = |operation| match operation {
        &Operation::Device(DeviceOp::EditTable(ref edit)) => Some(edit),
        _ => None,
    };
    operations_of(plan).filter_map(edit).collect()
}

fn clears(plan: &Plan) -> Vec<&ClearRanges> {
    let clear = |operation| match operation {
        &Operation::Device(DeviceOp::ClearRanges(ref clear)) => Some(clear),
        _ => None,
    };
    operations_of(plan).filter_map(clear).collect()
}

fn overlap(one: &ByteRange, other: &ByteRange) -> bool {
    one.start < other.start + other.length && other.start < one.start + one.length
}

/// Returns the partition, and the array on it, as an inventory shows them.
fn data_of(inventory: &Inventory) -> (Vec<inventory::DiskPartition>, Vec<inventory::MdArray>, Vec<DeviceSignature>) {
    let parts = inventory.disks.iter().flat_map(|disk| &disk.table).flat_map(|table| &table.partitions);
    let arrays: Vec<_> = inventory.arrays.iter().filter(|array| array.name == "data").cloned().collect();
    let running = arrays.iter().filter_map(|array| array.running.clone());
    let stacked = running.flat_map(|name| inventory.stacked.iter().filter(move |is| is.name == name));
    let content = stacked.flat_map(|is| is.signatures.clone()).collect();
    (parts.filter(|part| part.number == 3).cloned().collect(), arrays, content)
}

#[test]
fn a_preserved_array_keeps_its_members_while_the_root_beside_it_is_renewed() {
    let installed = installed_with(MIRRORED);
    let plan = renew(MIRRORED, &installed).unwrap();
    assert_eq!(verdicts(&plan), [DiskVerdict::PartlyKept; 2]);
    properties::assert_sound(&plan, &installed);
    for (edit, disk) in edits(&plan).into_iter().zip(&installed.disks) {
        let table = disk.table.as_ref().unwrap();
        assert_eq!((Some(edit.guid), &edit.removed), (table.guid, &vec![1, 2]));
        let [kept] = edit.preserved.as_slice() else { panic!("{edit:?}") };
        assert_eq!((kept.number, Some(kept.guid)), (3, table.partitions[2].guid));
        // Same bounds and types: the entries do not change, and neither does the table.
        let guids: Vec<_> = edit.added.iter().map(|new| Some(new.guid)).collect();
        assert_eq!(guids, table.partitions[..2].iter().map(|part| part.guid).collect::<Vec<_>>());
    }
    let reinstalled = after(&plan, installed.clone());
    assert_eq!(data_of(&installed), data_of(&reinstalled));
    assert_eq!(data_of(&installed).2.len(), 1);
    let root = |inventory: &Inventory| inventory.arrays.iter().find(|array| array.name == "root").unwrap().uuid;
    assert_ne!(root(&installed), root(&reinstalled));
    // A second reinstall finds the same.
    let again = renew(MIRRORED, &reinstalled).unwrap();
    assert_eq!(data_of(&after(&again, reinstalled.clone())), data_of(&installed));
}

#[test]
fn no_operation_may_write_between_the_first_and_the_last_byte_of_a_preserved_partition() {
    let installed = installed_with(MIRRORED);
    let plan = renew(MIRRORED, &installed).unwrap();
    for (clear, disk) in clears(&plan).into_iter().zip(&plan.disks) {
        assert_eq!((clear.preserved.as_slice(), clear.find_overlap()), (disk.preserved.as_slice(), None));
        assert!(!clear.zero.is_empty() && !clear.first.is_empty());
        let table = [ByteRange { start: 0, length: 34 * 512 }];
        assert!(clear.zero.iter().chain(&clear.first).all(|range| !overlap(range, &table[0])), "{clear:?}");
    }
    // Until the array is assembled, its members are not among the extents.
    let closed = plan.extents.iter().take_while(|extents| !extents.stages.contains(&StageName::StorageMountKept));
    let mut seen = 0;
    for extents in closed.flat_map(|extents| &extents.disks) {
        let disk = plan.disks.iter().find(|disk| disk.device == extents.device).unwrap();
        assert!(!disk.preserved.is_empty());
        assert!(
            extents.ranges.iter().all(|range| disk.preserved.iter().all(|kept| !overlap(range, kept))),
            "{extents:?}"
        );
        seen += 1;
    }
    assert!(seen >= 2, "{:?}", plan.extents);
    let text = plan.to_string();
    for line in ["partly kept", "remove sda2", "make sda2", "preserve partitions 3; remove 1, 2"] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn the_execution_of_such_a_plan_is_refused() {
    let installed = installed_with(MIRRORED);
    let refused = reasons(make(&layout_of(MIRRORED), &installed, InstallMode::Reinstall));
    assert_eq!(refused.len(), 2, "{refused:#?}");
    assert!(refused.iter().all(|why| why.contains("this version does not support `preserve: true`")), "{refused:#?}");
}

#[test]
fn what_does_not_fit_the_preserved_partition_is_refused_with_numbers() {
    let installed = installed_with(MIRRORED);
    let too_large =
        MIRRORED.replace("{number: 2, size: 5000, gpttype: fd00}", "{number: 2, size: 5001, gpttype: fd00}");
    let found = problems_of(&too_large, &installed);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].contains("device:/dev/sda2 is not big enough required:5001MiB, existing:5000MiB"), "{found:#?}");
    let resized = MIRRORED.replace("{number: 3, size: 0, gpttype: fd00}", "{number: 3, size: 9000, gpttype: fd00}");
    let found = problems_of(&resized, &installed);
    assert!(found[0].contains("/dev/sda3 must be kept with 9000 MiB, but has 14"), "{found:#?}");
    let missing = MIRRORED.replace("number: 3,", "number: 4,").replace("sda3, /dev/sdb3", "sda4, /dev/sdb4");
    let found = problems_of(&missing, &installed);
    assert!(found[0].contains("/dev/sda4 must be kept, but /dev/sda lacks partition 4"), "{found:#?}");
    let other = MIRRORED.replace("format: xfs", "format: ext4");
    let found = problems_of(&other, &installed);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("must be kept with ext4"), "{found:#?}");
    let mut bios = installed.clone();
    bios.system.firmware = FirmwareType::Bios;
    assert!(problems_of(MIRRORED, &bios)[0].contains("boot loader of a BIOS machine"));
}

#[test]
fn a_replaced_disk_is_not_filled_with_preserved_partitions() {
    let mut replaced = installed_with(MIRRORED);
    blank_and_failed_disks::replace(&mut replaced, "sdb");
    let found = problems_of(MIRRORED, &replaced);
    assert!(
        found.iter().any(|why| why.contains("/dev/sdb must be kept with 1 partitions, but lacks a GPT")),
        "{found:#?}"
    );
}
