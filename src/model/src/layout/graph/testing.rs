//! Layouts for tests: examples for diagrams, and random layouts.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::device_name::LayoutPath;
use crate::layout::{
    FilesystemFormat, GroupPreservation, LayoutConstraints, LvmType, OnReinstall, PartitionType, RaidLevel, read_yaml,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

pub fn seeds() -> Vec<(&'static str, Layout)> {
    vec![
        ("default", seed(include_str!("../../../../../testdata/layouts/default.yaml"))),
        ("firewall", seed(include_str!("../../../../../testdata/layouts/firewall.yaml"))),
        ("lvm", seed(include_str!("../../../../../testdata/layouts/lvm.yaml"))),
        ("s3-storage", seed(include_str!("../../../../../testdata/layouts/s3-storage.yaml"))),
        ("storage", seed(include_str!("../../../../../testdata/layouts/storage.yaml"))),
    ]
}

fn seed(text: &str) -> Layout {
    read_yaml(text).unwrap().layout
}

/// Layouts with features that the layouts in `testdata` lack.
pub fn rich() -> Vec<(&'static str, Layout)> {
    vec![("mirrored-lvm", mirrored_lvm()), ("nested", nested()), ("hints", hints()), ("twelve", twelve())]
}

pub fn disk(device: &str, wipe: bool, partitions: &[(u32, &str, u64, PartitionType)]) -> DiskSpec {
    let partitions = partitions.iter().map(|(number, label, size_mib, kind)| PartitionSpec {
        number: *number,
        label: (!label.is_empty()).then(|| (*label).to_owned()),
        size: (*size_mib).into(),
        kind: Some(*kind),
        preserve: false,
    });
    DiskSpec {
        device: device.into(),
        hints: Default::default(),
        partitions: partitions.collect(),
        wipeonreinstall: wipe,
        image: false,
    }
}

pub fn raid(name: &str, level: RaidLevel, devices: &[&str], spares: u32, options: &[&str]) -> ArraySpec {
    ArraySpec {
        arrayname: name.into(),
        devices: paths(devices),
        level,
        createoptions: words(options),
        spares,
        preserve: false,
    }
}

pub(crate) fn filesystem(path: &str, device: &str, format: FilesystemFormat, label: &str) -> FilesystemSpec {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    FilesystemSpec {
        path: text(path),
        device: device.into(),
        format,
        label: text(label),
        mountoptions: Vec::new(),
        createoptions: Vec::new(),
        reinstall: OnReinstall::Keep,
        grow: false,
        encrypted: None,
        preserve: false,
    }
}

fn volume(group: &str, name: &str, size_mib: u64, lvmtype: LvmType) -> LogicalVolumeSpec {
    LogicalVolumeSpec {
        name: name.to_owned(),
        volumegroup: group.to_owned(),
        size: size_mib.into(),
        lvmtype,
        preserve: false,
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn paths(devices: &[&str]) -> Vec<LayoutPath> {
    devices.iter().map(|device| (*device).into()).collect()
}

/// ESP, root and data mirrored over two disks, with a swap area and data disks that a reinstall preserves.
fn mirrored_lvm() -> Layout {
    use PartitionType::LinuxRaid;
    let system = [(1, "efi", 512, LinuxRaid), (2, "root", 20480, LinuxRaid), (3, "data", 0, LinuxRaid)];
    let mut tmp = filesystem("/tmp", "tmpfs", FilesystemFormat::Tmpfs, "");
    tmp.mountoptions = words(&["defaults", "noatime", "nosuid", "nodev", "noexec", "mode=1777", "size=512M"]);
    Layout {
        id: "mirrored-lvm".to_owned(),
        description: Some("Root and data on mirrors, the volumes for csi-lvm survive a reinstall".to_owned()),
        filesystems: vec![
            filesystem("/boot/efi", "/dev/md/efi", FilesystemFormat::Vfat, "efi"),
            filesystem("/", "/dev/md/root", FilesystemFormat::Ext4, "root"),
            filesystem("", "/dev/system/swap", FilesystemFormat::Swap, "swap"),
            filesystem("/var", "/dev/system/var", FilesystemFormat::Xfs, "var"),
            filesystem("/srv", "/dev/data/srv", FilesystemFormat::Btrfs, ""),
            filesystem("", "/dev/data/raw", FilesystemFormat::None, ""),
            tmp,
        ],
        disks: vec![
            disk("/dev/sda", true, &system),
            disk("/dev/sdb", true, &system),
            disk("/dev/nvme0n1", false, &[]),
            disk("/dev/nvme1n1", false, &[(1, "", 0, PartitionType::LinuxLvm)]),
            disk("/dev/sdc", false, &[]),
        ],
        raid: vec![
            raid("/dev/md/efi", RaidLevel::Raid1, &["/dev/sda1", "/dev/sdb1"], 0, &["--metadata", "1.0"]),
            raid("/dev/md/root", RaidLevel::Raid1, &["/dev/sda2", "/dev/sdb2"], 0, &[]),
            raid("/dev/md/data", RaidLevel::Raid1, &["/dev/sda3", "/dev/sdb3"], 0, &["--bitmap=internal"]),
        ],
        volumegroups: vec![
            VolumeGroupSpec {
                name: "system".to_owned(),
                devices: paths(&["/dev/md/data"]),
                tags: Vec::new(),
                encrypted: None,
                preserve: GroupPreservation::None,
            },
            VolumeGroupSpec {
                name: "data".to_owned(),
                devices: paths(&["/dev/nvme0n1", "/dev/nvme1n1p1"]),
                tags: words(&["csi", "keep"]),
                encrypted: None,
                preserve: GroupPreservation::None,
            },
        ],
        logicalvolumes: vec![
            volume("system", "swap", 4096, LvmType::Linear),
            volume("system", "var", 0, LvmType::Linear),
            volume("data", "srv", 102_400, LvmType::Raid1),
            volume("data", "raw", 1000, LvmType::Striped),
        ],
        constraints: LayoutConstraints {
            sizes: words(&["c1-large-x86"]),
            images: [("debian", ">= 12"), ("ubuntu", "*")].map(|(os, v)| (os.to_owned(), v.to_owned())).into(),
        },
        ..Layout::default()
    }
}

/// A stripe over mirrors and a RAID 6 with spares over whole disks.
pub(super) fn nested() -> Layout {
    let mut disks = vec![disk(
        "/dev/vda",
        true,
        &[
            (1, "efi", 500, PartitionType::Boot),
            (2, "swap", 2048, PartitionType::Linux),
            (15, "root", 0, PartitionType::Linux),
        ],
    )];
    disks.extend(["b", "c", "d", "e"].map(|letter| disk(&format!("/dev/vd{letter}"), true, &[])));
    disks.extend((1..=6).map(|number| disk(&format!("/dev/nvme{number}n1"), false, &[])));
    let whole: Vec<String> = (1..=6).map(|number| format!("/dev/nvme{number}n1")).collect();
    let whole: Vec<&str> = whole.iter().map(String::as_str).collect();
    let mut data = filesystem("/data", "/dev/md6", FilesystemFormat::Xfs, "data");
    data.createoptions = words(&["-d", "su=64k,sw=2"]);
    data.mountoptions = words(&["noatime", "inode64", "nofail"]);
    Layout {
        id: "nested".to_owned(),
        filesystems: vec![
            data,
            filesystem("/", "/dev/vda15", FilesystemFormat::Ext4, "root"),
            filesystem("/boot/efi", "/dev/vda1", FilesystemFormat::Vfat, "efi"),
            filesystem("", "/dev/vda2", FilesystemFormat::Swap, ""),
            filesystem("/scratch", "/dev/md/stripe", FilesystemFormat::Ext3, ""),
        ],
        disks,
        raid: vec![
            raid("/dev/md/left", RaidLevel::Raid1, &["/dev/vdb", "/dev/vdc"], 0, &[]),
            raid("/dev/md/right", RaidLevel::Raid1, &["/dev/vdd", "/dev/vde"], 0, &[]),
            raid("/dev/md/stripe", RaidLevel::Raid0, &["/dev/md/left", "/dev/md/right"], 0, &["--chunk=128"]),
            raid("/dev/md6", RaidLevel::Raid6, &whole, 2, &["-e", "1.2"]),
        ],
        ..Layout::default()
    }
}

/// Disks selected by their attributes or their slot.
fn hints() -> Layout {
    let mut system =
        disk("/dev/os", true, &[(1, "efi", 500, PartitionType::Boot), (2, "root", 0, PartitionType::Linux)]);
    system.hints = [("size", "<= 64"), ("rotational", "false"), ("tran", "sata")]
        .map(|(hint, expression)| (hint.to_owned(), expression.to_owned()))
        .into();
    let path = "/dev/disk/by-path/pci-0000:00:1f.2-ata-1";
    Layout {
        id: "hints".to_owned(),
        name: Some("SATA-DOM".to_owned()),
        filesystems: vec![
            filesystem("/boot/efi", "/dev/os1", FilesystemFormat::Vfat, ""),
            filesystem("/", "/dev/os2", FilesystemFormat::Ext4, ""),
            filesystem("/srv", &format!("{path}-part1"), FilesystemFormat::Xfs, "srv"),
            filesystem("", &format!("{path}-part2"), FilesystemFormat::Ext4, ""),
        ],
        disks: vec![
            system,
            disk(path, false, &[(1, "srv", 1_048_576, PartitionType::Linux), (2, "", 0, PartitionType::Linux)]),
        ],
        ..Layout::default()
    }
}

/// Twelve disks. Two of them have an ESP, and a volume group is on a RAID 10 with a spare.
fn twelve() -> Layout {
    let letters: Vec<char> = ('a'..='l').collect();
    let parts = [(1, "efi", 512, PartitionType::LinuxRaid), (2, "data", 0, PartitionType::LinuxRaid)];
    let disks = letters
        .iter()
        .map(|letter| disk(&format!("/dev/sd{letter}"), *letter < 'c', &parts[usize::from(*letter > 'b')..]));
    let members: Vec<String> = letters.iter().map(|letter| format!("/dev/sd{letter}2")).collect();
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    Layout {
        id: "twelve".to_owned(),
        filesystems: vec![
            filesystem("/boot/efi", "/dev/md/efi", FilesystemFormat::Vfat, "efi"),
            filesystem("/", "/dev/vg0/root", FilesystemFormat::Ext4, "root"),
            filesystem("/var", "/dev/vg0/var", FilesystemFormat::Xfs, "var"),
            filesystem("/home", "/dev/vg0/home", FilesystemFormat::Ext4, "home"),
            filesystem("", "/dev/vg0/swap", FilesystemFormat::Swap, ""),
        ],
        disks: disks.collect(),
        raid: vec![
            raid("/dev/md/efi", RaidLevel::Raid1, &["/dev/sda1", "/dev/sdb1"], 0, &[]),
            raid("/dev/md/data", RaidLevel::Raid10, &members, 1, &["--layout=n2"]),
        ],
        volumegroups: vec![VolumeGroupSpec {
            name: "vg0".to_owned(),
            devices: paths(&["/dev/md/data"]),
            tags: Vec::new(),
            encrypted: None,
            preserve: GroupPreservation::None,
        }],
        logicalvolumes: vec![
            volume("vg0", "root", 20480, LvmType::Linear),
            volume("vg0", "var", 102_400, LvmType::Linear),
            volume("vg0", "swap", 8192, LvmType::Linear),
            volume("vg0", "home", 0, LvmType::Linear),
        ],
        ..Layout::default()
    }
}

/// Generates layouts with arbitrary text, most of them invalid. Only a few device names are used, so that references
/// often match a device of the layout.
pub fn any_layout() -> impl Strategy<Value = Layout> {
    let device = || {
        let known = select(vec![
            "/dev/a", "/dev/a1", "/dev/b", "/dev/b2", "/dev/md0", "/dev/md1", "/dev/md2", "/dev/g/l", "tmpfs",
        ]);
        prop_oneof![9 => known.prop_map(LayoutPath::from), 1 => any::<String>().prop_map(LayoutPath::from)]
    };
    let partition =
        (0..4u32, option::of(any::<String>()), any::<u64>(), option::of(select(PartitionType::ALL.to_vec()))).prop_map(
            |(number, label, mib, kind)| PartitionSpec {
                number,
                label,
                size: mib.into(),
                kind,
                preserve: mib % 5 == 0,
            },
        );
    let disk = (device(), btree_map(".*", ".*", 0..3), vec(partition, 0..4), any::<bool>()).prop_map(
        |(device, hints, partitions, wipeonreinstall)| DiskSpec {
            device,
            hints,
            partitions,
            wipeonreinstall,
            image: false,
        },
    );
    let raid = (device(), vec(device(), 0..4), select(RaidLevel::ALL.to_vec()), vec("-e|1.0|.*", 0..3), any::<u32>())
        .prop_map(|(arrayname, devices, level, createoptions, spares)| ArraySpec {
            arrayname,
            devices,
            level,
            createoptions,
            spares,
            preserve: spares % 5 == 0,
        });
    let group = ("g|h|.*", vec(device(), 0..4), vec(any::<String>(), 0..2)).prop_map(|(name, devices, tags)| {
        let preserve = match devices.len() {
            2 => GroupPreservation::Unlisted,
            3 => GroupPreservation::All,
            _ => GroupPreservation::None,
        };
        VolumeGroupSpec { preserve, name, devices, tags, encrypted: None }
    });
    let volume = ("l|.*", "g|h|.*", any::<u64>(), select(LvmType::ALL.to_vec())).prop_map(
        |(name, volumegroup, mib, lvmtype)| LogicalVolumeSpec {
            name,
            volumegroup,
            size: mib.into(),
            lvmtype,
            preserve: mib % 5 == 0,
        },
    );
    let filesystem = (
        option::of("/|none|.*"),
        device(),
        select(FilesystemFormat::ALL.to_vec()),
        option::of(any::<String>()),
        vec(any::<String>(), 0..3),
        vec(any::<String>(), 0..3),
        select(OnReinstall::ALL.to_vec()),
    )
        .prop_map(|(path, device, format, label, mountoptions, createoptions, reinstall)| FilesystemSpec {
            path,
            device,
            format,
            label,
            mountoptions,
            createoptions,
            reinstall,
            grow: false,
            encrypted: None,
            preserve: reinstall == OnReinstall::Merge,
        });
    let named = (any::<String>(), option::of(any::<String>()));
    (named, vec(disk, 0..4), vec(raid, 0..4), vec(group, 0..3), vec(volume, 0..3), vec(filesystem, 0..4)).prop_map(
        |((id, description), disks, raid, volumegroups, logicalvolumes, filesystems)| Layout {
            id,
            description,
            disks,
            raid,
            volumegroups,
            logicalvolumes,
            filesystems,
            ..Layout::default()
        },
    )
}
