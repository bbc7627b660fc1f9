//! Arrays, groups and volumes: created, preserved, released.

use super::*;
use model::device_name::DevicePath;
use model::inventory::{LvmLogicalVolume as FoundVolume, LvmPhysicalVolume};
use model::layout::{ArraySpec, GroupPreservation, LogicalVolumeSpec, LvmType, RaidLevel, VolumeGroupSpec};
use operations::{
    ActivateGroup, AssembleArray, DeviceOp, ObjectLocator, Operation, ProvePreserved, SessionOp, StageName, StopArray,
    StopInspectedDevices, WriteMachineFiles,
};

pub(super) fn raid(name: &str, devices: &[&str], level: RaidLevel, spares: u32) -> ArraySpec {
    let devices = devices.iter().map(|device| (*device).into()).collect();
    ArraySpec { arrayname: name.into(), devices, level, createoptions: Vec::new(), spares, preserve: false }
}

pub(super) fn group(name: &str, devices: &[&str]) -> VolumeGroupSpec {
    let devices = devices.iter().map(|device| (*device).into()).collect();
    VolumeGroupSpec {
        name: name.to_owned(),
        devices,
        tags: Vec::new(),
        encrypted: None,
        preserve: GroupPreservation::None,
    }
}

pub(super) fn volume(name: &str, group: &str, size_mib: u64, lvmtype: LvmType) -> LogicalVolumeSpec {
    LogicalVolumeSpec {
        name: name.to_owned(),
        volumegroup: group.to_owned(),
        size: size_mib.into(),
        lvmtype,
        preserve: false,
    }
}

fn system(device: &str) -> DiskSpec {
    DiskSpec {
        device: device.into(),
        hints: Default::default(),
        wipeonreinstall: true,
        image: false,
        partitions: vec![
            partition(1, "efi", 500, PartitionType::LinuxRaid),
            partition(2, "root", 0, PartitionType::LinuxRaid),
        ],
    }
}

pub(super) fn whole(device: &str) -> DiskSpec {
    DiskSpec {
        device: device.into(),
        hints: Default::default(),
        wipeonreinstall: false,
        image: false,
        partitions: Vec::new(),
    }
}

/// Layout with ESP and root mirrored on sda and sdb, and data on an array of sdc, sdd and the spare sde, which a
/// reinstall preserves.
fn mirrored() -> Layout {
    Layout {
        id: "mirrored".to_owned(),
        disks: vec![system("/dev/sda"), system("/dev/sdb"), whole("/dev/sdc"), whole("/dev/sdd"), whole("/dev/sde")],
        raid: vec![
            raid("/dev/md/efi", &["/dev/sda1", "/dev/sdb1"], RaidLevel::Raid1, 0),
            raid("/dev/md/root", &["/dev/sda2", "/dev/sdb2"], RaidLevel::Raid1, 0),
            raid("/dev/md/data", &["/dev/sdc", "/dev/sdd", "/dev/sde"], RaidLevel::Raid1, 1),
        ],
        volumegroups: vec![group("vg00", &["/dev/md/data"])],
        logicalvolumes: vec![volume("varlib", "vg00", 200, LvmType::Linear), volume("srv", "vg00", 0, LvmType::Linear)],
        filesystems: vec![
            filesystem("/var/lib", "/dev/vg00/varlib", FilesystemFormat::Xfs, "varlib"),
            filesystem("/boot/efi", "/dev/md/efi", FilesystemFormat::Vfat, "efi"),
            filesystem("/", "/dev/md/root", FilesystemFormat::Ext4, "root"),
            filesystem("/srv", "/dev/vg00/srv", FilesystemFormat::Btrfs, "srv"),
        ],
        ..Layout::default()
    }
}

pub(super) fn five() -> Inventory {
    let names = ["sda", "sdb", "sdc", "sdd", "sde", "sdf"];
    Inventory { disks: names.map(|name| disk(name, 20_000)).into(), ..Inventory::default() }
}

/// Returns the layout with a volume that is large enough for xfs.
pub(super) fn layout() -> Layout {
    let mut layout = mirrored();
    layout.logicalvolumes[0].size = 400.into();
    layout
}

pub(super) fn installed() -> Inventory {
    after(&make(&layout(), &five(), InstallMode::Install).unwrap(), five())
}

pub(super) fn operations(plan: &Plan, name: StageName) -> &[Operation] {
    plan.stages.iter().find(|stage| stage.name == name).map(|stage| stage.operations.as_slice()).unwrap_or_default()
}

#[test]
fn fresh_install_creates_arrays_group_and_volumes() {
    let plan = make(&layout(), &five(), InstallMode::Install).unwrap();
    assert_printed("install-stacked", &plan);
    let Operation::Device(DeviceOp::CreateArray(efi)) = &operations(&plan, StageName::StorageRaid)[0] else {
        panic!("{plan}")
    };
    assert_eq!((efi.metadata.as_str(), efi.device.as_str()), ("1.0", "/dev/md/efi"));
    let Operation::Device(DeviceOp::CreateArray(data)) = &operations(&plan, StageName::StorageRaid)[2] else {
        panic!("{plan}")
    };
    assert_eq!(data.present_devices().collect::<Vec<_>>(), ["/dev/sdc", "/dev/sdd", "/dev/sde"]);
    assert_eq!(data.spares, 1);
    let passes: Vec<(&str, u8)> = plan.fstab.iter().map(|entry| (entry.path.as_str(), entry.pass)).collect();
    assert_eq!(passes, [("/", 1), ("/srv", 0), ("/boot/efi", 2), ("/var/lib", 0)]);
}

#[test]
fn reinstalls_over_a_running_stack() {
    let plan = make(&layout(), &installed(), InstallMode::Install).unwrap();
    assert_printed("install-over-running", &plan);
    after(&plan, installed());
}

#[test]
fn reinstall_preserves_array_group_and_volumes() {
    let before = installed();
    let plan = make(&layout(), &before, InstallMode::Reinstall).unwrap();
    assert_printed("reinstall-stacked", &plan);
    let uuid = before.arrays[2].uuid;
    let members = ["/dev/sdc", "/dev/sdd", "/dev/sde"].map(DevicePath::from).to_vec();
    let preserved = operations(&plan, StageName::StorageMountPreserved);
    let assemble = AssembleArray { device: "/dev/md/data".into(), uuid, members: members.clone() };
    let expected =
        [DeviceOp::StopInspectedDevices(StopInspectedDevices { devices: members }), DeviceOp::AssembleArray(assemble)];
    assert_eq!(preserved[3..5], expected.map(Operation::Device));
    let after = after(&plan, before.clone());
    assert_eq!(after.groups, before.groups);
    assert_eq!(after.arrays.iter().find(|array| array.name == "data"), Some(&before.arrays[2]));
}

/// Images add mdadm.conf and the md drivers to the initrd if the machine has arrays.
#[test]
fn machine_files_declare_created_or_preserved_arrays() {
    let has_arrays = |plan: &Plan| match operations(plan, StageName::TargetFiles) {
        [Operation::Run(SessionOp::WriteMachineFiles(WriteMachineFiles { files }))] => files.has_arrays,
        other => panic!("{other:?}"),
    };
    for plan in [make(&layout(), &five(), InstallMode::Install), make(&layout(), &installed(), InstallMode::Reinstall)]
    {
        assert!(has_arrays(&plan.unwrap()));
    }
    assert!(!has_arrays(&make(&super::layout(), &machine(), InstallMode::Install).unwrap()));
}

#[test]
fn mounts_new_filesystem_after_its_preserved_parent() {
    let mut layout = layout();
    layout.disks.push(DiskSpec { wipeonreinstall: true, ..whole("/dev/sdf") });
    layout.filesystems.push(filesystem("/srv/cache", "/dev/sdf", FilesystemFormat::Ext4, ""));
    let first = make(&layout, &five(), InstallMode::Install).unwrap();
    let plan = make(&layout, &after(&first, five()), InstallMode::Reinstall).unwrap();
    let paths = |name| -> Vec<&str> {
        let mounts = operations(&plan, name).iter().filter_map(|operation| match operation {
            Operation::Run(SessionOp::Mount(mount)) => Some(mount.path.as_str()),
            _ => None,
        });
        mounts.collect()
    };
    assert_eq!(paths(StageName::StorageMount), ["/", "/boot/efi"]);
    assert_eq!(paths(StageName::StorageMountPreserved), ["/srv", "/srv/cache", "/var/lib"]);
}

/// A change of the machine, and the expected reason for the refusal of a reinstall.
type Case = (&'static str, fn(&mut Inventory), &'static str);

#[test]
fn refuses_preserved_stack_that_differs_and_reports_both() {
    let cases: [Case; 14] = [
        (
            "other level",
            |inventory| inventory.arrays[2].level = "raid0".to_owned(),
            "raid[2]: /dev/md/data must be preserved, and must be a raid1 of /dev/sdc, /dev/sdd, /dev/sde, 1 of them spare, but there is raid0 \"data\" of /dev/sdc, /dev/sdd, /dev/sde (spare)",
        ),
        (
            "a member less",
            |inventory| drop(inventory.arrays[2].members.pop()),
            "raid[2]: /dev/md/data must be preserved, and must be a raid1 of /dev/sdc, /dev/sdd, /dev/sde, 1 of them spare, but there is raid1 \"data\" of /dev/sdc, /dev/sdd",
        ),
        (
            "no array",
            |inventory| drop(inventory.arrays.pop()),
            "raid[2]: /dev/md/data must be preserved, and must be a raid1 of /dev/sdc, /dev/sdd, /dev/sde, 1 of them spare, but none of the devices is a member of an array",
        ),
        (
            "another physical volume",
            |inventory| {
                let more = LvmPhysicalVolume { device: Some("/dev/sdf".into()), ..LvmPhysicalVolume::default() };
                inventory.groups[0].physical.push(more);
            },
            "volumegroups[0]: vg:vg00 must be preserved on /dev/md125, but there is vg:vg00 on /dev/md125, /dev/sdf (volumes: varlib, srv); the group was extended: add /dev/sdf to the devices of the group in the layout, on disks without wipeonreinstall, or remove /dev/sdf from the group with pvmove and vgreduce in the installed system",
        ),
        (
            "a physical volume is missing",
            |inventory| inventory.groups[0].physical.push(LvmPhysicalVolume::default()),
            "volumegroups[0]: vg:vg00 must be preserved on /dev/md125, but there is vg:vg00 on /dev/md125, a missing device (volumes: varlib, srv)",
        ),
        (
            "a snapshot, merged or not",
            |inventory| inventory.groups[0].volumes[1].entangled = Some("has a snapshot".to_owned()),
            "logicalvolumes[1]: /dev/vg00/srv must be preserved, but the volume has a snapshot; remove the snapshot, or complete the merge or move, in the installed system",
        ),
        (
            "a cache",
            |inventory| inventory.groups[0].volumes[0].kind = "cache".to_owned(),
            "logicalvolumes[0]: /dev/vg00/varlib must be preserved, and must be linear 400 MiB, but is cache 400 MiB",
        ),
        (
            "a thin volume",
            |inventory| inventory.groups[0].volumes[1].kind = "thin".to_owned(),
            "logicalvolumes[1]: /dev/vg00/srv must be preserved, and must be linear, but is thin 4 MiB",
        ),
        (
            "another name",
            |inventory| inventory.groups[0].name = "data".to_owned(),
            "volumegroups[0]: vg:vg00 must be preserved on /dev/md125, but there is vg:data on /dev/md125 (volumes: varlib, srv)",
        ),
        (
            "no group",
            |inventory| inventory.groups.clear(),
            "volumegroups[0]: vg:vg00 must be preserved on /dev/md125, but none of the devices is a physical volume of a known group",
        ),
        (
            "no volume",
            |inventory| drop(inventory.groups[0].volumes.remove(0)),
            "logicalvolumes[0]: /dev/vg00/varlib must be preserved, and must be linear 400 MiB, but is missing: vg:vg00 on /dev/md125 (volumes: srv)",
        ),
        (
            "another size",
            |inventory| inventory.groups[0].volumes[0].size_bytes = 396 * MIB,
            "logicalvolumes[0]: /dev/vg00/varlib must be preserved, and must be linear 400 MiB, but is linear 396 MiB",
        ),
        (
            "another type",
            |inventory| inventory.groups[0].volumes[1].kind = "striped".to_owned(),
            "logicalvolumes[1]: /dev/vg00/srv must be preserved, and must be linear, but is striped 4 MiB",
        ),
        (
            "not active",
            |inventory| inventory.groups[0].volumes[0].running = None,
            "filesystems[0]: /dev/vg00/varlib must be preserved, and must contain xfs \"varlib\", but the volume is not active, so its content is unknown",
        ),
    ];
    for (name, change, expected) in cases {
        let mut inventory = installed();
        change(&mut inventory);
        let reasons = reasons(make(&layout(), &inventory, InstallMode::Reinstall));
        assert!(reasons.iter().any(|reason| reason == expected), "{name}: {reasons:#?}");
    }
}

#[test]
fn foreign_volumes_in_a_preserved_group_are_left_inactive() {
    let mut inventory = installed();
    for (name, kind) in
        [("pvc-1", "linear"), ("pvc-2", "raid1"), ("pvc-3", "cache"), ("pool", "thin-pool"), ("old", "snapshot")]
    {
        let (name, kind, entangled) = (name.to_owned(), kind.to_owned(), Some("has a snapshot".to_owned()));
        inventory.groups[0].volumes.push(FoundVolume { name, kind, entangled, ..FoundVolume::default() });
    }
    let plan = make(&layout(), &inventory, InstallMode::Reinstall).unwrap();
    let activate = Operation::Device(DeviceOp::ActivateGroup(ActivateGroup {
        name: "vg00".to_owned(),
        devices: vec!["/dev/md/data".into()],
        volumes: vec!["varlib".to_owned(), "srv".to_owned()],
    }));
    assert!(operations(&plan, StageName::StorageMountPreserved).contains(&activate), "{plan}");
    after(&plan, inventory);
}

#[test]
fn unused_preserved_group_is_not_activated() {
    let mut layout = layout();
    layout.logicalvolumes.clear();
    layout.filesystems.retain(|filesystem| !filesystem.device.as_str().starts_with("/dev/vg00/"));
    let plan = make(&layout, &installed(), InstallMode::Reinstall).unwrap();
    let all = || plan.stages.iter().flat_map(|stage| &stage.operations);
    let group = |operation: &Operation| {
        matches!(
            operation,
            Operation::Device(DeviceOp::ActivateGroup(ActivateGroup { .. }))
                | Operation::Device(DeviceOp::DeactivateGroup(_))
        )
    };
    assert!(!all().any(group), "{plan}");
    // The group is not activated, but its identity is still compared, and the array below it is stopped.
    let ObjectLocator::Group { .. } = &proven(&plan)[4] else { panic!("{plan}") };
    assert!(
        all().any(
            |operation| matches!(operation, Operation::Device(DeviceOp::StopArray(StopArray { device })) if device == "/dev/md/data")
        ),
        "{plan}"
    );
}

fn proven(plan: &Plan) -> Vec<ObjectLocator> {
    let [Operation::Run(SessionOp::ProvePreserved(ProvePreserved(preserved)))] =
        operations(plan, StageName::StorageProvePreserved)
    else {
        panic!("{plan}")
    };
    preserved.iter().map(|preserved| preserved.object.clone()).collect()
}

#[test]
fn refuses_object_on_both_preserved_and_wiped_disks() {
    let mut layout = layout();
    layout.disks[2].wipeonreinstall = true;
    let reasons = reasons(make(&layout, &installed(), InstallMode::Reinstall));
    assert_eq!(
        reasons,
        [
            "disks: md125 spans sdc, which a reinstall wipes, and sdd, sde, which the reinstall does not write: raid1 \"data\" of /dev/sdc, /dev/sdd, /dev/sde (spare); dismantle this object first, or keep or wipe all of its disks",
            "raid[2].devices: a reinstall wipes /dev/sdc and keeps /dev/sdd, /dev/sde, but /dev/md/data spans both; set the same wipeonreinstall for all of its disks",
        ]
    );
}

#[test]
fn refuses_to_preserve_the_root_filesystem() {
    let mut layout = layout();
    layout.disks[0].wipeonreinstall = false;
    layout.disks[1].wipeonreinstall = false;
    layout.disks.push(DiskSpec { wipeonreinstall: true, ..whole("/dev/sdf") });
    let reasons = reasons(make(&layout, &installed(), InstallMode::Reinstall));
    assert_eq!(
        reasons,
        [
            "filesystems[2]: /dev/md/root contains /, which the new image replaces, so this filesystem cannot be preserved; set wipeonreinstall: true for its disks"
        ]
    );
}

#[test]
fn nested_arrays_are_created_in_order_and_preserved() {
    let mut layout = layout();
    layout.raid.truncate(2);
    layout.raid.extend([
        raid("/dev/md/left", &["/dev/sdc", "/dev/sdd"], RaidLevel::Raid1, 0),
        raid("/dev/md7", &["/dev/sde", "/dev/sdf"], RaidLevel::Raid1, 0),
        raid("/dev/md/data", &["/dev/md/left", "/dev/md7"], RaidLevel::Raid0, 0),
    ]);
    layout.disks.push(whole("/dev/sdf"));
    let first = make(&layout, &five(), InstallMode::Install).unwrap();
    let installed = after(&first, five());
    let second = make(&layout, &installed, InstallMode::Reinstall).unwrap();
    let assembled =
        operations(&second, StageName::StorageMountPreserved).iter().filter_map(|operation| match operation {
            Operation::Device(DeviceOp::AssembleArray(AssembleArray { device, members, .. })) => {
                Some((device.as_str(), members.join(" ")))
            }
            _ => None,
        });
    let expected = [
        ("/dev/md/left", "/dev/sdc /dev/sdd".to_owned()),
        ("/dev/md7", "/dev/sde /dev/sdf".to_owned()),
        ("/dev/md/data", "/dev/md/left /dev/md7".to_owned()),
    ];
    assert_eq!(assembled.collect::<Vec<_>>(), expected);
    let stopped = operations(&second, StageName::StorageDeactivate).iter().filter_map(|operation| match operation {
        Operation::Device(DeviceOp::StopArray(StopArray { device })) => Some(device.as_str()),
        _ => None,
    });
    assert_eq!(stopped.take(3).collect::<Vec<_>>(), ["/dev/md/data", "/dev/md7", "/dev/md/left"]);
    let again = make(&layout, &installed, InstallMode::Install).unwrap();
    after(&again, installed);
}

/// A failure before the last flush makes the system unbootable, for which its devices must be active. A failure
/// afterwards leaves the system as it is.
#[test]
fn devices_are_stopped_only_after_the_system_is_flushed_to_the_disks() {
    let plan = make(&layout(), &five(), InstallMode::Install).unwrap();
    let is_stop = |operation: &Operation| {
        matches!(operation, Operation::Device(DeviceOp::StopArray(_) | DeviceOp::DeactivateGroup(_)))
    };
    let stops = plan.stages.iter().filter(|stage| stage.operations.iter().any(is_stop));
    assert_eq!(stops.map(|stage| stage.name).collect::<Vec<_>>(), [StageName::StorageDeactivate]);
    assert!(StageName::StorageDeactivate.failure_state().is_complete());
    let flushes = |name| match operations(&plan, name).last() {
        Some(Operation::Run(SessionOp::FlushDisks(flush))) => flush.keep_locks,
        other => panic!("{other:?}"),
    };
    assert!(flushes(StageName::StorageUnmount) && !flushes(StageName::StorageDeactivate));
    let last = plan.extents.iter().find(|extents| extents.stages.contains(&StageName::StorageDeactivate)).unwrap();
    assert!(!last.disks.is_empty(), "the superblocks of the arrays are still written");
}
