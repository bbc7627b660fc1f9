//! Components of the same object on disks with different fates, and preserved objects that lack a component.

use super::installation_identity::{claim, marked, reinstall};
use super::partly_kept_disks::{installed_with, problems_of, renew};
use super::renewed_next_to_thin_pool::{layout_without_data, with_pool};
use super::*;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{BTRFS_SEED, ComponentRole, InspectionFailure, InspectionTarget, SpanningComponent};

const ID: &str = "7d2f1c1e-0000-4000-8000-000000000001";

fn part(device: &str, kind: &str, whole: &str, role: ComponentRole) -> SpanningComponent {
    let [device, kind, whole, id] = [device, kind, whole, ID].map(str::to_owned);
    SpanningComponent { device: device.into(), kind, whole, id, role }
}

fn with(parts: &[SpanningComponent]) -> Inventory {
    Inventory { parts: parts.to_vec(), ..installed() }
}

fn hide(inventory: &mut Inventory, kind: &str, usage: &str) {
    let [kind, usage] = [kind, usage].map(str::to_owned);
    let table = inventory.disks[0].table.as_mut().unwrap();
    table.partitions[2].signatures = vec![DeviceSignature { kind, usage, ..DeviceSignature::default() }];
}

/// For each type of object: one component is on sda3, which is wiped, and the other one is on sdb1, which is preserved.
#[test]
fn refuses_to_wipe_component_of_a_preserved_object() {
    use ComponentRole::{NeedsAnother, Peer, Serves};
    for (whole, on_kept, kept_role, on_wiped, wiped_role) in [
        ("filesystem and its external journal", "ext4", NeedsAnother, "jbd", Serves),
        ("filesystem and its external journal", "jbd", Serves, "ext3", NeedsAnother),
        ("xfs and its external log", "xfs", NeedsAnother, "xfs_external_log", Serves),
        ("bcache and its cache", "bcache", NeedsAnother, "bcache", Serves),
        ("stratis pool", "stratis", Peer, "stratis", Peer),
        ("Ceph BlueStore", "ceph_bluestore", Peer, "ceph_bluestore", Peer),
    ] {
        let preserved = part("/dev/sdb1", on_kept, whole, kept_role);
        let wiped = part("/dev/sda3", on_wiped, whole, wiped_role);
        let reasons = reasons(make(&layout(), &with(&[preserved.clone(), wiped.clone()]), InstallMode::Reinstall));
        let expected = format!(
            "disks: {whole} spans sda3, which a reinstall wipes, and sdb1, which the reinstall does not write: {whole} {ID}: {on_kept} on /dev/sdb1, {on_wiped} on /dev/sda3; dismantle this object first, or keep or wipe all of its disks"
        );
        assert_eq!(reasons, [expected]);
        // The two components belong to different objects.
        let other = SpanningComponent { id: "another".to_owned(), role: Serves, ..wiped };
        let own = SpanningComponent { role: Serves, ..preserved };
        make(&layout(), &with(&[own, other]), InstallMode::Reinstall).unwrap();
    }
}

/// An object on the preserved disk lacks a component, and the wiped disk contains an object that could not be
/// inspected.
#[test]
fn refuses_opaque_wiped_objects_while_a_component_is_missing() {
    let journal = part("/dev/sdb1", "ext4", "filesystem and its external journal", ComponentRole::NeedsAnother);
    let without_journal = || Inventory { parts: vec![journal.clone()], ..marked() };
    type Change = fn(&mut Inventory);
    let cases: [(&str, Change, &str); 5] = [
        (
            "LUKS",
            |inventory| hide(inventory, "crypto_LUKS", "crypto"),
            "the content of crypto_LUKS on /dev/sda3 (the container is encrypted and not open) could not be inspected",
        ),
        ("DRBD", |inventory| hide(inventory, "drbd", "raid"), "drbd on /dev/sda3 ("),
        ("firmware's RAID", |inventory| hide(inventory, "nvidia_raid_member", "raid"), "nvidia_raid_member on"),
        (
            "unreadable",
            |inventory| inventory.disks[0].unreadable = Some("/dev/sda3: Input/output error".to_owned()),
            "unreadable region on /dev/sda (/dev/sda3: Input/output error) could not be inspected",
        ),
        (
            "an array",
            |inventory| {
                let uuid = Uuid::from_u128(9);
                let member =
                    inventory::ArrayMember { device: "/dev/sda3".into(), role: inventory::MemberRole::Active(0) };
                let (level, members) = ("raid5".to_owned(), vec![member]);
                inventory.arrays.push(inventory::MdArray {
                    uuid,
                    level,
                    raid_devices: 3,
                    members,
                    ..Default::default()
                });
                inventory
                    .failed
                    .push(InspectionFailure { tried: InspectionTarget::Array(uuid), why: "not enough".to_owned() });
            },
            "(raid5) on /dev/sda3 (the array does not start: not enough) could not be inspected",
        ),
    ];
    for (name, change, words) in cases {
        let mut inventory = without_journal();
        change(&mut inventory);
        let reasons = reasons(reinstall(&layout(), &inventory, claim()));
        assert!(reasons.len() == 1 && reasons[0].contains(words), "{name}: {reasons:#?}");
        let end = "ext4 on /dev/sdb1 must be preserved, and the other component is missing (filesystem and its external \
            journal). If the missing component is on another disk, connect that disk; if the content of /dev/sda is not needed, discard the disk with --give-up A0";
        assert!(reasons[0].ends_with(end), "{name}: {reasons:#?}");
        let given = InstallClaim { give_up: vec!["A0".to_owned()], ..claim() };
        let plan = reinstall(&layout(), &inventory, given).unwrap();
        assert!(
            plan.warnings
                .iter()
                .any(|said| said.ends_with("The content of /dev/sda will be discarded, as requested by the operator")),
            "{plan}"
        );
        let another = InstallClaim { give_up: vec!["B0".to_owned(), String::new()], ..claim() };
        reinstall(&layout(), &inventory, another).unwrap_err();
        // The plan is accepted if no component is missing.
        let whole = Inventory { parts: Vec::new(), ..inventory.clone() };
        reinstall(&layout(), &whole, claim()).unwrap();
    }
    reinstall(&layout(), &without_journal(), claim()).unwrap();
}

/// The roles of the preserved components show whether the object may lack a component. The missing component may be
/// in the LUKS container on the wiped disk.
#[test]
fn counts_components_if_their_number_is_recorded() {
    let several = |kind: &str, devices: &[&str], role: ComponentRole| -> Vec<SpanningComponent> {
        devices.iter().map(|device| part(device, kind, kind, role)).collect()
    };
    for (parts, misses) in [
        (several("btrfs", &["/dev/sdb1"], ComponentRole::OneOf(2)), "only 1 of 2 devices are present"),
        (several("btrfs", &["/dev/sdb1", "/dev/sdb2"], ComponentRole::OneOf(2)), ""),
        // A component on an array is also visible on the array's members, but counts once.
        (several("bcachefs", &["/dev/sdb1", "/dev/md127"], ComponentRole::OneOf(2)), "only 1 of 2 devices are present"),
        (
            several("zfs_member", &["/dev/sdb1", "/dev/sdb2"], ComponentRole::Peer),
            "the number of components is unknown",
        ),
        (several("stratis", &["/dev/sdb1"], ComponentRole::Peer), "the number of components is unknown"),
        (several("jbd", &["/dev/sdb1"], ComponentRole::Serves), ""),
        // The remaining component is on an unlisted disk.
        (
            several("btrfs", &["/dev/sdc"], ComponentRole::OneOf(2)),
            "is on a disk that the layout does not list, and only 1 of 2 devices are present",
        ),
        (several("btrfs", &["/dev/sdc"], ComponentRole::OneOf(1)), ""),
        (several("zfs_member", &["/dev/sdc"], ComponentRole::Peer), "the number of components is unknown"),
    ] {
        let mut inventory = Inventory { parts, ..marked() };
        let parts = &mut inventory.disks[1].table.as_mut().unwrap().partitions;
        parts.push(inventory::DiskPartition { device: "/dev/sdb2".into(), number: 2, ..Default::default() });
        let (name, device) = (KernelName::from("md127"), "/dev/md127".into());
        let below = vec!["sdb1".into()];
        inventory.disks[1].table.as_mut().unwrap().partitions[0].uses.push(DeviceUse::Holder(name.clone()));
        inventory.stacked.push(inventory::StackedDevice { name, device, below, assembled: true, ..Default::default() });
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
        let given = InstallClaim { give_up: vec!["A0".to_owned()], ..claim() };
        reinstall(&layout(), &inventory, given).unwrap();
    }
}

/// A filesystem that was created on top of a seed has another UUID than the seed.
#[test]
fn refuses_to_wipe_btrfs_seed_while_another_btrfs_lacks_a_device() {
    let seed = part("/dev/sda3", "btrfs", BTRFS_SEED, ComponentRole::Serves);
    let seed = SpanningComponent { id: "seed".to_owned(), ..seed };
    for (device, fate) in
        [("/dev/sdb1", "must be preserved"), ("/dev/sdc", "is on a disk that the layout does not list")]
    {
        let other = part(device, "btrfs", "btrfs", ComponentRole::OneOf(2));
        let inventory = Inventory { parts: vec![other.clone(), seed.clone()], ..marked() };
        let reasons = reasons(reinstall(&layout(), &inventory, claim()));
        let [reason] = &reasons[..] else { panic!("{device}: {reasons:#?}") };
        assert!(reason.contains("although /dev/sda3 is a seed device of btrfs"), "{reason}");
        assert!(reason.contains(&format!("btrfs on {device} {fate}, and only 1 of 2 devices are present")), "{reason}");
        assert!(reason.ends_with("--give-up A0"), "{reason}");
        let given = InstallClaim { give_up: vec!["A0".to_owned()], ..claim() };
        let plan = reinstall(&layout(), &inventory, given).unwrap();
        assert!(plan.warnings.iter().any(|said| said.contains("seed device of btrfs")), "{plan}");
        // The other filesystem is complete, or the seed is not wiped.
        let complete = SpanningComponent { role: ComponentRole::OneOf(1), ..other.clone() };
        let preserved = SpanningComponent { device: "/dev/sdb1".into(), ..seed.clone() };
        for parts in [vec![complete, seed.clone()], vec![other, preserved]] {
            reinstall(&layout(), &Inventory { parts, ..marked() }, claim()).unwrap();
        }
    }
}

#[test]
fn incomplete_groups_and_arrays_miss_a_component() {
    let member =
        |device: &str| inventory::ArrayMember { device: device.into(), role: inventory::MemberRole::Active(0) };
    let mut array = installed();
    let (level, members) = ("raid1".to_owned(), vec![member("/dev/sdb1")]);
    array.arrays.push(inventory::MdArray { level, raid_devices: 2, members, ..Default::default() });
    let mut group = installed();
    let physical = |device: Option<&str>| inventory::LvmPhysicalVolume {
        device: device.map(DevicePath::from),
        ..Default::default()
    };
    let (name, physical) = ("data".to_owned(), vec![physical(Some("/dev/sdb1")), physical(None)]);
    group.groups.push(inventory::LvmVolumeGroup { name, physical, ..Default::default() });
    for (mut inventory, words) in [(array, "and lacks members"), (group, "and lacks physical volumes")] {
        let said = |inventory: &Inventory| match reinstall(&layout(), inventory, claim()) {
            Ok(_) => Vec::new(),
            Err(refusal) => refusal.problems.iter().map(ToString::to_string).collect(),
        };
        assert!(!said(&inventory).iter().any(|reason| reason.contains(words)), "{:#?}", said(&inventory));
        hide(&mut inventory, "crypto_LUKS", "crypto");
        let reasons = said(&inventory);
        assert!(
            reasons.iter().any(|reason| reason.contains(words) && reason.contains("erase /dev/sda by hand")),
            "{reasons:#?}"
        );
    }
}

const SYSTEM_ID: &str = "the volume group belongs to the host with the system ID \"x\": take that off";

/// One object has an unknown number of components, and the wiped disk contains a group that could not be inspected.
#[test]
fn a_group_or_volume_that_is_not_active_may_hold_the_missing_component() {
    let osd = |device: &str| Inventory {
        parts: vec![part(device, "ceph_bluestore", "Ceph BlueStore", ComponentRole::Peer)],
        ..marked()
    };
    for (kind, closed) in [
        ("linear", Some(SYSTEM_ID)),
        ("linear", Some("the volume group is exported: run `vgimport`")),
        ("snapshot", None),
        ("thin", None),
        ("cache", None),
        ("writecache", None),
        ("raid5", None),
        ("vdo", None),
        ("linear", None),
        ("raid1", None),
    ] {
        for (device, fate) in
            [("/dev/sdb1", "must be preserved"), ("/dev/sdc", "is on a disk that the layout does not list")]
        {
            let mut inventory = osd(device);
            reinstall(&layout(), &inventory, claim()).unwrap();
            uninspected_objects::group(&mut inventory, &["/dev/sda3"], kind, closed);
            let reasons = reasons(reinstall(&layout(), &inventory, claim()));
            let [reason] = &reasons[..] else { panic!("{kind} {closed:?}: {reasons:#?}") };
            let words = format!("ceph_bluestore on {device} {fate}, and the number of components is unknown");
            assert!(reason.contains(&words) && reason.ends_with("--give-up A0"), "{kind} {closed:?}: {reason}");
            let name = if closed.is_some() { "volume group vg00 (root)" } else { "logical volume vg00/root" };
            assert!(reason.contains(&format!("the content of {name}")), "{reason}");
            let given = InstallClaim { give_up: vec!["A0".to_owned()], ..claim() };
            reinstall(&layout(), &inventory, given).unwrap();
            // After an attempt has wiped the old system, the object is accepted, because the attempt may have left it.
            let started = InstallClaim { waiver: Some(MarkerWaiver::Begun), ..claim() };
            let wiped = Inventory { filesystems: Vec::new(), ..inventory.clone() };
            reinstall(&layout(), &wiped, started.clone()).unwrap();
            assert!(reinstall(&layout(), &inventory, started).is_err(), "the old system is still there");
            // An active volume is not opaque, because its content was inspected.
            inventory.groups[0].volumes[0].running = Some("dm-0".into());
            reinstall(&layout(), &inventory, claim()).unwrap();
        }
    }
}

/// Both containers may contain components of the same btrfs, group or array.
#[test]
fn refuses_to_wipe_one_of_two_locked_containers() {
    let locked = |places: &[(usize, usize)]| {
        let mut inventory = marked();
        inventory.explored = true;
        let table = inventory.disks[1].table.as_mut().unwrap();
        table.partitions.push(inventory::DiskPartition { device: "/dev/sdb2".into(), number: 2, ..Default::default() });
        let partitions = vec![inventory::DiskPartition { device: "/dev/sdc1".into(), number: 1, ..Default::default() }];
        inventory.disks[2].table = Some(DiskTable { kind: "gpt".to_owned(), partitions, ..DiskTable::default() });
        places
            .iter()
            .for_each(|(disk, part)| uninspected_objects::put(&mut inventory, *disk, *part, "crypto_LUKS", "crypto"));
        inventory
    };
    let (wiped, preserved, not_ours) = ((0, 2), (1, 1), (2, 0));
    for (places, words) in [
        (&[wiped][..], ""),
        (&[preserved], ""),
        (&[not_ours], ""),
        (&[preserved, not_ours], ""),
        (
            &[wiped, preserved],
            "crypto_LUKS on /dev/sdb2 must be preserved, and an object stored on it may lack a member on another device",
        ),
        (
            &[wiped, not_ours],
            "crypto_LUKS on /dev/sdc1 is on a disk that the layout does not list, and an object stored on it may lack a member",
        ),
    ] {
        let inventory = locked(places);
        let answer = reinstall(&layout(), &inventory, claim());
        if words.is_empty() {
            answer.unwrap_or_else(|refusal| panic!("{places:?}: {refusal}"));
            continue;
        }
        let reasons = reasons(answer);
        let [reason] = &reasons[..] else { panic!("{reasons:#?}") };
        assert!(reason.contains(words) && reason.contains("crypto_LUKS on /dev/sda3"), "{reason}");
        let given = InstallClaim { give_up: vec!["A0".to_owned()], ..claim() };
        let plan = reinstall(&layout(), &inventory, given).unwrap();
        let locked = plan.opaque.iter().filter(|object| object.may_contain_devices()).count();
        assert_eq!(locked, 2, "{plan}");
    }
}

/// A damaged filesystem is not a component of another object.
#[test]
fn unmountable_filesystem_is_not_a_missing_component() {
    let journal = part("/dev/sdb1", "ext4", "filesystem and its external journal", ComponentRole::NeedsAnother);
    let mut inventory = Inventory { parts: vec![journal], explored: true, ..marked() };
    uninspected_objects::put(&mut inventory, 0, 2, "ext4", "filesystem");
    let failed =
        InspectionFailure { tried: InspectionTarget::Filesystem("/dev/sda3".into()), why: "EUCLEAN".to_owned() };
    inventory.failed.push(failed);
    let plan = reinstall(&layout(), &inventory, claim()).unwrap();
    assert!(plan.opaque.iter().any(|object| object.devices == ["/dev/sda3"]), "{plan}");
}

/// A locked container in a preserved partition of a partly kept disk may contain a member of the same object as a
/// locked container on a disk that will be wiped.
#[test]
fn preserved_partitions_with_opaque_objects_protect_opaque_wiped_objects() {
    let yaml = "id: locked
constraints: {sizes: [], images: {}}
disks:
- {device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 5000}, {number: 3, size: 0, preserve: true}]}
- {device: /dev/sdb, wipeonreinstall: true, partitions: [{number: 1, size: 0}]}
filesystems:
- {path: /, device: /dev/sda1, format: ext4, label: root}
- {path: /var, device: /dev/sdb1, format: ext4, label: var}
";
    let mut inventory = installed_with(yaml);
    let lock = |inventory: &mut Inventory, disk: usize, part: usize| {
        let parts = &mut inventory.disks[disk].table.as_mut().unwrap().partitions;
        let (kind, usage) = ("crypto_LUKS".to_owned(), "crypto".to_owned());
        parts[part].signatures = vec![DeviceSignature { kind, usage, ..DeviceSignature::default() }];
        parts[part].blank = false;
    };
    lock(&mut inventory, 0, 1);
    renew(yaml, &inventory).unwrap();
    lock(&mut inventory, 1, 0);
    let said = problems_of(yaml, &inventory).join("\n");
    assert!(
        said.starts_with("disks: /dev/sdb will be wiped") && said.contains("on /dev/sda3 must be preserved"),
        "{said}"
    );
    // A container in a partition that the reinstall replaces is not preserved.
    let all = yaml.replace(", preserve: true", "");
    renew(&all, &inventory).unwrap();
}

/// The thin pool on a partly kept disk is not wiped, so it does not matter that the pool on the unlisted disk may
/// lack a component.
#[test]
fn preserved_thin_pool_is_not_treated_as_wiped() {
    let mut inventory = with_pool();
    let signature = DeviceSignature {
        kind: "zfs_member".to_owned(),
        usage: "raid".to_owned(),
        label: "tank".to_owned(),
        uuid: "17".to_owned(),
    };
    inventory.disks.push(inventory::InventoryDisk { signatures: vec![signature], ..disk("sdc", 9_000) });
    inventory.parts.push(part("/dev/sdc", "zfs_member", "zpool", ComponentRole::Peer));
    renew(&layout_without_data(), &inventory).unwrap_or_else(|problems| panic!("{problems:#?}"));
}
