//! Filesystems that an interrupted mkfs left on a preserved disk: these are recreated, and nothing else is.

use super::arrays_and_groups::operations;
use super::installation_identity::{claim, empty, marked, reinstall};
use super::*;
use model::install_marker::{PendingCreation, RecordedDisk};
use model::inventory::{AttemptTarget, DiskPartition as Found, FailedAttempt};
use operations::{DeviceOp, Operation, SessionOp, StageName, TellPointOfNoReturn, WriteMarker};

fn told(plan: &Plan) -> &[RecordedDisk] {
    match operations(plan, StageName::ReportBegin) {
        [Operation::Run(SessionOp::TellPointOfNoReturn(TellPointOfNoReturn { disks, .. }))] => disks,
        other => panic!("{other:?}"),
    }
}

/// Returns the claim of the attempt after one that has passed its point of no return.
pub(super) fn next(plan: &Plan) -> InstallClaim {
    InstallClaim { waiver: Some(MarkerWaiver::Begun), begun_on: told(plan).to_vec(), ..claim() }
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
    match &told(plan)[1].making[..] {
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
        let why = "Structure needs cleaning (os error 117)".to_owned();
        before.failed.push(FailedAttempt { tried: AttemptTarget::Filesystem(device), why });
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
    operations(plan, StageName::StorageMountKept).iter().find_map(|operation| match operation {
        Operation::Device(DeviceOp::MakeFilesystem(make)) => Some(make.uuid.clone()),
        _ => None,
    })
}

#[test]
fn what_is_made_on_a_kept_disk_is_told_before_it_is_made_and_is_in_no_marker() {
    let (mut before, plan) = filling();
    let guid = srv(&mut before).guid.unwrap();
    assert_eq!(*making(&plan), PendingCreation::for_filesystem(format!("partition {guid}"), made(&plan).unwrap()));
    assert_eq!(told(&plan)[0].making, []);
    let [Operation::Run(SessionOp::WriteMarker(WriteMarker(marker)))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    assert!(marker.disks.iter().all(|disk| disk.making.is_empty()), "{marker:?}");
    assert_eq!(marker.disks.len(), told(&plan).len());
    // If nothing is created, no creation is recorded.
    let plan = reinstall(&layout(), &marked(), claim()).unwrap();
    assert!(told(&plan).iter().all(|disk| disk.making.is_empty()));
}

#[test]
fn a_filesystem_that_was_cut_off_while_it_was_made_is_made_again() {
    let (before, first) = filling();
    let uuid = making(&first).uuid.clone().unwrap();
    for (name, left) in [
        ("data of no known kind", left(before.clone(), None, true)),
        ("a superblock, and nothing else", left(before.clone(), signature(&uuid), false)),
    ] {
        let plan = reinstall(&layout(), &left, next(&first)).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!((made(&plan).as_ref(), making(&plan)), (Some(&uuid), making(&first)), "{name}");
        assert!(
            plan.warnings.iter().any(|it| it.contains("was interrupted while creating the filesystem")),
            "{:?}",
            plan.warnings
        );
        // The UUID stays the same however often the attempt is interrupted.
        assert_eq!(made(&reinstall(&layout(), &left, next(&plan)).unwrap()).as_ref(), Some(&uuid), "{name}");
    }
}

#[test]
fn what_is_whole_or_somebody_elses_is_never_made_again() {
    let (before, first) = filling();
    let uuid = making(&first).uuid.clone().unwrap();
    let whole = left(before.clone(), signature(&uuid), true);
    assert_eq!(made(&reinstall(&layout(), &whole, next(&first)).unwrap()), None);
    let other = left(before.clone(), signature("another"), false);
    assert_eq!(reinstall(&layout(), &other, next(&first)).map(|plan| made(&plan)).ok().flatten(), None);
    let unknown = left(before.clone(), None, true);
    let reasons_of = |claim: InstallClaim| reasons(reinstall(&layout(), &unknown, claim));
    let kinds = ["unrecognized data"];
    // The record describes another partition, another filesystem of the same disk, or no filesystem.
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
fn arrays_and_volumes_are_known_by_their_uuids() {
    let (mut layout, mut before) = (arrays_and_groups::layout(), arrays_and_groups::installed());
    // The volume is too small for a btrfs.
    layout.filesystems[3].format = FilesystemFormat::Ext4;
    before.groups[0].uuid = "kZ3Wud".to_owned();
    let running = before.groups[0].volumes.iter().find(|volume| volume.name == "srv").unwrap().running.clone().unwrap();
    let srv = before.stacked.iter_mut().find(|stacked| stacked.name == running).unwrap();
    (srv.signatures, srv.blank, srv.size_bytes) = (Vec::new(), true, 400 << 20);
    let first = reinstall(&layout, &before, InstallClaim { waiver: Some(MarkerWaiver::Operator), ..claim() }).unwrap();
    let on: Vec<Vec<&str>> =
        told(&first).iter().map(|disk| disk.making.iter().map(|making| making.on.as_str()).collect()).collect();
    let volume = vec!["volume kZ3Wud srv"];
    assert_eq!(on, [vec![], vec![], volume.clone(), volume.clone(), volume]);
    let srv = before.stacked.iter_mut().find(|stacked| stacked.name == running).unwrap();
    srv.blank = false;
    assert!(made(&reinstall(&layout, &before, next(&first)).unwrap()).is_some());
}

#[test]
fn a_disk_that_was_being_made_anew_is_made_anew_again_unless_it_is_whole() {
    let mut before = marked();
    empty(&mut before.disks[1], "B1");
    let first = reinstall(&layout(), &before, claim()).unwrap();
    assert_eq!(verdicts(&first)[1], DiskVerdict::Make);
    let [whole] = &told(&first)[1].making[..] else { panic!("{:?}", told(&first)) };
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
    let contents = |plan: &Plan| told(plan)[1].making[0].contents.clone();
    assert!(contents(&first).iter().all(|id| contents(&plan).contains(id)), "{:?}", told(&plan));
    // A different disk is not recreated.
    half.disks[1].serial = "B2".to_owned();
    assert!(reinstall(&layout(), &half, next(&first)).is_err());
    let nothing = InstallClaim { begun_on: Vec::new(), ..next(&first) };
    half.disks[1].serial = "B1".to_owned();
    assert!(reinstall(&layout(), &half, nothing).is_err());
}

/// Returns a machine with a changed disk under the name of the attempt's disk, and with the attempt's disk under
/// another name.
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

/// Cheap USB bridges report the same serial number for two disks, and the names are swapped after the power cut.
#[test]
fn a_disk_with_the_serial_number_of_the_one_that_was_being_made_is_not_made_anew() {
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
        ("data of no known kind", |disk| disk.table = None),
        ("a table of its own", |disk| disk.table.as_mut().unwrap().guid = Some(Uuid::from_u128(77))),
        ("a table of a kind that has no GUID", |disk| {
            let table = disk.table.as_mut().unwrap();
            (table.guid, table.kind) = (None, "dos".to_owned());
        }),
        ("a copy of ours, table and all", |_| {}),
    ];
    for (name, change) in cases {
        let two = swapped(&half, change);
        assert!(again(&two).is_err(), "{name}: {}", again(&two).unwrap());
        // The disk of the attempt was removed.
        let mut one = two.clone();
        (one.disks[2], one.disks[1].serial) = (disk("sdc", 9000), String::new());
        assert_eq!(again(&one).is_err(), !name.starts_with("a copy"), "{name}: {:?}", again(&one));
    }
    // If the disk has a unique serial number, its table was not written by the attempt.
    let mut one = swapped(&half, cases[1].1);
    one.disks[2] = disk("sdc", 9000);
    assert!(again(&one).is_err());
}

#[test]
fn a_filesystem_on_a_whole_disk_is_finished_on_that_disk_and_no_other() {
    let (mut layout, mut inventory) = (layout(), marked());
    layout.disks[1].partitions.clear();
    layout.filesystems[0].device = "/dev/sdb".into();
    inventory.disks[1].table = None;
    inventory.disks[1].signatures = signature("half").into_iter().collect();
    let why = "Structure needs cleaning (os error 117)".to_owned();
    inventory.failed.push(FailedAttempt { tried: AttemptTarget::Filesystem("/dev/sdb".into()), why });
    let mut begun_on = super::installation_identity::marker(&inventory).disks;
    begun_on[1].making = vec![PendingCreation::for_filesystem("disk".to_owned(), "half".to_owned())];
    inventory.filesystems.clear();
    let claim = InstallClaim { waiver: Some(MarkerWaiver::Begun), begun_on, ..claim() };
    let plan = reinstall(&layout, &inventory, claim.clone()).unwrap();
    assert_eq!(made(&plan).as_deref(), Some("half"));
    // The filesystem is then preserved as it is, and fsck may repair it.
    inventory.disks[2].serial = inventory.disks[1].serial.clone();
    let plan = reinstall(&layout, &inventory, claim).unwrap();
    assert_eq!((made(&plan), verdicts(&plan)[1]), (None, DiskVerdict::Keep));
}

/// If two partitions have the same GUID, it is unknown on which one the attempt was creating the filesystem.
#[test]
fn a_filesystem_is_not_finished_where_the_partition_was_copied() {
    let (before, first) = filling();
    let cut = left(before, None, true);
    assert!(made(&reinstall(&layout(), &cut, next(&first)).unwrap()).is_some());
    let mut copied = cut.clone();
    let mut table = cut.disks[1].table.clone().unwrap();
    table.partitions[0].device = "/dev/sdc1".into();
    copied.disks[2].table = Some(table);
    assert!(reinstall(&layout(), &copied, next(&first)).is_err());
}
