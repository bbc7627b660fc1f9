//! Identities of preserved objects before and after the run, and the time at which the objects are activated.

use super::arrays_and_groups::{five, group, installed as stacked, layout as stacked_layout, operations, volume};
use super::*;
use crate::preservation_proof::{compare_preserved, describe_differences};
use model::inventory::{DiskPartition as Found, LvmLogicalVolume};
use model::layout::{LvmType, OnReinstall};
use operations::{
    ActivateGroup, AssembleArray, BurnImage, DeviceOp, ObjectLocator, Operation, PreservedObject, ProvePreserved,
    SessionOp, StageName, WriteMarker,
};

fn preserved_objects(plan: &Plan) -> &[PreservedObject] {
    match operations(plan, StageName::StorageProvePreserved) {
        [Operation::Run(SessionOp::ProvePreserved(ProvePreserved(preserved)))] => preserved,
        other => panic!("{other:?}"),
    }
}

/// Adds UUIDs, which the simulator does not generate.
fn with_uuids(mut inventory: Inventory) -> Inventory {
    for group in &mut inventory.groups {
        group.uuid = format!("group-{}", group.name);
        for (index, physical) in group.physical.iter_mut().enumerate() {
            physical.uuid = format!("pv-{index}");
        }
        group.volumes.iter_mut().for_each(|volume| volume.uuid = format!("lv-{}", volume.name));
    }
    inventory
}

/// Changes the kernel names of stacked devices: an array that was md127 during the inspection may be md126 after it
/// was assembled again.
fn renamed(inventory: &Inventory) -> Inventory {
    let text = serde_json::to_string(inventory).unwrap();
    let text =
        ["md", "dm-"].iter().fold(text, |text, kind| text.replace(&format!("\"{kind}12"), &format!("\"{kind}99")));
    serde_json::from_str(&text.replace("/dev/md12", "/dev/md99").replace("\"dm-", "\"dm-7")).unwrap()
}

/// A filesystem without a UUID is refused, because fstab would contain an empty UUID.
#[test]
fn refuses_preserved_filesystem_without_uuid_if_fstab_needs_it() {
    let (mut wanted, mut inventory) = (layout(), super::installed());
    inventory.disks[1].table.as_mut().unwrap().partitions[0].signatures[0].uuid.clear();
    let expected = "filesystems[0]: /dev/sdb1 must be preserved, and must contain ext4 \"srv\", but the filesystem does not have a UUID, which /etc/fstab needs; set a UUID in the installed system";
    assert_eq!(reasons(make(&wanted, &inventory, InstallMode::Reinstall)), [expected]);
    wanted.filesystems[0].path = None;
    let plan = make(&wanted, &inventory, InstallMode::Reinstall).unwrap();
    assert!(plan.fstab.iter().all(|line| line.source != "UUID="), "{plan}");
    assert_eq!(
        preserved_objects(&plan).iter().filter(|is| matches!(is.object, ObjectLocator::Filesystem { .. })).count(),
        1
    );
}

#[test]
fn every_preserved_object_is_listed_for_proof() {
    let before = with_uuids(stacked());
    let plan = make(&stacked_layout(), &before, InstallMode::Reinstall).unwrap();
    let objects: Vec<String> = preserved_objects(&plan).iter().map(|preserved| preserved.object.to_string()).collect();
    assert_eq!(
        objects,
        [
            "disk /dev/sdc",
            "disk /dev/sdd",
            "disk /dev/sde",
            "array /dev/md/data",
            "volume group vg00",
            "filesystem at /var/lib",
            "filesystem at /srv",
        ]
    );
    let group = &preserved_objects(&plan)[4].identity;
    assert_eq!(group["uuid"], "group-vg00");
    assert_eq!(group["physical volumes"], "pv-0");
    assert_eq!(group["volume varlib"], "lv-varlib, 419430400 bytes, linear");
    assert_eq!(preserved_objects(&plan)[3].identity["members"], "/dev/sdc /dev/sdd /dev/sde");
    assert_eq!(preserved_objects(&plan)[5].identity["label"], "varlib");
}

#[test]
fn proof_ignores_changed_kernel_names() {
    let before = with_uuids(stacked());
    let plan = make(&stacked_layout(), &before, InstallMode::Reinstall).unwrap();
    let now = renamed(&before);
    assert_ne!(now.stacked, before.stacked);
    let proofs = compare_preserved(preserved_objects(&plan), &now);
    assert_eq!(describe_differences(&proofs), [""; 0]);
    assert!(proofs.iter().all(|proof| proof.before == proof.after && !proof.after.is_empty()), "{proofs:?}");
}

/// A change of the machine, and the message about it.
type Case = (fn(&mut Inventory), &'static str);

#[test]
fn reports_every_change_of_a_preserved_stack() {
    let cases: [Case; 8] = [
        (
            |now| now.arrays[2].level = "raid5".into(),
            "array /dev/md/data: level was raid1 before the installation, and is raid5 now",
        ),
        (
            |now| drop(now.arrays[2].members.pop()),
            "array /dev/md/data: members was /dev/sdc /dev/sdd /dev/sde before the installation, and is /dev/sdc /dev/sdd now",
        ),
        (|now| drop(now.arrays.pop()), "array /dev/md/data is missing"),
        (|now| now.groups[0].uuid = "new".into(), "volume group vg00 is missing"),
        (
            |now| now.groups[0].physical[0].uuid = "new".into(),
            "volume group vg00: physical volumes was pv-0 before the installation, and is new now",
        ),
        (
            |now| drop(now.groups[0].volumes.remove(0)),
            "volume group vg00: volume varlib was lv-varlib, 419430400 bytes, linear before the installation, and is nothing now",
        ),
        (
            |now| {
                let volume = LvmLogicalVolume {
                    name: "more".into(),
                    uuid: "lv".into(),
                    kind: "linear".into(),
                    ..Default::default()
                };
                now.groups[0].volumes.push(volume);
            },
            "volume group vg00: volume more was nothing before the installation, and is lv, 0 bytes, linear now",
        ),
        (
            |now| now.disks[2].size_bytes = 1,
            "disk /dev/sdc: size was 20971520000 bytes before the installation, and is 1 bytes now",
        ),
    ];
    let before = with_uuids(stacked());
    let plan = make(&stacked_layout(), &before, InstallMode::Reinstall).unwrap();
    for (change, words) in cases {
        let mut now = before.clone();
        change(&mut now);
        let said = describe_differences(&compare_preserved(preserved_objects(&plan), &now));
        assert!(said.iter().any(|line| line == words), "{words}: {said:?}");
    }
}

#[test]
fn foreign_partitions_and_filesystems_are_proven() {
    let mut before = installed();
    let table = before.disks[1].table.as_mut().unwrap();
    let theirs =
        DeviceSignature { kind: "xfs".into(), usage: "filesystem".into(), label: "old".into(), uuid: "u-1".into() };
    let theirs = Found { number: 7, device: "/dev/sdb7".into(), signatures: vec![theirs], ..Found::default() };
    table.partitions.push(theirs);
    let plan = make(&layout(), &before, InstallMode::Reinstall).unwrap();
    let cases: [Case; 5] = [
        (|now| now.disks[1].table.as_mut().unwrap().guid = Some(Uuid::nil()), "disk /dev/sdb: guid was "),
        (
            |now| now.disks[1].table.as_mut().unwrap().partitions[0].start_bytes += 512,
            "disk /dev/sdb: partition 1 was ",
        ),
        (|now| drop(now.disks[1].table.as_mut().unwrap().partitions.pop()), "disk /dev/sdb: partition 7 was "),
        (
            |now| now.disks[1].table.as_mut().unwrap().partitions[1].signatures[0].uuid = "u-2".into(),
            "filesystem on /dev/sdb7: uuid was u-1 before the installation, and is u-2 now",
        ),
        (|now| now.disks[1].table.as_mut().unwrap().partitions[0].signatures.clear(), "filesystem at /srv is missing"),
    ];
    assert_eq!(describe_differences(&compare_preserved(preserved_objects(&plan), &before)), [""; 0]);
    for (change, words) in cases {
        let mut now = before.clone();
        change(&mut now);
        let said = describe_differences(&compare_preserved(preserved_objects(&plan), &now));
        assert!(said.iter().any(|line| line.starts_with(words)), "{words}: {said:?}");
    }
}

#[test]
fn plan_without_preserved_disks_has_no_proof() {
    let mut listed = machine();
    listed.disks.truncate(2);
    let plan = make(&layout(), &listed, InstallMode::Install).unwrap();
    for name in [StageName::StorageProvePreserved, StageName::StorageRehearse, StageName::TargetMarker] {
        assert_eq!(operations(&plan, name), [], "{name}");
    }
    let mut all = layout();
    all.disks[1].wipeonreinstall = true;
    let mut listed = installed();
    listed.disks.truncate(2);
    let plan = make(&all, &listed, InstallMode::Reinstall).unwrap();
    assert_eq!(operations(&plan, StageName::StorageProvePreserved), []);
}

#[test]
fn ends_of_unlisted_disks_are_compared_even_if_nothing_is_preserved() {
    let plan = make(&layout(), &machine(), InstallMode::Install).unwrap();
    let proof = operations(&plan, StageName::StorageProvePreserved);
    assert_eq!(proof, [Operation::Run(SessionOp::ProvePreserved(ProvePreserved(Vec::new())))]);
}

#[test]
fn reinstall_is_announced_immediately_before_the_first_destruction() {
    let plan = make(&layout(), &installed(), InstallMode::Reinstall).unwrap();
    let names: Vec<StageName> = plan.stages.iter().map(|stage| stage.name).collect();
    let begin = names.iter().position(|name| *name == StageName::ReportBegin).unwrap();
    assert_eq!(plan.point_of_no_return, begin + 1);
    assert!(names[begin + 1].is_destructive());
    assert!(names.is_sorted(), "{names:?}");
}

fn paths(plan: &Plan, name: StageName) -> Vec<&str> {
    let mounts = operations(plan, name).iter().filter_map(|operation| match operation {
        Operation::Run(SessionOp::Mount(mount)) => Some(mount.path.as_str()),
        _ => None,
    });
    mounts.collect()
}

fn beneath(plan: &Plan) -> (&[String], &[String]) {
    match operations(plan, StageName::ImageBurn) {
        [Operation::Run(SessionOp::BurnImage(BurnImage { hidden, merged, .. }))] => (hidden, merged),
        other => panic!("{other:?}"),
    }
}

#[test]
fn merged_filesystem_is_mounted_before_the_image_is_written() {
    let mut layout = stacked_layout();
    let sdf = DiskSpec { wipeonreinstall: false, ..super::arrays_and_groups::whole("/dev/sdf") };
    layout.disks.push(sdf);
    layout.volumegroups.push(group("vg01", &["/dev/sdf"]));
    layout.logicalvolumes.push(volume("home", "vg01", 0, LvmType::Linear));
    layout.filesystems.push(filesystem("/home", "/dev/vg01/home", FilesystemFormat::Ext4, "home"));
    layout.filesystems[0].reinstall = OnReinstall::Merge;
    let installed = make(&layout, &five(), InstallMode::Install).unwrap();
    assert_eq!(super::image_finishing::finishing(&installed).new_mounts, ["/home", "/srv", "/var/lib"]);
    let before = with_uuids(after(&installed, five()));
    let plan = make(&layout, &before, InstallMode::Reinstall).unwrap();
    assert_eq!(super::image_finishing::finishing(&plan).new_mounts, Vec::<String>::new());
    assert_eq!(paths(&plan, StageName::StorageMount), ["/", "/boot/efi", "/var/lib"]);
    assert_eq!(paths(&plan, StageName::StorageMountPreserved), ["/home", "/srv"]);
    assert_eq!(beneath(&plan), (&["/home".to_owned(), "/srv".to_owned()][..], &["/var/lib".to_owned()][..]));
    assert!(
        matches!(operations(&plan, StageName::ImageBurn), [Operation::Run(SessionOp::BurnImage(BurnImage { fresh, .. }))] if fresh[..] == ["/boot/efi"])
    );
    let early = operations(&plan, StageName::StorageMount);
    let unlocked = |operations: &[Operation]| {
        operations.iter().filter(|operation| matches!(operation, Operation::Run(SessionOp::UnlockDisk(_)))).count()
    };
    let late = operations(&plan, StageName::StorageMountPreserved);
    assert_eq!((unlocked(early), unlocked(late)), (3, 1));
    assert!(
        matches!(&early[4], Operation::Device(DeviceOp::AssembleArray(AssembleArray { device, .. })) if device == "/dev/md/data"),
        "{early:?}"
    );
    assert!(
        matches!(&early[5], Operation::Device(DeviceOp::ActivateGroup(ActivateGroup { name, .. })) if name == "vg00"),
        "{early:?}"
    );
    assert!(
        matches!(&late[2], Operation::Device(DeviceOp::ActivateGroup(ActivateGroup { name, .. })) if name == "vg01"),
        "{late:?}"
    );
    assert_printed("reinstall-merge", &plan);
    after(&plan, before);
}

#[test]
fn marker_records_machine_order_and_disks() {
    let mut inventory = installed();
    inventory.disks[0].serial = "S45NNE0M01".to_owned();
    let installed =
        model::install_marker::InstallMarker { machine: "m".into(), allocation: "a".into(), ..Default::default() };
    let claim = InstallClaim {
        machine: "m".into(),
        allocation: "a".into(),
        order: Some("o-2".into()),
        installed: Some(installed),
        waiver: Some(MarkerWaiver::Operator),
        give_up: vec!["S45NNE0M01".into()],
        begun_on: Vec::new(),
        ..InstallClaim::default()
    };
    let request = PlanRequest {
        mode: InstallMode::Reinstall,
        steps: StepList::default(),
        subject: subject(),
        assigned: Default::default(),
        claim: Some(claim),
    };
    let plan = super::super::make_plan(&layout(), &inventory, request, &mut counting()).unwrap();
    let [Operation::Run(SessionOp::WriteMarker(WriteMarker(marker)))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    assert_eq!((marker.machine.as_str(), marker.allocation.as_str(), marker.order.as_deref()), ("m", "a", Some("o-2")));
    assert_eq!((marker.image.as_str(), marker.layout.as_str()), ("debian-12.0.20261101", "data"));
    let disks: Vec<(&str, &str)> =
        marker.disks.iter().map(|disk| (disk.device.as_str(), disk.serial.as_str())).collect();
    assert_eq!(disks, [("/dev/sda", "S45NNE0M01"), ("/dev/sdb", "")]);
}
