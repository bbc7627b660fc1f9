//! Reinstalls that preserve some partitions of a disk and renew the others.

use super::*;
use common::diagnostic::Diagnostic;
use model::inventory::{FirmwareType, MemberRole};
use operations::{
    ByteRange, ClearRanges, DeviceOp, Operation, PlanStage, ProvePreserved, SessionOp, StageName, TableEdit,
};

pub(super) const MIRRORED: &str = "id: mirrored
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

pub(super) fn blank_machine() -> Inventory {
    let mut machine = Inventory { disks: vec![disk("sda", 20_000), disk("sdb", 20_000)], ..Inventory::default() };
    machine.system.firmware = FirmwareType::Uefi;
    machine
}

pub(super) fn installed_with(yaml: &str) -> Inventory {
    after(&make(&layout_of(yaml), &blank_machine(), InstallMode::Install).unwrap(), blank_machine())
}

/// Makes the plan of a reinstall.
pub(super) fn renew(yaml: &str, inventory: &Inventory) -> Result<Plan, Vec<Diagnostic>> {
    let (mode, steps, assigned) = (InstallMode::Reinstall, StepList::default(), Default::default());
    let request = PlanRequest { mode, steps, subject: subject(), assigned, claim: None };
    crate::make_plan(&layout_of(yaml), inventory, request, &mut counting_from(1000)).map_err(|refusal| refusal.problems)
}

pub(super) fn problems_of(yaml: &str, inventory: &Inventory) -> Vec<String> {
    renew(yaml, inventory).unwrap_err().iter().map(ToString::to_string).collect()
}

pub(super) fn operations_of(plan: &Plan) -> impl Iterator<Item = &Operation> {
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

/// Returns the partitions of the preserved data, the array `data` on them, and the signatures on this array.
pub(super) fn data_of(
    inventory: &Inventory,
) -> (Vec<inventory::DiskPartition>, Vec<inventory::MdArray>, Vec<DeviceSignature>) {
    let parts = inventory.disks.iter().flat_map(|disk| &disk.table).flat_map(|table| &table.partitions);
    let arrays: Vec<_> = inventory.arrays.iter().filter(|array| array.name == "data").cloned().collect();
    let running = arrays.iter().filter_map(|array| array.running.clone());
    let stacked = running.flat_map(|name| inventory.stacked.iter().filter(move |is| is.name == name));
    let content = stacked.flat_map(|is| is.signatures.clone()).collect();
    (parts.filter(|part| part.number == 3).cloned().collect(), arrays, content)
}

#[test]
fn preserved_array_keeps_its_members_while_root_is_recreated() {
    let installed = installed_with(MIRRORED);
    let plan = renew(MIRRORED, &installed).unwrap();
    assert_eq!(verdicts(&plan), [DiskVerdict::PartlyKept; 2]);
    properties::assert_sound(&plan, &installed);
    for (edit, disk) in edits(&plan).into_iter().zip(&installed.disks) {
        let table = disk.table.as_ref().unwrap();
        assert_eq!((Some(edit.guid), &edit.removed), (table.guid, &vec![1, 2]));
        let [preserved] = edit.preserved.as_slice() else { panic!("{edit:?}") };
        assert_eq!((preserved.number, Some(preserved.guid)), (3, table.partitions[2].guid));
        // The partitions have the same bounds and types, so neither the entries nor the table change.
        let guids: Vec<_> = edit.added.iter().map(|new| Some(new.guid)).collect();
        assert_eq!(guids, table.partitions[..2].iter().map(|part| part.guid).collect::<Vec<_>>());
    }
    let reinstalled = after(&plan, installed.clone());
    assert_eq!(data_of(&installed), data_of(&reinstalled));
    assert_eq!(data_of(&installed).2.len(), 1);
    let root = |inventory: &Inventory| inventory.arrays.iter().find(|array| array.name == "root").unwrap().uuid;
    assert_ne!(root(&installed), root(&reinstalled));
    // A second reinstall also preserves the data.
    let again = renew(MIRRORED, &reinstalled).unwrap();
    assert_eq!(data_of(&after(&again, reinstalled.clone())), data_of(&installed));
}

#[test]
fn no_operation_writes_inside_a_preserved_partition() {
    let installed = installed_with(MIRRORED);
    let plan = renew(MIRRORED, &installed).unwrap();
    for (clear, disk) in clears(&plan).into_iter().zip(&plan.disks) {
        assert_eq!((clear.preserved.as_slice(), clear.find_overlap()), (disk.preserved.as_slice(), None));
        assert!(!clear.zero.is_empty() && !clear.first.is_empty());
        let table = [ByteRange { start: 0, length: 34 * 512 }];
        assert!(clear.zero.iter().chain(&clear.first).all(|range| !overlap(range, &table[0])), "{clear:?}");
    }
    // The members of the array must not be writable before the stage that assembles it.
    let closed = plan.extents.iter().take_while(|extents| !extents.stages.contains(&StageName::StorageMountPreserved));
    let mut seen = 0;
    for extents in closed.flat_map(|extents| &extents.disks) {
        let disk = plan.disks.iter().find(|disk| disk.device == extents.device).unwrap();
        assert!(!disk.preserved.is_empty());
        assert!(
            extents.ranges.iter().all(|range| disk.preserved.iter().all(|preserved| !overlap(range, preserved))),
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
fn preserved_objects_are_mounted_by_the_new_system_compared_at_the_end_and_recorded() {
    let installed = installed_with(MIRRORED);
    let plan = renew(MIRRORED, &installed).unwrap();
    let srv = plan.fstab.iter().find(|entry| entry.path == "/srv").unwrap();
    assert_eq!(srv.source, format!("UUID={}", data_of(&installed).2[0].uuid));
    let proven = operations_of(&plan).find_map(|operation| match operation {
        Operation::Run(SessionOp::ProvePreserved(ProvePreserved(preserved))) => Some(preserved),
        _ => None,
    });
    let objects: Vec<String> = proven.unwrap().iter().map(|preserved| preserved.object.to_string()).collect();
    assert_eq!(objects, ["partition /dev/sda3", "partition /dev/sdb3", "array /dev/md/data", "filesystem at /srv"]);
    let reinstalled = after(&plan, installed);
    let proofs = preservation_proof::compare_preserved(proven.unwrap(), &reinstalled);
    assert_eq!(preservation_proof::describe_differences(&proofs), [""; 0]);
    let mut moved = reinstalled;
    moved.disks[0].table.as_mut().unwrap().partitions[2].start_bytes += MIB;
    let proofs = preservation_proof::compare_preserved(proven.unwrap(), &moved);
    assert_eq!(preservation_proof::describe_differences(&proofs).len(), 1);
}

/// The partitions are locked before the first write, and unlocked immediately before the array on them is assembled.
#[test]
fn members_of_a_preserved_array_are_read_only_until_the_array_is_assembled_for_writing() {
    let plan = renew(MIRRORED, &installed_with(MIRRORED)).unwrap();
    let lines: Vec<(StageName, String)> = plan
        .stages
        .iter()
        .flat_map(|stage| stage.operations.iter().map(|operation| (stage.name, operation)))
        .filter_map(|(stage, operation)| {
            let text = match operation {
                Operation::Run(SessionOp::LockDisk(lock)) => format!("lock {}", lock.device),
                Operation::Run(SessionOp::UnlockDisk(unlock)) => format!("unlock {}", unlock.device),
                Operation::Device(DeviceOp::AssembleArray(array)) => format!("assemble {}", array.device),
                Operation::Device(DeviceOp::ClearRanges(clear)) => format!("clear {}", clear.device),
                Operation::Device(DeviceOp::EditTable(edit)) => format!("edit {}", edit.device),
                Operation::Device(DeviceOp::WipeDisk(_) | DeviceOp::WriteTable(_)) => panic!("{operation:?}"),
                _ => return None,
            };
            Some((stage, text))
        })
        .collect();
    let expected = [
        (StageName::StorageLock, "lock /dev/sda3"),
        (StageName::StorageLock, "lock /dev/sdb3"),
        (StageName::StorageWipe, "clear /dev/sda"),
        (StageName::StorageWipe, "clear /dev/sdb"),
        (StageName::StoragePartition, "edit /dev/sda"),
        (StageName::StoragePartition, "edit /dev/sdb"),
        (StageName::StorageMountPreserved, "unlock /dev/sda3"),
        (StageName::StorageMountPreserved, "unlock /dev/sdb3"),
        (StageName::StorageMountPreserved, "assemble /dev/md/data"),
    ];
    assert_eq!(lines, expected.map(|(stage, text)| (stage, text.to_owned())));
}

#[test]
fn refuses_layout_that_conflicts_with_the_preserved_partition() {
    let installed = installed_with(MIRRORED);
    let too_large =
        MIRRORED.replace("{number: 2, size: 5000, gpttype: fd00}", "{number: 2, size: 5001, gpttype: fd00}");
    let found = problems_of(&too_large, &installed);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].contains("device:/dev/sda2 is not big enough required:5001MiB, existing:5000MiB"), "{found:#?}");
    let resized = MIRRORED.replace("{number: 3, size: 0, gpttype: fd00}", "{number: 3, size: 9000, gpttype: fd00}");
    let found = problems_of(&resized, &installed);
    assert!(found[0].contains("/dev/sda3 must be preserved with a size of 9000 MiB, but its size is 14"), "{found:#?}");
    let missing = MIRRORED.replace("number: 3,", "number: 4,").replace("sda3, /dev/sdb3", "sda4, /dev/sdb4");
    let found = problems_of(&missing, &installed);
    assert!(found[0].contains("/dev/sda4 must be preserved, but /dev/sda lacks partition 4"), "{found:#?}");
    let other = MIRRORED.replace("format: xfs", "format: ext4");
    let found = problems_of(&other, &installed);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("must be preserved, and must contain ext4"), "{found:#?}");
}

#[test]
fn refuses_replaced_disk_without_preserved_partitions() {
    let mut replaced = installed_with(MIRRORED);
    blank_and_failed_disks::replace(&mut replaced, "sdb");
    let found = problems_of(MIRRORED, &replaced);
    assert!(
        found
            .iter()
            .any(|why| why.contains("/dev/sdb must be preserved, but lacks a GPT with the partitions to preserve (1)")),
        "{found:#?}"
    );
}

/// A degraded array contains all of its data, on partly kept disks as on preserved disks.
#[test]
fn degraded_array_on_partly_kept_disks_is_preserved_with_a_warning() {
    // All contents of the second disk have copies on the first one.
    let layout = MIRRORED.replace("{number: 1, size: 500}, ", "");
    let mut failed = installed_with(&layout);
    let data = failed.arrays.iter_mut().find(|array| array.name == "data").unwrap();
    data.members[1].role = MemberRole::Faulty;
    let mut unplugged = installed_with(&layout);
    blank_and_failed_disks::unplug(&mut unplugged, "sdb");
    for inventory in [failed, unplugged] {
        let plan = renew(&layout, &inventory).unwrap();
        let warned = plan.warnings.iter().any(|warning| warning.starts_with("/dev/md/data is kept DEGRADED: "));
        assert!(warned, "{:#?}", plan.warnings);
        assert_eq!(data_of(&after(&plan, inventory.clone())), data_of(&inventory));
    }
}
