//! Inspection of filesystems on loop devices: contents that are found, and disks that do not change.

use super::*;
use crate::process::ToolCommand;
use crate::storage::block_device;
use crate::storage::test_loop_device::TestLoopDevice;
use crate::storage::vm_test_disks::TestDisks;
use crate::storage::write_protection::WriteLocks;
use model::install_marker::InstallMarker;
use model::inventory::{
    DeviceSignature, DeviceUse, DiskPartition, DiskTable, FilesystemContents, InventoryDisk, StackedDevice,
};

const MIB: u64 = 1 << 20;

fn ran(line: &str) -> String {
    let mut words = line.split(' ');
    ToolCommand::new(words.next().unwrap()).args(words).run().unwrap_or_else(|error| panic!("{error}")).stdout
}

fn marker() -> InstallMarker {
    InstallMarker { machine: "m".into(), allocation: "a".into(), image: "debian".into(), ..InstallMarker::default() }
}

/// Returns a disk with these signatures.
fn disk(device: &str, kinds: &[&str], uses: Vec<DeviceUse>) -> InventoryDisk {
    let signature = |kind: &&str| DeviceSignature { kind: (*kind).to_owned(), ..DeviceSignature::default() };
    InventoryDisk {
        device: device.into(),
        signatures: kinds.iter().map(signature).collect(),
        uses,
        ..InventoryDisk::default()
    }
}

/// Inspects the filesystem, and returns its contents and the notes. If the filesystem cannot be mounted, checks that
/// the inventory contains the same reason as the note.
fn looked(device: &DevicePath, kind: &str) -> (Vec<FilesystemContents>, Vec<String>) {
    let mut inventory = Inventory { disks: vec![disk(device.as_str(), &[kind], vec![])], ..Inventory::default() };
    let notes = inspect_filesystems(&mut inventory).unwrap();
    let failure = inventory.find_failure(&InspectionTarget::Filesystem(device.clone()));
    let note = failure.map(|why| format!("{device}: cannot mount {kind} for inspection: {why}"));
    assert_eq!(note, notes.first().cloned());
    (inventory.filesystems, notes)
}

/// Copies a mounted filesystem immediately after writes, so that the journal of the copy needs a replay.
fn cut_off(make: &str, marker: Option<&InstallMarker>) -> TestLoopDevice {
    let (disk, copy) = (TestLoopDevice::new(300 * MIB, 512), TestLoopDevice::new(300 * MIB, 512));
    ran(&format!("{make} {}", disk.path()));
    let dir = tempfile::tempdir().unwrap();
    ran(&format!("mount {} {}", disk.path(), dir.path().display()));
    if let Some(marker) = marker {
        let metal = dir.path().join("etc/metal");
        fs::create_dir_all(&metal).unwrap();
        fs::write(metal.join("drophammer.json"), serde_json::to_vec(marker).unwrap()).unwrap();
        ran(&format!("sync -f {}", metal.display()));
        ran(&format!("fsfreeze -f {0}", dir.path().display()));
        ran(&format!("fsfreeze -u {0}", dir.path().display()));
    }
    for number in 0..50 {
        fs::write(dir.path().join(format!("file-{number}")), vec![number; 9000]).unwrap();
    }
    ran(&format!("sync -d {}", dir.path().join("file-49").display()));
    fs::copy(disk.image(), copy.image()).unwrap();
    crate::storage::mount::unmount_strictly(dir.path()).unwrap();
    let file = fs::File::open(copy.path()).unwrap();
    block_device::flush_buffers(&file).unwrap();
    copy
}

fn digest(disk: &TestLoopDevice) -> String {
    block_device::flush_buffers(&fs::File::open(disk.path()).unwrap()).unwrap();
    let line = ran(&format!("sha256sum {}", disk.image().display()));
    line.split(' ').next().unwrap().to_owned()
}

/// Inspects the locked disk, and checks that no byte of it changes.
fn unchanged(disk: &TestLoopDevice, kind: &str) -> (Vec<FilesystemContents>, Vec<String>) {
    let before = digest(disk);
    let mut locks = WriteLocks::default();
    locks.lock_disk(disk.path()).unwrap();
    let seen = looked(disk.path(), kind);
    locks.unlock_all().unwrap();
    assert_eq!(digest(disk), before, "{kind} was changed by the inspection: {seen:?}");
    seen
}

#[test]
fn only_unused_filesystems_with_one_signature_are_inspected() {
    let partition = |device: &str, kind: &str| DiskPartition {
        device: device.into(),
        signatures: disk("", &[kind], vec![]).signatures,
        ..DiskPartition::default()
    };
    let partitions = vec![partition("/dev/sda1", "vfat"), partition("/dev/sda2", "swap")];
    let table = DiskTable { partitions, ..DiskTable::default() };
    let stacked = |device: &str, kinds: &[&str]| StackedDevice {
        device: device.into(),
        signatures: disk("", kinds, vec![]).signatures,
        ..StackedDevice::default()
    };
    let inventory = Inventory {
        disks: vec![
            InventoryDisk { table: Some(table), ..disk("/dev/sda", &[], vec![]) },
            disk("/dev/sdb", &["ext4", "xfs"], vec![]),
            disk("/dev/sdc", &["xfs"], vec![DeviceUse::Mounted("/mnt".into())]),
            disk("/dev/sdd", &["ext4"], vec![DeviceUse::Holder("md127".into())]),
            disk("/dev/sde", &["btrfs"], vec![]),
            disk("/dev/sdf", &["zfs_member"], vec![]),
        ],
        stacked: vec![stacked("/dev/md127", &["ext3"]), stacked("/dev/mapper/a-b", &["crypto_LUKS"])],
        ..Inventory::default()
    };
    let found = find_candidates(&inventory);
    let found: Vec<_> = found.iter().map(|(device, kind)| (device.as_str(), kind.as_str())).collect();
    assert_eq!(found, [("/dev/sda1", "vfat"), ("/dev/sde", "btrfs"), ("/dev/md127", "ext3")]);
}

#[test]
fn only_drivers_of_supported_formats_are_used_for_inspection() {
    use model::layout::FilesystemFormat;
    for format in FilesystemFormat::ALL {
        let is_on_a_disk = !matches!(format, FilesystemFormat::None | FilesystemFormat::Swap | FilesystemFormat::Tmpfs);
        assert_eq!(safe_mount_options(format.name()).is_some(), is_on_a_disk, "{format}");
    }
    // Names of all other signatures in libblkid.
    let others = "9p BeFS apfs bcachefs bcache befs bfs cramfs crypto_LUKS ddf_raid_member drbd erofs exfat exfs ext4dev f2fs \
        gfs gfs2 hfs hfsplus hpfs iso9660 jbd jfs linux_raid_member luks lustre LVM1_member LVM2_member minix mpool msdos nilfs2 ntfs \
        ntfs3 ocfs2 reiser4 reiserfs romfs squashfs squashfs3 stratis swap swsuspend sysv ubi ubifs udf ufs vdo VMFS VMFS_volume_member \
        vxfs xenix xfs_external_log zfs_member zonefs zfs fuse overlay nfs tmpfs auto EXT4 fat vfat32";
    for kind in others.split_whitespace().chain(["", "ext4 ", "ext4,xfs"]) {
        assert_eq!(safe_mount_options(kind), None, "{kind}");
    }
}

/// Creates a filesystem of this type, and checks the options with which it is mounted for inspection.
fn mounted_inertly(device: &DevicePath, kind: &str, make: &str) {
    ran(&format!("{make} {device}"));
    let point = TemporaryMountPoint::create().unwrap();
    mount_read_only(device, kind, &point.0).unwrap();
    let options = mount::tests::options_of(&point.0);
    mount::unmount_strictly(&point.0).unwrap();
    for option in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(options.iter().any(|has| has == option), "{kind}: {options:?}");
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_inspected_filesystems_are_mounted_inertly() {
    for (kind, make) in [
        ("ext3", "mkfs.ext3 -q -F"),
        ("ext4", "mkfs.ext4 -q -F"),
        ("xfs", "mkfs.xfs -q -f"),
        ("btrfs", "mkfs.btrfs -q -f"),
    ] {
        let disk = TestLoopDevice::new(300 * MIB, 512);
        mounted_inertly(disk.path(), kind, make);
    }
}

#[test]
#[ignore = "needs the ramdisk's kernel, because not every host has a vfat driver: scripts/test vm runs it in a machine"]
fn vm_esp_is_mounted_inertly() {
    let disks = TestDisks::take("vda");
    mounted_inertly(&disks.partition(&[100]).concat()[0], "vfat", "mkfs.vfat");
}

#[test]
fn empty_inventory_needs_no_inspection() {
    assert_eq!(inspect_filesystems(&mut Inventory::default()).unwrap(), Vec::<String>::new());
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_inspection_of_an_unclean_filesystem_changes_nothing() {
    for (kind, make) in [
        ("ext4", "mkfs.ext4 -q -F"),
        ("ext4", "mkfs.ext4 -q -F -b 4096 -O ^metadata_csum"),
        ("ext3", "mkfs.ext3 -q -F"),
        ("ext2", "mkfs.ext2 -q -F"),
        ("xfs", "mkfs.xfs -q -f"),
        ("btrfs", "mkfs.btrfs -q -f"),
    ] {
        let disk = cut_off(make, Some(&marker()));
        let (found, notes) = unchanged(&disk, kind);
        assert_eq!(notes, Vec::<String>::new(), "{make}");
        assert_eq!(found.len(), 1, "{make}");
        assert_eq!((&found[0].device, found[0].marker.as_ref()), (disk.path(), Some(&marker())), "{make}");
        assert!(found[0].used_bytes > 0 && found[0].used_bytes < found[0].size_bytes, "{found:?}");
        assert!(found[0].size_bytes > 100 * MIB && found[0].size_bytes <= 300 * MIB, "{found:?}");
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_btrfs_with_two_devices_is_inspected() {
    let disks = [300, 300].map(|size| TestLoopDevice::new(size * MIB, 512));
    let [first, second] = disks.each_ref().map(|disk| disk.path().clone());
    ran(&format!("mkfs.btrfs -q -f -d raid1 -m raid1 {first} {second}"));
    let uuid = ran(&format!("blkid -p -s UUID -o value {first}")).trim().to_owned();
    btrfs_scan::scan_only(std::iter::empty());
    let with_uuid = |device: &DevicePath| {
        let mut disk = disk(device.as_str(), &["btrfs"], vec![]);
        disk.signatures[0].uuid = uuid.clone();
        disk
    };
    let mut inventory = Inventory { disks: vec![with_uuid(&first), with_uuid(&second)], ..Inventory::default() };
    assert_eq!(inspect_filesystems(&mut inventory).unwrap(), Vec::<String>::new());
    let found: Vec<&DevicePath> = inventory.filesystems.iter().map(|found| &found.device).collect();
    assert_eq!((found, &inventory.failed[..]), (vec![&first, &second], &[][..]));
    btrfs_scan::scan_only(std::iter::empty());
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_journals_of_unclean_copies_are_dirty() {
    let disk = cut_off("mkfs.ext4 -q -F", None);
    assert!(ran(&format!("dumpe2fs -h {}", disk.image().display())).contains("needs_recovery"));
    let disk = cut_off("mkfs.xfs -q -f", None);
    let line = "xfs_repair -n \"$1\" 2>&1 | grep 'valuable metadata changes in a log'";
    ToolCommand::new("sh").args(["-c", line, "sh", disk.path().as_str()]).run().unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_filesystem_without_marker_and_unmountable_one_are_reported() {
    let disk = TestLoopDevice::new(300 * MIB, 512);
    ran(&format!("mkfs.ext4 -q {}", disk.path()));
    let (found, notes) = unchanged(&disk, "ext4");
    assert_eq!((found.len(), notes.len()), (1, 0), "{notes:?}");
    assert!(found[0].marker.is_none());

    let disk = TestLoopDevice::new(300 * MIB, 512);
    let (found, notes) = unchanged(&disk, "xfs");
    assert_eq!((found.len(), notes.len()), (0, 1));
    assert!(notes[0].starts_with(&format!("{}: cannot mount xfs for inspection: ", disk.path())), "{notes:?}");
}

#[test]
#[ignore = "needs root"]
fn root_temporary_mount_point_is_private_and_removed() {
    use std::os::unix::fs::PermissionsExt;
    let (one, two) = (TemporaryMountPoint::create().unwrap(), TemporaryMountPoint::create().unwrap());
    assert_ne!(one.0, two.0);
    assert_eq!(fs::metadata(&one.0).unwrap().permissions().mode() & 0o777, 0o700);
    let path = one.0.clone();
    drop(one);
    assert!(!path.exists() && two.0.exists());
    // A directory that is not empty is not removed.
    let path = two.0.clone();
    fs::write(path.join("file"), "").unwrap();
    drop(two);
    assert!(path.join("file").exists());
    fs::remove_dir_all(path).unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_inspection_of_a_damaged_errors_panic_filesystem_changes_nothing() {
    let disk = cut_off("mkfs.ext4 -q -F -e panic", Some(&marker()));
    // Overwrite the first inodes, without which the filesystem is unreadable.
    let about = ran(&format!("dumpe2fs {}", disk.image().display()));
    let after = |word: &str| about.split(word).nth(1).unwrap().trim_start().split(|c: char| !c.is_ascii_digit());
    let number = |word: &str| after(word).next().unwrap().parse::<u64>().unwrap();
    let place = number("Inode table at ") * number("Block size:");
    use std::os::unix::fs::FileExt;
    let file = fs::OpenOptions::new().write(true).open(disk.image()).unwrap();
    file.write_all_at(&vec![0x5a; 64 << 10], place).unwrap();
    let (found, notes) = unchanged(&disk, "ext4");
    assert_eq!((found.len(), notes.len()), (0, 1), "{found:?}");
}

/// Returns a disk as after an interrupted mkfs. It contains every second block that mkfs writes, and, only if
/// `is_written` is true, the block with the superblock, which mkfs of most formats writes last. `superblock` is the
/// offset of the superblock.
fn cut_inside(make: &str, superblock: u64, is_written: bool) -> TestLoopDevice {
    use std::os::unix::fs::FileExt;
    const BLOCK_BYTES: u64 = 4096;
    let (whole, half) = (TestLoopDevice::new(300 * MIB, 512), TestLoopDevice::new(300 * MIB, 512));
    ran(&format!("{make} {}", whole.path()));
    let (from, to) =
        (fs::File::open(whole.path()).unwrap(), fs::OpenOptions::new().write(true).open(half.path()).unwrap());
    let mut block = [0; BLOCK_BYTES as usize];
    let mut count = 0;
    for at in (0..300 * MIB).step_by(BLOCK_BYTES as usize) {
        from.read_exact_at(&mut block, at).unwrap();
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        count += 1;
        let is_superblock = at == superblock / BLOCK_BYTES * BLOCK_BYTES;
        if if is_superblock { is_written } else { count % 2 == 0 } {
            to.write_all_at(&block, at).unwrap();
        }
    }
    to.sync_all().unwrap();
    half
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_interrupted_mkfs_cannot_be_mounted_and_can_be_repeated() {
    use model::layout::FilesystemFormat;
    use operations::{MakeFilesystem, MountFilesystem};
    for (make, format, superblock, is_written) in [
        ("mkfs.ext4 -q -F", FilesystemFormat::Ext4, 1024, false),
        ("mkfs.btrfs -q -f", FilesystemFormat::Btrfs, 0x10000, false),
        ("mkfs.xfs -q -f", FilesystemFormat::Xfs, 0, true),
    ] {
        let disk = cut_inside(make, superblock, is_written);
        let seen = ToolCommand::new("blkid").args(["-p", disk.path().as_str()]).run().is_ok();
        assert_eq!(seen, is_written, "{format}");
        let (found, notes) = unchanged(&disk, format.name());
        assert_eq!((found.len(), notes.len()), (0, 1), "{format}");
        let uuid = uuid::Uuid::new_v4().to_string();
        let device = disk.path().to_owned();
        let make = MakeFilesystem { device, format, label: None, uuid: uuid.clone(), createoptions: Vec::new() };
        crate::storage::mkfs::make_filesystem(&make).unwrap();
        fs::remove_file(Path::new("/dev/disk/by-uuid").join(uuid)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut mounts = mount::MountStack::new(dir.path());
        let mount =
            MountFilesystem { device: make.device, path: "/".into(), format, options: Vec::new(), others: Vec::new() };
        mounts.mount_filesystem(&mount).unwrap();
        mounts.unmount_all().unwrap();
    }
}
