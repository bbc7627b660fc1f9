//! Filesystems that span several devices, and are recognized only by their UUID.

use super::arrays_and_groups;
use super::*;

const UUID: &str = "7d2f1c1e-0000-4000-8000-000000000001";

fn signature(kind: &str, label: &str) -> DeviceSignature {
    let [kind, label, uuid] = [kind, label, UUID].map(str::to_owned);
    DeviceSignature { kind, label, uuid, usage: "filesystem".to_owned() }
}

/// Puts a signature on a device: the swap partition of sda, the data partition of sdb, or the whole foreign disk sdc.
fn put(inventory: &mut Inventory, device: &str, found: DeviceSignature) {
    for disk in &mut inventory.disks {
        if disk.device == device {
            disk.signatures = vec![found.clone()];
        }
        let partitions = disk.table.iter_mut().flat_map(|table| &mut table.partitions);
        for partition in partitions.filter(|partition| partition.device == device) {
            partition.signatures = vec![found.clone()];
        }
    }
}

/// Returns [`layout`] with btrfs on sdb, and the machine.
fn with_btrfs() -> (Layout, Inventory) {
    let mut layout = layout();
    layout.filesystems[0].format = FilesystemFormat::Btrfs;
    let inventory = after(&make(&layout, &machine(), InstallMode::Install).unwrap(), machine());
    (layout, inventory)
}

#[test]
fn refuses_object_that_spans_wiped_and_other_disks() {
    let spanning: [(&str, &str, &[&str], &str); 4] = [
        (
            "btrfs",
            "srv",
            &["/dev/sda3", "/dev/sdb1"],
            "disks: btrfs \"srv\" spans sda3, which a reinstall wipes, and sdb1, which the reinstall does not write: btrfs with UUID 7d2f1c1e-0000-4000-8000-000000000001 on /dev/sda3, /dev/sdb1; dismantle this object first, or keep or wipe all of its disks",
        ),
        ("zfs_member", "tank", &["/dev/sda3", "/dev/sdc"], "disks: zfs_member \"tank\" spans sda3,"),
        ("bcachefs", "", &["/dev/sda3", "/dev/sdc"], "disks: bcachefs spans sda3,"),
        (
            "btrfs",
            "srv",
            &["/dev/sda3", "/dev/sdb1", "/dev/sdc"],
            "disks: btrfs \"srv\" spans sda3, which a reinstall wipes, and sdb1, sdc, which",
        ),
    ];
    for (kind, label, devices, expected) in spanning {
        // With three devices, one is unlisted. Mounting the preserved one would write to it, which is a second
        // problem.
        let count = if devices.len() == 3 { 2 } else { 1 };
        let (layout, mut inventory) = with_btrfs();
        devices.iter().for_each(|device| put(&mut inventory, device, signature(kind, label)));
        let reasons = reasons(make(&layout, &inventory, InstallMode::Reinstall));
        assert!(reasons[0].starts_with(expected), "{reasons:#?}");
        assert_eq!(reasons.len(), count, "{reasons:#?}");
    }
}

#[test]
fn accepts_objects_that_span_no_other_disks() {
    let found = signature;
    let accepted: [(&str, &[(&str, DeviceSignature)]); 5] = [
        ("both members on a wiped disk", &[("/dev/sda2", found("btrfs", "old")), ("/dev/sda3", found("btrfs", "old"))]),
        ("one member", &[("/dev/sda3", found("zfs_member", "tank"))]),
        ("another type", &[("/dev/sda3", found("zfs_member", "tank")), ("/dev/sdc", found("btrfs", "tank"))]),
        (
            "copies of a filesystem on a single device",
            &[("/dev/sda3", found("ext4", "a")), ("/dev/sdc", found("ext4", "a"))],
        ),
        (
            "no UUID tells",
            &[
                ("/dev/sda3", DeviceSignature { uuid: String::new(), ..found("btrfs", "a") }),
                ("/dev/sdc", DeviceSignature { uuid: String::new(), ..found("btrfs", "a") }),
            ],
        ),
    ];
    for (name, devices) in accepted {
        let (layout, mut inventory) = with_btrfs();
        devices.iter().for_each(|(device, found)| put(&mut inventory, device, found.clone()));
        make(&layout, &inventory, InstallMode::Reinstall).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }
}

#[test]
fn install_reports_objects_that_lose_a_member() {
    let (layout, mut inventory) = with_btrfs();
    ["/dev/sda3", "/dev/sdc"].iter().for_each(|device| put(&mut inventory, device, signature("zfs_member", "tank")));
    let plan = make(&layout, &inventory, InstallMode::Install).unwrap();
    let said =
        "REMOVES sda3 FROM zfs_member \"tank\", whose other members on sdc are not in the layout and stay unchanged";
    let warned = plan.warnings.iter().filter(|warning| warning.starts_with(said)).count();
    assert_eq!(warned, 1, "{plan}");
    assert!(plan.to_string().contains(&format!("WARNING: {said}")), "{plan}");
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!((&json["torn"][0]["wiped"][0], &json["torn"][0]["stays_on"][0]), (&"sda3".into(), &"sdc".into()));
    assert_eq!(json["torn"][0]["name"], "zfs_member \"tank\"");
}

/// The members are the preserved disk sdf, and a volume on an array of preserved disks.
#[test]
fn logical_volumes_count_as_spanning_members() {
    let mut inventory = arrays_and_groups::installed();
    let volume = inventory.stacked.iter_mut().find(|stacked| stacked.device == "/dev/mapper/vg00-srv").unwrap();
    volume.signatures = vec![signature("btrfs", "srv")];
    put(&mut inventory, "/dev/sdf", signature("btrfs", "srv"));
    let mut layout = arrays_and_groups::layout();
    layout.disks.push(arrays_and_groups::whole("/dev/sdf"));
    make(&layout, &inventory, InstallMode::Reinstall).unwrap();
    let root = inventory.stacked.iter_mut().find(|stacked| stacked.below.contains(&"sda2".into())).unwrap();
    root.signatures = vec![signature("btrfs", "srv")];
    let name = root.name.clone();
    let reasons = reasons(make(&layout, &inventory, InstallMode::Reinstall));
    let expected = format!("disks: btrfs \"srv\" spans {name}, which a reinstall wipes, and sdf, dm-");
    assert!(reasons[0].starts_with(&expected), "{reasons:#?}");
}

/// sysfs writes `cciss!c0d0p2` for `/dev/cciss/c0d0p2`: both names refer to the same partition.
#[test]
fn detects_mapping_over_a_disk_in_a_subdirectory() {
    let mut layout = layout();
    layout.disks[0].device = "/dev/cciss/c0d0".into();
    for filesystem in &mut layout.filesystems {
        filesystem.device = filesystem.device.as_str().replace("/dev/sda", "/dev/cciss/c0d0p").into();
    }
    let text = serde_json::to_string(&installed()).unwrap().replace("\"sda\"", "\"cciss!c0d0\"");
    let text = text.replace("\"/dev/sda\"", "\"/dev/cciss/c0d0\"").replace("/dev/sda", "/dev/cciss/c0d0p");
    let mut inventory: Inventory = serde_json::from_str(&text).unwrap();
    assert!(make(&layout, &inventory, InstallMode::Reinstall).is_ok());
    inventory.stacked.push(inventory::StackedDevice {
        name: "dm-0".into(),
        device: "/dev/mapper/span".into(),
        below: vec!["cciss!c0d0p2".into(), "sdc".into()],
        ..inventory::StackedDevice::default()
    });
    let expected =
        "disks: dm-0 spans cciss!c0d0p2, which a reinstall wipes, and sdc, which the reinstall does not write: ";
    let reasons = reasons(make(&layout, &inventory, InstallMode::Reinstall));
    assert!(reasons.iter().any(|reason| reason.starts_with(expected)), "{reasons:#?}");
}
