//! Filesystems on preserved disks: they are recreated only if an interrupted mkfs left them.

use super::arrays_and_groups::operations;
use super::installation_identity::{claim, empty, marked, reinstall};
use super::*;
use model::install_marker::{PendingCreation, RecordedDisk};
use model::inventory::{DiskPartition as Found, InspectionFailure, InspectionTarget};
use operations::{AnnouncePointOfNoReturn, DeviceOp, Operation, SessionOp, StageName, WriteMarker};

fn announced_disks(plan: &Plan) -> &[RecordedDisk] {
    match operations(plan, StageName::ReportBegin) {
        [Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { disks, .. }))] => disks,
        other => panic!("{other:?}"),
    }
}

/// Returns the claim of the attempt after one that has passed its point of no return.
pub(super) fn next(plan: &Plan) -> InstallClaim {
    InstallClaim { waiver: Some(MarkerWaiver::Begun), begun_on: announced_disks(plan).to_vec(), ..claim() }
}

fn srv(inventory: &mut Inventory) -> &mut Found {
    &mut inventory.disks[1].table.as_mut().unwrap().partitions[0]
}

/// Returns a machine with a blank partition for /srv, and the plan of the attempt that creates the filesystem.
fn filling() -> (Inventory, Plan) {
    let mut before = marked();
    let part = srv(&mut before);
    (part.signatures, part.blank) = (Vec::new(), true);
    let plan = reinstall(&layout(), &before, claim()).unwrap();
    (before, plan)
}

fn making(plan: &Plan) -> &PendingCreation {
    match &announced_disks(plan)[1].making[..] {
        [making] => making,
        other => panic!("{other:?}"),
    }
}

/// Returns the machine after an interrupted attempt: root is wiped, and the partition of /srv has this signature.
fn left(mut before: Inventory, signature: Option<DeviceSignature>, mounts: bool) -> Inventory {
    before.filesystems.clear();
    let part = srv(&mut before);
    (part.blank, part.signatures) = (false, signature.into_iter().collect());
    let device = part.device.clone();
    if !mounts {
        let why = "Structure needs cleaning".to_owned();
        before.failed.push(InspectionFailure { tried: InspectionTarget::Filesystem(device), why });
    }
    before
}

fn signature(uuid: &str) -> Option<DeviceSignature> {
    Some(DeviceSignature {
        kind: "ext4".into(),
        usage: "filesystem".into(),
        label: "srv".into(),
        uuid: uuid.to_owned(),
    })
}

/// Returns the UUID of the filesystem that the plan creates for /srv.
fn made(plan: &Plan) -> Option<String> {
    operations(plan, StageName::StorageMountPreserved).iter().find_map(|operation| match operation {
        Operation::Device(DeviceOp::MakeFilesystem(make)) => Some(make.uuid.clone()),
        _ => None,
    })
}

#[test]
fn pending_creation_is_announced_and_absent_from_the_marker() {
    let (mut before, plan) = filling();
    let guid = srv(&mut before).guid.unwrap();
    assert_eq!(*making(&plan), PendingCreation::for_filesystem(format!("partition {guid}"), made(&plan).unwrap()));
    assert_eq!(announced_disks(&plan)[0].making, []);
    let [Operation::Run(SessionOp::WriteMarker(WriteMarker(marker)))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    assert!(marker.disks.iter().all(|disk| disk.making.is_empty()), "{marker:?}");
    assert_eq!(marker.disks.len(), announced_disks(&plan).len());
    // A plan that creates no filesystem on a preserved device records no pending creation.
    let plan = reinstall(&layout(), &marked(), claim()).unwrap();
    assert!(announced_disks(&plan).iter().all(|disk| disk.making.is_empty()));
}

#[test]
fn recreates_filesystem_after_interrupted_creation() {
    let (before, first) = filling();
    let uuid = making(&first).uuid.clone().unwrap();
    for (name, left) in [
        ("unrecognized data", left(before.clone(), None, true)),
        ("only a superblock", left(before.clone(), signature(&uuid), false)),
    ] {
        let plan = reinstall(&layout(), &left, next(&first)).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!((made(&plan).as_ref(), making(&plan)), (Some(&uuid), making(&first)), "{name}");
        assert!(
            plan.warnings.iter().any(|it| it.contains("was interrupted while creating the filesystem")),
            "{:?}",
            plan.warnings
        );
        // The UUID stays the same after every interruption.
        assert_eq!(made(&reinstall(&layout(), &left, next(&plan)).unwrap()).as_ref(), Some(&uuid), "{name}");
    }
}

#[test]
fn never_recreates_a_complete_or_foreign_filesystem() {
    let (before, first) = filling();
    let uuid = making(&first).uuid.clone().unwrap();
    let whole = left(before.clone(), signature(&uuid), true);
    assert_eq!(made(&reinstall(&layout(), &whole, next(&first)).unwrap()), None);
    let other = left(before.clone(), signature("another"), false);
    assert_eq!(reinstall(&layout(), &other, next(&first)).map(|plan| made(&plan)).ok().flatten(), None);
    let unknown = left(before.clone(), None, true);
    let reasons_of = |claim: InstallClaim| reasons(reinstall(&layout(), &unknown, claim));
    let kinds = ["unrecognized data"];
    // The record is for a filesystem on another partition, for a filesystem on the whole disk, or not for a filesystem.
    let changes: [fn(&mut PendingCreation); 3] =
        [|it| it.on = format!("partition {}", Uuid::nil()), |it| it.on = "disk".to_owned(), |it| it.uuid = None];
    for change in changes {
        let mut claim = next(&first);
        change(&mut claim.begun_on[1].making[0]);
        assert!(kinds.iter().all(|kind| reasons_of(claim.clone())[0].contains(kind)));
    }
    assert!(reasons_of(InstallClaim { begun_on: Vec::new(), ..next(&first) })[0].contains(kinds[0]));
}

#[test]
fn pending_creations_are_identified_by_array_and_volume_uuids() {
    let (mut layout, mut before) = (arrays_and_groups::layout(), arrays_and_groups::installed());
    // The volume is too small for a btrfs filesystem.
    layout.filesystems[3].format = FilesystemFormat::Ext4;
    before.groups[0].uuid = "kZ3Wud".to_owned();
    let running = before.groups[0].volumes.iter().find(|volume| volume.name == "srv").unwrap().running.clone().unwrap();
    let srv = before.stacked.iter_mut().find(|stacked| stacked.name == running).unwrap();
    (srv.signatures, srv.blank, srv.size_bytes) = (Vec::new(), true, 400 << 20);
    let first =
        reinstall(&layout, &before, InstallClaim { waiver: Some(MarkerWaiver::Operator), order: None, ..claim() })
            .unwrap();
    let on: Vec<Vec<&str>> = announced_disks(&first)
        .iter()
        .map(|disk| disk.making.iter().map(|making| making.on.as_str()).collect())
        .collect();
    let volume = vec!["volume kZ3Wud srv"];
    assert_eq!(on, [vec![], vec![], volume.clone(), volume.clone(), volume]);
    let srv = before.stacked.iter_mut().find(|stacked| stacked.name == running).unwrap();
    srv.blank = false;
    assert!(made(&reinstall(&layout, &before, next(&first)).unwrap()).is_some());
}

#[test]
fn recreates_disk_again_unless_it_is_complete() {
    let mut before = marked();
    empty(&mut before.disks[1], "B1");
    let first = reinstall(&layout(), &before, claim()).unwrap();
    assert_eq!(verdicts(&first)[1], DiskVerdict::Make);
    let [whole] = &announced_disks(&first)[1].making[..] else { panic!("{:?}", announced_disks(&first)) };
    assert_eq!((whole.on.as_str(), &whole.uuid, whole.was_empty), ("disk", &None, true));
    let mut whole = simulator::after(&first, before.clone());
    whole.disks[1].blank = false;
    whole.filesystems.clear();
    let plan = reinstall(&layout(), &whole, next(&first)).unwrap();
    assert_eq!(verdicts(&plan)[1], DiskVerdict::Keep);
    let mut half = whole.clone();
    (srv(&mut half).signatures, srv(&mut half).blank) = (Vec::new(), false);
    let plan = reinstall(&layout(), &half, next(&first)).unwrap();
    assert_eq!(verdicts(&plan)[1], DiskVerdict::Make);
    let contents = |plan: &Plan| announced_disks(plan)[1].making[0].contents.clone();
    assert!(contents(&first).iter().all(|id| contents(&plan).contains(id)), "{:?}", announced_disks(&plan));
    // A disk with another serial number is not recreated.
    half.disks[1].serial = "B2".to_owned();
    assert!(reinstall(&layout(), &half, next(&first)).is_err());
    let nothing = InstallClaim { begun_on: Vec::new(), ..next(&first) };
    half.disks[1].serial = "B1".to_owned();
    assert!(reinstall(&layout(), &half, nothing).is_err());
}

/// The response to the announcement was lost, so the old system continued to run, and may have written to the disk.
#[test]
fn disk_is_not_recreated_again_if_the_attempt_was_only_announced() {
    let mut machine = marked();
    empty(&mut machine.disks[1], "B1");
    let first = reinstall(&layout(), &machine, claim()).unwrap();
    assert_eq!(verdicts(&reinstall(&layout(), &machine, next(&first)).unwrap())[1], DiskVerdict::Make);
    machine.disks[1].blank = false;
    let refusal = reinstall(&layout(), &machine, next(&first)).unwrap_err();
    assert_eq!(refusal.disks[1].verdict, DiskVerdict::Keep, "{refusal}");
}

/// Returns a machine in which a changed disk has the name of the attempt's disk, and the attempt's disk has another
/// name.
fn swapped(inventory: &Inventory, change: fn(&mut inventory::InventoryDisk)) -> Inventory {
    let mut inventory = inventory.clone();
    let named = |disk: &inventory::InventoryDisk, name: &str| {
        let mut disk = disk.clone();
        (disk.name, disk.device) = (name.into(), format!("/dev/{name}").into());
        for part in disk.table.iter_mut().flat_map(|table| &mut table.partitions) {
            part.device = disk.device.partition_path(part.number);
        }
        disk
    };
    let ours = inventory.disks[1].clone();
    let mut theirs = ours.clone();
    change(&mut theirs);
    (inventory.disks[1], inventory.disks[2]) = (named(&theirs, "sdb"), named(&ours, "sdc"));
    inventory
}

/// Two disks behind cheap USB bridges have the same serial number, and their names are swapped after the power failure.
#[test]
fn refuses_to_recreate_another_disk_with_equal_serial() {
    let mut before = marked();
    empty(&mut before.disks[1], "B1");
    let first = reinstall(&layout(), &before, claim()).unwrap();
    let mut half = simulator::after(&first, before);
    half.filesystems.clear();
    (srv(&mut half).signatures, srv(&mut half).blank) = (Vec::new(), false);
    let again = |inventory: &Inventory| reinstall(&layout(), inventory, next(&first));
    assert_eq!(verdicts(&again(&half).unwrap())[1], DiskVerdict::Make);
    type Case = (&'static str, fn(&mut inventory::InventoryDisk));
    let cases: [Case; 4] = [
        ("unrecognized data", |disk| disk.table = None),
        ("a different partition table", |disk| disk.table.as_mut().unwrap().guid = Some(Uuid::from_u128(77))),
        ("a partition table without GUID", |disk| {
            let table = disk.table.as_mut().unwrap();
            (table.guid, table.kind) = (None, "dos".to_owned());
        }),
        ("a copy of the whole disk", |_| {}),
    ];
    for (name, change) in cases {
        let two = swapped(&half, change);
        assert!(again(&two).is_err(), "{name}: {}", again(&two).unwrap());
        // If the attempt's disk is absent, only an exact copy of it is accepted in its place.
        let mut one = two.clone();
        (one.disks[2], one.disks[1].serial) = (disk("sdc", 9000), String::new());
        assert_eq!(again(&one).is_err(), !name.starts_with("a copy"), "{name}: {:?}", again(&one));
    }
    // A unique serial number is not sufficient: the table of this disk was not written by the attempt.
    let mut one = swapped(&half, cases[1].1);
    one.disks[2] = disk("sdc", 9000);
    assert!(again(&one).is_err());
}

#[test]
fn interrupted_whole_disk_filesystem_is_recreated_only_there() {
    let (mut layout, mut inventory) = (layout(), marked());
    layout.disks[1].partitions.clear();
    layout.filesystems[0].device = "/dev/sdb".into();
    inventory.disks[1].table = None;
    inventory.disks[1].signatures = signature("half").into_iter().collect();
    let why = "Structure needs cleaning".to_owned();
    inventory.failed.push(InspectionFailure { tried: InspectionTarget::Filesystem("/dev/sdb".into()), why });
    let mut begun_on = super::installation_identity::marker(&inventory).disks;
    begun_on[1].making = vec![PendingCreation::for_filesystem("disk".to_owned(), "half".to_owned())];
    inventory.filesystems.clear();
    let claim = InstallClaim { waiver: Some(MarkerWaiver::Begun), begun_on, ..claim() };
    let plan = reinstall(&layout, &inventory, claim.clone()).unwrap();
    assert_eq!(made(&plan).as_deref(), Some("half"));
    // If two disks share the serial number, the filesystem is left unchanged, and fsck may repair it.
    inventory.disks[2].serial = inventory.disks[1].serial.clone();
    let plan = reinstall(&layout, &inventory, claim).unwrap();
    assert_eq!((made(&plan), verdicts(&plan)[1]), (None, DiskVerdict::Keep));
}

/// If two partitions have the same GUID, it is unknown on which one the attempt was creating the filesystem.
#[test]
fn interrupted_filesystem_is_not_recreated_on_a_copied_partition() {
    let (before, first) = filling();
    let cut = left(before, None, true);
    assert!(made(&reinstall(&layout(), &cut, next(&first)).unwrap()).is_some());
    let mut copied = cut.clone();
    let mut table = cut.disks[1].table.clone().unwrap();
    table.partitions[0].device = "/dev/sdc1".into();
    copied.disks[2].table = Some(table);
    assert!(reinstall(&layout(), &copied, next(&first)).is_err());
}
