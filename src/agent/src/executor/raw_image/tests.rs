use super::*;
use model::inventory::DeviceSignature;
use model::layout::FilesystemFormat;

fn signature(kind: &str, label: &str) -> DeviceSignature {
    DeviceSignature { kind: kind.into(), usage: "filesystem".into(), label: label.into(), uuid: format!("uuid-{kind}") }
}

fn table() -> DiskTable {
    let partition = |number, signatures| DiskPartition { number, signatures, ..DiskPartition::default() };
    let partitions = vec![
        partition(1, vec![signature("vfat", "ESP")]),
        partition(2, vec![signature("ext4", "root")]),
        partition(3, vec![]),
        partition(4, vec![signature("ext4", ""), signature("swap", "")]),
    ];
    DiskTable { partitions, ..DiskTable::default() }
}

fn expected(number: u32, format: FilesystemFormat, label: Option<&str>) -> ExpectedFilesystem {
    let (device, path) = (format!("/dev/sda{number}"), "/".to_owned());
    ExpectedFilesystem { number, device: device.into(), path, format, label: label.map(str::to_owned) }
}

#[test]
fn seed_partition_of_the_image_is_found() {
    let mut table = table();
    assert_eq!(find_seed(&"/dev/nvme0n1".into(), &table), None);
    table.partitions[2].signatures = vec![signature("vfat", "CIDATA")];
    let found = SeedFilesystem { device: "/dev/nvme0n1p3".into(), path: None };
    assert_eq!(find_seed(&"/dev/nvme0n1".into(), &table), Some(found));
    // The seed is only written to a vfat filesystem.
    for kind in ["iso9660", "ext4"] {
        table.partitions[2].signatures = vec![signature(kind, "cidata")];
        assert_eq!(find_seed(&"/dev/sda".into(), &table), None, "{kind}");
    }
    // mkfs.vfat preserves lowercase letters, and the label in the layout may be uppercase.
    table.partitions[2].signatures = vec![signature("vfat", "cidata")];
    let wanted = ExpectedFilesystem { path: String::new(), ..expected(3, FilesystemFormat::Vfat, Some("CIDATA")) };
    assert_eq!(verify_filesystem(&"/dev/sda".into(), &wanted, &table).unwrap(), "uuid-vfat");
    table.partitions[2].signatures.clear();
    let error = verify_filesystem(&"/dev/sda".into(), &wanted, &table).unwrap_err().to_string();
    assert!(
        error.starts_with("cloud-init's seed cannot be mounted from /dev/sda3: expected vfat \"CIDATA\""),
        "{error}"
    );
}

#[test]
fn filesystems_of_the_image_must_match_the_layout() {
    for (number, format, label, uuid) in [
        (2, FilesystemFormat::Ext4, None, "uuid-ext4"),
        (2, FilesystemFormat::Ext4, Some("root"), "uuid-ext4"),
        (1, FilesystemFormat::Vfat, Some("ESP"), "uuid-vfat"),
    ] {
        assert_eq!(verify_filesystem(&"/dev/sda".into(), &expected(number, format, label), &table()).unwrap(), uuid);
    }
    let there = r#"which contains only /dev/sda1 vfat "ESP", /dev/sda2 ext4 "root", /dev/sda3 without a filesystem, /dev/sda4 ext4 and swap"#;
    for (number, format, label, says) in [
        (5, FilesystemFormat::Ext4, None, there),
        (
            2,
            FilesystemFormat::Xfs,
            None,
            r#"/ cannot be mounted from /dev/sda2: expected xfs, but the image contains /dev/sda2 ext4 "root""#,
        ),
        (2, FilesystemFormat::Ext4, Some("os"), r#"expected ext4 "os", but the image contains /dev/sda2 ext4 "root""#),
        (3, FilesystemFormat::Ext4, None, "the image contains /dev/sda3 without a filesystem"),
        (4, FilesystemFormat::Ext4, None, "the image contains /dev/sda4 ext4 and swap"),
    ] {
        let error = verify_filesystem(&"/dev/sda".into(), &expected(number, format, label), &table()).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(error.phase, Phase::Image);
    }
    assert!(
        verify_filesystem(&"/dev/sda".into(), &expected(1, FilesystemFormat::Ext4, None), &DiskTable::default())
            .is_err()
    );
}
