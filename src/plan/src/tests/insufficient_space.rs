//! Objects that do not fit.

use super::arrays_and_groups::{five, layout};
use super::*;

type Change = fn(&mut Layout, &mut Inventory);

#[test]
fn refuses_objects_that_do_not_fit_with_sizes() {
    let cases: [(Change, &str); 8] = [
        (
            |layout, _| layout.logicalvolumes[0].size = 30_000.into(),
            "logicalvolumes[0].size: vg:vg00 is not big enough for lv:varlib required:30000MiB, existing:19976MiB (linear: in extents of 4 MiB)",
        ),
        (
            |layout, _| layout.logicalvolumes[0].size = 19_976.into(),
            "logicalvolumes[1].size: vg:vg00 is not big enough for lv:srv required:4MiB, existing:0MiB (linear: in extents of 4 MiB)",
        ),
        (
            |layout, _| layout.logicalvolumes[0].size = 200.into(),
            "filesystems[0]: device:/dev/vg00/varlib is not big enough required:300MiB, existing:200MiB (xfs: mkfs.xfs refuses smaller devices)",
        ),
        (
            |_, inventory| inventory.disks[4].size_bytes = MIB,
            "raid[2].devices: device:/dev/sde is not big enough required:4MiB, existing:1MiB (for /dev/md/data with metadata 1.2)",
        ),
        (
            |_, inventory| inventory.disks[4].size_bytes = 6 * MIB,
            "volumegroups[0].devices[0]: device:/dev/md/data is not big enough required:5MiB, existing:3MiB (for one extent and the metadata of vg:vg00)",
        ),
        (
            |layout, inventory| {
                layout.volumegroups[0].devices = vec!["/dev/sdc".into(), "/dev/sdd".into()];
                layout.raid.pop();
                inventory.disks[3].sector_bytes = 4096;
            },
            "volumegroups[0].devices: vg:vg00 combines devices with different sector sizes, which LVM does not support: /dev/sdc 512, /dev/sdd 4096 bytes",
        ),
        (
            |layout, inventory| {
                inventory.disks[0].sector_bytes = 4096;
                layout.disks[0].partitions[0].size = 200.into();
                layout.filesystems[1].createoptions = vec!["-F".to_owned(), "32".to_owned()];
            },
            "filesystems[1]: device:/dev/md/efi is not big enough required:260MiB, existing:199MiB (vfat: firmware does not boot from a smaller FAT32 filesystem if the sectors are 4096 bytes)",
        ),
        (
            |layout, inventory| {
                layout.filesystems[0].format = FilesystemFormat::Ext3;
                layout.logicalvolumes[0].size = (16 << 20).into();
                inventory.disks[2..].iter_mut().for_each(|disk| disk.size_bytes = 18 << 40);
            },
            "filesystems[0]: device:/dev/vg00/varlib is 17592186044416 bytes, but ext3 supports at most 17592186040320 bytes: the block numbers of this filesystem have 32 bits; use ext4 or xfs",
        ),
    ];
    for (change, expected) in cases {
        let (mut layout, mut inventory) = (layout(), five());
        change(&mut layout, &mut inventory);
        assert_eq!(reasons(make(&layout, &inventory, InstallMode::Install)), [expected]);
    }
}

#[test]
fn volume_may_use_larger_raid_0_member_completely() {
    let planned = |level, volume_mib: u64| {
        let (mut layout, mut inventory) = (layout(), five());
        inventory.disks[3].size_bytes = 40_000 * MIB;
        layout.raid[2] = arrays_and_groups::raid("/dev/md/data", &["/dev/sdc", "/dev/sdd"], level, 0);
        layout.logicalvolumes[0].size = volume_mib.into();
        make(&layout, &inventory, InstallMode::Install)
    };
    planned(model::layout::RaidLevel::Raid0, 59_000).unwrap();
    for (level, volume_mib) in [(model::layout::RaidLevel::Raid0, 60_000), (model::layout::RaidLevel::Raid1, 21_000)] {
        let refused = reasons(planned(level, volume_mib));
        assert!(refused[0].contains("vg:vg00 is not big enough for lv:varlib"), "{refused:?}");
    }
}
