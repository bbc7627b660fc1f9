//! Devices that a preserved filesystem needs in addition to its main device. Such a device is specified by a mount
//! option, by a UUID, or not at all.

use super::installation_identity::{claim, marked, reinstall};
use super::*;
use model::inventory::{ComponentRole, SpanningComponent};
use uuid::Uuid;

const GUID: u128 = 0x5a1d_7c0e_93b2_4f57_8f0c_6e1a_2b3c_4d5e;

/// Layout and machine: the system and a third partition are on sda, which is wiped; xfs and a second partition are on
/// sdb, which is preserved; sdc is not listed.
fn with_option(option: &str) -> (Layout, Inventory) {
    let mut layout = layout();
    layout.filesystems[0].format = FilesystemFormat::Xfs;
    layout.filesystems.retain(|filesystem| filesystem.format != FilesystemFormat::Swap);
    layout.filesystems[0].mountoptions.extend((!option.is_empty()).then(|| option.to_owned()));
    layout.disks[1].partitions[0].size = 4000.into();
    layout.disks[1].partitions.push(partition(2, "realtime", 0, PartitionType::Linux));
    let mut inventory = after(&make(&layout, &machine(), InstallMode::Install).unwrap(), machine());
    let [sda, _, sdc] = &mut inventory.disks[..] else { panic!("three disks") };
    sda.by_path = "/dev/disk/by-path/pci-0000:00:1f.2-ata-1".to_owned();
    sda.by_id = vec!["/dev/disk/by-id/ata-DISK_A0".to_owned()];
    let part = &mut sda.table.as_mut().unwrap().partitions[2];
    part.guid = Some(Uuid::from_u128(GUID));
    part.label = "spare".to_owned();
    part.blank = false;
    sdc.signatures = vec![signature("xfs_external_log", "", "log-uuid")];
    (layout, inventory)
}

fn signature(kind: &str, label: &str, uuid: &str) -> DeviceSignature {
    let [kind, label, uuid] = [kind, label, uuid].map(str::to_owned);
    DeviceSignature { kind, label, uuid, usage: "other".to_owned() }
}

fn planned(option: &str) -> Result<Plan, Vec<String>> {
    let (layout, inventory) = with_option(option);
    make(&layout, &inventory, InstallMode::Reinstall)
        .map_err(|refusal| refusal.problems.iter().map(ToString::to_string).collect())
}

#[test]
fn refuses_mount_option_naming_a_wiped_device() {
    let guid = Uuid::from_u128(GUID);
    for option in [
        "rtdev=/dev/sda3".to_owned(),
        "logdev=/dev/sda3".to_owned(),
        "noatime,logdev=/dev/sda3".to_owned(),
        format!("rtdev=PARTUUID={guid}"),
        format!("rtdev=PARTUUID={}", guid.to_string().to_uppercase()),
        format!("rtdev=/dev/disk/by-partuuid/{guid}"),
        "rtdev=PARTLABEL=spare".to_owned(),
        "rtdev=\"PARTLABEL=spare\"".to_owned(),
        "rtdev=/dev/disk/by-partlabel/spare".to_owned(),
        "rtdev=/dev/disk/by-path/pci-0000:00:1f.2-ata-1-part3".to_owned(),
        "rtdev=/dev/disk/by-id/ata-DISK_A0-part3".to_owned(),
        // Any mount option that specifies a wiped device is refused, regardless of its meaning.
        "x-systemd.requires=/dev/sda3".to_owned(),
        "x-systemd.device-bound=/dev/sda3".to_owned(),
        format!("x-systemd.requires=dev-disk-by\\x2dpartuuid-{}.device", guid.to_string().replace('-', "\\x2d")),
        "x-systemd.after=dev-sda3.device".to_owned(),
    ] {
        let reasons = planned(&option).expect_err(&option);
        let expected = "/dev/sdb1 must be preserved, and must contain xfs \"srv\"";
        assert!(reasons.len() == 1 && reasons[0].contains(expected), "{option}: {reasons:#?}");
        assert!(reasons[0].contains("refers to /dev/sda3, but a reinstall wipes /dev/sda"), "{option}: {reasons:#?}");
        assert!(reasons[0].contains("wipeonreinstall"), "no remedy: {reasons:#?}");
    }
    // An option may also specify the device by its label.
    let (layout, mut inventory) = with_option("rtdev=/dev/disk/by-label/spare");
    inventory.disks[0].table.as_mut().unwrap().partitions[2].signatures = vec![signature("ext2", "spare", "u")];
    assert!(reasons(make(&layout, &inventory, InstallMode::Reinstall))[0].contains("refers to /dev/sda3"));
}

#[test]
fn accepts_mount_option_that_names_a_preserved_device() {
    for option in [
        "",
        "noatime",
        "rtdev=/dev/sdb2",
        "logdev=/dev/sdb2",
        "uquota,rtdev=/dev/disk/by-partlabel/realtime",
        "x-systemd.requires=/dev/sdb2",
        "x-systemd.requires=/dev/sdc",
        "x-systemd.requires=network-online.target",
        "x-systemd.requires-mounts-for=/var",
        "x-systemd.device-timeout=30",
    ] {
        planned(option).unwrap_or_else(|reasons| panic!("{option}: {reasons:#?}"));
    }
    // A new filesystem has no data on other disks, so the option is harmless.
    let (mut layout, inventory) = with_option("");
    let root = layout.filesystems.iter_mut().find(|filesystem| filesystem.path.as_deref() == Some("/")).unwrap();
    root.mountoptions = vec!["journal_path=/dev/sda3".to_owned()];
    make(&layout, &inventory, InstallMode::Reinstall).unwrap();
    // A first installation wipes all listed disks, so the option is accepted.
    let (layout, inventory) = with_option("rtdev=/dev/sda3");
    make(&layout, &inventory, InstallMode::Install).unwrap();
}

/// The kernel writes to a log or realtime device as soon as the filesystem is mounted.
#[test]
fn refuses_log_or_realtime_device_on_an_unlisted_disk() {
    for option in ["rtdev=/dev/sdc", "logdev=/dev/sdc", "logdev=UUID=log-uuid", "logdev=/dev/disk/by-uuid/log-uuid"] {
        let reasons = planned(option).expect_err(option);
        assert!(reasons.len() == 1 && reasons[0].contains("refers to /dev/sdc"), "{option}: {reasons:#?}");
        assert!(reasons[0].contains("add /dev/sdc to the layout"), "{option}: {reasons:#?}");
    }
}

/// A device that is not found may be on a wiped disk.
#[test]
fn refuses_mount_option_that_names_an_unknown_device() {
    for option in ["rtdev=/dev/sdz", "logdev=UUID=nobody", "logdev=/dev/mapper/gone", "journal_dev=0x803"] {
        let reasons = planned(option).expect_err(option);
        assert!(reasons.len() == 1 && reasons[0].contains("that was not found"), "{option}: {reasons:#?}");
    }
}

/// The superblock of a preserved xfs declares a realtime device. A realtime device has no signature.
#[test]
fn refuses_to_wipe_possible_realtime_device_without_signature() {
    let realtime = |option: &str, blank: bool| {
        let (layout, mut inventory) = with_option(option);
        for (disk, serial) in inventory.disks.iter_mut().zip(["A0", "B0", "C0"]) {
            disk.serial = serial.to_owned();
        }
        inventory.filesystems = marked().filesystems;
        let part = &mut inventory.disks[0].table.as_mut().unwrap().partitions[2];
        part.blank = blank;
        inventory.parts.push(SpanningComponent {
            device: "/dev/sdb1".into(),
            kind: "xfs".to_owned(),
            whole: "xfs and its realtime device".to_owned(),
            id: inventory.disks[1].table.as_ref().unwrap().partitions[0].signatures[0].uuid.clone(),
            role: ComponentRole::NeedsAnother,
        });
        (layout, inventory)
    };
    let (layout, inventory) = realtime("", false);
    let reasons = reasons(reinstall(&layout, &inventory, claim()));
    assert!(reasons.len() == 1 && reasons[0].contains("/dev/sdb1"), "{reasons:#?}");
    assert!(reasons[0].contains("data of no known kind on /dev/sda3"), "{reasons:#?}");
    assert!(reasons[0].contains("rtdev=") && reasons[0].contains("--give-up A0"), "no remedy: {reasons:#?}");
    let given = InstallClaim { give_up: vec!["A0".to_owned()], ..claim() };
    let plan = reinstall(&layout, &inventory, given).unwrap();
    assert!(plan.warnings.iter().any(|said| said.contains("/dev/sda3")), "{plan}");
    // The filesystem may also be on an unlisted disk.
    let on_device = |device: &str| {
        let (layout, mut inventory) = realtime("", false);
        inventory.parts[0].device = device.into();
        reinstall(&layout, &inventory, claim())
    };
    on_device("/dev/sda2").unwrap();
    let refusal = on_device("/dev/sdc").unwrap_err();
    let [problem] = &refusal.problems[..] else { panic!("{refusal}") };
    assert!(problem.message.contains("xfs on /dev/sdc is on a disk that the layout does not list"), "{refusal}");
    assert!(problem.message.contains("add the filesystem to the layout"), "no remedy: {refusal}");
    // The plan is accepted if the option specifies a preserved device, or if no device can be the missing one.
    for (option, blank) in [("rtdev=/dev/sdb2", false), ("", true)] {
        let (layout, inventory) = realtime(option, blank);
        reinstall(&layout, &inventory, claim()).unwrap_or_else(|refusal| panic!("{option}: {refusal}"));
    }
}

/// Filesystems and their journals refer to each other by UUID.
#[test]
fn refuses_preserved_filesystem_with_component_on_unlisted_disk() {
    for (format, whole, kind, other, role) in [
        (FilesystemFormat::Ext4, "filesystem and its external journal", "ext4", "jbd", ComponentRole::Serves),
        (FilesystemFormat::Xfs, "xfs and its external log", "xfs", "xfs_external_log", ComponentRole::Serves),
        (FilesystemFormat::Btrfs, "btrfs", "btrfs", "btrfs", ComponentRole::OneOf(2)),
    ] {
        let mut layout = layout();
        layout.filesystems[0].format = format;
        let inventory = |layout: &Layout| {
            let mut inventory = after(&make(layout, &machine(), InstallMode::Install).unwrap(), machine());
            let uuid = inventory.disks[1].table.as_ref().unwrap().partitions[0].signatures[0].uuid.clone();
            // libblkid reports the UUID of the filesystem for members of a btrfs filesystem, but not for journals and
            // logs.
            let shown = if format == FilesystemFormat::Btrfs { &*uuid } else { "" };
            inventory.disks[2].signatures = vec![signature(other, "", shown)];
            let own = if role == ComponentRole::Serves { ComponentRole::NeedsAnother } else { role };
            for (device, kind, role) in [("/dev/sdb1", kind, own), ("/dev/sdc", other, role)] {
                let (device, kind, whole, id) = (device.into(), kind.to_owned(), whole.to_owned(), uuid.clone());
                inventory.parts.push(SpanningComponent { device, kind, whole, id, role });
            }
            inventory
        };
        let reasons = reasons(make(&layout, &inventory(&layout), InstallMode::Reinstall));
        assert!(
            reasons.iter().any(|reason| reason.contains("/dev/sdb1") && reason.contains("/dev/sdc")),
            "{reasons:#?}"
        );
        assert!(reasons.iter().any(|reason| reason.contains("add /dev/sdc to the layout")), "{reasons:#?}");
        // If the layout also lists the disk of the other device, both disks are preserved, and the plan is accepted.
        layout.disks.push(arrays_and_groups::whole("/dev/sdc"));
        let plan = make(&layout, &inventory(&layout), InstallMode::Reinstall)
            .unwrap_or_else(|refusal| panic!("{whole}: {refusal}"));
        assert_eq!(verdicts(&plan), [DiskVerdict::Wipe, DiskVerdict::Keep, DiskVerdict::Keep]);
        layout.disks.pop();
        // A filesystem that is mounted with `ro`, or not mounted, is not written.
        layout.filesystems[0].mountoptions = vec!["ro".to_owned()];
        make(&layout, &inventory(&layout), InstallMode::Reinstall)
            .unwrap_or_else(|refusal| panic!("{whole}: {refusal}"));
        layout.filesystems[0].path = None;
        make(&layout, &inventory(&layout), InstallMode::Reinstall)
            .unwrap_or_else(|refusal| panic!("{whole}: {refusal}"));
    }
}

#[test]
fn refuses_preserved_array_or_group_with_unlisted_disk() {
    let spare = inventory::ArrayMember { device: "/dev/sdf".into(), role: inventory::MemberRole::Spare };
    let mut array = arrays_and_groups::installed();
    array.arrays.iter_mut().find(|array| array.name == "data").unwrap().members.push(spare);
    let physical = inventory::LvmPhysicalVolume { device: Some("/dev/sdf".into()), ..Default::default() };
    let mut group = arrays_and_groups::installed();
    group.groups[0].physical.push(physical);
    for (inventory, what) in [(array, "/dev/md/data must be preserved"), (group, "vg:vg00 must be preserved")] {
        let reasons = reasons(make(&arrays_and_groups::layout(), &inventory, InstallMode::Reinstall));
        assert!(reasons.iter().any(|reason| reason.contains(what) && reason.contains("/dev/sdf")), "{reasons:#?}");
    }
}
