//! Parts of one thing on disks with different fates, by the id that ties them; and kept things that miss a part.

use super::identity::{claim, marked, reinstall};
use super::*;
use crate::device::{DevicePath, KernelName};
use crate::inventory::{Failed, Part, Role, Tried};

const ID: &str = "7d2f1c1e-0000-4000-8000-000000000001";

fn part(device: &str, kind: &str, whole: &str, role: Role) -> Part {
    let [device, kind, whole, id] = [device, kind, whole, ID].map(str::to_owned);
    Part { device: device.into(), kind, whole, id, role }
}

fn with(parts: &[Part]) -> Inventory {
    Inventory { parts: parts.to_vec(), ..installed() }
}

fn hide(inventory: &mut Inventory, kind: &str, usage: &str) {
    let [kind, usage] = [kind, usage].map(str::to_owned);
    let table = inventory.disks[0].table.as_mut().unwrap();
    table.partitions[2].signatures = vec![Signature { kind, usage, ..Signature::default() }];
}

/// The rows of the table of kinds: a part on the wiped sda3, the other one on the kept sdb1.
#[test]
fn a_kept_part_whose_other_part_is_wiped_is_refused_by_name() {
    use Role::{NeedsAnother, Peer, Serves};
    for (whole, on_kept, kept_role, on_wiped, wiped_role) in [
        ("filesystem and its external journal", "ext4", NeedsAnother, "jbd", Serves),
        ("filesystem and its external journal", "jbd", Serves, "ext3", NeedsAnother),
        ("xfs and its external log", "xfs", NeedsAnother, "xfs_external_log", Serves),
        ("bcache and its cache", "bcache", NeedsAnother, "bcache", Serves),
        ("stratis pool", "stratis", Peer, "stratis", Peer),
        ("BlueStore of Ceph", "ceph_bluestore", Peer, "ceph_bluestore", Peer),
    ] {
        let kept = part("/dev/sdb1", on_kept, whole, kept_role);
        let wiped = part("/dev/sda3", on_wiped, whole, wiped_role);
        let reasons = reasons(make(&layout(), &with(&[kept.clone(), wiped.clone()]), Mode::Reinstall));
        let expected = format!(
            "disks: {whole} lies on sda3, which a reinstall wipes, and on sdb1, which it does not touch: {whole} {ID}: {on_kept} on /dev/sdb1, {on_wiped} on /dev/sda3; take it apart first, or keep or wipe all of it"
        );
        assert_eq!(reasons, [expected]);
        // Two of them that have nothing to do with each other.
        let other = Part { id: "another".to_owned(), role: Serves, ..wiped };
        let own = Part { role: Serves, ..kept };
        make(&layout(), &with(&[own, other]), Mode::Reinstall).unwrap();
    }
}

/// What the kept disk misses, and what the wiped one hides.
#[test]
fn while_a_kept_thing_misses_a_part_nothing_opaque_is_wiped() {
    let journal = part("/dev/sdb1", "ext4", "filesystem and its external journal", Role::NeedsAnother);
    let without_journal = || Inventory { parts: vec![journal.clone()], ..marked() };
    type Change = fn(&mut Inventory);
    let cases: [(&str, Change, &str); 5] = [
        ("LUKS", |inventory| hide(inventory, "crypto_LUKS", "crypto"), "crypto_LUKS on /dev/sda3 holds"),
        ("DRBD", |inventory| hide(inventory, "drbd", "raid"), "drbd on /dev/sda3 holds"),
        ("firmware's RAID", |inventory| hide(inventory, "nvidia_raid_member", "raid"), "nvidia_raid_member on"),
        (
            "unreadable",
            |inventory| inventory.disks[0].unreadable = Some("/dev/sda3: Input/output error".to_owned()),
            "what cannot be read of it (/dev/sda3: Input/output error) holds",
        ),
        (
            "an array",
            |inventory| {
                let uuid = Uuid::from_u128(9);
                let member =
                    inventory::ArrayMember { device: "/dev/sda3".into(), role: inventory::MemberRole::Active(0) };
                let (level, members) = ("raid5".to_owned(), vec![member]);
                inventory.arrays.push(inventory::Array { uuid, level, raid_devices: 3, members, ..Default::default() });
                inventory.failed.push(Failed { tried: Tried::Array(uuid), why: "not enough".to_owned() });
            },
            "which does not start, holds",
        ),
    ];
    for (name, change, words) in cases {
        let mut inventory = without_journal();
        change(&mut inventory);
        let reasons = reasons(reinstall(&layout(), &inventory, claim()));
        assert!(reasons.len() == 1 && reasons[0].contains(words), "{name}: {reasons:#?}");
        let end = "ext4 on /dev/sdb1 is to be kept, and the other part of it is missing (filesystem and its external journal). It may be the part that is missing: put that back, or give the disk up with --give-up A0";
        assert!(reasons[0].ends_with(end), "{name}: {reasons:#?}");
        let given = Claim { give_up: vec!["A0".to_owned()], ..claim() };
        let plan = reinstall(&layout(), &inventory, given).unwrap();
        assert!(plan.warnings.iter().any(|said| said.ends_with("The operator gives up what is on /dev/sda")), "{plan}");
        let another = Claim { give_up: vec!["B0".to_owned(), String::new()], ..claim() };
        reinstall(&layout(), &inventory, another).unwrap_err();
        // Nothing is missed, or nothing is hidden.
        let whole = Inventory { parts: Vec::new(), ..inventory.clone() };
        reinstall(&layout(), &whole, claim()).unwrap();
    }
    reinstall(&layout(), &without_journal(), claim()).unwrap();
}

/// What the kept parts say of the whole, and whether it may miss a part that is in the LUKS of the wiped disk.
#[test]
fn parts_are_counted_where_they_say_how_many_there_are() {
    let several = |kind: &str, devices: &[&str], role: Role| -> Vec<Part> {
        devices.iter().map(|device| part(device, kind, kind, role)).collect()
    };
    for (parts, misses) in [
        (several("btrfs", &["/dev/sdb1"], Role::OneOf(2)), "1 of its 2 devices are there"),
        (several("btrfs", &["/dev/sdb1", "/dev/sdb2"], Role::OneOf(2)), ""),
        // What is on an array shows on its members.
        (several("bcachefs", &["/dev/sdb1", "/dev/md127"], Role::OneOf(2)), "1 of its 2 devices are there"),
        (several("zfs_member", &["/dev/sdb1", "/dev/sdb2"], Role::Peer), "does not say of how many parts it is one"),
        (several("stratis", &["/dev/sdb1"], Role::Peer), "does not say of how many parts it is one"),
        (several("jbd", &["/dev/sdb1"], Role::Serves), ""),
        // That of somebody else.
        (several("btrfs", &["/dev/sdc"], Role::OneOf(2)), ""),
    ] {
        let mut inventory = Inventory { parts, ..marked() };
        let parts = &mut inventory.disks[1].table.as_mut().unwrap().partitions;
        parts.push(inventory::Partition { device: "/dev/sdb2".into(), number: 2, ..Default::default() });
        let (name, device) = (KernelName::from("md127"), "/dev/md127".into());
        let below = vec!["sdb1".into()];
        inventory.disks[1].table.as_mut().unwrap().partitions[0].uses.push(Use::Holder(name.clone()));
        inventory.stacked.push(inventory::Stacked { name, device, below, assembled: true, ..Default::default() });
        reinstall(&layout(), &inventory, claim()).unwrap_or_else(|refusal| panic!("{refusal}"));
        hide(&mut inventory, "crypto_LUKS", "crypto");
        let answer = reinstall(&layout(), &inventory, claim());
        match misses {
            "" => drop(answer.unwrap_or_else(|refusal| panic!("{:?}: {refusal}", inventory.parts))),
            misses => {
                let reasons = reasons(answer);
                assert!(reasons.iter().all(|reason| reason.contains(misses)), "{reasons:#?}");
            }
        }
        let given = Claim { give_up: vec!["A0".to_owned()], ..claim() };
        reinstall(&layout(), &inventory, given).unwrap();
    }
}

#[test]
fn a_group_and_an_array_that_miss_a_member_are_such_things() {
    let member =
        |device: &str| inventory::ArrayMember { device: device.into(), role: inventory::MemberRole::Active(0) };
    let mut array = installed();
    let (level, members) = ("raid1".to_owned(), vec![member("/dev/sdb1")]);
    array.arrays.push(inventory::Array { level, raid_devices: 2, members, ..Default::default() });
    let mut group = installed();
    let physical =
        |device: Option<&str>| inventory::PhysicalVolume { device: device.map(DevicePath::from), ..Default::default() };
    let (name, physical) = ("data".to_owned(), vec![physical(Some("/dev/sdb1")), physical(None)]);
    group.groups.push(inventory::VolumeGroup { name, physical, ..Default::default() });
    for (mut inventory, words) in [(array, "and misses members"), (group, "and misses physical volumes")] {
        let said = |inventory: &Inventory| match reinstall(&layout(), inventory, claim()) {
            Ok(_) => Vec::new(),
            Err(refusal) => refusal.problems.iter().map(ToString::to_string).collect(),
        };
        assert!(!said(&inventory).iter().any(|reason| reason.contains(words)), "{:#?}", said(&inventory));
        hide(&mut inventory, "crypto_LUKS", "crypto");
        let reasons = said(&inventory);
        assert!(
            reasons.iter().any(|reason| reason.contains(words) && reason.contains("erase it by hand")),
            "{reasons:#?}"
        );
    }
}
