//! Machines without records in a control plane: a disk with data is erased only if it is identified, or if the operator
//! discards its data.

use super::installation_identity::{claim, empty, install, marked, reinstall};
use super::*;
use model::allocation::RecordSource;
use model::install_marker::RecordedDisk;
use model::inventory::{FilesystemContents, InventoryDisk};

fn forgotten() -> InstallClaim {
    InstallClaim { memory: RecordSource::DisksOnly, order: None, ..claim() }
}

/// Layout with the system on the only listed disk; sdb is not listed.
fn one_disk() -> Layout {
    let mut layout = layout();
    layout.disks.truncate(1);
    layout.filesystems.retain(|filesystem| !filesystem.device.as_str().starts_with("/dev/sdb"));
    layout
}

/// Returns a machine with blank disks that have serial numbers.
fn blank() -> Inventory {
    let mut inventory = machine();
    for (disk, serial) in inventory.disks.iter_mut().zip(["A0", "B0", "C0"]) {
        empty(disk, serial);
    }
    inventory
}

/// Returns a machine whose system disk is absent. The data disk now has the name of the system disk.
fn moved_up() -> Inventory {
    let mut inventory = blank();
    let (name, device) = (inventory.disks[0].name.clone(), inventory.disks[0].device.clone());
    let data = InventoryDisk { name, device, size_bytes: 20_000 * MIB, blank: false, ..inventory.disks[1].clone() };
    inventory.disks = vec![InventoryDisk { signatures: vec![xfs("customers")], ..data }];
    inventory
}

fn xfs(label: &str) -> DeviceSignature {
    DeviceSignature {
        kind: "xfs".to_owned(),
        usage: "filesystem".to_owned(),
        label: label.to_owned(),
        uuid: "31b18bff-f6f4-580a-9c9b-dac45d049e00".to_owned(),
    }
}

fn with_hint(hint: &str, value: &str) -> Layout {
    let mut layout = one_disk();
    layout.disks[0].hints = [(hint.to_owned(), value.to_owned())].into();
    layout
}

#[test]
fn data_disk_under_another_name_is_not_erased() {
    let said = reasons(install(&one_disk(), &moved_up(), forgotten())).join("\n");
    assert!(
        said.starts_with("disks[0].device: /dev/sda would be wiped and is not blank: it contains xfs \"customers\""),
        "{said}"
    );
    assert!(said.contains("add the hint `serial: B0`") && said.contains("`give_up: [\"B0\"]`"), "{said}");
    // If the control plane has its records and assigns a new allocation, the wipe is accepted.
    assert!(install(&one_disk(), &moved_up(), InstallClaim { order: None, ..claim() }).is_ok());
    // Unrecognized data is also protected.
    let mut raw = moved_up();
    raw.disks[0].signatures.clear();
    let said = reasons(install(&one_disk(), &raw, forgotten())).join("\n");
    assert!(said.contains("it contains data of no known kind"), "{said}");
}

#[test]
fn erases_only_blank_identified_or_discarded_disks() {
    let mut inventory = moved_up();
    inventory.disks[0].wwn = "0x5000c500a1b2c3d7".to_owned();
    inventory.disks[0].by_path = "/dev/disk/by-path/pci-1".to_owned();
    inventory.disks[0].by_id = vec!["/dev/disk/by-id/wwn-0x5000c500a1b2c3d7".to_owned()];
    assert!(install(&one_disk(), &blank(), forgotten()).is_ok());
    for (hint, value, is_erased) in [
        ("serial", "B0", true),
        ("serial", "<or> A0 <or> B0", true),
        ("wwn", "0x5000c500a1b2c3d7", true),
        ("serial", "<in> B", false),
        ("size", "> 1", false),
        ("name", "/dev/sda", false),
        ("by_path", "/dev/disk/by-path/pci-1", false),
    ] {
        let plan = install(&with_hint(hint, value), &inventory, forgotten());
        assert_eq!(plan.is_ok(), is_erased, "{hint} {value}: {plan:?}");
    }
    let mut by_id = one_disk();
    let device = "/dev/disk/by-id/wwn-0x5000c500a1b2c3d7";
    by_id.disks[0].device = device.into();
    for filesystem in &mut by_id.filesystems {
        if let Some(number) = filesystem.device.as_str().strip_prefix("/dev/sda").map(str::to_owned) {
            filesystem.device = format!("{device}-part{number}").as_str().into();
        }
    }
    let plan = install(&by_id, &inventory, forgotten());
    assert!(plan.is_ok(), "{}", plan.unwrap_err());
    for (given, is_erased) in
        [("B0", true), ("0x5000c500a1b2c3d7", true), ("/dev/disk/by-path/pci-1", true), ("A0", false), ("", false)]
    {
        let claim = InstallClaim { give_up: vec![given.to_owned()], ..forgotten() };
        let plan = install(&one_disk(), &inventory, claim);
        assert_eq!(plan.is_ok(), is_erased, "{given}");
        let warns = |plan: &Plan| {
            plan.warnings
                .iter()
                .any(|warning| warning.ends_with("its data will be discarded, as requested by the operator"))
        };
        assert!(plan.is_ok_and(|plan| warns(&plan)) == is_erased, "{given}");
    }
}

/// The machine has a new allocation, and its disks have the marker of an earlier one.
#[test]
fn disks_recorded_in_the_marker_are_recognized() {
    let next = |inventory: &Inventory| {
        install(&layout(), inventory, InstallClaim { allocation: "a-2".to_owned(), ..forgotten() })
    };
    let inventory = marked();
    assert!(next(&inventory).is_ok(), "{}", next(&inventory).unwrap_err());
    // One of the recorded disks was replaced by another one that is not blank.
    let mut replaced = inventory.clone();
    replaced.disks[1].serial = "Z9".to_owned();
    replaced.disks[1].table = None;
    replaced.disks[1].signatures = vec![xfs("customers")];
    let said = reasons(next(&replaced)).join("\n");
    assert!(said.starts_with("disks[1].device: /dev/sdb would be wiped and is not blank"), "{said}");
    // If the disk with the marker is absent, the other disk is not recorded.
    let mut gone = inventory;
    empty(&mut gone.disks[0], "N1");
    gone.filesystems.clear();
    let said = reasons(next(&gone)).join("\n");
    assert!(said.starts_with("disks[1].device: /dev/sdb would be wiped and is not blank"), "{said}");
}

#[test]
fn started_installation_continues_on_its_recorded_disks() {
    let inventory = marked();
    let mut cut_off = inventory.clone();
    cut_off.filesystems = vec![FilesystemContents::default()];
    let begun_on: Vec<RecordedDisk> = inventory.filesystems.last().unwrap().marker.clone().unwrap().disks;
    let claim = InstallClaim { begun_on, ..forgotten() };
    assert!(install(&layout(), &cut_off, claim.clone()).is_ok());
    cut_off.disks[0].serial = "Z9".to_owned();
    let said = reasons(install(&layout(), &cut_off, claim));
    assert_eq!(said.len(), 1, "{said:?}");
}

/// Without a serial number, the blank disk may be a disk with data under the name of the system disk.
#[test]
fn blank_disk_without_an_identifier_is_read_completely() {
    let is_read = |inventory: &Inventory, claim: InstallClaim| {
        install(&one_disk(), inventory, claim).unwrap().to_string().contains("read all of sda")
    };
    let mut nameless = blank();
    nameless.disks[0].serial.clear();
    assert!(is_read(&nameless, forgotten()));
    assert!(!is_read(&blank(), forgotten()));
    // A first installation with the records of the control plane may wipe any listed disk.
    assert!(!is_read(&nameless, InstallClaim { order: None, ..claim() }));
}

/// `--without-marker` confirms that the disk with the marker was replaced, but does not identify the other disks.
#[test]
fn reinstall_without_record_erases_no_disk_by_name() {
    let mut inventory = marked();
    inventory.filesystems.clear();
    let order = InstallClaim { waiver: Some(MarkerWaiver::Operator), order: Some("1".to_owned()), ..forgotten() };
    let said = reasons(reinstall(&layout(), &inventory, order.clone())).join("\n");
    assert!(said.starts_with("disks[0].device: /dev/sda would be wiped and is not blank"), "{said}");
    let given = InstallClaim { give_up: vec!["A0".to_owned()], ..order.clone() };
    let plan = reinstall(&layout(), &inventory, given);
    assert!(plan.is_ok(), "{}", plan.unwrap_err());
    empty(&mut inventory.disks[0], "N1");
    assert!(reinstall(&layout(), &inventory, order).is_ok());
    // If the marker is present, its records of the disks are used as usual.
    let plan = reinstall(&layout(), &marked(), InstallClaim { order: Some("1".to_owned()), ..forgotten() });
    assert!(plan.is_ok(), "{}", plan.unwrap_err());
}

/// The control plane remembers the machine, but neither the control plane nor a marker has a record of a disk. The
/// kernel names may have changed, so the name in the layout may refer to another disk.
#[test]
fn waived_marker_without_any_record_of_a_disk_erases_no_disk_by_name() {
    let mut inventory = marked();
    let recorded = inventory.filesystems.pop().unwrap().marker;
    let order = InstallClaim { waiver: Some(MarkerWaiver::Operator), succeeded: true, ..claim() };
    let said = reasons(reinstall(&layout(), &inventory, order.clone())).join("\n");
    assert!(said.starts_with("disks[0].device: /dev/sda would be wiped and is not blank"), "{said}");
    assert!(said.contains("add the hint `serial: A0`") && said.contains("--give-up A0"), "{said}");
    // The record of the control plane, the operator, or the layout identifies the disk.
    let installed = InstallClaim { installed: recorded, ..order.clone() };
    let given = InstallClaim { give_up: vec!["A0".to_owned()], ..order.clone() };
    for claim in [installed, given] {
        let plan = reinstall(&layout(), &inventory, claim);
        assert!(plan.is_ok(), "{}", plan.unwrap_err());
    }
    let mut hinted = layout();
    hinted.disks[0].hints = [("serial".to_owned(), "A0".to_owned())].into();
    let plan = reinstall(&hinted, &inventory, order.clone());
    assert!(plan.is_ok(), "{}", plan.unwrap_err());
    // A blank disk is wiped.
    empty(&mut inventory.disks[0], "N1");
    assert!(reinstall(&layout(), &inventory, order).is_ok());
}
