//! A first installation does not erase data that the layout preserves, unless the erasure is intended.

use super::installation_identity::{claim, empty, install, marked, marker, reinstall};
use super::partly_kept_disks::{MIRRORED, installed_with};
use super::*;
use model::install_marker::InstallMarker;

/// Returns a machine that another installer has set up as the layout describes: it has no install marker.
fn foreign() -> Inventory {
    let mut inventory = marked();
    inventory.filesystems.clear();
    inventory
}

#[test]
fn refuses_to_erase_matching_data_and_names_both_remedies() {
    let reasons = reasons(install(&layout(), &foreign(), claim()));
    let expected = "disks: a first installation would erase /dev/sdb, which is preserved by this layout and already \
        contains the data that the layout preserves. To preserve the data, record the machine as installed \
        (drophammer machine adopt 4c4c4544-0051-3010), and order a reinstall with --without-marker. If the data is not needed, list the \
        serial numbers of these disks in give_up of the allocation, or run wipefs -a on the disks in the rescue shell";
    assert_eq!(reasons, [expected]);
}

#[test]
fn data_is_erased_only_if_the_erasure_is_intended() {
    let with_data_label = |label: &str| {
        let mut inventory = foreign();
        let table = inventory.disks[1].table.as_mut().unwrap();
        table.partitions[0].signatures[0].label = label.to_owned();
        inventory
    };
    let of_machine = |machine: &str| {
        let mut inventory = foreign();
        let marker = InstallMarker { machine: machine.into(), allocation: "a-0".into(), ..marker(&inventory) };
        let device = "/dev/sda2".into();
        inventory.filesystems.push(inventory::FilesystemContents {
            device,
            marker: Some(marker),
            ..Default::default()
        });
        inventory
    };
    // The disk of an earlier allocation is still present, but the layout does not list it. The system disk is blank,
    // because it was replaced.
    let mut stale = of_machine("m-1");
    let old = inventory::InventoryDisk {
        name: "sdz".into(),
        device: "/dev/sdz".into(),
        serial: "Z0".into(),
        wwn: String::new(),
        ..stale.disks[0].clone()
    };
    stale.disks.push(old);
    stale.filesystems[0].device = "/dev/sdz2".into();
    // The data matches, but a reinstall is refused until the suspended system was shut down.
    let mut suspended = foreign();
    suspended.disks[0].table.as_mut().unwrap().partitions[2].signatures[0].kind = "swsuspend".to_owned();
    let mut blank = foreign();
    blank.disks[1].signatures.clear();
    empty(&mut blank.disks[1], "B0");
    let mut all_kept = layout();
    all_kept.disks.iter_mut().for_each(|disk| disk.wipeonreinstall = false);
    let begun = InstallClaim { begun_on: marker(&foreign()).disks, ..claim() };
    let given_up = |serial: &str| InstallClaim { give_up: vec![serial.to_owned()], ..claim() };
    for (case, layout, inventory, claim, is_planned) in [
        ("no marker", layout(), foreign(), claim(), false),
        ("a hibernation image", layout(), suspended, claim(), false),
        ("the disks are wiped", layout(), blank, claim(), true),
        ("another label", layout(), with_data_label("other"), claim(), true),
        ("the same label", layout(), with_data_label("srv"), claim(), false),
        ("an earlier allocation of this machine", layout(), of_machine("m-1"), claim(), true),
        ("an earlier allocation on an unlisted disk", layout(), stale, claim(), false),
        ("another machine", layout(), of_machine("m-9"), claim(), false),
        ("an attempt was started", layout(), foreign(), begun, true),
        ("the data disk is discarded", layout(), foreign(), given_up("B0"), true),
        ("only the system disk is discarded", layout(), foreign(), given_up("A0"), false),
        ("the layout does not support reinstalls", all_kept, foreign(), claim(), true),
    ] {
        let plan = install(&layout, &inventory, claim);
        assert_eq!(plan.is_ok(), is_planned, "{case}: {:?}", plan.err().map(|refusal| refusal.to_string()));
        if let Ok(plan) = plan {
            assert_ne!(plan.disks[1].verdict, DiskVerdict::Keep, "{case}");
        }
    }
}

/// An offline plan does not belong to a machine of a control plane, and shows the effect of the layout.
#[test]
fn offline_plans_are_not_refused() {
    assert!(make(&layout(), &foreign(), InstallMode::Install).is_ok());
}

/// A layout with `preserve` describes an existing machine. Data that does not match prevents both a reinstall and a
/// first installation.
#[test]
fn preserved_objects_are_never_erased_by_a_first_installation() {
    let layout = layout_of(MIRRORED);
    let mut inventory = installed_with(MIRRORED);
    let why = reasons(install(&layout, &inventory, claim()));
    assert!(why.len() == 1 && why[0].contains("would erase /dev/sda, /dev/sdb"), "{why:?}");
    // The mirror with the data lacks a member.
    let table = inventory.disks[1].table.as_mut().unwrap();
    table.partitions.retain(|partition| partition.number != 3);
    let why = reasons(install(&layout, &inventory, claim()));
    assert!(why.iter().any(|why| why.contains("A reinstall would also be refused at present")), "{why:?}");
}

const RAW_DATA: &str = "id: raw
constraints: {sizes: [], images: {}}
disks:
- device: /dev/sda
  wipeonreinstall: true
  partitions: [{number: 1, label: efi, size: 500, gpttype: ef00}, {number: 2, size: 5000}, {number: 3, size: 0, preserve: true}]
filesystems:
- {path: /, device: /dev/sda2, format: ext4, label: root}
- {path: /boot/efi, device: /dev/sda1, format: vfat}
";

/// Layouts of existing machines list a partition without a filesystem if its format is unknown, or if it is not
/// mounted.
#[test]
fn preserved_partitions_without_filesystems_are_never_erased_by_a_first_installation() {
    let layout = layout_of(RAW_DATA);
    let mut inventory = installed_with(RAW_DATA);
    let part = &mut inventory.disks[0].table.as_mut().unwrap().partitions[2];
    let (kind, usage) = ("ntfs".to_owned(), "filesystem".to_owned());
    part.signatures = vec![DeviceSignature { kind, usage, ..DeviceSignature::default() }];
    part.blank = false;
    let why = reasons(install(&layout, &inventory, claim()));
    assert!(why.len() == 1 && why[0].contains("would erase /dev/sda"), "{why:?}");
    let waived = InstallClaim { waiver: Some(MarkerWaiver::Operator), order: None, ..claim() };
    let plan = reinstall(&layout, &inventory, waived).unwrap();
    assert_eq!(plan.disks[0].verdict, DiskVerdict::PartlyKept);
    // A disk with `wipeonreinstall: false` is protected in the same way.
    let mut kept = super::layout();
    kept.filesystems.retain(|filesystem| filesystem.path.as_deref() != Some("/srv"));
    let why = reasons(install(&kept, &foreign(), claim()));
    assert!(why.len() == 1 && why[0].contains("would erase /dev/sdb"), "{why:?}");
}

/// A problem of one disk does not permit the erasure of the data on other disks.
#[test]
fn data_is_protected_even_if_another_disk_differs_from_the_layout() {
    // sdc has another label than in the layout.
    let mut layout = layout();
    let sdc = DiskSpec { device: "/dev/sdc".into(), ..layout.disks[1].clone() };
    layout.disks.push(sdc);
    layout.filesystems.push(filesystem("/backup", "/dev/sdc1", FilesystemFormat::Ext4, "backup"));
    let mut inventory = after(&make(&layout, &machine(), InstallMode::Install).unwrap(), machine());
    let label = |inventory: &mut Inventory, number: usize| {
        let table = inventory.disks[number].table.as_mut().unwrap();
        table.partitions[0].signatures[0].label = "other".to_owned();
    };
    label(&mut inventory, 2);
    for (disk, serial) in inventory.disks.iter_mut().zip(["A0", "B0", "C0"]) {
        disk.serial = serial.to_owned();
    }
    let why = reasons(install(&layout, &inventory, claim())).join("\n");
    assert!(why.contains("would erase /dev/sdb, /dev/sdc"), "{why}");
    // If the disk with the matching data is discarded, or also differs from the layout, nothing matches.
    let discarded = InstallClaim { give_up: vec!["B0".to_owned()], ..claim() };
    assert!(install(&layout, &inventory, discarded).is_ok());
    label(&mut inventory, 1);
    assert!(install(&layout, &inventory, claim()).is_ok());
}

#[test]
fn only_copy_of_a_mirror_is_not_erased_if_its_other_half_was_replaced() {
    let yaml = MIRRORED.replace(", preserve: true", "").replace("wipeonreinstall: true", "wipeonreinstall: false");
    let yaml = yaml.replace(
        "disks:\n",
        "disks:\n- {device: /dev/sdc, wipeonreinstall: true, partitions: [{number: 1, size: 0}]}\n",
    );
    let yaml = yaml.replace("{path: /, device: /dev/md/root,", "{path: /opt, device: /dev/md/root,");
    let yaml = format!("{yaml}- {{path: /, device: /dev/sdc1, format: ext4}}\n");
    let mut blank = super::partly_kept_disks::blank_machine();
    blank.disks.push(disk("sdc", 9_000));
    let layout = layout_of(&yaml);
    let mut inventory = after(&make(&layout, &blank, InstallMode::Install).unwrap(), blank);
    empty(&mut inventory.disks[1], "N1");
    for array in &mut inventory.arrays {
        array.members.retain(|member| !member.device.as_str().starts_with("/dev/sdb"));
    }
    let why = reasons(install(&layout, &inventory, claim())).join("\n");
    assert!(why.contains("would erase /dev/sda") && why.contains("is blank"), "{why}");
}

/// The reinstall is refused, because the wiped disk contains a physical volume of a group that is also on an unlisted
/// disk.
#[test]
fn data_is_protected_even_if_a_wiped_disk_has_a_part_of_another_group() {
    let mut inventory = foreign();
    let physical = |device: &str| inventory::LvmPhysicalVolume {
        uuid: device.to_owned(),
        device: Some(device.into()),
        ..inventory::LvmPhysicalVolume::default()
    };
    inventory.groups.push(inventory::LvmVolumeGroup {
        name: "old".to_owned(),
        physical: vec![physical("/dev/sda3"), physical("/dev/sdc")],
        ..inventory::LvmVolumeGroup::default()
    });
    let why = reasons(install(&layout(), &inventory, claim())).join("\n");
    assert!(why.contains("would erase /dev/sdb") && why.contains("A reinstall would also be refused"), "{why}");
}

/// The reinstall is refused, because a mount option names a device on a disk that will be wiped.
#[test]
fn data_is_protected_even_if_it_needs_a_device_on_another_disk() {
    let mut layout = layout();
    layout.filesystems[0].format = FilesystemFormat::Xfs;
    let inventory = after(&make(&layout, &machine(), InstallMode::Install).unwrap(), machine());
    layout.filesystems[0].mountoptions = vec!["logdev=/dev/sda3".to_owned()];
    let why = reasons(install(&layout, &inventory, claim())).join("\n");
    assert!(why.contains("would erase /dev/sdb") && why.contains("A reinstall would also be refused"), "{why}");
}
