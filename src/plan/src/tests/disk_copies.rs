//! Copies of disks that are still attached, and disks that are connected over two paths.

use super::installation_identity::{claim, marked, reinstall};
use super::*;
use model::inventory::{ArrayMember, MdArray, MemberRole};

fn refused(inventory: &Inventory) -> Vec<String> {
    reasons(reinstall(&layout(), inventory, claim()))
}

/// Returns a machine with an unlisted disk sdc that is a byte-for-byte copy of sdb.
fn with_copy() -> Inventory {
    let mut inventory = marked();
    let mut table = inventory.disks[1].table.clone().unwrap();
    table.partitions[0].device = "/dev/sdc1".into();
    inventory.disks[2].table = Some(table);
    inventory
}

#[test]
fn refuses_copy_of_a_preserved_disk_and_names_both() {
    let inventory = with_copy();
    let uuid = inventory.disks[1].table.as_ref().unwrap().partitions[0].signatures[0].uuid.clone();
    let expected = format!(
        "disks: /dev/sdb1 on sdb (ext4 \"srv\") and /dev/sdc1 on sdc (ext4 \"srv\") have the same UUID, {uuid}, and /dev/sdb1 must be preserved: one of them is a copy, and it is undefined which one will be used; disconnect the copy, or change its UUID"
    );
    assert_eq!(refused(&inventory), [expected]);
}

/// The installed system may have used the copy instead of the original, and a wipe would then erase the current data.
#[test]
fn refuses_copy_on_wiped_disk_until_discarded() {
    let mut inventory = marked();
    let srv = inventory.disks[1].table.as_ref().unwrap().partitions[0].signatures.clone();
    let uuid = srv[0].uuid.clone();
    inventory.disks[0].table.as_mut().unwrap().partitions[2].signatures = srv;
    let said = format!(
        "/dev/sdb1 on sdb (ext4 \"srv\") and /dev/sda3 on sda (ext4 \"srv\") have the same UUID, {uuid}, and /dev/sdb1 must be preserved, but /dev/sda3 will be wiped"
    );
    let expected = format!(
        "disks: {said}: one of them is a copy, and it is unknown which one has the current data. Inspect both devices; if /dev/sda3 is not needed, order the reinstall again with --give-up A0"
    );
    assert_eq!(refused(&inventory), [expected]);
    let given = |serial: &str| InstallClaim { give_up: vec![serial.to_owned()], ..claim() };
    reinstall(&layout(), &inventory, given("B0")).unwrap_err();
    let plan = reinstall(&layout(), &inventory, given("A0")).unwrap();
    let warned = format!("{said}: its data will be discarded, as requested by the operator");
    assert!(plan.warnings.contains(&warned), "{:?}", plan.warnings);
    // A disk without an identifier cannot be discarded, so the remedy is to erase it by hand.
    inventory.disks[0].serial.clear();
    assert!(refused(&inventory)[0].ends_with("if /dev/sda3 is not needed, erase /dev/sda3 by hand"));
    reinstall(&layout(), &inventory, given("")).unwrap_err();
}

type Case = (&'static str, fn(&mut Inventory));

#[test]
fn only_copies_of_preserved_objects_are_refused() {
    let cases: [Case; 6] = [
        ("inside of a virtual machine's disk", |inventory| {
            let table = inventory.disks[2].table.take();
            let (name, device) = ("dm-0".into(), "/dev/mapper/vg-vm".into());
            let (kind, below) = (inventory::StackedDeviceKind::Volume, vec!["sdc".into()]);
            inventory.stacked.push(inventory::StackedDevice { name, device, kind, below, table, ..Default::default() });
        }),
        ("a different UUID", |inventory| {
            inventory.disks[2].table.as_mut().unwrap().partitions[0].signatures[0].uuid = "other".to_owned();
        }),
        ("no UUID", |inventory| {
            inventory.disks[2].table.as_mut().unwrap().partitions[0].signatures[0].uuid.clear();
            let preserved = inventory.disks[1].table.as_mut().unwrap();
            let mut second = preserved.partitions[0].clone();
            (second.device, second.number) = ("/dev/sdb2".into(), 2);
            second.signatures[0].uuid.clear();
            preserved.partitions.push(second);
        }),
        ("a copy of the root, which is wiped", |inventory| {
            let root = inventory.disks[0].table.as_ref().unwrap().partitions[1].signatures.clone();
            inventory.disks[2].table.as_mut().unwrap().partitions[0].signatures = root;
        }),
        ("two copies of something of others", |inventory| {
            let part = &mut inventory.disks[2].table.as_mut().unwrap().partitions[0];
            part.signatures[0].uuid = "theirs".to_owned();
            let second = inventory::DiskPartition { device: "/dev/sdc2".into(), number: 2, ..part.clone() };
            inventory.disks[2].table.as_mut().unwrap().partitions.push(second);
        }),
        ("members of one array, and the filesystem in it shows on each", |inventory| {
            let member = DeviceSignature {
                kind: "linux_raid_member".into(),
                usage: "raid".into(),
                uuid: "a".into(),
                ..DeviceSignature::default()
            };
            let part = &mut inventory.disks[2].table.as_mut().unwrap().partitions[0];
            part.signatures.insert(0, member);
        }),
    ];
    for (name, change) in cases {
        let mut inventory = with_copy();
        change(&mut inventory);
        reinstall(&layout(), &inventory, claim()).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }
    // A first installation preserves nothing, so copies are irrelevant.
    let claim = InstallClaim { allocation: "a-2".to_owned(), ..claim() };
    super::installation_identity::install(&layout(), &with_copy(), claim).unwrap();
}

#[test]
fn refuses_copy_of_an_array_member() {
    let mut inventory = super::arrays_and_groups::installed();
    let data = inventory.arrays.iter().position(|array| array.name == "data").unwrap();
    let MdArray { members, .. } = &mut inventory.arrays[data];
    let first = members.iter().find(|member| matches!(member.role, MemberRole::Active(0))).unwrap().clone();
    members.push(ArrayMember { device: "/dev/sdf".into(), role: first.role });
    let reasons = reasons(make(&super::arrays_and_groups::layout(), &inventory, InstallMode::Reinstall));
    assert!(
        reasons.iter().any(|reason| reason.contains(&format!("{} on ", first.device))
            && reason.contains("/dev/sdf on sdf both claim to be member 0 of the array")),
        "{reasons:?}"
    );
}

/// Returns a machine whose data disk is connected over two paths: two disks differ only in their names.
fn two_paths(to: usize) -> Inventory {
    let mut inventory = marked();
    inventory.disks.iter_mut().enumerate().for_each(|(index, disk)| disk.wwn = format!("0x5000{index}"));
    let mut other = inventory.disks[to].clone();
    (other.name, other.device) = ("sdx".into(), "/dev/sdx".into());
    (other.table, other.signatures) = (None, Vec::new());
    inventory.disks.push(other);
    inventory
}

#[test]
fn refuses_disk_with_two_paths_by_name() {
    for to in [0, 1] {
        let inventory = two_paths(to);
        let device = &inventory.disks[to].device;
        let serial = &inventory.disks[to].serial;
        let expected = format!(
            "disks[{to}].device: {device} and /dev/sdx are two paths to one disk (serial {serial}, wwn 0x5000{to}): multipath is not supported; leave only one path connected (zoning, cabling)"
        );
        assert!(refused(&inventory).contains(&expected), "{:?}", refused(&inventory));
        let mut blank = inventory.clone();
        blank.filesystems.clear();
        assert!(reasons(make(&layout(), &blank, InstallMode::Install)).contains(&expected));
    }
    // An unlisted disk may also be connected over two paths.
    make(&layout(), &two_paths(2), InstallMode::Install).unwrap();
    // Different WWNs prove that these are two disks, although their bridges report the same serial number.
    let mut bridges = two_paths(1);
    bridges.disks[3].wwn = "0x77".to_owned();
    make(&layout(), &bridges, InstallMode::Install).unwrap();
}

#[test]
fn reports_two_paths_that_match_the_same_hints() {
    let mut layout = layout();
    layout.disks[1].hints = [("wwn".to_owned(), "0x50001".to_owned())].into();
    let reasons = reasons(make(&layout, &two_paths(1), InstallMode::Install));
    assert!(
        reasons[0].starts_with("disks[1].device: device:/dev/sdb: /dev/sdb and /dev/sdx are two paths to one disk"),
        "{reasons:?}"
    );
}
