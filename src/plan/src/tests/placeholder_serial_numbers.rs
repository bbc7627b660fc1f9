//! Placeholder serial numbers and WWNs do not identify a disk, even if an old marker contains them.

use super::installation_identity::{claim, marked, reinstall};
use super::*;
use model::storage_graph::multipath;

const LAYOUT: &str = r#"
id: two
constraints: {sizes: [], images: {}}
disks:
- device: /dev/sda
  wipeonreinstall: true
  partitions:
  - {number: 1, label: efi, size: 500, gpttype: ef00}
  - {number: 2, label: root, size: 20000, gpttype: "8300"}
- device: /dev/sdb
  wipeonreinstall: true
  partitions:
  - {number: 1, label: scratch, size: 0}
filesystems:
- {path: /boot/efi, device: /dev/sda1, format: vfat, createoptions: ["-F", "32"]}
- {path: /, device: /dev/sda2, format: ext4, label: root}
- {path: /scratch, device: /dev/sdb1, format: xfs}
"#;

/// Returns a machine whose scratch disk was replaced by another disk of the same size and model, with foreign data.
/// The marker still records the old disk.
fn replaced(recorded: [&str; 2], found: [&str; 2]) -> Inventory {
    let mut inventory = recorded_inventory("placeholders/replaced-scratch.json");
    [inventory.disks[1].serial, inventory.disks[1].wwn] = found.map(str::to_owned);
    let record = &mut inventory.filesystems[0].marker.as_mut().unwrap().disks[1];
    [record.serial, record.wwn] = recorded.map(str::to_owned);
    inventory
}

fn two_disks() -> Layout {
    layout_of(LAYOUT)
}

fn refusal(inventory: &Inventory) -> String {
    let refusal = make(&two_disks(), inventory, InstallMode::Reinstall).unwrap_err();
    let [problem] = &refusal.problems[..] else { panic!("{refusal}") };
    problem.to_string()
}

#[test]
fn placeholder_serial_does_not_identify_a_disk() {
    let nothing = refusal(&replaced(["", ""], ["", ""]));
    assert!(nothing.contains("no identifier is known for both"), "{nothing}");
    for serial in ["0000000000000000", "None", "N/A", "0123456789ABCDEF", "............", "Default string", "XXXXXXXX"]
    {
        let said = refusal(&replaced([serial, ""], [serial, ""]));
        assert!(said.contains("no identifier is known for both"), "{serial}: {said}");
        assert!(said.contains("xfs \"customers\"") && !said.contains("--give-up"), "{serial}: {said}");
        // A placeholder in the record or on the disk does not count as a contradiction.
        let said = refusal(&replaced([serial, ""], ["S2", ""]));
        assert!(said.contains("no identifier is known for both"), "{serial}: {said}");
    }
    for wwn in ["0x0000000000000000", "eui.0000000000000000", "naa.0000000000000000", "0xffffffffffffffff"] {
        let said = refusal(&replaced(["", wwn], ["", wwn]));
        assert!(said.contains("no identifier is known for both"), "{wwn}: {said}");
    }
    let other = refusal(&replaced(["S1", ""], ["S2", ""]));
    assert!(other.contains("which is now absent"), "{other}");
    let mut own_table = replaced(["0000", ""], ["0000", ""]);
    own_table.disks[1].table =
        Some(inventory::DiskTable { kind: "gpt".to_owned(), guid: Some(Uuid::from_u128(7)), partitions: Vec::new() });
    let said = refusal(&own_table);
    assert!(said.contains("which is now absent"), "{said}");
}

#[test]
fn recorded_disk_is_recognized_in_any_spelling() {
    for (recorded, found) in [
        (["S1", ""], ["S1", ""]),
        (["1234", ""], ["1234", ""]),
        (["00000001", ""], ["00000001", ""]),
        ([" WD-WCC7K0123456", ""], ["WD-WCC7K0123456", ""]),
        (["DWW-CCK7103254 6", ""], ["WD-WCC7K0123456", ""]),
        (["0000", "0x5000c500a1b2c3d7"], ["None", "naa.5000C500A1B2C3D7"]),
        (["S1", "0x0000000000000000"], ["S1", "0x5000c500a1b2c3d7"]),
    ] {
        let plan = make(&two_disks(), &replaced(recorded, found), InstallMode::Reinstall);
        assert!(plan.is_ok(), "{recorded:?} {found:?}: {}", plan.unwrap_err());
    }
}

#[test]
fn wwn_or_path_discards_a_disk_but_placeholder_not() {
    let mut inventory = replaced(["0000", ""], ["0000", "0x5000c500a1b2c3d7"]);
    inventory.disks[1].by_path = "/dev/disk/by-path/pci-0000:00:1f.2-ata-2".to_owned();
    let given = |name: &str| {
        let claim = InstallClaim {
            machine: "m".to_owned(),
            allocation: "a".to_owned(),
            order: Some("o".to_owned()),
            give_up: vec![name.to_owned()],
            ..InstallClaim::default()
        };
        reinstall(&two_disks(), &inventory, claim)
    };
    for name in ["0000", "", "OS1", "0x5000c500a1b2c3d8"] {
        let said = given(name).unwrap_err().to_string();
        assert!(said.contains("--give-up 0x5000c500a1b2c3d7"), "{name}: {said}");
    }
    for name in ["0x5000c500a1b2c3d7", "5000C500A1B2C3D7", "/dev/disk/by-path/pci-0000:00:1f.2-ata-2"] {
        assert!(given(name).is_ok(), "{name}: {}", given(name).unwrap_err());
    }
}

#[test]
fn refuses_disk_selected_by_a_placeholder() {
    let mut inventory = replaced(["S1", ""], ["000000000000", ""]);
    inventory.disks[1].by_id = vec!["/dev/disk/by-id/ata-Virtual_Disk_000000000000".to_owned()];
    for (hints, device, words) in [
        (
            Some(("serial", "000000000000")),
            "scratch",
            "device:scratch cannot be identified by its hint serial: \"000000000000\" is a placeholder",
        ),
        (Some(("wwn", "0x0000000000000000")), "scratch", "by its hint wwn: \"0x0000000000000000\" is a placeholder"),
        (Some(("serial", "<in> 0000")), "scratch", "it has \"000000000000\", a placeholder"),
        (None, "/dev/disk/by-id/ata-Virtual_Disk_000000000000", "this name is derived from a placeholder"),
    ] {
        let mut layout = two_disks();
        layout.disks[1].device = device.into();
        layout.disks[1].hints = hints.iter().map(|(hint, value)| ((*hint).to_owned(), (*value).to_owned())).collect();
        layout.filesystems[2].device = layout.disks[1].device.partition_path(1);
        for mode in [InstallMode::Install, InstallMode::Reinstall] {
            let said = make(&layout, &inventory, mode).unwrap_err().to_string();
            assert!(said.contains(words), "{mode:?}: {said}");
        }
    }
}

#[test]
fn disks_with_the_same_placeholder_are_not_two_paths() {
    let mut inventory = machine();
    inventory.disks[1].size_bytes = inventory.disks[0].size_bytes;
    for (wwn, serial, is_path) in [
        ("0x0000000000000000", "", false),
        ("eui.0000000000000000", "0000", false),
        ("0xffffffffffffffff", "", false),
        ("0x5000c500a1b2c3d7", "", true),
        ("0x5000c500a1b2c3d7", "0000", true),
    ] {
        for disk in &mut inventory.disks[..2] {
            (disk.wwn, disk.serial) = (wwn.to_owned(), serial.to_owned());
        }
        assert_eq!(multipath::find_other_path(&inventory.disks[0], &inventory).is_some(), is_path, "{wwn} {serial}");
        let plan = make(&layout(), &inventory, InstallMode::Install);
        assert_eq!(plan.is_err(), is_path, "{wwn} {serial}");
    }
}

#[test]
fn new_marker_records_no_placeholder() {
    let mut inventory = marked();
    (inventory.disks[0].serial, inventory.disks[0].wwn) = ("0000".to_owned(), "0x5000c500a1b2c3d7".to_owned());
    let plan = reinstall(
        &layout(),
        &inventory,
        InstallClaim {
            waiver: Some(MarkerWaiver::Operator),
            give_up: vec!["0x5000c500a1b2c3d7".to_owned()],
            ..claim()
        },
    );
    let plan = plan.unwrap_or_else(|refusal| panic!("{refusal}"));
    let record = super::super::install_marker::unique_record(
        &inventory.disks[0],
        &inventory::UniqueIdentifiers::from_disks(&inventory.disks),
    );
    assert_eq!((record.serial.as_str(), record.wwn.as_str()), ("", "0x5000c500a1b2c3d7"));
    assert_eq!(verdicts(&plan)[0], DiskVerdict::Wipe);
}
