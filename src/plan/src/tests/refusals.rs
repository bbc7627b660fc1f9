//! Plans that are refused before anything is written, and the messages.

use super::*;

/// A change of the inventory, and the expected message.
type Case = (&'static str, fn(&mut Inventory), &'static str);

#[test]
fn refuses_preserved_disk_that_differs_and_reports_both() {
    fn srv(inventory: &mut Inventory) -> &mut inventory::DiskPartition {
        &mut inventory.disks[1].table.as_mut().unwrap().partitions[0]
    }
    let cases: [Case; 10] = [
        (
            "unreadable",
            |inventory| inventory.disks[1].unreadable = Some("Input/output error".to_owned()),
            "disks[1].device: /dev/sdb must be preserved, but its content cannot be read: Input/output error",
        ),
        (
            "nothing that is known, but not blank",
            |inventory| inventory.disks[1].table = None,
            "disks[1].partitions: /dev/sdb must be preserved, but lacks a GPT with the partitions to preserve (1): found data of no known kind",
        ),
        (
            "other table",
            |inventory| inventory.disks[1].table.as_mut().unwrap().kind = "dos".to_owned(),
            "disks[1].partitions: /dev/sdb must be preserved, but lacks a GPT with the partitions to preserve (1): found DOS 1 partition · ext4 \"srv\"",
        ),
        (
            "no such partition",
            |inventory| srv(inventory).number = 4,
            "disks[1].partitions[0]: /dev/sdb1 must be preserved, but /dev/sdb lacks partition 1",
        ),
        (
            "other type",
            |inventory| srv(inventory).kind = PartitionType::LinuxLvm.guid().to_string(),
            "disks[1].partitions[0]: /dev/sdb1 must be preserved with type 8300 (0fc63daf-8483-4772-8e79-3d69d8477de4), but has type e6d6d379-f507-44c2-a23c-238f2a3df928",
        ),
        (
            "other filesystem",
            |inventory| srv(inventory).signatures[0].kind = "xfs".to_owned(),
            "filesystems[0]: /dev/sdb1 must be preserved, and must contain ext4 \"srv\", but the device contains xfs \"srv\"",
        ),
        (
            "other label",
            |inventory| srv(inventory).signatures[0].label = "backup".to_owned(),
            "filesystems[0]: /dev/sdb1 must be preserved, and must contain ext4 \"srv\", but the device contains ext4 \"backup\"",
        ),
        (
            "no filesystem",
            |inventory| srv(inventory).signatures.clear(),
            "filesystems[0]: /dev/sdb1 must be preserved, and must contain ext4 \"srv\", but the device contains 8.39 GB of unrecognized data",
        ),
        (
            "two signatures",
            |inventory| {
                let second = DeviceSignature { kind: "linux_raid_member".to_owned(), ..DeviceSignature::default() };
                srv(inventory).signatures.push(second);
            },
            "filesystems[0]: /dev/sdb1 must be preserved, and must contain ext4 \"srv\", but the device has several signatures: ext4 \"srv\" and RAID member",
        ),
        (
            "disk gone",
            |inventory| {
                inventory.disks.remove(1);
            },
            "disks[1].device: device:/dev/sdb does not exist on given hardware: its disks are /dev/sda (21.0 GB), /dev/sdc (9.44 GB); no other device has a copy of the data on /dev/sdb1",
        ),
    ];
    for (name, change, expected) in cases {
        let mut inventory = installed();
        change(&mut inventory);
        let reasons = reasons(make(&layout(), &inventory, InstallMode::Reinstall));
        assert!(reasons.iter().any(|reason| reason == expected), "{name}: {reasons:#?}");
    }
}

#[test]
fn preserved_partition_must_have_its_size() {
    let mut layout = layout();
    layout.disks[1].partitions[0].size = 4000.into();
    let reasons = reasons(make(&layout, &installed(), InstallMode::Reinstall));
    assert_eq!(
        reasons,
        ["disks[1].partitions[0]: /dev/sdb1 must be preserved with a size of 4000 MiB, but its size is 7998 MiB"]
    );
}

#[test]
fn reports_all_reasons_against_creation() {
    let mut inventory = machine();
    inventory.disks[0].size_bytes = 5000 * MIB;
    inventory.disks[1].uses = vec![DeviceUse::Holder("md127".into()), DeviceUse::Mounted("/data".to_owned())];
    inventory.disks[1].read_only = true;
    let reasons = reasons(make(&layout(), &inventory, InstallMode::Install));
    assert_eq!(
        reasons,
        [
            "disks[0].partitions: device:/dev/sda is not big enough required:5503MiB, existing:5000MiB (with 1 MiB at each end for the partition table)",
            "disks[1].device: /dev/sdb is read-only: it cannot be written (possible causes: write protection switch, failing disk)",
            "disks[1].device: /dev/sdb is in use (mounted at /data); unmount or stop it first, because this is not done automatically",
            "disks[1].device: /dev/sdb is in use (held by md127); unmount or stop it first, because this is not done automatically",
        ]
    );
}

#[test]
fn refuses_one_disk_under_two_names() {
    let mut inventory = machine();
    inventory.disks[0].by_path = "/dev/disk/by-path/pci-0000:00:1f.2-ata-1".to_owned();
    let mut layout = layout();
    layout.disks[1].device = inventory.disks[0].by_path.as_str().into();
    layout.filesystems[0].device = layout.disks[1].device.partition_path(1);
    let reasons = reasons(make(&layout, &inventory, InstallMode::Install));
    assert!(reasons[0].ends_with("refers to /dev/sda, which the layout already lists"), "{reasons:?}");
}

#[test]
fn refuses_to_reinstall_layout_that_wipes_nothing() {
    let mut layout = layout();
    layout.disks[0].wipeonreinstall = false;
    let reasons = reasons(make(&layout, &installed(), InstallMode::Reinstall));
    assert!(reasons[0].contains("filesystemlayout:data is not reinstallable, abort reinstallation"), "{reasons:?}");
}

#[test]
fn by_path_device_is_printed_with_its_kernel_name() {
    let mut inventory = machine();
    inventory.disks[1].by_path = "/dev/disk/by-path/pci-0000:00:1f.2-ata-2".to_owned();
    let mut layout = layout();
    layout.disks[1].device = inventory.disks[1].by_path.as_str().into();
    layout.filesystems[0].device = layout.disks[1].device.partition_path(1);
    let plan = make(&layout, &inventory, InstallMode::Install).unwrap();
    assert!(plan.to_string().contains("sdb1 at /srv"), "{plan}");
}
