//! Plans for the machines in `testdata/inventories`.

use super::*;
use crate::tests::arrays_and_groups::{group, raid, volume};
use model::layout::{LvmType, RaidLevel};

fn recorded(name: &str) -> Inventory {
    let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join(format!("testdata/inventories/{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn whole(device: &str) -> DiskSpec {
    DiskSpec {
        device: device.into(),
        hints: Default::default(),
        wipeonreinstall: true,
        image: false,
        partitions: Vec::new(),
    }
}

/// Reads a layout of `testdata/layouts`.
fn read(name: &str) -> Layout {
    let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join(format!("testdata/layouts/{name}.yaml"));
    layout_of(&std::fs::read_to_string(path).unwrap())
}

/// Returns a layout with root on the given disk.
fn plain(device: &str) -> Layout {
    let filesystems = vec![filesystem("/", device, FilesystemFormat::Ext4, "root")];
    Layout { id: "plain".to_owned(), filesystems, disks: vec![whole(device)], ..Layout::default() }
}

/// Returns the layout that is installed on `raid-lvm`, with a data volume in the same group.
fn raid_lvm() -> Layout {
    let parts = |device: &str| DiskSpec {
        partitions: vec![
            partition(1, "efi", 512, PartitionType::LinuxRaid),
            partition(2, "system", 0, PartitionType::LinuxRaid),
        ],
        ..whole(device)
    };
    Layout {
        id: "raid-lvm".to_owned(),
        disks: vec![parts("/dev/sda"), parts("/dev/sdb")],
        raid: vec![
            raid("/dev/md/efi", &["/dev/sda1", "/dev/sdb1"], RaidLevel::Raid1, 0),
            raid("/dev/md/system", &["/dev/sda2", "/dev/sdb2"], RaidLevel::Raid1, 0),
        ],
        volumegroups: vec![group("vg00", &["/dev/md/system"])],
        logicalvolumes: vec![volume("root", "vg00", 5120, LvmType::Linear), volume("data", "vg00", 0, LvmType::Linear)],
        filesystems: vec![
            filesystem("/", "/dev/vg00/root", FilesystemFormat::Ext4, "root"),
            filesystem("/boot/efi", "/dev/md/efi", FilesystemFormat::Vfat, "EFI"),
            filesystem("/data", "/dev/vg00/data", FilesystemFormat::Xfs, "data"),
        ],
        ..Layout::default()
    }
}

#[test]
fn reinstalls_recorded_raid_and_lvm_machine() {
    let plan = make(&raid_lvm(), &recorded("raid-lvm"), InstallMode::Install).unwrap();
    assert_printed("raid-lvm-again", &plan);
    after(&plan, recorded("raid-lvm"));
}

#[test]
fn removes_one_disk_from_a_mirror() {
    let plan = make(&plain("/dev/sdb"), &recorded("raid-lvm"), InstallMode::Install).unwrap();
    assert_printed("torn-mirror", &plan);
    let refusal = make(&plain("/dev/sdb"), &recorded("raid-lvm"), InstallMode::Reinstall).unwrap_err();
    assert_printed("torn-mirror-refused", &refusal);
}

#[test]
fn plans_mirrored_esp_and_root_on_blank_disks() {
    let plan = make(&read("storage"), &recorded("five-sata"), InstallMode::Install).unwrap();
    assert_printed("storage", &plan);
}

#[test]
fn refuses_missing_device_and_lists_existing_ones() {
    let refusal = make(&read("lvm"), &recorded("nvme-sata"), InstallMode::Install).unwrap_err();
    assert_printed("lvm-misspelt-refused", &refusal);
}

/// A group that contains the root filesystem cannot be preserved, because root must be recreated.
#[test]
fn refuses_to_preserve_a_group_with_root() {
    let mut layout = raid_lvm();
    layout.disks[0].wipeonreinstall = false;
    let refusal = make(&layout, &recorded("raid-lvm"), InstallMode::Reinstall).unwrap_err();
    assert_printed("half-kept-refused", &refusal);
}

#[test]
fn orphaned_members_are_shown_and_wiped() {
    let mut layout = plain("/dev/sda");
    layout.disks.push(whole("/dev/sdb"));
    let plan = make(&layout, &recorded("orphans"), InstallMode::Install).unwrap();
    assert_printed("orphans", &plan);
}

#[test]
fn foreign_groups_of_the_same_name_are_ignored() {
    make(&plain("/dev/sdc"), &recorded("twin-groups"), InstallMode::Install).unwrap();
    let mut layout = plain("/dev/sdc");
    layout.disks.push(whole("/dev/sda"));
    layout.volumegroups = vec![group("vg00", &["/dev/sda"])];
    layout.logicalvolumes = vec![volume("data", "vg00", 0, LvmType::Linear)];
    assert_eq!(
        reasons(make(&layout, &recorded("twin-groups"), InstallMode::Install)),
        [
            "volumegroups[0].name: vg:vg00 is also the name of another volume group on /dev/sdb, which is not wiped; choose another name"
        ]
    );
}
