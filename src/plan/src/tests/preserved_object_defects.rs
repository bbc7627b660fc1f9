//! Layouts whose preserved objects are missing on the machine, exist twice, or differ from the layout. Each defect is
//! refused before the first write, with the found state and the path in the layout. Several defects are reported
//! together.

use super::partly_kept_disks::{MIRRORED, installed_with, problems_of};
use super::renewed_volumes::ONE_GROUP;
use super::*;
use model::inventory::{InspectionFailure, InspectionTarget, LvmVolumeGroup};
use model::layout::read_yaml;

/// Defect: its name, the edit of the layout, the edit of the machine, and the expected problem with its path.
type Defect = (&'static str, fn(&str) -> String, fn(&mut Inventory), &'static str);

fn data_content(inventory: &mut Inventory) -> &mut Vec<DeviceSignature> {
    let name = inventory.arrays.iter().find(|array| array.name == "data").unwrap().running.clone();
    let stacked = inventory.stacked.iter_mut().find(|stacked| Some(&stacked.name) == name.as_ref());
    &mut stacked.unwrap().signatures
}

fn signature(kind: &str, usage: &str, uuid: &str) -> DeviceSignature {
    let (kind, usage, uuid) = (kind.to_owned(), usage.to_owned(), uuid.to_owned());
    DeviceSignature { kind, usage, uuid, ..DeviceSignature::default() }
}

fn partition_mut(inventory: &mut Inventory, disk: usize, number: u32) -> &mut inventory::DiskPartition {
    let table = inventory.disks[disk].table.as_mut().unwrap();
    table.partitions.iter_mut().find(|part| part.number == number).unwrap()
}

fn drop_data_array(inventory: &mut Inventory) {
    let running = inventory.arrays.iter().find(|array| array.name == "data").unwrap().running.clone().unwrap();
    inventory.arrays.retain(|array| array.name != "data");
    inventory.stacked.retain(|stacked| stacked.name != running);
    for disk in 0..2 {
        let part = partition_mut(inventory, disk, 3);
        (part.signatures, part.uses) = (Vec::new(), Vec::new());
    }
}

fn lock_data(inventory: &mut Inventory) {
    let uuid = "0f4a3c1e-0000-4000-8000-000000000001";
    *data_content(inventory) = vec![signature("crypto_LUKS", "crypto", uuid)];
    let name = inventory.arrays.iter().find(|array| array.name == "data").unwrap().running.clone().unwrap();
    let (tried, why) = (InspectionTarget::Container(name.device_path()), "no key available".to_owned());
    inventory.failed.push(InspectionFailure { tried, why });
}

fn same(yaml: &str) -> String {
    yaml.to_owned()
}

/// Defects of the machine with a preserved mirror.
const OF_MIRROR: &[Defect] = &[
    (
        "a partition that does not exist",
        |yaml| yaml.replace("number: 3,", "number: 4,").replace("sda3, /dev/sdb3", "sda4, /dev/sdb4"),
        |_| {},
        "disks[0].partitions[2]: /dev/sda4 must be preserved, but /dev/sda lacks partition 4",
    ),
    (
        "a partition of another size",
        same,
        |inventory| {
            partition_mut(inventory, 0, 3).size_bytes = 9000 * MIB;
        },
        "disks[0].partitions[2]: /dev/sda3 must be preserved with a size of 14000 MiB, but its size is 9000 MiB",
    ),
    (
        "a partition of another type",
        same,
        |inventory| {
            partition_mut(inventory, 1, 3).kind = "0fc63daf-8483-4772-8e79-3d69d8477de4".to_owned();
        },
        "disks[1].partitions[2]: /dev/sdb3 must be preserved with type fd00 (a19d880f-05fc-4d3b-a006-743f0f84911e), but has type 0fc63daf-8483-4772-8e79-3d69d8477de4",
    ),
    (
        "an array that does not exist",
        same,
        drop_data_array,
        "raid[1]: /dev/md/data must be preserved, and must be a raid1 of /dev/sda3, /dev/sdb3, but none of the devices is a member of an array",
    ),
    (
        "an array that exists twice",
        same,
        |inventory| {
            let mut copy = inventory.arrays.iter().find(|array| array.name == "data").unwrap().clone();
            (copy.uuid, copy.running) = (Uuid::from_u128(77), None);
            inventory.arrays.push(copy);
        },
        "raid[1]: /dev/md/data must be preserved, and must be a raid1 of /dev/sda3, /dev/sdb3, but there is raid1 \"data\" of /dev/sda3, /dev/sdb3 and raid1 \"data\" of /dev/sda3, /dev/sdb3",
    ),
    (
        "another filesystem",
        |yaml| yaml.replace("format: xfs", "format: ext4"),
        |_| {},
        "filesystems[2]: /dev/md/data must be preserved, and must contain ext4 \"srv\", but the device contains xfs \"srv\"",
    ),
    (
        "a filesystem that does not exist",
        same,
        |inventory| data_content(inventory).clear(),
        "filesystems[2]: /dev/md/data must be preserved, and must contain xfs \"srv\", but the device contains 14.7 GB of unrecognized data",
    ),
    (
        "two filesystems on one device",
        same,
        |inventory| data_content(inventory).push(signature("ext4", "filesystem", "old")),
        "filesystems[2]: /dev/md/data must be preserved, and must contain xfs \"srv\", but the device has several signatures: xfs \"srv\" and ext4",
    ),
    (
        "a filesystem that exists twice",
        same,
        |inventory| {
            let found = data_content(inventory)[0].clone();
            inventory.disks.push(inventory::InventoryDisk { signatures: vec![found], ..disk("sdc", 20_000) });
        },
        "disks: /dev/md126 on sda, sdb (xfs \"srv\") and /dev/sdc on sdc (xfs \"srv\") have the same UUID",
    ),
    (
        "LUKS without its key",
        |yaml| yaml.replace("format: xfs, label: srv", "format: xfs, label: srv, encrypted: {key: server}"),
        lock_data,
        "filesystems[2]: /dev/md/data must be preserved, and must contain xfs in LUKS, which the new system mounts at /srv, but the container cannot be opened: no key available",
    ),
    (
        "a disk in two roles",
        |yaml| {
            let other = "- {device: /dev/disk/by-id/ata-one, wipeonreinstall: true, partitions: [{number: 9, size: 10}]}\nraid:";
            yaml.replace("raid:", other)
        },
        |inventory| inventory.disks[0].by_id = vec!["/dev/disk/by-id/ata-one".to_owned()],
        "disks[2].device: /dev/disk/by-id/ata-one refers to /dev/sda, which the layout already lists",
    ),
];

/// Defects of the machine with a group in which some volumes are renewed.
const OF_GROUP: &[Defect] = &[
    (
        "a group that does not exist",
        same,
        |inventory| inventory.groups.clear(),
        "volumegroups[0]: vg:vg0 must be preserved on /dev/sda2, but none of the devices is a physical volume of a known group",
    ),
    (
        "a group with the name of another one",
        same,
        |inventory| {
            let mut other = inventory.groups[0].clone();
            inventory.disks.push(inventory::InventoryDisk {
                signatures: vec![signature("LVM2_member", "raid", "other")],
                ..disk("sdc", 20_000)
            });
            (other.uuid, other.volumes, other.physical[0].device) = ("other".into(), vec![], Some("/dev/sdc".into()));
            inventory.groups.push(other);
        },
        "volumegroups[0].name: vg:vg0 is also the name of another volume group on /dev/sdc, which is not wiped",
    ),
    (
        "a group with a missing member",
        same,
        |inventory| {
            let gone = model::inventory::LvmPhysicalVolume { uuid: "gone".into(), ..Default::default() };
            inventory.groups[0].physical.push(gone);
        },
        "volumegroups[0]: vg:vg0 must be preserved on /dev/sda2, but there is vg:vg0 on /dev/sda2, a missing device (volumes: root, data, swap)",
    ),
    (
        "a volume that does not exist",
        same,
        |inventory| inventory.groups[0].volumes.retain(|volume| volume.name != "data"),
        "logicalvolumes[1]: /dev/vg0/data must be preserved, and must be linear 8000 MiB, but is missing: vg:vg0 on /dev/sda2 (volumes: root, swap)",
    ),
    (
        "a volume of another size",
        |yaml| yaml.replace("size: 8000", "size: 8001"),
        |_| {},
        "logicalvolumes[1]: /dev/vg0/data must be preserved, and must be linear 8001 MiB, but is linear 8000 MiB",
    ),
    (
        "a volume of another type",
        same,
        |inventory| inventory.groups[0].volumes[1].kind = "raid1".to_owned(),
        "logicalvolumes[1]: /dev/vg0/data must be preserved, and must be linear 8000 MiB, but is raid1 8000 MiB",
    ),
    (
        "a volume whose content is unknown",
        same,
        |inventory| inventory.groups[0].volumes[1].running = None,
        "filesystems[2]: /dev/vg0/data must be preserved, and must contain xfs \"srv\", but the volume is not active, so its content is unknown",
    ),
];

#[test]
fn each_defect_is_refused_with_what_was_found_and_where() {
    let (mut table, mut wrong) = (Vec::new(), Vec::new());
    for (yaml, defects) in [(MIRRORED, OF_MIRROR), (ONE_GROUP, OF_GROUP)] {
        let yaml = yaml.replace("number: 3, size: 0", "number: 3, size: 14000");
        let sound = installed_with(&yaml);
        for (name, edit, damage, expected) in defects {
            let mut inventory = sound.clone();
            damage(&mut inventory);
            let found = problems_of(&edit(&yaml), &inventory);
            match found.iter().find(|problem| problem.starts_with(expected)) {
                Some(problem) => table.push(format!("| {name} | {problem} |")),
                None => wrong.push(format!("{name}: expected {expected}, found {found:#?}")),
            }
        }
    }
    println!("{}", table.join("\n"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn several_defects_are_refused_together() {
    let yaml = MIRRORED.replace("number: 3, size: 0", "number: 3, size: 14000");
    let mut inventory = installed_with(&yaml);
    let edited = yaml.replace("format: xfs", "format: ext4");
    partition_mut(&mut inventory, 0, 3).size_bytes = 9000 * MIB;
    partition_mut(&mut inventory, 1, 3).kind = "0fc63daf-8483-4772-8e79-3d69d8477de4".to_owned();
    let mut copy = inventory.arrays[1].clone();
    (copy.uuid, copy.running) = (Uuid::from_u128(77), None);
    let found = problems_of(&edited, &inventory);
    for place in ["disks[0].partitions[2]", "disks[1].partitions[2]", "filesystems[2]"] {
        assert!(found.iter().any(|problem| problem.starts_with(place)), "{place}: {found:#?}");
    }
    inventory.arrays.push(copy);
    assert!(problems_of(&edited, &inventory).iter().any(|problem| problem.starts_with("raid[")), "{found:#?}");
    let mut group = installed_with(ONE_GROUP);
    let edited = ONE_GROUP.replace("size: 8000", "size: 8001").replace("size: 1000,", "size: 900000,");
    group.groups[0].volumes[0].kind = "thin".to_owned();
    let found = problems_of(&edited, &group);
    assert!(found.iter().any(|problem| problem.contains("vg0/root cannot be removed")), "{found:#?}");
    let sound =
        LvmVolumeGroup { volumes: installed_with(ONE_GROUP).groups[0].volumes.clone(), ..group.groups[0].clone() };
    group.groups[0] = sound;
    let found = problems_of(&edited, &group);
    assert_eq!(found.len(), 2, "the volume of another size, and the volume without space: {found:#?}");
}

/// These defects do not depend on the machine: the layout itself is rejected, with all of its problems.
#[test]
fn duplicate_mount_points_and_devices_in_two_roles_are_refused_with_the_layout() {
    let edited = MIRRORED.replace("path: /srv,", "path: /boot/efi,").replace(
        "{path: /boot/efi, device: /dev/sda1, format: vfat}",
        "{path: /boot/efi, device: /dev/sda3, format: vfat}",
    );
    let problems: Vec<String> = read_yaml(&edited).unwrap_err().iter().map(ToString::to_string).collect();
    for expected in ["/boot/efi", "/dev/sda3"] {
        assert!(problems.iter().any(|problem| problem.contains(expected)), "{expected}: {problems:#?}");
    }
    assert!(problems.len() >= 2, "{problems:#?}");
}
