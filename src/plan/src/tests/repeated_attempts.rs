//! Objects that an interrupted attempt left are recreated only if the record of the attempt proves that it created
//! them.

use super::blank_and_failed_disks::replace;
use super::installation_identity::{claim, empty, marked, reinstall};
use super::interrupted_mkfs::next;
use super::*;
use crate::simulator::{after, cut};
use model::inventory::{StackedDevice, StackedDeviceKind};
use operations::{DeviceOp, Operation, SessionOp};

/// Returns the plan of an attempt that creates a filesystem on the blank partition of /srv, and the machine with
/// unrecognized data on that partition.
fn filling() -> (Plan, Inventory) {
    let mut before = marked();
    let part = &mut before.disks[1].table.as_mut().unwrap().partitions[0];
    (part.signatures, part.blank) = (Vec::new(), true);
    let plan = reinstall(&layout(), &before, claim()).unwrap();
    before.disks[1].table.as_mut().unwrap().partitions[0].blank = false;
    before.filesystems.clear();
    (plan, before)
}

type Case = (&'static str, fn(&mut InstallClaim, &mut Inventory));

#[test]
fn unrecognized_data_are_overwritten_only_on_the_recorded_device() {
    let (first, left) = filling();
    let again = |change: fn(&mut InstallClaim, &mut Inventory)| {
        let (mut claim, mut left) = (next(&first), left.clone());
        change(&mut claim, &mut left);
        reinstall(&layout(), &left, claim)
    };
    assert!(again(|_, _| {}).unwrap().to_string().contains("the filesystem, which will be recreated"));
    let cases: [Case; 4] = [
        ("older record without this information", |claim, _| claim.begun_on[1].making[0].was_empty = false),
        ("copy of the partition on another disk", |_, left| left.disks[1].serial = "clone".to_owned()),
        ("disk of another size", |_, left| left.disks[1].size_bytes += MIB),
        ("in use", |_, left| {
            let part = &mut left.disks[1].table.as_mut().unwrap().partitions[0];
            part.uses.push(DeviceUse::Holder("bcache0".into()));
        }),
    ];
    for (name, change) in cases {
        let refused = reasons(again(change));
        assert!(refused.iter().any(|reason| reason.contains("unrecognized data")), "{name}: {refused:?}");
    }
}

#[test]
fn a_partition_table_or_unreadable_region_on_a_kept_array_is_not_an_unfinished_filesystem() {
    let mut layout = arrays_and_groups::layout();
    layout.volumegroups.clear();
    layout.logicalvolumes.clear();
    layout.filesystems.retain(|filesystem| !filesystem.device.as_str().starts_with("/dev/vg00"));
    layout.filesystems.push(filesystem("/srv", "/dev/md/data", FilesystemFormat::Ext4, "srv"));
    let mut machine =
        after(&make(&layout, &arrays_and_groups::five(), InstallMode::Install).unwrap(), arrays_and_groups::five());
    let array = machine.arrays.last().unwrap().running.clone().unwrap();
    let device = |machine: &mut Inventory| machine.stacked.iter().position(|is| is.name == array).unwrap();
    let index = device(&mut machine);
    (machine.stacked[index].signatures, machine.stacked[index].blank) = (Vec::new(), true);
    let claim = InstallClaim { waiver: Some(MarkerWaiver::Operator), order: None, ..claim() };
    let first = reinstall(&layout, &machine, claim).unwrap();
    machine.stacked[index].blank = false;
    reinstall(&layout, &machine, next(&first)).unwrap();
    machine.stacked[index].unreadable = Some("Input/output error".to_owned());
    let refused = reasons(reinstall(&layout, &machine, next(&first)));
    assert!(refused[0].contains("unrecognized data"), "{refused:?}");
    machine.stacked[index].unreadable = None;
    machine.stacked[index].table = Some(DiskTable { kind: "gpt".to_owned(), ..DiskTable::default() });
    let refused = reasons(reinstall(&layout, &machine, next(&first)));
    assert!(refused[0].contains("unrecognized data"), "{refused:?}");
}

/// Returns the plan of an attempt that recreated sdb after a replacement, and the machine after this attempt was
/// interrupted with an unfinished filesystem.
fn remaking() -> (Plan, Inventory) {
    let mut before = marked();
    empty(&mut before.disks[1], "B1");
    let first = reinstall(&layout(), &before, claim()).unwrap();
    let mut half = after(&first, before);
    half.filesystems.clear();
    let part = &mut half.disks[1].table.as_mut().unwrap().partitions[0];
    (part.signatures, part.blank) = (Vec::new(), false);
    (first, half)
}

#[test]
fn recreates_disk_only_if_the_attempt_created_its_content() {
    let (first, half) = remaking();
    assert_eq!(verdicts(&reinstall(&layout(), &half, next(&first)).unwrap())[1], DiskVerdict::Make);
    fn part(half: &mut Inventory) -> &mut inventory::DiskPartition {
        &mut half.disks[1].table.as_mut().unwrap().partitions[0]
    }
    let restored = |half: &mut Inventory| {
        part(half).signatures = vec![DeviceSignature {
            kind: "xfs".into(),
            usage: "filesystem".into(),
            uuid: "restored".into(),
            ..DeviceSignature::default()
        }];
    };
    fn stack(half: &mut Inventory, unreadable: Option<&str>, table: Option<DiskTable>) {
        let (name, device, below) = ("dm-9".into(), "/dev/mapper/x-y".into(), vec!["sdb1".into()]);
        let (kind, unreadable) = (StackedDeviceKind::Volume, unreadable.map(str::to_owned));
        let size_bytes = MIB;
        let more =
            StackedDevice { name, device, kind, below, size_bytes, unreadable, table, ..StackedDevice::default() };
        half.stacked.push(more);
    }
    let cases: [Case; 6] = [
        ("unreadable volume", |_, half| stack(half, Some("Input/output error"), None)),
        ("disk image in a volume", |_, half| stack(half, None, Some(DiskTable::default()))),
        ("foreign filesystem", |_, half| {
            let uuid = "restored".to_owned();
            part(half).signatures = vec![DeviceSignature { kind: "xfs".into(), uuid, ..DeviceSignature::default() }];
        }),
        ("foreign partition", |_, half| {
            let more = inventory::DiskPartition { number: 9, guid: Some(Uuid::from_u128(9)), ..part(half).clone() };
            half.disks[1].table.as_mut().unwrap().partitions.push(more);
        }),
        ("old table", |claim, half| {
            let guid = Uuid::from_u128(77);
            claim.begun_on[1].guid_before = Some(guid.to_string());
            half.disks[1].table.as_mut().unwrap().guid = Some(guid);
        }),
        ("older record without this information", |claim, _| claim.begun_on[1].making[0].contents.clear()),
    ];
    for (name, change) in cases {
        let (mut claim, mut half) = (next(&first), half.clone());
        change(&mut claim, &mut half);
        let refusal = reinstall(&layout(), &half, claim).map(|plan| plan.to_string()).expect_err(name);
        assert_eq!(refusal.disks[1].verdict, DiskVerdict::Keep, "{name}");
    }
    // With a complete filesystem, the disk is not recreated.
    let mut other = half.clone();
    restored(&mut other);
    assert!(reinstall(&layout(), &other, next(&first)).is_err());
}

/// sdc is also preserved, and its filesystem is missing. Recreating sdb does not solve that problem.
#[test]
fn problem_on_another_disk_does_not_recreate_the_disk() {
    let mut layout = layout();
    layout.disks.push(DiskSpec {
        partitions: vec![partition(1, "opt", 0, PartitionType::Linux)],
        ..arrays_and_groups::whole("/dev/sdc")
    });
    layout.filesystems.push(filesystem("/opt", "/dev/sdc1", FilesystemFormat::Ext4, "opt"));
    let mut before = after(&make(&layout, &machine(), InstallMode::Install).unwrap(), machine());
    for (disk, serial) in before.disks.iter_mut().zip(["A0", "B0", "C0"]) {
        disk.serial = serial.to_owned();
    }
    let claim = InstallClaim { waiver: Some(MarkerWaiver::Operator), order: None, ..claim() };
    empty(&mut before.disks[1], "B1");
    let first = reinstall(&layout, &before, claim).unwrap();
    let mut whole = after(&first, before);
    whole.disks[2].table.as_mut().unwrap().partitions[0].signatures.clear();
    for half in [false, true] {
        let mut left = whole.clone();
        if half {
            left.disks[1].table.as_mut().unwrap().partitions[0].signatures.clear();
        }
        let refusal = reinstall(&layout, &left, next(&first)).unwrap_err();
        assert_eq!(refusal.disks[1].verdict, DiskVerdict::Keep, "{refusal}");
        assert!(refusal.problems.iter().any(|problem| problem.message.starts_with("/dev/sdc1")), "{refusal}");
    }
}

/// Every attempt is interrupted after each operation, and also during the creation of each filesystem. The third
/// attempt must succeed, regardless of the state that the first two attempts left.
#[test]
fn replaced_disks_converge_after_two_interrupted_attempts() {
    let mut machine = arrays_and_groups::installed();
    for (disk, serial) in machine.disks.iter_mut().zip(["A", "B", "C", "D", "E"]) {
        disk.serial = serial.to_owned();
    }
    for name in ["sdc", "sdd", "sde"] {
        replace(&mut machine, name);
        let disk = machine.disks.iter_mut().find(|disk| disk.name == name).unwrap();
        disk.serial = format!("new {name}");
    }
    let layout = arrays_and_groups::layout();
    let first =
        reinstall(&layout, &machine, InstallClaim { waiver: Some(MarkerWaiver::Operator), order: None, ..claim() })
            .unwrap();
    assert!(verdicts(&first).contains(&DiskVerdict::Make), "{first}");
    // Each attempt uses different UUIDs.
    let attempt = |left: &Inventory, claim: InstallClaim, ids: u128| {
        let (steps, assigned, mode) = (StepList::default(), Default::default(), InstallMode::Reinstall);
        let request = PlanRequest { mode, steps, subject: subject(), assigned, claim: Some(claim) };
        super::super::make_plan(&layout, left, request, &mut counting_from(ids))
    };
    for left in all_cuts(&first, &machine) {
        let second = attempt(&left, next(&first), 1000).unwrap_or_else(|refusal| panic!("{refusal}"));
        for left in all_cuts(&second, &left) {
            attempt(&left, next(&second), 2000).unwrap_or_else(|refusal| panic!("{second}\n{refusal}"));
        }
    }
}

/// Returns the states in which the machine may be after an interruption: after each operation, and during the creation
/// of each filesystem.
fn all_cuts(plan: &Plan, before: &Inventory) -> Vec<Inventory> {
    let operations: Vec<&Operation> = plan.stages.iter().flat_map(|stage| &stage.operations).collect();
    let begin = operations
        .iter()
        .position(|operation| matches!(operation, Operation::Run(SessionOp::AnnouncePointOfNoReturn(_))));
    let mut found = Vec::new();
    for done in begin.unwrap()..=operations.len() {
        let mut left = cut(plan, before.clone(), done);
        left.filesystems.clear();
        if let Some(Operation::Device(DeviceOp::MakeFilesystem(make))) = done.checked_sub(1).map(|at| operations[at]) {
            let mut unfinished = left.clone();
            let disks = unfinished.disks.iter_mut().flat_map(|disk| &mut disk.table);
            let parts = disks.flat_map(|table| &mut table.partitions).map(|part| &mut part.signatures);
            let stacked = unfinished.stacked.iter_mut().map(|is| &mut is.signatures);
            parts.chain(stacked).for_each(|all| all.retain(|is| is.uuid != make.uuid));
            found.push(unfinished);
        }
        found.push(left);
    }
    found
}
