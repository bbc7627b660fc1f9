//! Disks without serial number and WWN, which only their partition tables identify.

use super::installation_identity::{claim, empty, forget_marker, marker, reinstall};
use super::*;
use model::inventory::FilesystemContents;

/// Layout and machine with root on sda, and data on sdb and sdc. No disk has a serial number.
fn tables_only() -> (Layout, Inventory) {
    let (mut layout, mut machine) = (layout(), machine());
    layout.disks.push(DiskSpec { device: "/dev/sdc".into(), ..layout.disks[1].clone() });
    layout.filesystems.push(filesystem("/opt", "/dev/sdc1", FilesystemFormat::Ext4, "opt"));
    machine.disks[1].size_bytes = machine.disks[2].size_bytes;
    let mut inventory = after(&make(&layout, &machine, InstallMode::Install).unwrap(), machine);
    let marker = Some(marker(&inventory));
    inventory.filesystems.push(FilesystemContents {
        device: "/dev/sda2".into(),
        marker,
        ..FilesystemContents::default()
    });
    (layout, inventory)
}

/// Swaps the names of two disks, as if the kernel had enumerated them in another order.
fn moved(inventory: &mut Inventory, from: usize, to: usize) {
    let name = |disk: &inventory::InventoryDisk| (disk.name.clone(), disk.device.clone());
    let (from_name, to_name) = (name(&inventory.disks[from]), name(&inventory.disks[to]));
    inventory.disks.swap(from, to);
    for (index, (name, device)) in [(from, from_name), (to, to_name)] {
        let disk = &mut inventory.disks[index];
        (disk.name, disk.device) = (name, device);
        let whole = disk.device.clone();
        for partition in disk.table.iter_mut().flat_map(|table| &mut table.partitions) {
            partition.device = whole.partition_path(partition.number);
        }
    }
}

fn blank(inventory: &mut Inventory, index: usize) {
    empty(&mut inventory.disks[index], "");
}

/// Copies the table of one disk to another disk, with all GUIDs but without the content of the partitions: `sfdisk -d |
/// sfdisk`.
fn cloned(inventory: &mut Inventory, from: usize, to: usize) {
    let device = inventory.disks[to].device.clone();
    let mut table = inventory.disks[from].table.clone().unwrap();
    for partition in &mut table.partitions {
        partition.device = device.partition_path(partition.number);
        (partition.signatures, partition.blank) = (Vec::new(), true);
    }
    inventory.disks[to].table = Some(table);
}

fn guid(inventory: &mut Inventory, index: usize) -> &mut Option<Uuid> {
    &mut inventory.disks[index].table.as_mut().unwrap().guid
}

/// Description, change of the machine, and the expected reasons for the first and for the second disk.
type Case = (&'static str, fn(&mut Inventory, &mut InstallClaim), &'static str, &'static str);

type Harmless = (&'static str, fn(&mut Layout, &mut Inventory, &mut InstallClaim));

#[test]
fn refuses_disk_with_the_recorded_table_of_another_disk() {
    let cases: [Case; 8] = [
        (
            "root has died, a blank disk is new, and the data disk has its name",
            |inventory, _| {
                blank(inventory, 0);
                moved(inventory, 0, 1);
            },
            "disks[0].device: /dev/sda is the disk with GPT 00000005-0000-0000-0000-000000000005 (9.44 GB) now. When the machine was installed, that disk was /dev/sdb, and /dev/sda was the disk with GPT 00000001-0000-0000-0000-000000000001 (21.0 GB). The names in the layout no longer match the same disks. Put the disks back in their slots, or reboot so that they get their names back",
            "disks[1].device: /dev/sdb is a disk without serial number or GPT (21.0 GB) now. When the machine was installed, /dev/sdb was the disk with GPT 00000005-0000-0000-0000-000000000005 (9.44 GB), which is /dev/sda now. The names in the layout no longer match the same disks. Put the disks back in their slots, or reboot so that they get their names back",
        ),
        (
            "root and data swapped",
            |inventory, _| moved(inventory, 0, 1),
            "disks[0].device: /dev/sda is the disk with",
            "disks[1].device: /dev/sdb is the disk with",
        ),
        (
            "two preserved disks swapped",
            |inventory, _| moved(inventory, 1, 2),
            "disks[1].device: /dev/sdb is the disk with",
            "disks[2].device: /dev/sdc is the disk with",
        ),
        (
            "the data disk has the name of root, and is copied",
            |inventory, _| {
                moved(inventory, 0, 1);
                cloned(inventory, 0, 1);
            },
            "disks[0].device: /dev/sda is the disk with GPT 00000005",
            "",
        ),
        (
            "a copy of the data where root was",
            |inventory, _| {
                let table = inventory.disks[1].table.clone();
                inventory.disks[0].table = table;
            },
            "disks[0].device: /dev/sda is the disk with GPT 00000005",
            "",
        ),
        (
            "only root has a serial number",
            |inventory, claim| {
                claim.installed.as_mut().unwrap().disks[0].serial = "A0".to_owned();
                blank(inventory, 0);
                moved(inventory, 0, 1);
            },
            "disks[0].device: /dev/sda is the disk with GPT 00000005",
            "disks[1].device: /dev/sdb is a disk without serial number or GPT",
        ),
        (
            "an attempt had begun, with a table for root that it did not come to write",
            |inventory, claim| {
                claim.begun_on = claim.installed.as_ref().unwrap().disks.clone();
                claim.begun_on[0].guid = Some(Uuid::from_u128(99).to_string());
                blank(inventory, 0);
                moved(inventory, 0, 1);
            },
            "disks[0].device: /dev/sda is the disk with GPT 00000005",
            "disks[1].device: /dev/sdb is a disk without serial number or GPT",
        ),
        (
            "an attempt had written the new table, and names are swapped",
            |inventory, claim| {
                claim.begun_on = claim.installed.as_ref().unwrap().disks.clone();
                claim.begun_on[0].guid = Some(Uuid::from_u128(99).to_string());
                *guid(inventory, 0) = Some(Uuid::from_u128(99));
                moved(inventory, 0, 1);
            },
            "disks[0].device: /dev/sda is the disk with GPT 00000005",
            "disks[1].device: /dev/sdb is the disk with GPT 00000000-0000-0000-0000-000000000063",
        ),
    ];
    for (name, change, expected, other) in cases {
        for waiver in [MarkerWaiver::Operator, MarkerWaiver::Begun] {
            let ((layout, mut inventory), mut claim) = (tables_only(), claim());
            forget_marker(&mut inventory, &mut claim);
            claim.waiver = Some(waiver);
            change(&mut inventory, &mut claim);
            let reasons = reasons(reinstall(&layout, &inventory, claim));
            for expected in [expected, other] {
                assert!(reasons.iter().any(|reason| reason.starts_with(expected)), "{name}: {reasons:#?}");
            }
        }
    }
}

#[test]
fn accepts_unidentified_disk_without_a_preserved_table_of_another() {
    let cases: [Harmless; 6] = [
        ("as installed", |_, _, _| {}),
        ("root replaced by a blank one", |_, inventory, _| blank(inventory, 0)),
        ("data replaced by a blank one", |_, inventory, _| blank(inventory, 1)),
        ("a started attempt has written the new partition table", |_, inventory, claim| {
            claim.begun_on = claim.installed.as_ref().unwrap().disks.clone();
            claim.begun_on[0].guid = Some(Uuid::from_u128(99).to_string());
            *guid(inventory, 0) = Some(Uuid::from_u128(99));
        }),
        ("a foreign disk is a copy of the data disk", |_, inventory, _| {
            inventory.disks.push(disk("sdd", 9000));
            cloned(inventory, 1, 3);
        }),
        ("preserved disk with the partition table of another disk", |_, inventory, _| cloned(inventory, 1, 2)),
    ];
    for (name, change) in cases {
        let ((mut layout, mut inventory), mut claim) = (tables_only(), claim());
        forget_marker(&mut inventory, &mut claim);
        claim.waiver = Some(MarkerWaiver::Operator);
        change(&mut layout, &mut inventory, &mut claim);
        let plan = reinstall(&layout, &inventory, claim).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!(plan.disks[0].verdict, DiskVerdict::Wipe, "{name}");
    }
}

/// A matching name is not sufficient to wipe a disk that is not blank and not identified.
#[test]
fn refuses_unidentified_disk_and_reports_both_records() {
    let cases: [Harmless; 3] = [
        ("partition tables recreated since the installation", |_, inventory, _| {
            (0..3).for_each(|index| *guid(inventory, index) = Some(Uuid::from_u128(70 + index as u128)));
        }),
        ("marker without recorded GPT GUIDs", |_, inventory, claim| {
            let recorded = claim.installed.as_mut().unwrap().disks.iter_mut();
            recorded.for_each(|disk| disk.guid = None);
            inventory.disks[0].table = Some(DiskTable { kind: "dos".to_owned(), ..DiskTable::default() });
        }),
        (
            "a second disk to be wiped with the table of the first, as after the repair of a mirror",
            |layout, inventory, _| {
                layout.disks[2].wipeonreinstall = true;
                cloned(inventory, 0, 2);
            },
        ),
    ];
    for (name, change) in cases {
        let ((mut layout, mut inventory), mut claim) = (tables_only(), claim());
        forget_marker(&mut inventory, &mut claim);
        claim.waiver = Some(MarkerWaiver::Operator);
        change(&mut layout, &mut inventory, &mut claim);
        let reasons = reasons(reinstall(&layout, &inventory, claim));
        assert!(reasons[0].starts_with("disks[0].device: /dev/sda is "), "{name}: {reasons:?}");
        assert!(reasons[0].contains("(recorded: serial none, wwn none, GPT "), "{name}: {reasons:?}");
    }
}
