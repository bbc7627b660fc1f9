//! Holders of devices: some are released, some are restored, and some prevent the run.

use super::arrays_and_groups::{five, installed, layout, operations};
use super::*;
use model::device_name::DevicePath;
use model::inventory::{LvmPhysicalVolume, MemberRole, StackedDevice, StackedDeviceKind};
use operations::{DeviceOp, DiskHolder, Operation, ReleaseDiskHolder, StageName};

/// Adds an array on sda1 and the foreign disk sdf.
fn foreign_array(inventory: &mut Inventory, assembled: bool) {
    for index in [0, 5] {
        let disk = &mut inventory.disks[index];
        let part = inventory::DiskPartition {
            number: 1,
            device: format!("{}1", disk.device).into(),
            start_bytes: MIB,
            size_bytes: 100 * MIB,
            uses: vec![DeviceUse::Holder("md9".into())],
            ..inventory::DiskPartition::default()
        };
        disk.table = Some(DiskTable { kind: "gpt".to_owned(), guid: None, partitions: vec![part] });
    }
    inventory.stacked.push(StackedDevice {
        name: "md9".into(),
        device: "/dev/md9".into(),
        kind: StackedDeviceKind::Array,
        below: vec!["sda1".into(), "sdf1".into()],
        size_bytes: 99 * MIB,
        assembled,
        ..StackedDevice::default()
    });
    let member =
        |device: &str, place| inventory::ArrayMember { device: device.into(), role: MemberRole::Active(place) };
    inventory.arrays.push(inventory::MdArray {
        name: "old".to_owned(),
        level: "raid1".to_owned(),
        metadata: "1.2".to_owned(),
        raid_devices: 2,
        members: vec![member("/dev/sda1", 0), member("/dev/sdf1", 1)],
        running: Some("md9".into()),
        ..inventory::MdArray::default()
    });
}

#[test]
fn warns_about_removing_wiped_disk_from_foreign_array() {
    let mut inventory = five();
    foreign_array(&mut inventory, false);
    let plan = make(&layout(), &inventory, InstallMode::Install).unwrap();
    let said = "REMOVES sda1 FROM md9, whose other members on sdf are not in the layout and stay unchanged";
    assert!(plan.warnings[0].starts_with(said), "{plan}");
    assert_eq!((&plan.dismantled[0].name[..], &plan.dismantled[0].wiped[..]), ("md9", &["sda1".into()][..]));
    let holder = DiskHolder::Array { device: "/dev/md9".into() };
    assert_eq!(
        operations(&plan, StageName::StorageRelease)[0],
        Operation::Device(DeviceOp::Release(ReleaseDiskHolder(holder)))
    );

    let reasons = reasons(make(&layout(), &inventory, InstallMode::Reinstall));
    assert!(reasons[0].starts_with("disks: md9 spans sda1, which a reinstall wipes, and sdf1"), "{reasons:#?}");
}

#[test]
fn restores_foreign_arrays_only_if_the_agent_assembled_them() {
    for (assembled, expected) in [(true, 1), (false, 0)] {
        let mut inventory = five();
        foreign_array(&mut inventory, assembled);
        inventory.disks[0].table = None;
        inventory.stacked[0].below.remove(0);
        inventory.arrays[0].members.remove(0);
        let plan = make(&layout(), &inventory, InstallMode::Install).unwrap();
        let release = operations(&plan, StageName::StorageRelease);
        assert_eq!(release.len(), expected + 1, "{plan}");
    }
}

type Change = fn(&mut Inventory);

#[test]
fn names_holders_that_cannot_be_released() {
    let cases: [(Change, &str); 4] = [
        (
            |inventory| inventory.stacked[0].uses.push(DeviceUse::Mounted("/mnt".to_owned())),
            "disks[0].device: /dev/md9, which is backed by /dev/sda, is in use (mounted at /mnt); unmount or stop it first, because this is not done automatically",
        ),
        (
            |inventory| inventory.stacked[0].uses.push(DeviceUse::Holder("dm-7".into())),
            "disks[0].device: /dev/md9, which is backed by /dev/sda, is in use (held by dm-7); unmount or stop it first, because this is not done automatically",
        ),
        (
            |inventory| inventory.disks[1].uses.push(DeviceUse::Holder("dm-7".into())),
            "disks[1].device: /dev/sdb is in use (held by dm-7); unmount or stop it first, because this is not done automatically",
        ),
        (
            |inventory| {
                let part = inventory::DiskPartition {
                    device: "/dev/md9p1".into(),
                    uses: vec![DeviceUse::Mounted("/part".to_owned())],
                    ..inventory::DiskPartition::default()
                };
                inventory.stacked[0].table = Some(DiskTable { partitions: vec![part], ..DiskTable::default() });
            },
            "disks[0].device: /dev/md9p1, which is backed by /dev/sda, is in use (mounted at /part); unmount or stop it first, because this is not done automatically",
        ),
    ];
    for (change, expected) in cases {
        let mut inventory = five();
        foreign_array(&mut inventory, false);
        change(&mut inventory);
        assert_eq!(reasons(make(&layout(), &inventory, InstallMode::Install)), [expected]);
    }
}

#[test]
fn refuses_preserved_device_in_use() {
    let cases = [
        (
            DeviceUse::Mounted("/mnt".to_owned()),
            "disks[2].device: /dev/mapper/vg00-varlib, which is backed by /dev/sdc, is in use (mounted at /mnt); unmount or stop it first, because this is not done automatically",
        ),
        (
            DeviceUse::Swap,
            "disks: /dev/mapper/vg00-varlib must be preserved but is in use (active swap); run swapoff first",
        ),
    ];
    for (usage, expected) in cases {
        let mut inventory = installed();
        let varlib = inventory.stacked.iter_mut().find(|stacked| stacked.device.as_str().ends_with("varlib")).unwrap();
        varlib.uses.push(usage);
        assert_eq!(reasons(make(&layout(), &inventory, InstallMode::Reinstall)), [expected]);
    }
}

#[test]
fn releases_swap_and_unknown_mappings_topmost_first() {
    let mut inventory = five();
    foreign_array(&mut inventory, false);
    inventory.stacked[0].uses.push(DeviceUse::Holder("dm-3".into()));
    inventory.stacked.push(StackedDevice {
        name: "dm-3".into(),
        device: "/dev/mapper/mpatha".into(),
        below: vec!["md9".into(), "sdb".into()],
        uses: vec![DeviceUse::Swap],
        ..StackedDevice::default()
    });
    let plan = make(&layout(), &inventory, InstallMode::Install).unwrap();
    let mapping = DevicePath::from("/dev/mapper/mpatha");
    let expected = [
        Operation::Device(DeviceOp::Release(ReleaseDiskHolder(DiskHolder::Swap { device: mapping.clone() }))),
        Operation::Device(DeviceOp::Release(ReleaseDiskHolder(DiskHolder::Mapping { device: mapping }))),
        Operation::Device(DeviceOp::Release(ReleaseDiskHolder(DiskHolder::Array { device: "/dev/md9".into() }))),
    ];
    assert_eq!(operations(&plan, StageName::StorageRelease)[..3], expected);
}

#[test]
fn refuses_name_of_an_object_on_unwiped_disks() {
    let mut inventory = five();
    foreign_array(&mut inventory, false);
    inventory.disks[0].table = None;
    inventory.stacked[0].below.remove(0);
    inventory.arrays[0].members.remove(0);
    let mut layout = layout();
    layout.raid[1].arrayname = "/dev/md9".into();
    layout.filesystems[2].device = "/dev/md9".into();
    assert_eq!(
        reasons(make(&layout, &inventory, InstallMode::Install)),
        [
            "raid[1].arrayname: array:/dev/md9 is the name of another array, which is active on sdf1 and will not be stopped; choose another name"
        ]
    );

    let mut inventory = five();
    let physical = vec![LvmPhysicalVolume { device: Some("/dev/sdf".into()), ..LvmPhysicalVolume::default() }];
    let twin = inventory::LvmVolumeGroup { name: "vg00".to_owned(), physical, ..inventory::LvmVolumeGroup::default() };
    inventory.groups.push(twin);
    assert_eq!(
        reasons(make(&super::arrays_and_groups::layout(), &inventory, InstallMode::Install)),
        [
            "volumegroups[0].name: vg:vg00 is also the name of another volume group on /dev/sdf, which is not wiped; choose another name"
        ]
    );
}
