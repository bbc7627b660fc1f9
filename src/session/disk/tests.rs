use super::*;
use crate::inventory::Signature;
use crate::layout::Format;

fn signature(kind: &str, label: &str) -> Signature {
    Signature { kind: kind.into(), usage: "filesystem".into(), label: label.into(), uuid: format!("uuid-{kind}") }
}

fn table() -> Table {
    let partition = |number, signatures| Partition { number, signatures, ..Partition::default() };
    let partitions = vec![
        partition(1, vec![signature("vfat", "ESP")]),
        partition(2, vec![signature("ext4", "root")]),
        partition(3, vec![]),
        partition(4, vec![signature("ext4", ""), signature("swap", "")]),
    ];
    Table { partitions, ..Table::default() }
}

fn expected(number: u32, format: Format, label: Option<&str>) -> ExpectedFilesystem {
    let (device, path) = (format!("/dev/sda{number}"), "/".to_owned());
    ExpectedFilesystem { number, device: device.into(), path, format, label: label.map(str::to_owned) }
}

#[test]
fn the_partition_that_the_image_has_for_a_seed_is_found() {
    let mut table = table();
    assert_eq!(seed_in(&"/dev/nvme0n1".into(), &table), None);
    table.partitions[2].signatures = vec![signature("vfat", "CIDATA")];
    let found = Seed { device: "/dev/nvme0n1p3".into(), path: None };
    assert_eq!(seed_in(&"/dev/nvme0n1".into(), &table), Some(found));
    // What is read-only for everybody, or no filesystem, takes no seed.
    for kind in ["iso9660", "ext4"] {
        table.partitions[2].signatures = vec![signature(kind, "cidata")];
        assert_eq!(seed_in(&"/dev/sda".into(), &table), None, "{kind}");
    }
    // mkfs.vfat leaves small letters, and the layout may have them large.
    table.partitions[2].signatures = vec![signature("vfat", "cidata")];
    let wanted = ExpectedFilesystem { path: String::new(), ..expected(3, Format::Vfat, Some("CIDATA")) };
    assert_eq!(brought(&"/dev/sda".into(), &wanted, &table).unwrap(), "uuid-vfat");
    table.partitions[2].signatures.clear();
    let error = brought(&"/dev/sda".into(), &wanted, &table).unwrap_err().to_string();
    assert!(
        error.starts_with("cloud-init's seed cannot be mounted from /dev/sda3: expected vfat \"CIDATA\""),
        "{error}"
    );
}

#[test]
fn what_the_image_brings_is_what_the_layout_says() {
    for (number, format, label, uuid) in [
        (2, Format::Ext4, None, "uuid-ext4"),
        (2, Format::Ext4, Some("root"), "uuid-ext4"),
        (1, Format::Vfat, Some("ESP"), "uuid-vfat"),
    ] {
        assert_eq!(brought(&"/dev/sda".into(), &expected(number, format, label), &table()).unwrap(), uuid);
    }
    let there = r#"it has /dev/sda1 vfat "ESP", /dev/sda2 ext4 "root", /dev/sda3 without a filesystem, /dev/sda4 ext4 and swap"#;
    for (number, format, label, says) in [
        (5, Format::Ext4, None, there),
        (
            2,
            Format::Xfs,
            None,
            r#"/ cannot be mounted from /dev/sda2: expected xfs, but the image has /dev/sda2 ext4 "root""#,
        ),
        (2, Format::Ext4, Some("os"), r#"expected ext4 "os", but the image has /dev/sda2 ext4 "root""#),
        (3, Format::Ext4, None, "the image has /dev/sda3 without a filesystem"),
        (4, Format::Ext4, None, "the image has /dev/sda4 ext4 and swap"),
    ] {
        let error = brought(&"/dev/sda".into(), &expected(number, format, label), &table()).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(error.phase, Phase::Image);
    }
    assert!(brought(&"/dev/sda".into(), &expected(1, Format::Ext4, None), &Table::default()).is_err());
}
