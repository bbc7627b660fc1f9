//! Machines whose data looks like parts of the system: a reinstall must not erase it.

use super::foreign_machine::{
    ForeignMachine, GIB, MIB, PartitionContent, assert_volumes_are_preserved, guest_volume, sign,
};
use super::recorded_installations::{folders, read};
use crate::assess_reinstall;
use model::inventory::{
    DeviceUse, DiskTable, Inventory, LvmPhysicalVolume, LvmVolumeGroup, StackedDevice, StackedDeviceKind,
};

const ESP: &str = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";
const BIOS: &str = "21686148-6449-6e6f-744e-656564454649";
const LINUX: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";
const LVM: &str = "e6d6d379-f507-44c2-a23c-238f2a3df928";
const ROOT: &str = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709";
const SWAP: &str = "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f";

/// A KVM host whose guests have their disks in logical volumes on a disk of its own.
fn host_of_guests() -> ForeignMachine {
    let mut machine = ForeignMachine::read("debian-plain").add_disk(&[(LVM, 204_800, "LVM2_member", None)]);
    machine.partition("/dev/sdb1").uses = ["dm-0", "dm-1"].map(|name| DeviceUse::Holder(name.into())).to_vec();
    let guests = [
        guest_volume("db", "dm-0", &[(ESP, 512, "vfat"), (ROOT, 30_000, "ext4"), (SWAP, 2_000, "swap")]),
        guest_volume("mail", "dm-1", &[(BIOS, 1, ""), (LINUX, 30_000, "xfs")]),
    ];
    let (volumes, stacked): (Vec<_>, Vec<_>) = guests.into_iter().unzip();
    machine.inventory.stacked.extend(stacked);
    let physical =
        LvmPhysicalVolume { device: Some("/dev/sdb1".into()), uuid: "uuid-sdb1".to_owned(), size_bytes: 204_796 * MIB };
    machine.inventory.groups.push(LvmVolumeGroup {
        name: "vms".to_owned(),
        uuid: "group-vms".to_owned(),
        extent_bytes: 4 * MIB,
        free_bytes: Some(50 * GIB),
        physical: vec![physical],
        volumes,
        ..LvmVolumeGroup::default()
    });
    machine
}

#[test]
fn guests_on_a_separate_disk_are_never_written() {
    let machine = host_of_guests();
    let layout = machine.layout();
    assert!(layout.disks.iter().all(|disk| disk.device != *"sdb"), "{:?}", layout.disks);
    assert!(layout.volumegroups.is_empty() && layout.logicalvolumes.is_empty());
    assert!(machine.discover().system.iter().all(|content| !content.contains("vms")));
    machine.assert_preserved(&["sdb", "sdb1", "dm-0", "dm-1"]);
}

/// A volume with a partition table, with an open LUKS container, or below DRBD.
#[test]
fn volumes_whose_content_is_on_top_of_another_device_are_listed() {
    let mut partitioned = ForeignMachine::read("debian-lvm").without_line("/home");
    let guest = guest_volume("home", "dm-2", &[(LINUX, 300_000, "ext4")]).1;
    let home = partitioned.stacked("dm-2");
    (home.signatures, home.table) = (Vec::new(), guest.table);
    let mut empty = ForeignMachine::read("debian-lvm").without_line("/home");
    let home = empty.stacked("dm-2");
    (home.signatures, home.table) = (Vec::new(), Some(DiskTable { kind: "gpt".to_owned(), ..DiskTable::default() }));
    let mut encrypted = ForeignMachine::read("debian-lvm").without_line("/home");
    let home = encrypted.stacked("dm-2");
    (home.signatures, home.uses) = (sign("crypto_LUKS", "luks"), vec![DeviceUse::Holder("dm-9".into())]);
    let size_bytes = home.size_bytes - 16 * MIB;
    encrypted.inventory.stacked.push(StackedDevice {
        name: "dm-9".into(),
        device: "/dev/mapper/secret".into(),
        kind: StackedDeviceKind::Crypt,
        below: vec!["dm-2".into()],
        size_bytes,
        signatures: sign("xfs", "secret"),
        ..StackedDevice::default()
    });
    let mut replicated = ForeignMachine::read("debian-lvm").without_line("/home");
    let home = replicated.stacked("dm-2");
    (home.signatures, home.uses) = (sign("drbd", "drbd"), vec![DeviceUse::Holder("drbd0".into())]);
    for machine in [&partitioned, &empty, &encrypted, &replicated] {
        let layout = machine.layout();
        let home = layout.logicalvolumes.iter().find(|volume| volume.name == "home");
        assert!(home.is_some_and(|home| home.preserve), "{:?}", layout.logicalvolumes);
    }
    [partitioned, empty, encrypted].iter().for_each(|machine| machine.assert_preserved(&["dm-2"]));
    replicated.assert_refused("/dev/mapper/web--vg-home, which is backed by /dev/sda, is in use (held by drbd0)");
}

/// The host has activated the group of a virtual machine.
#[test]
fn a_group_on_a_logical_volume_is_part_of_the_volume() {
    let mut machine = ForeignMachine::read("debian-lvm").without_line("/home");
    let home = machine.stacked("dm-2");
    (home.signatures, home.uses) = (sign("LVM2_member", "uuid-guest"), vec![DeviceUse::Holder("dm-9".into())]);
    let size_bytes = home.size_bytes;
    let (volume, mut stacked) = guest_volume("db", "dm-9", &[]);
    (stacked.below, stacked.table, stacked.signatures) = (vec!["dm-2".into()], None, sign("xfs", "guest-db"));
    machine.inventory.stacked.push(stacked);
    let device = Some("/dev/mapper/web--vg-home".into());
    machine.inventory.groups.push(LvmVolumeGroup {
        name: "vms".to_owned(),
        uuid: "group-vms".to_owned(),
        extent_bytes: 4 * MIB,
        free_bytes: Some(0),
        physical: vec![LvmPhysicalVolume { device, uuid: "uuid-guest".to_owned(), size_bytes }],
        volumes: vec![volume],
        ..LvmVolumeGroup::default()
    });
    assert!(machine.layout().volumegroups.iter().all(|group| group.name == "web-vg"));
    machine.assert_preserved(&["dm-2", "dm-9"]);
}

/// Each volume of each recorded machine in turn contains a partition table, a LUKS container, or a device of DRBD.
#[test]
fn volumes_of_recorded_machines_are_preserved() {
    for folder in folders() {
        let fstab = std::fs::read_to_string(folder.join("fstab")).unwrap_or_default();
        let inventory: Inventory = serde_json::from_str(&read(&folder, "inventory.json")).unwrap();
        let recorded = ForeignMachine { inventory, fstab };
        assert_volumes_are_preserved(&recorded);
        let is_volume = |stacked: &&StackedDevice| stacked.kind == StackedDeviceKind::Volume;
        for volume in recorded.inventory.stacked.iter().filter(is_volume) {
            let guest =
                guest_volume("guest", "dm-99", &[(ESP, 512, "vfat"), (SWAP, 512, "swap"), (ROOT, 512, "ext4")]).1;
            for (content, holder, table) in
                [("", None, guest.table), ("crypto_LUKS", None, None), ("drbd", Some("drbd0"), None)]
            {
                let mut machine =
                    ForeignMachine { inventory: recorded.inventory.clone(), fstab: recorded.fstab.clone() };
                let changed = machine.stacked(&volume.name);
                (changed.signatures, changed.table) = (sign(content, "changed"), table);
                changed.uses = holder.into_iter().map(|name| DeviceUse::Holder(name.into())).collect();
                assert_volumes_are_preserved(&machine);
                if machine.obstacles().is_empty() {
                    machine.assert_preserved(&[&volume.name]);
                }
            }
        }
    }
}

#[test]
fn a_swap_line_does_not_make_a_filesystem_swap() {
    let lines = ["/dev/sdb1 none swap sw 0 0\n", "UUID=uuid-sdb1 /srv ext4 defaults 0 2\n"];
    for lines in [lines.concat(), [lines[1], lines[0]].concat()] {
        let machine =
            ForeignMachine::read("debian-plain").add_disk(&[(LINUX, 204_800, "ext4", None)]).add_lines(&lines);
        machine.assert_refused("fstab uses /dev/sdb1 as swap, but the device contains ext4");
        machine.assert_refused("fstab uses /dev/sdb1 as swap, and mounts it at /srv");
        assert!(machine.discover().data.contains(&"/dev/sdb1 /srv".to_owned()));
        assert!(!machine.layout().disks.iter().find(|disk| disk.device == *"sdb").unwrap().wipeonreinstall);
    }
    let other = "UUID=uuid-sdb1 /srv ext4 defaults 0 2\n";
    let machine = ForeignMachine::read("debian-plain").add_disk(&[(LINUX, 204_800, "xfs", None)]).add_lines(other);
    machine.assert_refused("fstab mounts /dev/sdb1 at /srv as ext4, but the device contains xfs");
}

#[test]
fn mounts_of_the_running_system_count_next_to_fstab() {
    let moved = ForeignMachine::read("debian-plain")
        .add_disk(&[(LINUX, 204_800, "ext4", Some("/srv/data"))])
        .add_lines("/dev/sdb1 /var/tmp ext4 nofail 0 2\n");
    moved.assert_refused("fstab mounts /dev/sdb1 at /var/tmp, but it is mounted at /srv/data");
    moved.assert_refused("/dev/sdb1 contains the system and data in one filesystem (/var/tmp, /srv/data)");
    let swapped = ForeignMachine::read("debian-plain")
        .add_disk(&[(LINUX, 2_048, "ext4", None), (LINUX, 2_048, "ext4", Some("/tmp"))])
        .add_lines("/dev/sdb1 /tmp ext4 nofail 0 2\n");
    swapped.assert_refused("fstab mounts /dev/sdb1 at /tmp, but /dev/sdb2 is mounted at /tmp");
    let mounted = |kind: &str, points: &[&str]| {
        let mut machine = ForeignMachine::read("debian-plain");
        machine.fstab = machine.fstab.replace("/ ext4", &format!("/ {kind}"));
        let root = machine.partition("/dev/sda2");
        root.signatures[0].kind = kind.to_owned();
        root.uses = points.iter().map(|point| DeviceUse::Mounted((*point).to_owned())).collect();
        machine
    };
    mounted("btrfs", &["/", "/home"])
        .assert_refused("/dev/sda2 contains the system and data in one filesystem (/, /home)");
    mounted("ext4", &["/", "/var/www", "/srv/chroot/srv"]).assert_preserved(&[]);
    let bound = ForeignMachine::read("debian-plain").add_disk(&[(LINUX, 204_800, "ext4", Some("/srv"))]);
    let mut bound = bound.add_lines("UUID=uuid-sdb1 /srv ext4 defaults 0 2\n");
    bound.partition("/dev/sdb1").uses.push(DeviceUse::Mounted("/tmp".to_owned()));
    bound.assert_preserved(&["sdb1"]);
}

#[test]
fn data_below_usr_is_preserved() {
    let machine = ForeignMachine::read("debian-plain").add_disk(&[(LINUX, 204_800, "xfs", None)]);
    let machine = machine.add_lines("UUID=uuid-sdb1 /usr/sap xfs defaults 0 2\n");
    assert_eq!(machine.discover().data, ["/dev/sdb1 /usr/sap"]);
    machine.assert_preserved(&["sdb"]);
}

/// Types of partitions count only on disks that also contain the mounted system, and only with the content of the type.
#[test]
fn partition_types_alone_do_not_make_a_partition_part_of_the_system() {
    let types: [&[PartitionContent]; 3] = [
        &[(ESP, 512, "vfat", None), (ROOT, 204_800, "ext4", None), (SWAP, 2_048, "swap", None)],
        &[(BIOS, 1, "", None), (LINUX, 100_000, "xfs", None)],
        &[(ESP, 512, "vfat", None), (LINUX, 100_000, "drbd", None)],
    ];
    for partitions in types {
        let machine = ForeignMachine::read("debian-plain").add_disk(partitions);
        assert!(machine.layout().disks.iter().all(|disk| disk.device != *"sdb"), "{partitions:?}");
        machine.assert_preserved(&["sdb"]);
    }
    // The present system uses the swap area of the old installation.
    let machine =
        ForeignMachine::read("debian-plain").add_disk(types[0]).add_lines("UUID=uuid-sdb3 none swap sw 0 0\n");
    machine.assert_preserved(&["sdb1", "sdb2"]);
    let mut machine = ForeignMachine::read("debian-home").without_line("swap");
    machine.partition("/dev/sda3").signatures = sign("ext4", "data");
    assert!(machine.discover().data.contains(&"/dev/sda3 unmounted ext4".to_owned()));
    machine.assert_preserved(&["sda3", "sda4"]);
}

#[test]
fn content_that_is_not_proven_to_be_the_system_is_erased_only_on_request() {
    let mut machine = ForeignMachine::read("debian-home").without_line("/home");
    machine.partition("/dev/sda4").kind = ROOT.to_owned();
    let expected = "a reinstall would erase /dev/sda4 (ext4), although neither fstab nor a mount shows that it belongs to the system";
    machine.assert_refused(expected);
    assert!(machine.obstacles()[0].ends_with("--give-up /dev/sda4 (DH-243)"), "{:?}", machine.obstacles());
    let mut found = machine.discover();
    found.give_up("/dev/sda4");
    assert_eq!(assess_reinstall(&found, &machine.inventory).obstacles, [""; 0]);
    found.give_up("/dev/sda9");
    assert!(assess_reinstall(&found, &machine.inventory).obstacles[0].contains("--give-up /dev/sda9"));
}

/// `reinstall: merge` would replace files of a database by files of the image.
#[test]
fn files_of_data_are_never_replaced_by_files_of_the_image() {
    for (name, path) in [("debian-multi", "/var"), ("metal-hammer", "/var/lib")] {
        let machine = ForeignMachine::read(name);
        let layout = machine.layout();
        let found = layout.filesystems.iter().find(|found| found.path.as_deref() == Some(path)).unwrap();
        assert_eq!((found.reinstall, found.preserve), (model::layout::OnReinstall::Keep, true));
        let notes = machine.discover().notes;
        assert!(notes.iter().any(|note| note.text.contains("the package database describes the old system")));
        machine.assert_preserved(&["sda3"]);
    }
}

/// Content whose disks the inventory does not list might be on a disk that is wiped.
#[test]
fn data_on_unknown_disks_is_refused() {
    let mut machine = ForeignMachine::read("debian-plain");
    machine.inventory.stacked.push(StackedDevice {
        name: "dm-7".into(),
        device: "/dev/mapper/vault".into(),
        kind: StackedDeviceKind::Crypt,
        below: vec!["loop0".into()],
        size_bytes: GIB,
        signatures: sign("ext4", "vault"),
        ..StackedDevice::default()
    });
    machine.assert_refused("a reinstall might erase data: /dev/mapper/vault unmounted ext4");
}
