//! Matching of the layout's disks with those of the machine.

use super::arrays_and_groups::{five, whole};
use super::*;
use model::storage_graph::disk_lookup;

#[test]
fn disks_are_found_by_hints() {
    let mut inventory = five();
    inventory.disks[2].serial = "S45N".to_owned();
    inventory.disks[2].transport = "sata".to_owned();
    let found = |hint: &str, value: &str| {
        let wanted = DiskSpec { hints: [(hint.to_owned(), value.to_owned())].into(), ..whole("/dev/os") };
        disk_lookup::find_disk(&wanted, &inventory).map(|disk| disk.name.clone())
    };
    assert_eq!(found("serial", "s45n"), Ok("sdc".into()));
    let none = found("serial", "other").unwrap_err();
    assert!(none.starts_with("device:/dev/os does not exist on given hardware: no disk matches its hints: /dev/sda (serial other: it has none); "), "{none}");
    let several = found("size", ">= 1").unwrap_err();
    assert!(several.contains("its hints match 6 disks: /dev/sda (21.0 GB); "), "{several}");
    assert!(several.contains("/dev/sdc (21.0 GB) serial S45N, tran sata; "), "{several}");
}

#[test]
fn plan_uses_kernel_names_of_disks_found_by_hints() {
    let mut inventory = five();
    inventory.disks[4].serial = "S45N".to_owned();
    let os = DiskSpec {
        device: "os".into(),
        hints: [("serial".to_owned(), "S45N".to_owned())].into(),
        partitions: vec![partition(1, "root", 0, PartitionType::Linux)],
        wipeonreinstall: true,
        image: false,
    };
    let filesystems = vec![filesystem("/", "os1", FilesystemFormat::Ext4, "root")];
    let mut layout = Layout { filesystems, disks: vec![os], ..Layout::default() };
    let plan = make(&layout, &inventory, InstallMode::Install).unwrap();
    assert!(plan.to_string().contains("sde1 at /\n"), "{plan}");
    assert_eq!(plan.disks[4].verdict, DiskVerdict::Wipe);
    // For a disk whose name in the layout differs from the kernel name, the plan prints both names.
    assert_eq!(plan.disks[4].listed_as, Some("os".into()));
    assert!(plan.disks[0].listed_as.is_none() && plan.to_string().contains("\n    os in the layout\n"), "{plan}");

    layout.disks.push(whole("/dev/sde"));
    let expected = "disks[1].device: /dev/sde refers to /dev/sde, which the layout already lists";
    assert_eq!(reasons(make(&layout, &inventory, InstallMode::Install)), [expected]);
}
