//! The rehearsal: which objects are activated, and which filesystems are mounted read-only.

use super::arrays_and_groups::{five, installed as stacked, layout as stacked_layout, operations};
use super::*;
use model::layout::OnReinstall;
use operations::{ActivationRehearsal, DeviceOp, MountFilesystem, Operation, SessionOp, StageName};

fn rehearsal(plan: &Plan) -> &ActivationRehearsal {
    match operations(plan, StageName::StorageRehearse) {
        [Operation::Run(SessionOp::Rehearse(rehearsal))] => rehearsal,
        other => panic!("{other:?}"),
    }
}

fn mounts(operations: &[Operation]) -> Vec<MountFilesystem> {
    let mounts = operations.iter().filter_map(|operation| match operation {
        Operation::Run(SessionOp::Mount(mount)) => Some(mount.clone()),
        _ => None,
    });
    mounts.collect()
}

fn rehearsed(plan: &Plan) -> Vec<Operation> {
    rehearsal(plan).operations.iter().cloned().map(Operation::from).collect()
}

#[test]
fn rehearses_preserved_devices_before_report_begin() {
    for (layout, before, over) in [
        (layout(), installed(), &["/dev/sdb1"][..]),
        (stacked_layout(), stacked(), &["/dev/sdc", "/dev/sdd", "/dev/sde"][..]),
    ] {
        let plan = make(&layout, &before, InstallMode::Reinstall).unwrap();
        let place = |name| plan.stages.iter().position(|stage| stage.name == name).unwrap();
        assert_eq!(place(StageName::StorageRehearse) + 1, place(StageName::ReportBegin));
        assert!(place(StageName::StorageRehearse) < plan.point_of_no_return);
        let ActivationRehearsal { over: found, operations: rehearsed } = rehearsal(&plan);
        assert_eq!(found, over);
        // The rehearsal activates the same objects as the stage that follows the writing of the image.
        let later = operations(&plan, StageName::StorageMountPreserved).iter();
        let is_about_it = |operation: &&Operation| {
            !matches!(
                operation,
                Operation::Run(SessionOp::UnlockDisk(_)) | Operation::Device(DeviceOp::StopInspectedDevices(_))
            )
        };
        let rehearsed = rehearsed.iter().cloned().map(Operation::from);
        assert_eq!(rehearsed.collect::<Vec<_>>(), later.filter(is_about_it).cloned().collect::<Vec<_>>());
    }
}

#[test]
fn plan_without_preserved_filesystems_has_no_rehearsal() {
    let plan = make(&stacked_layout(), &five(), InstallMode::Install).unwrap();
    assert_eq!(operations(&plan, StageName::StorageRehearse), []);
    // The filesystem is created, so it cannot be mounted in the rehearsal.
    let mut before = installed();
    let srv = &mut before.disks[1].table.as_mut().unwrap().partitions[0];
    (srv.signatures, srv.blank) = (Vec::new(), true);
    let plan = make(&layout(), &before, InstallMode::Reinstall).unwrap();
    assert!(plan.to_string().contains("the filesystem will be created"), "{plan}");
    assert_eq!(operations(&plan, StageName::StorageRehearse), []);
}

#[test]
fn rehearses_merged_filesystems_and_covers_devices_in_mount_options() {
    let mut layout = layout();
    layout.filesystems[0].reinstall = OnReinstall::Merge;
    layout.filesystems[0].mountoptions = vec!["noatime,journal_path=/dev/sdb7".to_owned(), "data=journal".to_owned()];
    let mut before = installed();
    let parts = &mut before.disks[1].table.as_mut().unwrap().partitions;
    parts.push(inventory::DiskPartition { number: 7, device: "/dev/sdb7".into(), ..Default::default() });
    let plan = make(&layout, &before, InstallMode::Reinstall).unwrap();
    assert_eq!(rehearsal(&plan).over, ["/dev/sdb1", "/dev/sdb7"]);
    assert_eq!(mounts(&rehearsed(&plan))[0].path, "/srv");
}

#[test]
fn rehearsal_covers_all_devices_of_a_preserved_btrfs() {
    let (mut layout, mut before) = (layout(), installed());
    layout.filesystems[0].format = FilesystemFormat::Btrfs;
    let parts = &mut before.disks[1].table.as_mut().unwrap().partitions;
    parts[0].signatures[0].kind = "btrfs".to_owned();
    let mut other = inventory::DiskPartition { number: 2, device: "/dev/sdb2".into(), ..parts[0].clone() };
    parts.push(other.clone());
    other.signatures[0].uuid = "another".to_owned();
    parts.push(inventory::DiskPartition { number: 3, device: "/dev/sdb3".into(), ..other });
    let plan = make(&layout, &before, InstallMode::Reinstall).unwrap();
    assert_eq!(rehearsal(&plan).over, ["/dev/sdb1", "/dev/sdb2"]);
}

/// A btrfs also spans the whole disk sdc, which the layout lists without any content.
#[test]
fn mounts_of_preserved_btrfs_list_its_other_devices() {
    let (mut layout, mut before) = (layout(), installed());
    layout.filesystems[0].format = FilesystemFormat::Btrfs;
    let plan = make(&layout, &machine(), InstallMode::Install).unwrap();
    assert!(mounts(operations(&plan, StageName::StorageMount)).iter().all(|mount| mount.others.is_empty()), "{plan}");
    let parts = &mut before.disks[1].table.as_mut().unwrap().partitions;
    parts[0].signatures[0].kind = "btrfs".to_owned();
    let signatures = parts[0].signatures.clone();
    parts.push(inventory::DiskPartition { number: 2, device: "/dev/sdb2".into(), ..parts[0].clone() });
    before.disks[2].signatures = signatures;
    layout.disks.push(arrays_and_groups::whole("/dev/sdc"));
    let plan = make(&layout, &before, InstallMode::Reinstall).unwrap();
    assert_eq!(rehearsal(&plan).over, ["/dev/sdb1", "/dev/sdb2", "/dev/sdc"]);
    for operations in [&rehearsed(&plan), operations(&plan, StageName::StorageMountPreserved)] {
        let mounts = mounts(operations);
        assert_eq!(
            (mounts[0].device.as_str(), &mounts[0].others[..]),
            ("/dev/sdb1", &["/dev/sdc".into(), "/dev/sdb2".into()][..])
        );
    }
    let identified = operations(&plan, StageName::StorageIdentify).iter().map(|operation| match operation {
        Operation::Run(SessionOp::IdentifyDisk(identity)) => identity.device.as_str(),
        other => panic!("{other:?}"),
    });
    assert_eq!(identified.collect::<Vec<_>>(), ["/dev/sda", "/dev/sdb", "/dev/sdc"]);
}

#[test]
fn preserved_read_only_filesystem_is_mounted_without_journal_replay() {
    for (options, format, expected) in [
        (&["ro"][..], FilesystemFormat::Ext4, &["ro", "noload"][..]),
        (&["noatime,ro"], FilesystemFormat::Ext4, &["noatime,ro", "noload"]),
        (&["ro"], FilesystemFormat::Xfs, &["ro", "norecovery"]),
        (&["ro"], FilesystemFormat::Btrfs, &["ro", "rescue=nologreplay"]),
        (&["ro"], FilesystemFormat::Vfat, &["ro"]),
        (&["ro", "rw"], FilesystemFormat::Ext4, &["ro", "rw"]),
        (&["noatime"], FilesystemFormat::Ext4, &["noatime"]),
    ] {
        let (mut layout, mut before) = (layout(), installed());
        layout.filesystems[0].format = format;
        layout.filesystems[0].mountoptions = options.iter().map(|option| (*option).to_owned()).collect();
        let srv = &mut before.disks[1].table.as_mut().unwrap().partitions[0];
        srv.signatures[0].kind = format.name().to_owned();
        let plan = make(&layout, &before, InstallMode::Reinstall).unwrap();
        assert_eq!(mounts(operations(&plan, StageName::StorageMountPreserved))[0].options, expected, "{options:?}");
        // The rehearsal mounts filesystems as the installed system will; such a mount replays the journal.
        assert_eq!(mounts(&rehearsed(&plan))[0].options, options, "{options:?}");
        let line = plan.fstab.iter().find(|entry| entry.path == "/srv").unwrap();
        assert_eq!(line.options, options);
    }
}

#[test]
fn new_filesystem_is_mounted_writable_despite_its_ro_option() {
    let mut layout = layout();
    layout.filesystems[3].mountoptions = vec!["ro,noatime".to_owned()];
    let plan = make(&layout, &machine(), InstallMode::Install).unwrap();
    assert_eq!(mounts(operations(&plan, StageName::StorageMount))[0].options, ["noatime"]);
    assert_eq!(plan.fstab[0].options, ["ro,noatime"]);
}

#[test]
fn refuses_preserved_group_that_lvm_cannot_activate() {
    let mut before = stacked();
    before.groups[0].closed = Some("the volume group is exported: run `vgimport` in the installed system".to_owned());
    assert_eq!(
        reasons(make(&stacked_layout(), &before, InstallMode::Reinstall)),
        [
            "volumegroups[0]: vg:vg00 must be preserved, but the volume group is exported: run `vgimport` in the installed system"
        ]
    );
    let mut all = stacked_layout();
    all.disks.iter_mut().for_each(|disk| disk.wipeonreinstall = true);
    make(&all, &before, InstallMode::Reinstall).unwrap();
}
