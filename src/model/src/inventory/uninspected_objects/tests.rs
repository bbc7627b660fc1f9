//! Tables of opaque objects, each compared with a similar object that is not opaque.

use super::*;
use crate::install_marker::InstallMarker;
use crate::inventory::{
    ArrayMember, DeviceUse, DiskPartition, DiskTable, HAS_SNAPSHOT, InspectionFailure, InventoryDisk, LvmLogicalVolume,
    LvmPhysicalVolume, LvmVolumeGroup, StackedDevice, VolumeHealth,
};
use uuid::Uuid;

const EXPORTED: &str = "the volume group is exported: run `vgimport` in the installed system";
const FOREIGN: &str = "the volume group belongs to the host with the system ID \"node: 1\": remove the system ID with `vgchange --systemid \"\"`";

fn signature(kind: &str, usage: &str) -> DeviceSignature {
    DeviceSignature { kind: kind.to_owned(), usage: usage.to_owned(), ..DeviceSignature::default() }
}

/// Returns the inventory of a machine with one disk, `sda`, whose second partition has these signatures.
fn with(signatures: &[DeviceSignature]) -> Inventory {
    let part = |number: u32| DiskPartition {
        number,
        device: format!("/dev/sda{number}").into(),
        size_bytes: 1 << 30,
        ..DiskPartition::default()
    };
    let partitions = vec![part(1), DiskPartition { signatures: signatures.to_vec(), ..part(2) }];
    let table = Some(DiskTable { partitions, ..DiskTable::default() });
    let disk = InventoryDisk { name: "sda".into(), device: "/dev/sda".into(), table, ..InventoryDisk::default() };
    Inventory { disks: vec![disk], explored: true, ..Inventory::default() }
}

/// Returns the inventory that `with` returns, with a device of this type and size on top of the second partition.
fn held(signatures: &[DeviceSignature], kind: StackedDeviceKind, size_bytes: u64) -> Inventory {
    let (name, device) = ("dm-0".into(), "/dev/mapper/held".into());
    let held = StackedDevice { name, device, kind, below: vec!["sda2".into()], size_bytes, ..StackedDevice::default() };
    Inventory { stacked: vec![held], ..with(signatures) }
}

fn group(closed: Option<&str>, volumes: Vec<LvmLogicalVolume>) -> Inventory {
    let physical = vec![LvmPhysicalVolume { device: Some("/dev/sda2".into()), ..LvmPhysicalVolume::default() }];
    let (name, closed) = ("vg00".to_owned(), closed.map(str::to_owned));
    let group = LvmVolumeGroup { name, physical, volumes, closed, ..LvmVolumeGroup::default() };
    Inventory { groups: vec![group], ..with(&[signature("LVM2_member", "raid")]) }
}

fn volume(kind: &str) -> LvmLogicalVolume {
    let (name, uuid) = (format!("a-{kind}"), format!("u-{kind}"));
    LvmLogicalVolume { name, uuid, kind: kind.to_owned(), ..LvmLogicalVolume::default() }
}

fn printed(inventory: &Inventory) -> Vec<String> {
    let objects = inventory.find_opaque_objects().into_iter();
    objects.map(|object| format!("{object}: {}; {}", object.reason, object.remedy)).collect()
}

#[test]
fn volumes_are_opaque_unless_active() {
    for (kind, words) in [
        (
            "linear",
            "LVM did not activate the volume; activate the volume in the rescue shell (lvchange -ay vg00/a-linear)",
        ),
        ("striped", "LVM did not activate the volume"),
        ("raid1", "LVM did not activate the volume"),
        ("snapshot", "activating a snapshot may write to it; remove the snapshot"),
        ("thin", "activating a volume of type thin writes to its disks; back up any data you need"),
        ("thin-pool", "type thin-pool"),
        ("cache", "type cache"),
        ("writecache", "type writecache"),
        ("vdo", "type vdo"),
        ("raid5", "type raid5"),
        ("raid5_ls", "type raid5_ls"),
        ("raid6", "type raid6"),
        ("raid10", "type raid10"),
        ("mirror", "type mirror"),
        ("", "type  writes"),
    ] {
        let [said] = &printed(&group(None, vec![volume(kind)]))[..] else { panic!("{kind}") };
        let name = format!("logical volume vg00/a-{kind} ({kind}) on /dev/sda2: ");
        assert!(said.starts_with(&name) && said.contains(words), "{said}");
        let shown = LvmLogicalVolume { running: Some("dm-0".into()), ..volume(kind) };
        assert_eq!(printed(&group(None, vec![shown])), [""; 0], "{kind}");
    }
}

#[test]
fn opaque_volume_reports_the_most_specific_reason() {
    let entangled = |how: &str| LvmLogicalVolume { entangled: Some(how.to_owned()), ..volume("linear") };
    let lost = |kind: &str| LvmLogicalVolume { health: VolumeHealth::Lost, ..volume(kind) };
    for (volume, words) in [
        (
            entangled(HAS_SNAPSHOT),
            "the volume has a snapshot, and LVM would activate the snapshot together with the volume; remove the snapshot",
        ),
        (
            entangled("is being moved, and LVM would continue the move if the volume was activated"),
            "the volume is being moved, and LVM would continue the move if the volume was activated; ",
        ),
        (lost("linear"), "part of the volume's data is on a physical volume that is missing; connect the missing disk"),
        (lost("thin-pool"), "part of the volume's data is on a physical volume that is missing"),
        (
            lost("raid1"),
            "none of the volume's copies is known to be complete and current; connect the missing disk, or repair the volume",
        ),
    ] {
        let [said] = &printed(&group(None, vec![volume]))[..] else { panic!("{words}") };
        assert!(said.contains(words), "{said}");
    }
    let mut inventory = group(None, vec![volume("linear")]);
    let why = "`lvm lvchange` exited with 5".to_owned();
    inventory.failed.push(InspectionFailure { tried: InspectionTarget::Volume("u-linear".to_owned()), why });
    assert!(printed(&inventory)[0].contains("(linear) on /dev/sda2: `lvm lvchange` exited with 5; "));
}

#[test]
fn closed_group_is_one_object_unless_completely_active() {
    for (why, reason, remedy) in [
        (EXPORTED, "the volume group is exported", "run `vgimport` in the installed system"),
        (
            FOREIGN,
            "the volume group belongs to the host with the system ID \"node: 1\"",
            "remove the system ID with `vgchange --systemid \"\"`",
        ),
    ] {
        let shown = LvmLogicalVolume { running: Some("dm-0".into()), ..volume("linear") };
        let both = group(Some(why), vec![shown.clone(), volume("thin"), volume("raid5")]);
        assert_eq!(printed(&both), [format!("volume group vg00 (a-thin, a-raid5) on /dev/sda2: {reason}; {remedy}")]);
        assert_eq!(printed(&group(Some(why), vec![shown])), [""; 0]);
        assert_eq!(printed(&group(Some(why), vec![])), [""; 0], "it has no volumes, as LVM's metadata say");
    }
}

#[test]
fn arrays_are_opaque_unless_running() {
    let uuid = Uuid::from_u128(9);
    let member = |role| ArrayMember { device: "/dev/sda2".into(), role };
    let array = |level: &str, role| MdArray {
        uuid,
        name: "root".to_owned(),
        level: level.to_owned(),
        metadata: "imsm".to_owned(),
        raid_devices: 2,
        members: vec![member(role)],
        ..MdArray::default()
    };
    let alone = |array: &MdArray| Inventory { arrays: vec![array.clone()], ..with(&[]) };
    let active = array("raid1", MemberRole::Active(0));
    let name = "array \"root\" (raid1) on /dev/sda2: ";
    for (array, words) in [
        (active.clone(), "the array is not running; connect"),
        (array("raid1", MemberRole::Spare), "none of the array's members is known to be complete and current; "),
        (array("raid1", MemberRole::Faulty), "none of the array's members is known to be complete and current; "),
    ] {
        assert!(printed(&alone(&array))[0].starts_with(&format!("{name}{words}")), "{:?}", printed(&alone(&array)));
    }
    let firmware = printed(&alone(&array("container", MemberRole::Active(0))));
    assert!(
        firmware[0].contains("firmware RAID (imsm), which drophammer does not start; delete the RAID volume"),
        "{firmware:?}"
    );
    let failed = vec![InspectionFailure { tried: InspectionTarget::Array(uuid), why: "not enough".to_owned() }];
    let failed = printed(&Inventory { failed, ..alone(&active) });
    assert!(failed[0].contains("the array does not start: not enough; "), "{failed:?}");
    let failed = vec![InspectionFailure { tried: InspectionTarget::Array(uuid), why: "not enough".to_owned() }];
    let gone = printed(&Inventory { failed, ..with(&[]) });
    assert!(
        gone[0].starts_with("array 00000000-") && gone[0].contains("its members have become unreadable: not enough"),
        "{gone:?}"
    );
    for (size_bytes, is_seen) in [(1 << 30, true), (0, false)] {
        let running = MdArray { running: Some("dm-0".into()), ..active.clone() };
        let inventory = Inventory { arrays: vec![running], ..held(&[], StackedDeviceKind::Array, size_bytes) };
        assert_eq!(printed(&inventory).is_empty(), is_seen, "{size_bytes}");
    }
}

#[test]
fn containers_and_components_are_opaque_unless_content_is_active() {
    use StackedDeviceKind::{Array, Bcache, Crypt, Other, Volume};
    for (kind, usage, opened_by, words) in [
        ("crypto_LUKS", "crypto", Some(Crypt), "the container is encrypted and not open; provide the key"),
        ("BitLocker", "crypto", Some(Crypt), "the container is encrypted and not open"),
        ("cs_fvault2", "crypto", Some(Crypt), "the container is encrypted and not open"),
        ("bcache", "other", Some(Bcache), "the bcache device that uses this device is not running"),
        ("zfs_member", "raid", None, "drophammer does not support ZFS; import the pool"),
        ("zfs_member", "filesystem", None, "drophammer does not support ZFS"),
        ("stratis", "raid", None, "drophammer does not support stratis"),
        ("drbd", "raid", None, "drophammer does not support drbd"),
        ("DM_snapshot_cow", "other", None, "drophammer does not support DM_snapshot_cow"),
        ("nvidia_raid_member", "raid", None, "md does not support this firmware RAID; delete the RAID volume"),
        ("VMFS_volume_member", "raid", None, "drophammer does not support VMFS_volume_member"),
    ] {
        let found = [signature(kind, usage)];
        let said = printed(&with(&found));
        assert!(said.len() == 1 && said[0].starts_with(&format!("{kind} on /dev/sda2: {words}")), "{said:?}");
        for holder in [Array, Bcache, Crypt, Other, Volume] {
            // The contents of an array are listed under the array, not under its members.
            let is_seen = opened_by == Some(holder) || holder == Array;
            assert_eq!(printed(&held(&found, holder, 1)).is_empty(), is_seen, "{kind} {holder:?}");
            assert_eq!(printed(&held(&found, holder, 0)).len(), 1, "{kind} {holder:?}, which is inactive");
        }
    }
    for (kind, usage) in [
        ("swap", "other"),
        ("vfat", "filesystem"),
        ("ntfs", "filesystem"),
        ("iso9660", "filesystem"),
        ("ceph_bluestore", "other"),
        ("jbd", "other"),
        ("LVM2_member", "raid"),
        ("linux_raid_member", "raid"),
    ] {
        assert_eq!(printed(&with(&[signature(kind, usage)])), [""; 0], "{kind}");
    }
    let failed =
        vec![InspectionFailure { tried: InspectionTarget::Container("/dev/sda2".into()), why: "no key".to_owned() }];
    let locked = Inventory { failed, ..with(&[signature("crypto_LUKS", "crypto")]) };
    assert!(
        printed(&locked)[0].contains("the container is encrypted and not open: no key; "),
        "{:?}",
        printed(&locked)
    );
}

#[test]
fn overlay_does_not_hide_its_content() {
    let mut inventory = held(&[signature("crypto_LUKS", "crypto")], StackedDeviceKind::Other, 1 << 30);
    inventory.stacked[0].device = "/dev/mapper/drophammer-overlay-sda2".into();
    assert_eq!(printed(&inventory).len(), 1);
    let (name, device, below) = ("md127".into(), "/dev/md127".into(), vec!["dm-0".into()]);
    let kind = StackedDeviceKind::Array;
    inventory.stacked.push(StackedDevice { name, device, kind, below, size_bytes: 1, ..StackedDevice::default() });
    assert_eq!(printed(&inventory), [""; 0]);
}

#[test]
fn filesystems_are_opaque_unless_inspected() {
    let seen = |unreadable_marker: Option<&str>, marker| FilesystemContents {
        device: "/dev/sda2".into(),
        unreadable_marker: unreadable_marker.map(str::to_owned),
        marker,
        ..FilesystemContents::default()
    };
    for kind in ROOT_FORMATS {
        let there = with(&[signature(kind, "filesystem")]);
        let said = printed(&there);
        assert_eq!(
            said,
            [format!(
                "{kind} on /dev/sda2: the filesystem is not mounted; to find out the reason, mount the filesystem read-only"
            )]
        );
        for filesystem in [seen(None, None), seen(None, Some(InstallMarker::default()))] {
            assert_eq!(printed(&Inventory { filesystems: vec![filesystem], ..there.clone() }), [""; 0], "{kind}");
        }
        let damaged = Inventory { filesystems: vec![seen(Some("it is larger"), None)], ..there.clone() };
        assert!(printed(&damaged)[0].contains("the install marker cannot be read: it is larger; "));
        let failed = vec![InspectionFailure {
            tried: InspectionTarget::Filesystem("/dev/sda2".into()),
            why: "EUCLEAN".to_owned(),
        }];
        let failed = Inventory { failed, ..there.clone() };
        assert!(printed(&failed)[0].contains("the filesystem cannot be mounted: EUCLEAN; repair the filesystem"));
        let two = with(&[signature(kind, "filesystem"), signature("swap", "other")]);
        let words = format!("the device has several signatures: {kind}, swap; remove the stale signature");
        assert!(printed(&two)[0].contains(&words), "{:?}", printed(&two));
        // If a partition with a filesystem is in use, for example by an array, the filesystem is not opaque.
        let mut used = there.clone();
        used.disks[0].table.as_mut().unwrap().partitions[1].uses = vec![DeviceUse::Holder("md127".into())];
        assert_eq!(printed(&used), [""; 0], "{kind}");
    }
}

#[test]
fn unassigned_or_unreadable_devices_are_opaque() {
    let mut inventory = with(&[]);
    assert_eq!(printed(&inventory), [""; 0]);
    let devices = ["/dev/sda1", "/dev/sda2"].map(DevicePath::from).into();
    inventory.unknown.push(UnassignedDevices { devices, reason: "bad checksum".to_owned() });
    inventory.disks[0].unreadable = Some("/dev/sda3: Input/output error".to_owned());
    assert_eq!(
        printed(&inventory),
        [
            "RAID member or physical volume on /dev/sda1, /dev/sda2: the array, group or pool is unknown: bad checksum; connect the other devices of this array, group or pool, or repair the damaged metadata",
            "unreadable region on /dev/sda: /dev/sda3: Input/output error; check the disk and its cabling, or repair the damaged metadata",
        ]
    );
}

#[test]
fn unreadable_stacked_devices_are_opaque_unless_they_are_parts_of_a_volume() {
    let why = "/dev/mapper/held: Input/output error";
    for kind in
        [StackedDeviceKind::Array, StackedDeviceKind::Volume, StackedDeviceKind::Crypt, StackedDeviceKind::Other]
    {
        let mut inventory = held(&[], kind, 1);
        assert_eq!(printed(&inventory), [""; 0], "{kind:?}");
        inventory.stacked[0].unreadable = Some(why.to_owned());
        let [object] = &inventory.find_opaque_objects()[..] else { panic!("{:?}", printed(&inventory)) };
        assert_eq!((object.kind, object.reason.as_str()), (OpaqueKind::UnreadableRegion, why), "{kind:?}");
        assert_eq!(object.devices, [inventory.stacked[0].device.clone()]);
        // The missing copy of a raid1 volume is a device below the volume, and cannot be read.
        let (name, device) = ("dm-1".into(), "/dev/mapper/above".into());
        let above = StackedDevice { name, device, below: vec!["dm-0".into()], ..inventory.stacked[0].clone() };
        inventory.stacked.push(StackedDevice { unreadable: None, ..above });
        let is_part = kind == StackedDeviceKind::Volume;
        assert_eq!(inventory.find_opaque_objects().is_empty(), is_part, "{kind:?}");
    }
}

/// An inventory that was read before arrays and volumes were assembled does not show whether the agent can inspect
/// them.
#[test]
fn only_objects_that_the_agent_can_inspect_are_untried() {
    let entangled = |how: &str| LvmLogicalVolume { entangled: Some(how.to_owned()), ..volume("linear") };
    let lost = LvmLogicalVolume { health: VolumeHealth::Lost, ..volume("linear") };
    let array = |role| MdArray {
        raid_devices: 1,
        members: vec![ArrayMember { device: "/dev/sda2".into(), role }],
        ..MdArray::default()
    };
    let arrays = |role| Inventory { arrays: vec![array(role)], ..with(&[]) };
    for (inventory, may_be_seen) in [
        (group(None, vec![volume("linear")]), true),
        (group(None, vec![volume("striped")]), true),
        (group(None, vec![volume("raid1")]), true),
        (group(None, vec![entangled(HAS_SNAPSHOT)]), true),
        (
            group(None, vec![entangled("is being moved, and LVM would continue the move if the volume was activated")]),
            false,
        ),
        (group(None, vec![lost]), false),
        (group(None, vec![volume("thin")]), false),
        (group(Some(EXPORTED), vec![volume("linear")]), true),
        (group(Some(EXPORTED), vec![volume("linear"), volume("thin")]), false),
        (group(Some(EXPORTED), vec![volume("striped")]), false),
        (arrays(MemberRole::Active(0)), true),
        (arrays(MemberRole::Spare), false),
        (with(&[signature("ext4", "filesystem")]), true),
        (with(&[signature("ext4", "filesystem"), signature("xfs", "filesystem")]), false),
        (with(&[signature("crypto_LUKS", "crypto")]), false),
        (with(&[signature("zfs_member", "raid")]), false),
    ] {
        for explored in [false, true] {
            let objects = Inventory { explored, ..inventory.clone() }.find_opaque_objects();
            assert_eq!(objects.len(), 1, "{objects:?}");
            assert_eq!(objects[0].untried, may_be_seen && !explored, "{:?}", objects[0]);
        }
    }
}
