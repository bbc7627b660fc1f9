//! First installations on disks with uninspected objects, which may contain the marker of an installation.

use super::installation_identity::{claim, install, marked};
use super::*;
use model::device_name::DevicePath;
use model::inventory::{
    ArrayMember, InspectionFailure, InspectionTarget, LvmLogicalVolume, LvmPhysicalVolume, LvmVolumeGroup, MdArray,
    MemberRole, StackedDevice, StackedDeviceKind, UnassignedDevices,
};

type Change = fn(&mut Inventory);

/// Returns the claim of another allocation than the one in the marker. Its installation wipes sda and sdb.
fn another() -> InstallClaim {
    InstallClaim { allocation: "a-2".to_owned(), ..claim() }
}

/// Returns the inspected machine without its marker and without signatures on its partitions: the control plane has
/// lost its records, and the root filesystem of the old system was not found.
fn explored() -> Inventory {
    let mut inventory = marked();
    inventory.explored = true;
    inventory.filesystems.clear();
    for part in
        inventory.disks.iter_mut().flat_map(|disk| disk.table.iter_mut().flat_map(|table| &mut table.partitions))
    {
        part.signatures.clear();
    }
    inventory
}

pub(super) fn put(inventory: &mut Inventory, disk: usize, part: usize, kind: &str, usage: &str) {
    let [kind, usage] = [kind, usage].map(str::to_owned);
    let table = inventory.disks[disk].table.as_mut().unwrap();
    table.partitions[part].signatures = vec![DeviceSignature { kind, usage, ..DeviceSignature::default() }];
}

/// Adds a group on these devices, with one inactive volume of the given type.
pub(super) fn group(inventory: &mut Inventory, devices: &[&str], kind: &str, closed: Option<&str>) {
    let physical =
        |device: &&str| LvmPhysicalVolume { device: Some(DevicePath::from(*device)), ..LvmPhysicalVolume::default() };
    let volume = LvmLogicalVolume { name: "root".to_owned(), kind: kind.to_owned(), ..LvmLogicalVolume::default() };
    inventory.groups.push(LvmVolumeGroup {
        name: "vg00".to_owned(),
        uuid: "g-1".to_owned(),
        physical: devices.iter().map(physical).collect(),
        volumes: vec![volume],
        closed: closed.map(str::to_owned),
        ..LvmVolumeGroup::default()
    });
}

fn array(inventory: &mut Inventory, device: &str) {
    let member = ArrayMember { device: device.into(), role: MemberRole::Active(0) };
    let (uuid, level, members) = (Uuid::from_u128(9), "raid5".to_owned(), vec![member]);
    inventory.arrays.push(MdArray { uuid, level, raid_devices: 3, members, ..MdArray::default() });
    inventory.failed.push(InspectionFailure { tried: InspectionTarget::Array(uuid), why: "not enough".to_owned() });
}

const ON_SDA: [(&str, Change, &str); 17] = [
    (
        "system ID",
        |it| {
            group(
                it,
                &["/dev/sda2"],
                "raid5",
                Some("the volume group belongs to the host with the system ID \"x\": take that off"),
            )
        },
        "cannot inspect the content of volume group vg00 (root) on /dev/sda2: the volume group belongs to",
    ),
    (
        "exported",
        |it| group(it, &["/dev/sda2"], "thin", Some("the volume group is exported: run `vgimport`")),
        "volume group vg00 (root) on /dev/sda2",
    ),
    ("snapshot", |it| group(it, &["/dev/sda2"], "snapshot", None), "logical volume vg00/root (snapshot) on /dev/sda2"),
    ("thin", |it| group(it, &["/dev/sda2"], "thin", None), "logical volume vg00/root (thin)"),
    ("cache", |it| group(it, &["/dev/sda2"], "cache", None), "logical volume vg00/root (cache)"),
    ("writecache", |it| group(it, &["/dev/sda2"], "writecache", None), "logical volume vg00/root (writecache)"),
    ("raid5", |it| group(it, &["/dev/sda2"], "raid5", None), "logical volume vg00/root (raid5)"),
    ("vdo", |it| group(it, &["/dev/sda2"], "vdo", None), "logical volume vg00/root (vdo)"),
    ("raid1", |it| group(it, &["/dev/sda2"], "raid1", None), "logical volume vg00/root (raid1)"),
    ("linear", |it| group(it, &["/dev/sda2"], "linear", None), "logical volume vg00/root (linear)"),
    ("array", |it| array(it, "/dev/sda2"), "(raid5) on /dev/sda2: the array does not start: not enough"),
    ("LUKS", |it| put(it, 0, 1, "crypto_LUKS", "crypto"), "crypto_LUKS on /dev/sda2"),
    ("zpool", |it| put(it, 0, 1, "zfs_member", "raid"), "zfs_member on /dev/sda2"),
    ("bcache", |it| put(it, 0, 1, "bcache", "other"), "bcache on /dev/sda2"),
    ("filesystem", |it| put(it, 0, 1, "xfs", "filesystem"), "xfs on /dev/sda2"),
    (
        "unassigned",
        |it| it.unknown.push(UnassignedDevices { devices: vec!["/dev/sda2".into()], reason: "r".into() }),
        "RAID member or physical volume on /dev/sda2",
    ),
    ("unreadable", |it| it.disks[0].unreadable = Some("EIO".into()), "unreadable region on /dev/sda"),
];

#[test]
fn refuses_installation_over_uninspected_objects_by_name() {
    install(&layout(), &explored(), another()).unwrap();
    for (name, change, words) in ON_SDA {
        let mut inventory = explored();
        change(&mut inventory);
        let refusal = install(&layout(), &inventory, another()).unwrap_err();
        let [problem] = &refusal.problems[..] else { panic!("{name}: {refusal}") };
        let said = problem.to_string();
        assert!(said.contains(words), "{name}: {said}");
        assert!(
            said.contains("The object may contain an installation, but allocation a-2 would wipe sda; "),
            "{name}: {said}"
        );
        assert!(
            said.ends_with("or discard the disk contents with give_up: [\"A0\"] in the allocation"),
            "{name}: {said}"
        );
        assert_eq!(refusal.opaque.len(), 1, "{name}: {refusal}");
        assert!(refusal.to_string().contains("not inspected:\n  "), "{name}: {refusal}");

        let given = InstallClaim { give_up: vec!["A0".to_owned()], ..another() };
        let plan = install(&layout(), &inventory, given).unwrap();
        let warned = plan
            .warnings
            .iter()
            .any(|said| said.contains("the content of sda will be discarded, as requested by the operator"));
        assert!(warned && plan.opaque.len() == 1, "{name}: {plan}");
        for other in [vec!["B0".to_owned()], vec![String::new()]] {
            install(&layout(), &inventory, InstallClaim { give_up: other, ..another() }).unwrap_err();
        }
        // After an interrupted attempt, the object is accepted, because the attempt may have left it unfinished.
        let started = InstallClaim { begun_on: super::installation_identity::marker(&inventory).disks, ..another() };
        install(&layout(), &inventory, started).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        // An offline plan also lists the object, although it does not belong to an allocation.
        assert_eq!(make(&layout(), &inventory, InstallMode::Install).unwrap().opaque.len(), 1, "{name}");
    }
}

#[test]
fn uninspected_objects_on_other_disks_are_listed_and_untouched() {
    for (name, change) in [
        ("group", (|it| group(it, &["/dev/sdc"], "thin", None)) as Change),
        ("array", |it| array(it, "/dev/sdc")),
        ("unreadable", |it| it.disks[2].unreadable = Some("EIO".into())),
        ("unassigned", |it| {
            it.unknown.push(UnassignedDevices { devices: vec!["/dev/sdc".into()], reason: "r".into() })
        }),
    ] {
        let mut inventory = explored();
        change(&mut inventory);
        let plan = install(&layout(), &inventory, another()).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!((plan.opaque.len(), plan.warnings.len()), (1, 0), "{name}: {plan}");
        assert!(plan.to_string().contains("not inspected:\n  "), "{name}: {plan}");
    }
}

#[test]
fn each_wiped_disk_of_an_object_must_be_discarded() {
    let mut inventory = explored();
    group(&mut inventory, &["/dev/sda2", "/dev/sdb1", "/dev/sdc"], "raid5", None);
    let given =
        |serials: &[&str]| InstallClaim { give_up: serials.iter().map(|it| (*it).to_owned()).collect(), ..another() };
    for (serials, needed) in [(&[][..], "[\"A0\", \"B0\"]"), (&["A0"], "[\"B0\"]"), (&["B0", "C0"], "[\"A0\"]")] {
        let reasons = reasons(install(&layout(), &inventory, given(serials)));
        assert!(
            reasons[0].ends_with(&format!("or discard the disk contents with give_up: {needed} in the allocation")),
            "{reasons:?}"
        );
    }
    install(&layout(), &inventory, given(&["A0", "B0"])).unwrap();
    // A serial number that two disks share does not identify either of them.
    inventory.disks[2].serial = "A0".to_owned();
    let reasons = reasons(install(&layout(), &inventory, given(&["A0", "B0"])));
    assert!(reasons[0].ends_with("or erase /dev/sda in the rescue shell (wipefs -a)"), "{reasons:?}");
}

#[test]
fn inspected_objects_do_not_prevent_installation() {
    let mut inventory = explored();
    put(&mut inventory, 0, 1, "crypto_LUKS", "crypto");
    let (name, device) = ("dm-0".into(), "/dev/mapper/open".into());
    let below = vec!["sda2".into()];
    let kind = StackedDeviceKind::Crypt;
    inventory.stacked.push(StackedDevice {
        name,
        device,
        kind,
        below,
        size_bytes: 1 << 20,
        assembled: true,
        ..StackedDevice::default()
    });
    group(&mut inventory, &["/dev/sda3"], "linear", None);
    inventory.groups[0].volumes[0].running = Some("dm-1".into());
    install(&layout(), &inventory, another()).unwrap();
    inventory.stacked.clear();
    install(&layout(), &inventory, another()).unwrap_err();
}

#[test]
fn unreadable_volume_prevents_installation() {
    let mut inventory = explored();
    let (name, device, below) = ("dm-0".into(), "/dev/mapper/vg00-root".into(), vec!["sda2".into()]);
    let unreadable = Some("/dev/mapper/vg00-root: Input/output error".to_owned());
    let kind = StackedDeviceKind::Volume;
    let volume = StackedDevice { name, device, kind, below, size_bytes: 1, unreadable, ..StackedDevice::default() };
    inventory.stacked.push(volume);
    let reasons = reasons(install(&layout(), &inventory, another()));
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    let expected = "cannot inspect the content of unreadable region on /dev/mapper/vg00-root: /dev/mapper/vg00-root: Input/output error";
    assert!(reason.contains(expected), "{reason}");
    inventory.stacked[0].unreadable = None;
    install(&layout(), &inventory, another()).unwrap();
}

/// The inventory was registered before the agent tried to open any object, so the plan contains a warning instead of
/// being refused.
#[test]
fn offline_plan_warns_about_uninspected_objects() {
    for (name, change, words) in [
        ("linear", (|it| group(it, &["/dev/sda2"], "linear", None)) as Change, "vg00/root (linear) on /dev/sda2"),
        (
            "exported",
            |it| group(it, &["/dev/sda2"], "linear", Some("the volume group is exported: run `vgimport`")),
            "volume group vg00",
        ),
    ] {
        let mut inventory = Inventory { explored: false, ..explored() };
        change(&mut inventory);
        let plan = install(&layout(), &inventory, another()).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        let [warning] = &plan.warnings[..] else { panic!("{name}: {plan}") };
        assert!(warning.contains("the agent will inspect") && warning.contains(words), "{warning}");
        assert!(plan.opaque.is_empty());
    }
    // A filesystem can nearly always be mounted; a LUKS container cannot be opened.
    let mut inventory = Inventory { explored: false, ..explored() };
    put(&mut inventory, 0, 1, "ext4", "filesystem");
    assert!(install(&layout(), &inventory, another()).unwrap().warnings.is_empty());
    put(&mut inventory, 0, 1, "crypto_LUKS", "crypto");
    install(&layout(), &inventory, another()).unwrap_err();
}

/// If a marker was found, the refusal is about this marker: the operator can adopt the machine, so that no data is
/// lost.
#[test]
fn refusal_names_a_found_marker_first() {
    let mut inventory = marked();
    inventory.explored = true;
    group(&mut inventory, &["/dev/sda3"], "snapshot", None);
    let reasons = reasons(install(&layout(), &inventory, claim()));
    assert!(reasons[0].contains("drophammer machine adopt m-1"), "{reasons:?}");
}
