//! Devices and files on which Kubernetes volumes are not prepared.

use super::*;
use model::inventory::DiskPartition;

#[test]
fn refuses_nonblank_device_by_volume_name() {
    let volumes = [raw("data", 1, "Filesystem", "/dev/sdc"), raw("block", 2, "Block", "/dev/sdd")];
    let is = |change: &dyn Fn(&mut model::inventory::InventoryDisk)| {
        let mut machine = machine();
        change(&mut machine.disks[2]);
        refused(&layout(), &machine, InstallMode::Install, &volumes)
    };
    let signature =
        |kind: &str| DeviceSignature { kind: kind.into(), usage: "filesystem".into(), ..DeviceSignature::default() };
    for (said, expected) in [
        (is(&|disk| disk.signatures.push(signature("xfs"))), "refers to /dev/sdc, which is not blank: it contains xfs"),
        (
            is(&|disk| disk.table = Some(DiskTable { kind: "gpt".into(), ..DiskTable::default() })),
            "refers to /dev/sdc, which is not blank: it contains GPT 0 partitions",
        ),
        (is(&|disk| disk.blank = false), "refers to /dev/sdc, which is not blank: it contains data of no known kind"),
        (is(&|disk| disk.uses.push(DeviceUse::Swap)), "refers to /dev/sdc, which is in use"),
        (is(&|disk| disk.read_only = true), "refers to /dev/sdc, which is read-only"),
        (
            is(&|disk| disk.sector_bytes = 520),
            "cannot use /dev/sdc: the disk has sectors of 520 bytes; format it with sectors of 512 or 4096 bytes (sg_format --format --size=512)",
        ),
        (is(&|disk| disk.unreadable = Some("EIO".into())), "refers to /dev/sdc, whose content cannot be read: EIO"),
        (
            is(&|disk| disk.signatures.push(DeviceSignature { uuid: uid(1), ..signature("xfs") })),
            "must be ext4, but /dev/sdc, which has the UUID of the volume, contains xfs",
        ),
    ] {
        assert_eq!(said, [format!("volumes[data]: volume data {expected}")]);
    }
}

#[test]
fn unsupported_disk_is_not_discovered() {
    let discovered = discover("data", 1, json!({}));
    let mut machine = machine();
    for disk in &mut machine.disks[2..] {
        disk.zoned = "host-managed".to_owned();
    }
    let said = refused(&layout(), &machine, InstallMode::Install, std::slice::from_ref(&discovered));
    assert!(said.len() == 1 && said[0].contains("/dev/sdc (the disk is a host-managed zoned disk, "), "{said:?}");
    machine.disks[3].zoned = "none".to_owned();
    let plan = planned(&layout(), &machine, InstallMode::Install, &[discovered]).unwrap();
    assert_eq!(plan.disks[3].verdict, DiskVerdict::Volumes);
}

#[test]
fn refuses_devices_that_cannot_provide_volumes() {
    let cases = [
        (raw("v", 1, "Block", "/dev/sdz"), "refers to /dev/sdz, which does not exist on this machine: its disks are"),
        (raw("v", 1, "Block", "/dev/sda2"), "refers to /dev/sda2, which the layout or another volume uses"),
        (raw("v", 1, "Block", "/dev/sda"), "refers to /dev/sda, which the layout or another volume uses"),
        (raw("v", 1, "Block", "/dev/csi/varlib"), "refers to /dev/csi/varlib, which the layout or another volume uses"),
        (in_group("v", 1, "Block", "other", "1Gi"), "requires vg:other, which is not in the layout"),
        (in_group("varlib", 1, "Block", "csi", "1Gi"), "has the name of a volume that the layout defines in vg:csi"),
        (in_group("v", 1, "Block", "csi", "1Ti"), "needs 1048576 MiB in vg:csi, which has 6996 MiB left"),
        (raw("v", 1, "Filesystem", "/dev/sdc1"), "refers to /dev/sdc1, which does not exist on this machine"),
    ];
    for (volume, expected) in cases {
        let said = refused(&layout(), &machine(), InstallMode::Install, &[volume]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains(expected), "{said:?}");
    }
    let mut parted = machine();
    let part = DiskPartition { number: 1, device: "/dev/sdc1".into(), ..DiskPartition::default() };
    parted.disks[2].table = Some(DiskTable { kind: "gpt".into(), partitions: vec![part], ..DiskTable::default() });
    let of_unlisted = refused(&layout(), &parted, InstallMode::Install, &[raw("v", 1, "Block", "/dev/sdc1")]);
    assert!(
        of_unlisted[0].contains("refers to /dev/sdc1, which is neither a disk nor a device of the layout"),
        "{of_unlisted:?}"
    );
    let twice = [raw("a", 1, "Block", "/dev/sdc"), raw("b", 2, "Block", "/dev/sdc")];
    assert!(refused(&layout(), &machine(), InstallMode::Install, &twice)[0].contains("which another volume uses"));
    let mut elsewhere = raw("v", 1, "Block", "/dev/sdc");
    elsewhere["spec"]["nodeName"] = json!("node-2");
    let said = refused(&layout(), &machine(), InstallMode::Install, &[elsewhere]);
    assert_eq!(said, ["volumes[v]: volume v belongs to the node node-2, but this machine is the node node-1"]);
    let xfs = with_class(vec![sparse("v", 1, "Filesystem", "200Mi")], json!({"fsType": "xfs"}));
    let said =
        reasons(crate::make_plan(&layout(), &machine(), request(InstallMode::Install, xfs, None), &mut counting()));
    assert!(said[0].contains("has 210 MB on ") && said[0].contains("xfs requires 315 MB"), "{said:?}");
    // Errors in the list of volumes are reported as well.
    let said = refused(&layout(), &machine(), InstallMode::Install, &[json!({"kind": "Volume"})]);
    assert!(said[0].starts_with("volumes[0].metadata.name: "), "{said:?}");
}

/// A file of the size in each row is accepted, and a larger file is refused.
#[test]
fn refuses_file_larger_than_its_filesystem_supports() {
    let on = |format: FilesystemFormat, options: &str| {
        let mut layout = layout();
        layout.filesystems[0].format = format;
        layout.filesystems[0].createoptions = options.split_whitespace().map(str::to_owned).collect();
        layout
    };
    for (format, options, most) in [
        (FilesystemFormat::Ext4, "", (16_u64 << 40) - 4096),
        (FilesystemFormat::Ext4, "-b 4096", (16 << 40) - 4096),
        (FilesystemFormat::Ext4, "-b 2048", (8 << 40) - 2048),
        (FilesystemFormat::Ext4, "-b1k", (4 << 40) - 1024),
        (FilesystemFormat::Ext4, "-O ^has_journal,^huge_file", 2_196_873_666_560),
        (FilesystemFormat::Ext4, "-O ^extent,^64bit", 2_196_873_666_560),
        (FilesystemFormat::Ext3, "", 2_196_873_666_560),
        (FilesystemFormat::Ext3, "-b 1024", 17_247_252_480),
    ] {
        let layout = on(format, options);
        let fits = [sparse("small", 1, "Block", &most.to_string())];
        let first = planned(&layout, &machine(), InstallMode::Install, &fits);
        assert!(first.is_ok(), "{format} {options}: {:?}", reasons(first));
        let large = [sparse("small", 1, "Block", &(most + 1).to_string())];
        let said = refused(&layout, &machine(), InstallMode::Install, &large);
        let expected = format!(
            "volumes[small]: volume small is a file of {} bytes below /var/lib, whose filesystem is {format} and supports files of at most \
             {most} bytes; make the volume smaller, or put /var/lib/metalk8s on xfs",
            most + 1
        );
        assert_eq!(said, [expected], "{options}");
    }
    // Other filesystems support files of the maximum size of a volume.
    for format in [FilesystemFormat::Xfs, FilesystemFormat::Btrfs] {
        let large = [sparse("small", 1, "Block", &i64::MAX.to_string())];
        let first = planned(&on(format, ""), &machine(), InstallMode::Install, &large);
        assert!(first.is_ok(), "{format}: {:?}", reasons(first));
    }
}

#[test]
fn refuses_volume_on_devices_that_a_reinstall_recreates() {
    let mut layout = layout();
    layout.disks.push(DiskSpec { wipeonreinstall: true, ..whole("/dev/sdc") });
    let volumes = [raw("data", 1, "Filesystem", "/dev/sdc")];
    let first = planned(&layout, &machine(), InstallMode::Install, &volumes).unwrap();
    assert_eq!(format_volumes(&first), ["data /dev/sdc make sdc"]);
    let said =
        "volume data is on /dev/sdc, which a reinstall wipes: as long as the volume is listed, reinstalls are refused";
    assert!(first.warnings.contains(&said.to_owned()), "{first}");
    let inventory = after(&first, machine());
    let said = refused(&layout, &inventory, InstallMode::Reinstall, &volumes);
    let expected =
        "volumes[data]: volume data is on /dev/sdc, which a reinstall wipes; set wipeonreinstall: false for its disks";
    assert_eq!(said, [expected]);
    // If a reinstall would wipe the data of a volume, the volume is not prepared on another disk, neither one that the
    // list specifies by path nor one selected by hints.
    for elsewhere in [raw("data", 1, "Filesystem", "/dev/sdd"), discover("data", 1, json!({}))] {
        let said = refused(&layout, &inventory, InstallMode::Reinstall, &[elsewhere]);
        assert_eq!(said, [expected]);
    }
    // Without a preserved filesystem, the file of a sparse volume is lost with the old system.
    let mut alone = super::super::layout();
    alone.id = "alone".to_owned();
    let volumes = [sparse("small", 1, "Block", "10Mi")];
    let first = planned(&alone, &machine(), InstallMode::Install, &volumes).unwrap();
    assert_eq!(first.warnings.len(), 1, "{first}");
    let said = refused(&alone, &after(&first, machine()), InstallMode::Reinstall, &volumes);
    assert!(said[0].contains("has its backing file below /, which a reinstall recreates"), "{said:?}");
}
