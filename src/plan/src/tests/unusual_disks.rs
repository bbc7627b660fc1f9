//! Disks with unsupported sectors or zones, and disks of clusters.

use super::*;

fn with_sdb(change: impl Fn(&mut inventory::InventoryDisk)) -> Inventory {
    let mut inventory = machine();
    let disk = &mut inventory.disks[1];
    [disk.serial, disk.wwn] = ["B0", "0x5000c500a1b2c3d7"].map(str::to_owned);
    change(disk);
    inventory
}

/// Layout whose second disk is selected by a hint.
fn hinted(hint: &str, text: &str) -> Layout {
    let mut layout = layout();
    layout.disks[1].hints.insert(hint.to_owned(), text.to_owned());
    layout
}

#[test]
fn refuses_unusable_disks_by_name() {
    type Change = fn(&mut inventory::InventoryDisk);
    let cases: [(Change, &str); 3] = [
        (|disk| disk.sector_bytes = 520, "/dev/sdb cannot be used: the disk has sectors of 520 bytes; format it"),
        (|disk| disk.sector_bytes = 528, "/dev/sdb cannot be used: the disk has sectors of 528 bytes; format it"),
        (
            |disk| disk.zoned = "host-managed".to_owned(),
            "/dev/sdb cannot be used: the disk is a host-managed zoned disk",
        ),
    ];
    for (change, words) in cases {
        let refused = reasons(make(&layout(), &with_sdb(change), InstallMode::Install));
        assert!(refused.iter().any(|reason| reason.contains(words)), "{refused:?}");
    }
    for usable in [(|disk| disk.sector_bytes = 4096) as Change, |disk| disk.zoned = "host-aware".to_owned()] {
        make(&layout(), &with_sdb(usable), InstallMode::Install).unwrap();
    }
    // A disk that the layout does not list may be of any type.
    let mut inventory = machine();
    inventory.disks[2].sector_bytes = 520;
    make(&layout(), &inventory, InstallMode::Install).unwrap();
}

#[test]
fn cluster_disk_is_wiped_only_by_unique_hint() {
    let signature = |kind: &str| DeviceSignature { kind: kind.to_owned(), ..DeviceSignature::default() };
    let partitioned = |kind: &str, signatures| inventory::DiskTable {
        kind: "gpt".to_owned(),
        guid: Some(Uuid::from_u128(7)),
        partitions: vec![inventory::DiskPartition {
            number: 1,
            device: "/dev/sdb1".into(),
            start_bytes: MIB,
            size_bytes: 100 * MIB,
            kind: kind.to_owned(),
            signatures,
            ..inventory::DiskPartition::default()
        }],
    };
    let linux = PartitionType::Linux.guid().to_string();
    let contents = [
        ("GFS2", with_sdb(|disk| disk.signatures.push(signature("gfs2")))),
        ("OCFS2", with_sdb(|disk| disk.table = Some(partitioned(&linux, vec![signature("ocfs2")])))),
        ("VMFS", with_sdb(|disk| disk.signatures.push(signature("VMFS_volume_member")))),
        ("VMFS", with_sdb(|disk| disk.table = Some(partitioned("AA31E02A-400F-11DB-9590-000C2911D1B8", Vec::new())))),
        ("GPFS", with_sdb(|disk| disk.table = Some(partitioned("37affc90-ef7d-4e96-91c3-2d7ae055b174", Vec::new())))),
    ];
    for (name, inventory) in &contents {
        for layout in [layout(), hinted("name", "/dev/sdb"), hinted("serial", "<in> B")] {
            let refused = reasons(make(&layout, inventory, InstallMode::Install));
            let words = format!("/dev/sdb contains {name}, and other machines may use the same data");
            assert!(refused.iter().any(|reason| reason.contains(&words)), "{name}: {refused:?}");
        }
        for layout in
            [hinted("serial", "B0"), hinted("wwn", "0x5000c500a1b2c3d7"), hinted("serial", "5000c500a1b2c3d7")]
        {
            let plan = make(&layout, inventory, InstallMode::Install);
            assert_eq!(verdicts(&plan.unwrap_or_else(|refusal| panic!("{refusal}")))[1], DiskVerdict::Wipe);
        }
    }
    let local = with_sdb(|disk| disk.signatures.push(signature("xfs")));
    make(&layout(), &local, InstallMode::Install).unwrap();
}

/// The shared disks of a cluster usually have a volume group between disk and filesystem.
#[test]
fn disks_below_clustered_logical_volumes_are_protected() {
    let group = |closed: Option<&str>| inventory::LvmVolumeGroup {
        name: "data".to_owned(),
        physical: vec![inventory::LvmPhysicalVolume { device: Some("/dev/sdb".into()), ..Default::default() }],
        closed: closed.map(str::to_owned),
        ..inventory::LvmVolumeGroup::default()
    };
    let volume = |kind: &str| inventory::StackedDevice {
        name: "dm-0".into(),
        device: "/dev/mapper/data-vm".into(),
        kind: inventory::StackedDeviceKind::Volume,
        below: vec!["sdb".into()],
        signatures: vec![DeviceSignature { kind: kind.to_owned(), ..DeviceSignature::default() }],
        ..inventory::StackedDevice::default()
    };
    let locked = format!("{} (lock type sanlock)", inventory::SHARED_GROUP);
    for (closed, kind, content) in [
        (None, "gfs2", Some("GFS2")),
        (Some(locked.as_str()), "xfs", Some("a shared LVM volume group")),
        (Some("it is exported"), "xfs", None),
        (None, "xfs", None),
    ] {
        let mut inventory = with_sdb(|_| ());
        inventory.groups.push(group(closed));
        inventory.stacked.push(volume(kind));
        let refused = make(&layout(), &inventory, InstallMode::Install).err().map(|refusal| refusal.problems);
        let refused: Vec<String> = refused.iter().flatten().map(ToString::to_string).collect();
        let words =
            content.map(|content| format!("/dev/sdb contains {content}, and other machines may use the same data"));
        assert_eq!(refused.len(), usize::from(content.is_some()), "{refused:?}");
        assert!(words.is_none_or(|words| refused[0].contains(&words)), "{refused:?}");
        make(&hinted("serial", "B0"), &inventory, InstallMode::Install).unwrap_or_else(|refusal| panic!("{refusal}"));
    }
}
