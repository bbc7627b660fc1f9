//! Tests of the selection of the booted system, and of unchanged disks.

use super::*;
use linux::probe::{self, ProbeDepth};
use linux::storage::test_loop_device::TestLoopDevice;
use linux::storage::vm_test_disks::{TestDisks, fingerprints};
use linux::storage::{busy_device_users, mkfs, mount as storage_mount, partition_table, read_only_assembly};
use model::inventory::{DeviceSignature, DiskPartition, DiskTable, InventoryDisk};
use model::layout::FilesystemFormat;
use operations::{MakeFilesystem, MountFilesystem};
use std::fs::{self, File};
use std::io;
use std::path::Path;

fn marked(device: &str, machine: &str, allocation: &str) -> FilesystemContents {
    let marker = InstallMarker { machine: machine.into(), allocation: allocation.into(), ..InstallMarker::default() };
    FilesystemContents { device: device.into(), marker: Some(marker), ..FilesystemContents::default() }
}

#[test]
fn only_a_unique_root_of_this_allocation_is_booted() {
    let lacks_record = FilesystemContents { device: "/dev/sda3".into(), ..FilesystemContents::default() };
    let others = [marked("/dev/sdb1", "m-2", "a-1"), marked("/dev/sdc1", "m-1", "a-0"), lacks_record];
    let mut inventory = Inventory { filesystems: others.to_vec(), ..Inventory::default() };
    let error = find_root(&inventory, &["m-1".to_owned()], "a-1").unwrap_err().to_string();
    assert!(error.contains("no filesystem contains an install marker (/etc/metal/drophammer.json)"), "{error}");
    inventory.filesystems.push(marked("/dev/sda2", "m-1", "a-1"));
    assert_eq!(find_root(&inventory, &["m-1".to_owned()], "a-1").unwrap().device, "/dev/sda2");
    inventory.filesystems.push(marked("/dev/sdd2", "m-1", "a-1"));
    let error = find_root(&inventory, &["m-1".to_owned()], "a-1").unwrap_err().to_string();
    assert!(error.ends_with("of this allocation: /dev/sda2, /dev/sdd2"), "{error}");
}

fn boot(kernel: &str, initrd: &str) -> BootInfo {
    let (cmdline, bootloader_id) = ("ro".to_owned(), String::new());
    BootInfo { kernel: kernel.into(), initrd: initrd.into(), cmdline, bootloader_id }
}

#[test]
fn mounts_with_the_kernel_are_found_parents_first() {
    let fstab =
        "UUID=1 / ext4\nUUID=2 /boot/efi vfat umask=0077 0 1\nUUID=3 /boot ext4\nUUID=4 /var ext4\nUUID=5 none swap\n";
    let paths = |kernel, initrd| -> Vec<String> {
        find_boot_mounts(fstab, &boot(kernel, initrd)).into_iter().map(|line| line.path).collect()
    };
    // `/vmlinuz` may be a symlink to `/boot`.
    assert_eq!(paths("/vmlinuz", ""), ["/boot"]);
    assert_eq!(paths("/boot/vmlinuz", "/boot/initrd"), ["/boot"]);
    assert_eq!(paths("/boot/vmlinuz", "/boot/efi/initrd"), ["/boot", "/boot/efi"]);
    assert_eq!(paths("/variant/vmlinuz", "/var/initrd"), ["/var", "/boot"]);
    assert_eq!(find_boot_mounts("UUID=1 / ext4\n", &boot("/boot/vmlinuz", "")), []);
}

const FORMATS: [FilesystemFormat; 3] = [FilesystemFormat::Ext4, FilesystemFormat::Xfs, FilesystemFormat::Btrfs];

fn make(device: &DevicePath, format: FilesystemFormat) {
    let uuid = uuid::Uuid::new_v4().to_string();
    let make =
        MakeFilesystem { device: device.clone(), format, label: None, uuid: uuid.clone(), createoptions: vec![] };
    mkfs::make_filesystem(&make).unwrap();
    fs::remove_file(Path::new("/dev/disk/by-uuid").join(uuid)).unwrap();
}

fn plain(device: &DevicePath, format: FilesystemFormat) -> MountFilesystem {
    MountFilesystem { device: device.clone(), path: "/".into(), format, options: vec![], others: vec![] }
}

/// Returns an inventory with these whole disks and their filesystems.
fn of_disks(disks: &[(&str, FilesystemFormat)]) -> Inventory {
    let disk = |&(device, format): &(&str, FilesystemFormat)| InventoryDisk {
        device: device.into(),
        signatures: vec![DeviceSignature { kind: format.name().into(), ..DeviceSignature::default() }],
        ..InventoryDisk::default()
    };
    Inventory { disks: disks.iter().map(disk).collect(), ..Inventory::default() }
}

fn copy(from: &Path, to: &Path) {
    let mut to = File::options().write(true).open(to).unwrap();
    io::copy(&mut File::open(from).unwrap(), &mut to).unwrap();
    to.sync_all().unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_inspection_of_an_unclean_filesystem_changes_nothing() {
    for format in FORMATS {
        let (live, cut) = (TestLoopDevice::new(320 << 20, 512), TestLoopDevice::new(320 << 20, 512));
        make(live.path(), format);
        let dir = tempfile::tempdir().unwrap();
        let mut mounts = MountStack::new(dir.path());
        mounts.mount_filesystem(&plain(live.path(), format)).unwrap();
        fs::write(dir.path().join("file"), "content").unwrap();
        // An install marker is also written back by this function. Afterwards, `file` is visible without a journal
        // replay.
        mounts.write_back().unwrap();
        fs::write(dir.path().join("another"), "content").unwrap();
        nix::unistd::syncfs(File::open(dir.path()).unwrap()).unwrap();
        copy(live.image(), Path::new(cut.path()));
        mounts.unmount_all().unwrap();
        storage_mount::flush_disk(cut.path()).unwrap();

        let before = fs::read(cut.image()).unwrap();
        let mut mounts = MountStack::new(dir.path());
        mount_read_only(&mut mounts, cut.path(), "/", &of_disks(&[(cut.path().as_str(), format)])).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "content", "{format}");
        assert!(fs::write(dir.path().join("file"), "x").is_err(), "{format}");
        mounts.unmount_all().unwrap();
        storage_mount::flush_disk(cut.path()).unwrap();
        assert!(before == fs::read(cut.image()).unwrap(), "{format}: the disk has changed");
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_device_without_unique_filesystem_is_not_mounted() {
    let disk = TestLoopDevice::new(16 << 20, 512);
    let dir = tempfile::tempdir().unwrap();
    let mut mounts = MountStack::new(dir.path());
    for (inventory, expected) in [
        (of_disks(&[]), "libblkid detects nothing"),
        (
            of_disks(&[(disk.path().as_str(), FilesystemFormat::Ext4), (disk.path().as_str(), FilesystemFormat::Xfs)]),
            "libblkid detects ext4 and xfs",
        ),
        (of_disks(&[(disk.path().as_str(), FilesystemFormat::Swap)]), "libblkid detects swap"),
        (of_disks(&[(disk.path().as_str(), FilesystemFormat::Ext4)]), "Invalid argument"),
    ] {
        let error = mount_read_only(&mut mounts, disk.path(), "/", &inventory).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(disk.path().as_str()), "{error}");
    }
}

/// Returns a disk with a root filesystem and a separate `/boot`, as after an installation. The kernel is not valid.
fn installed(fstab: &str, in_boot: &[&str]) -> (TestLoopDevice, Inventory) {
    let disk = TestLoopDevice::new(64 << 20, 512);
    partition_table::write_partition_table(&disk.table(512, &[(1, 2048, 40959), (2, 40960, 131000)])).unwrap();
    let (boot, root) = (disk.partition(1), disk.partition(2));
    [&boot, &root].into_iter().for_each(|device| make(device, FilesystemFormat::Ext4));
    let dir = tempfile::tempdir().unwrap();
    let mut mounts = MountStack::new(dir.path());
    mounts.mount_filesystem(&plain(&root, FilesystemFormat::Ext4)).unwrap();
    let tree = NewRoot::open(dir.path()).unwrap();
    let info = "kernel: /boot/vmlinuz\ninitrd: /boot/initrd\ncmdline: ro\nbootloader_id: b\n";
    tree.write_file("/etc/metal/boot-info.yaml", 0o644, info.as_bytes()).unwrap();
    tree.write_file("/etc/fstab", 0o644, fstab.as_bytes()).unwrap();
    // An older kernel, which the mount hides.
    tree.write_file("/boot/vmlinuz", 0o644, b"old").unwrap();
    mounts.mount_filesystem(&MountFilesystem { path: "/boot".into(), ..plain(&boot, FilesystemFormat::Ext4) }).unwrap();
    in_boot.iter().for_each(|name| tree.write_file(&format!("/boot/{name}"), 0o644, b"no kernel").unwrap());
    drop(tree);
    mounts.unmount_all().unwrap();
    let part = |number: u32, device: &str, label: &str| DiskPartition {
        number,
        device: device.into(),
        signatures: vec![DeviceSignature { kind: "ext4".into(), label: label.into(), ..DeviceSignature::default() }],
        ..DiskPartition::default()
    };
    let table = DiskTable {
        partitions: vec![part(1, boot.as_str(), "boot"), part(2, root.as_str(), "root")],
        ..DiskTable::default()
    };
    let found = InventoryDisk { device: disk.path().clone(), table: Some(table), ..InventoryDisk::default() };
    let filesystems = vec![marked(root.as_str(), "m-1", "a-1")];
    (disk, Inventory { disks: vec![found], filesystems, ..Inventory::default() })
}

// A single test, because all cases use the same mount point.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_kernel_is_loaded_from_the_installed_system() {
    let found = "LABEL=boot /boot ext4 defaults 0 2\n";
    for (fstab, in_boot, expected) in [
        (found, &["vmlinuz", "initrd"][..], "load /boot/vmlinuz for kexec: "),
        (found, &["initrd"][..], "open /boot/vmlinuz, which boot-info.yaml specifies"),
        (
            "LABEL=gone /boot ext4\n",
            &["vmlinuz", "initrd"][..],
            "mount point /boot in the installed system's fstab: no device",
        ),
        // Without a separate /boot, the kernel is loaded from the root filesystem, which contains no initrd.
        ("", &["vmlinuz", "initrd"][..], "open /boot/initrd, which boot-info.yaml specifies"),
    ] {
        let (disk, inventory) = installed(fstab, in_boot);
        let before = fs::read(disk.image()).unwrap();
        let error = load_installed_kernel(&inventory, &["m-1".to_owned()], "a-1").unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(busy_device_users::list_mounts_below(Path::new(OLD)).is_empty());
        assert!(before == fs::read(disk.image()).unwrap(), "the disk has changed");
    }
}

fn ran(line: &str) {
    let mut words = line.split(' ');
    let command = linux::process::ToolCommand::new(words.next().unwrap()).args(words);
    command.env("MDADM_NO_UDEV", "1").env("DM_DISABLE_UDEV", "1").run().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_root_on_lvm_with_boot_on_array_is_found() {
    let disks = TestDisks::take("vda vdb");
    let parts = disks.partition(&[32, 64]);
    for (name, metadata, members) in [("boot", "1.0", &parts[0]), ("data", "1.2", &parts[1])] {
        members.iter().for_each(|member| linux::storage::signature_wipe::wipe_ends(member).unwrap());
        let members = members.join(" ");
        ran(&format!(
            "mdadm --create /dev/md/{name} --run --homehost=any --level=1 --raid-devices=2 --metadata={metadata} {members}"
        ));
    }
    ran("lvm vgcreate -y vg00 /dev/md/data");
    ran("lvm lvcreate -y -n root -L 32m vg00");
    let dir = tempfile::tempdir().unwrap();
    let mut mounts = MountStack::new(dir.path());
    for (device, path) in [("/dev/vg00/root", "/"), ("/dev/md/boot", "/boot")] {
        ran(&format!("mkfs.ext4 -q {device}"));
        mounts
            .mount_filesystem(&MountFilesystem { path: path.into(), ..plain(&device.into(), FilesystemFormat::Ext4) })
            .unwrap();
    }
    let tree = NewRoot::open(dir.path()).unwrap();
    let marker = InstallMarker { machine: "m-1".into(), allocation: "a-1".into(), ..InstallMarker::default() };
    tree.write_file(install_marker::PATH, 0o600, serde_json::to_string(&marker).unwrap().as_bytes()).unwrap();
    let info = b"kernel: /boot/vmlinuz\ninitrd: ''\ncmdline: ro\nbootloader_id: b\n";
    tree.write_file("/etc/metal/boot-info.yaml", 0o644, info).unwrap();
    tree.write_file("/etc/fstab", 0o644, b"/dev/md/boot /boot ext4\n").unwrap();
    tree.write_file("/boot/vmlinuz", 0o644, b"no kernel").unwrap();
    drop(tree);
    mounts.unmount_all().unwrap();
    ran("lvm vgchange -y -a n vg00");
    ran("mdadm --stop /dev/md/data");
    ran("mdadm --stop /dev/md/boot");
    let before = fingerprints(&parts.concat());

    let mut assembled = read_only_assembly::assemble_read_only(disks.all()).unwrap();
    let mut inventory = probe::read_inventory(ProbeDepth::Deep).unwrap();
    assembled.mark_inventory(&mut inventory);
    assembled.inspect_filesystems(&mut inventory).unwrap();
    let error = load_installed_kernel(&inventory, &["m-1".to_owned()], "a-1").unwrap_err().to_string();
    assert!(error.starts_with("load /boot/vmlinuz for kexec: "), "{error}");
    assert!(busy_device_users::list_mounts_below(Path::new(OLD)).is_empty());
    assert_eq!(fingerprints(&parts.concat()), before);
}
