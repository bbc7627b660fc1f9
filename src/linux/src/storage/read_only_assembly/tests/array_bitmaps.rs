//! Arrays that the kernel writes to although they are started read-only: their bitmaps are written at every start and
//! stop.

use super::*;

/// Offset of the bitmap's event count in a member with metadata 1.2. The superblock is at 4 KiB, and the bitmap 4 KiB
/// after it; the field is `events` of `bitmap_super_t` (drivers/md/md-bitmap.h).
const BITMAP_EVENTS: u64 = 8192 + 24;

/// Makes the bitmap older than the array, as after a power failure between the writes of superblock and bitmap.
fn age_bitmap(part: &str) {
    ran(&format!("dd if=/dev/zero of={part} bs=1 seek={BITMAP_EVENTS} count=8 conv=notrunc status=none"));
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_inspection_of_bitmap_arrays_changes_no_member() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    // Array without any writes.
    create("fresh", "1", "--metadata=1.2 --bitmap=internal --assume-clean", &["/dev/vda1", "/dev/vdb1"]);
    // Array to which a bitmap was added later.
    create("late", "1", "--metadata=1.2 --bitmap=none --assume-clean", &["/dev/vda2", "/dev/vdb2"]);
    ran("mkfs.ext4 -q -L late /dev/md/late");
    ran("mdadm --grow /dev/md/late --bitmap=internal");
    // Array with an outdated bitmap.
    create("behind", "1", "--metadata=1.2 --bitmap=internal", &["/dev/vda3", "/dev/vdb3"]);
    ran("mkfs.ext4 -q -L behind /dev/md/behind");
    create("old", "1", "--metadata=0.90 --bitmap=internal", &["/dev/vda4", "/dev/vdb4"]);
    ran("mkfs.vfat -n OLD /dev/md/old");
    stop_all();
    ["/dev/vda3", "/dev/vdb3"].iter().for_each(|part| age_bitmap(part));
    let (inventory, notes) = looked(&DISKS, &PARTS);
    assert_eq!(notes, Vec::<String>::new());
    for (name, content) in [("fresh", None), ("late", Some("ext4")), ("behind", Some("ext4")), ("", Some("vfat"))] {
        let array = array(&inventory, name);
        assert!(array.running.is_some(), "{array:?}");
        assert_eq!(inside(&inventory, array).first().map(String::as_str), content, "{array:?}");
    }
    // A second inspection, after all objects of the first one were stopped, has the same result.
    let (_, notes) = looked(&DISKS, &PARTS);
    assert_eq!(notes, Vec::<String>::new());
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_degraded_bitmap_array_is_inspected_and_assembled_later() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    create("half", "1", "--metadata=1.2 --bitmap=internal", &["/dev/vda1", "/dev/vdb1"]);
    ran("mdadm --fail /dev/md/half /dev/vdb1");
    ran("mdadm --remove /dev/md/half /dev/vdb1");
    ran("mkfs.ext4 -q -L half /dev/md/half");
    stop_all();
    age_bitmap("/dev/vda1");
    let before = fingerprints(&PARTS);
    let disks = DISKS.map(DevicePath::from);
    let mut assembled = assemble_read_only(&disks).unwrap();
    let inventory = probe::read_inventory(ProbeDepth::Deep).unwrap();
    assembled.unlock_disks().unwrap();
    let array = array(&inventory, "half");
    assert_eq!(inside_unmarked(&inventory, array), ["ext4"]);
    let members = ["/dev/vda1", "/dev/vdb1"].map(DevicePath::from);
    members.iter().for_each(|member| crate::storage::teardown::release_above(member).unwrap());
    assert_eq!(fingerprints(&PARTS), before);
    crate::storage::mdadm::assemble_array(&"/dev/md/half".into(), array.uuid, &members[..1]).unwrap();
    let stacked = probe::read_inventory(ProbeDepth::Deep).unwrap().stacked;
    let real = stacked.iter().find(|stacked| stacked.kind == StackedDeviceKind::Array).unwrap();
    assert_eq!(real.below, ["vda1"]);
    blank(&DISKS);
}

fn inside_unmarked(inventory: &Inventory, array: &MdArray) -> Vec<String> {
    let running = inventory.stacked.iter().find(|stacked| Some(&stacked.name) == array.running.as_ref());
    running.unwrap().signatures.iter().map(|signature| signature.kind.clone()).collect()
}

/// With the array's metadata at the end, LVM's label is also visible on the members, and on their overlays.
#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_group_is_found_on_array_with_trailing_metadata() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    create("data", "1", "--metadata=1.0 --bitmap=internal", &["/dev/vda1", "/dev/vdb1"]);
    ran("lvm vgcreate -y vg00 /dev/md/data");
    ran("lvm lvcreate -y -n db -L 12m vg00");
    ran("mkfs.ext4 -q -L db /dev/vg00/db");
    let (inventory, notes) = looked(&DISKS, &PARTS);
    assert_eq!(notes, Vec::<String>::new());
    assert_eq!(inventory.unknown, []);
    let array = array(&inventory, "data");
    let [group] = &inventory.groups[..] else { panic!("{:?}", inventory.groups) };
    let on: Vec<_> = group.present_devices().map(|device| inventory.resolve_kernel_name(device)).collect();
    assert_eq!(on, [array.running.clone().unwrap()], "{group:?}");
    assert_eq!(seen(&inventory, "/dev/mapper/vg00-db").signatures[0].kind, "ext4");
    blank(&DISKS);
}
