//! Source of a migration: the data that is migrated, and the reasons why a machine cannot be migrated.

use super::arrays_and_groups::{self, operations};
use super::installation_identity::{claim, install};
use super::*;
use model::install_marker::InstallMarker;
use model::inventory::{
    ComponentRole, FilesystemContents, InspectionTarget, LvmLogicalVolume, LvmVolumeGroup, MdArray, Nic,
    SpanningComponent,
};
use model::machine_migration::MigratedMachine;
use operations::{Operation, SessionOp, StageName, WriteMarker};

/// Returns a machine to migrate, with mirrors, a volume group, whole disks and a marker, and its layout.
pub(super) fn moved() -> (Layout, Inventory) {
    let mut layout = arrays_and_groups::layout();
    layout.disks.push(DiskSpec {
        partitions: vec![partition(1, "raw", 64, PartitionType::Linux), partition(2, "swap", 0, PartitionType::Linux)],
        ..layout.disks[0].clone()
    });
    layout.disks[5].device = "/dev/sdf".into();
    layout.filesystems.push(filesystem("", "/dev/sdf1", FilesystemFormat::None, ""));
    layout.filesystems.push(filesystem("", "/dev/sdf2", FilesystemFormat::Swap, ""));
    layout.filesystems.push(filesystem("/tmp", "tmpfs", FilesystemFormat::Tmpfs, ""));
    let mut before = arrays_and_groups::five();
    for (index, disk) in before.disks.iter_mut().enumerate() {
        disk.serial = format!("A{index}");
    }
    before.nics = vec![nic("eth0", "52:54:00:00:00:01"), nic("eth1", "52:54:00:00:00:02")];
    let plan = install(&layout, &before, claim()).unwrap();
    let mut inventory = after(&plan, before);
    let [Operation::Run(SessionOp::WriteMarker(WriteMarker(marker)))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    let root =
        inventory.stacked.iter().find(|is| is.signatures.iter().any(|signature| signature.label == "root")).unwrap();
    let (device, marker) =
        (root.device.clone(), Some(InstallMarker { time: "2026-11-01T00:00:00Z".to_owned(), ..marker.clone() }));
    inventory.filesystems = vec![FilesystemContents { device, marker, ..FilesystemContents::default() }];
    (layout, inventory)
}

pub(super) fn nic(name: &str, mac: &str) -> Nic {
    Nic { name: name.to_owned(), mac: mac.to_owned(), ..Nic::default() }
}

pub(super) fn migrated_machine(layout: &Layout, inventory: &Inventory) -> (MigratedMachine, Vec<SourceDevice>) {
    check_migration(layout, inventory, &claim()).unwrap_or_else(|problems| panic!("{problems:?}"))
}

#[test]
fn migration_includes_all_objects_of_the_layout_by_id() {
    let (layout, inventory) = moved();
    let (migrated_machine, from) = migrated_machine(&layout, &inventory);
    assert_eq!(migrated_machine.marker.machine, "m-1");
    let told = |filesystem: &model::machine_migration::MigratedFilesystem| {
        format!("{} {} {}", filesystem.device, filesystem.format, filesystem.uuid.len())
    };
    let told: Vec<String> = migrated_machine.filesystems.iter().map(told).collect();
    assert_eq!(
        told,
        [
            "/dev/vg00/varlib xfs 36",
            "/dev/md/efi vfat 9",
            "/dev/md/root ext4 36",
            "/dev/vg00/srv btrfs 36",
            "/dev/sdf1 none 0",
            "/dev/sdf2 swap 36"
        ]
    );
    // Swap areas are not read, because they are recreated.
    let read: Vec<&str> = from.iter().map(|from| from.name.as_str()).collect();
    assert_eq!(read, ["/dev/vg00/varlib", "/dev/md/efi", "/dev/md/root", "/dev/vg00/srv", "/dev/sdf1"]);
    let size = |device: &str| inventory.stacked.iter().find(|is| is.device == device).unwrap().size_bytes;
    assert_eq!(
        (from[2].device.as_str(), from[2].format),
        (inventory.filesystems[0].device.as_str(), FilesystemFormat::Ext4)
    );
    assert_eq!(
        (migrated_machine.filesystems[2].size_bytes, migrated_machine.filesystems[2].sector_bytes),
        (size(from[2].device.as_str()), 512)
    );
    let arrays: Vec<(&str, Uuid)> =
        migrated_machine.arrays.iter().map(|array| (array.device.as_str(), array.uuid)).collect();
    let uuids: Vec<Uuid> = inventory.arrays.iter().map(|array| array.uuid).collect();
    assert_eq!(arrays, [("/dev/md/efi", uuids[0]), ("/dev/md/root", uuids[1]), ("/dev/md/data", uuids[2])]);
    assert_eq!(migrated_machine.partitions.len(), 6);
    assert_eq!(
        (migrated_machine.nics[1].name.as_str(), migrated_machine.nics[1].mac.as_str()),
        ("eth1", "52:54:00:00:00:02")
    );
}

/// Disks are recognized even if their names have changed, and a mirror is migrated even if one half is absent.
#[test]
fn renamed_disks_and_degraded_mirrors_are_migrated() {
    let (layout, inventory) = moved();
    let mut swapped = inventory.clone();
    swapped.disks.swap(2, 3);
    let (one, other) = (swapped.disks[2].serial.clone(), swapped.disks[3].serial.clone());
    (swapped.disks[2].serial, swapped.disks[3].serial) = (other, one);
    assert_eq!(migrated_machine(&layout, &inventory).0.arrays, migrated_machine(&layout, &swapped).0.arrays);
    let mut half = inventory.clone();
    half.disks.remove(1);
    half.arrays
        .iter_mut()
        .for_each(|array| array.members.retain(|member| !member.device.as_str().starts_with("/dev/sdb")));
    half.stacked.iter_mut().for_each(|stacked| stacked.below.retain(|below| !below.as_str().starts_with("sdb")));
    let (migrated_machine, _) = migrated_machine(&layout, &half);
    assert_eq!((migrated_machine.filesystems.len(), migrated_machine.partitions.len()), (6, 4));
}

type Case = (&'static str, fn(&mut Layout, &mut Inventory), &'static [&'static str]);

#[test]
fn refuses_unsuitable_source_with_all_reasons() {
    let cases: [Case; 25] = [
        (
            "no marker",
            |_, inventory| inventory.filesystems.clear(),
            &[
                "disks: no filesystem of this machine has the marker of machine m-1, allocation a-1 (/etc/metal/drophammer.json), so the system cannot be identified: no filesystem has a marker",
            ],
        ),
        (
            "that of another allocation",
            |_, inventory| inventory.filesystems[0].marker.as_mut().unwrap().allocation = "a-9".to_owned(),
            &["has the marker of machine m-1, allocation a-9"],
        ),
        (
            "the marker elsewhere",
            |_, inventory| inventory.filesystems[0].device = "/dev/sdf1".into(),
            &["filesystems: according to the layout, / is on "],
        ),
        (
            "a filesystem is gone",
            |_, inventory| signatures(inventory, "srv").clear(),
            &["(/srv) must contain btrfs according to the layout, but contains data of no known kind"],
        ),
        (
            "another filesystem",
            |_, inventory| signatures(inventory, "srv")[0].kind = "xfs".to_owned(),
            &["(/srv) must contain btrfs according to the layout, but contains xfs \"srv\""],
        ),
        (
            "two signatures",
            |_, inventory| {
                let found = signatures(inventory, "srv");
                found.push(DeviceSignature { kind: "zfs_member".to_owned(), ..DeviceSignature::default() });
            },
            &["(/srv) has several signatures, btrfs \"srv\" and zfs_member"],
        ),
        ("no UUID", |_, inventory| signatures(inventory, "srv")[0].uuid.clear(), &["(/srv) has btrfs without a UUID"]),
        (
            "encrypted",
            |_, inventory| {
                *signatures(inventory, "srv") =
                    vec![DeviceSignature { kind: "crypto_LUKS".to_owned(), ..DeviceSignature::default() }];
            },
            &["(/srv) is encrypted (LUKS)"],
        ),
        (
            "encrypted, where all goes as it is",
            |_, inventory| {
                let luks = DeviceSignature { kind: "crypto_LUKS".to_owned(), ..DeviceSignature::default() };
                inventory.disks[5].table.as_mut().unwrap().partitions[0].signatures = vec![luks];
            },
            &["filesystems[4]: /dev/sdf1 is encrypted (LUKS)"],
        ),
        (
            "a filesystem on several devices",
            |_, inventory| {
                let root = inventory.filesystems[0].device.clone();
                inventory.parts = vec![SpanningComponent {
                    device: root,
                    kind: "ext4".to_owned(),
                    whole: "one thing".to_owned(),
                    id: "1".to_owned(),
                    role: ComponentRole::Peer,
                }];
            },
            &["(/) is a component of one thing on several devices"],
        ),
        (
            "an array does not run",
            |_, inventory| {
                inventory.arrays[0].running = None;
                let tried = InspectionTarget::Array(inventory.arrays[0].uuid);
                inventory.failed.push(model::inventory::InspectionFailure { tried, why: "no disk".to_owned() });
            },
            &[
                "raid[0]: /dev/md/efi (raid1 \"efi\" of /dev/sda1, /dev/sdb1) is not running: no disk",
                "filesystems[1]: /dev/md/efi (/boot/efi) is absent or inactive",
            ],
        ),
        (
            "no array any more",
            |_, inventory| drop(inventory.arrays.remove(0)),
            &["raid[0]: /dev/md/efi is absent", "filesystems[1]"],
        ),
        (
            "a group is not there",
            |_, inventory| inventory.groups.clear(),
            &["volumegroups[0]: volume group vg00 is absent", "filesystems[0]", "filesystems[3]"],
        ),
        (
            "a disk that is not whole",
            |_, inventory| inventory.disks[0].unreadable = Some("read error at 0".to_owned()),
            &["disks[0]: /dev/sda is partly unreadable: read error at 0"],
        ),
        (
            "a partition that the layout does not list",
            |_, inventory| {
                let table = inventory.disks[5].table.as_mut().unwrap();
                let own =
                    DeviceSignature { kind: "ext4".to_owned(), label: "own".to_owned(), ..DeviceSignature::default() };
                let part = model::inventory::DiskPartition {
                    number: 3,
                    device: "/dev/sdf3".into(),
                    size_bytes: 5 * MIB,
                    signatures: vec![own],
                    ..Default::default()
                };
                table.partitions.push(part);
            },
            &["disks[5]: partition /dev/sdf3 (5.24 MB, ext4 \"own\") is not in the layout and would not be migrated"],
        ),
        (
            "a volume that the layout does not list",
            |_, inventory| {
                let own = LvmLogicalVolume {
                    name: "own".to_owned(),
                    kind: "linear".to_owned(),
                    size_bytes: 8 * MIB,
                    ..Default::default()
                };
                inventory.groups[0].volumes.push(own);
            },
            &["volumegroups[0]: logical volume vg00/own (linear, 8.39 MB) is not in the layout"],
        ),
        (
            "an array and a group of somebody else",
            |layout, inventory| {
                layout.filesystems.retain(|filesystem| filesystem.device != "/dev/sdf1");
                let member = model::inventory::ArrayMember { device: "/dev/sdf1".into(), ..Default::default() };
                let uuid = Uuid::from_u128(77);
                inventory.arrays.push(MdArray {
                    uuid,
                    level: "raid1".to_owned(),
                    members: vec![member],
                    raid_devices: 1,
                    ..MdArray::default()
                });
                let physical =
                    model::inventory::LvmPhysicalVolume { device: Some("/dev/sdf2".into()), ..Default::default() };
                inventory.groups.push(LvmVolumeGroup {
                    name: "own".to_owned(),
                    physical: vec![physical],
                    ..Default::default()
                });
            },
            &[
                "disks[5]: the layout does not list a filesystem on /dev/sdf1",
                "raid: array raid1 of /dev/sdf1 (faulty)",
                "volumegroups: volume group own is not in the layout",
            ],
        ),
        (
            "a group that is on more",
            |_, inventory| {
                let more =
                    model::inventory::LvmPhysicalVolume { device: Some("/dev/sdx".into()), ..Default::default() };
                inventory.groups[0].physical.push(more);
            },
            &["volumegroups[0]: vg00 also uses /dev/sdx"],
        ),
        (
            "a volume without a filesystem in the layout",
            |layout, _| layout.filesystems.retain(|filesystem| filesystem.device != "/dev/vg00/srv"),
            &[
                "logicalvolumes[1]: the layout does not list a filesystem on /dev/vg00/srv, but it contains btrfs \"srv\"",
            ],
        ),
        (
            "an inactive volume without a filesystem in the layout",
            |layout, inventory| {
                layout.filesystems.retain(|filesystem| filesystem.device != "/dev/vg00/srv");
                inventory.groups[0].volumes.iter_mut().find(|volume| volume.name == "srv").unwrap().running = None;
            },
            &["logicalvolumes[1]: /dev/vg00/srv is absent or inactive, so its content is unknown"],
        ),
        (
            "an array without a filesystem in the layout",
            |layout, _| layout.filesystems.retain(|filesystem| filesystem.device != "/dev/md/efi"),
            &["raid[0]: the layout does not list a filesystem on /dev/md/efi, but it contains vfat \"efi\""],
        ),
        (
            "a group lacks a physical volume",
            |_, inventory| inventory.groups[0].physical.push(model::inventory::LvmPhysicalVolume::default()),
            &["volumegroups[0]: 1 of the 2 physical volumes of volume group vg00 are missing"],
        ),
        (
            "a listed member that contains other data",
            |_, inventory| {
                let table = inventory.disks[1].table.as_mut().unwrap();
                let own = DeviceSignature { kind: "xfs".to_owned(), label: "own".to_owned(), ..Default::default() };
                table.partitions[0].signatures = vec![own];
                inventory.arrays[0].members.retain(|member| member.device != "/dev/sdb1");
            },
            &["disks[1]: the layout does not list a filesystem on /dev/sdb1, but it contains xfs \"own\""],
        ),
        (
            "an unreadable region of a volume",
            |_, inventory| {
                let has = |found: &DeviceSignature| found.label == "srv";
                let srv = inventory.stacked.iter_mut().find(|stacked| stacked.signatures.iter().any(has)).unwrap();
                srv.unreadable = Some("read error at 4096".to_owned());
            },
            &["is partly unreadable: read error at 4096"],
        ),
        ("a raw image", |layout, _| layout.disks[5].image = true, &["disks[5]: a raw image is on this disk"]),
    ];
    for (name, change, expected) in cases {
        let (mut layout, mut inventory) = moved();
        change(&mut layout, &mut inventory);
        let problems = check_migration(&layout, &inventory, &claim()).map(drop).unwrap_err();
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), expected.len(), "{name}: {problems:#?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.contains(expected), "{name}: {problem}");
        }
    }
}

/// Returns the signatures of the stacked device whose filesystem has this label.
fn signatures<'a>(inventory: &'a mut Inventory, label: &str) -> &'a mut Vec<DeviceSignature> {
    let has =
        |stacked: &&mut inventory::StackedDevice| stacked.signatures.iter().any(|signature| signature.label == label);
    &mut inventory.stacked.iter_mut().find(has).unwrap().signatures
}
