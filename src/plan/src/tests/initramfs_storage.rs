//! Storage that the initramfs must be able to access: that of `/` and of a separate `/usr`.

use super::image_finishing::finishing;
use super::*;
use model::device_name::DevicePath;
use operations::SystemFilesystem;

/// Returns the disks that contain the filesystem.
fn disks_of(filesystem: &SystemFilesystem) -> Vec<&str> {
    filesystem.disks.iter().map(DevicePath::as_str).collect()
}

/// Makes the plan for a layout with the filesystems of sda2 and sdb1 mounted at these paths.
fn planned(on_sda: &str, on_sdb: &str) -> Plan {
    let mut layout = layout();
    layout.disks[1].wipeonreinstall = true;
    layout.filesystems[0] = filesystem(on_sdb, "/dev/sdb1", FilesystemFormat::Ext4, "second");
    layout.filesystems[3] = filesystem(on_sda, "/dev/sda2", FilesystemFormat::Ext4, "first");
    make(&layout, &machine(), InstallMode::Install).unwrap()
}

#[test]
fn initramfs_needs_the_disks_of_the_root_filesystem_not_of_boot() {
    let plan = planned("/boot", "/");
    let finishing = finishing(&plan);
    assert_eq!(disks_of(&finishing.root), ["/dev/sdb"]);
    assert_eq!(finishing.boot_disks.iter().map(|disk| disk.device.as_str()).collect::<Vec<_>>(), ["/dev/sda"]);
    assert_eq!(finishing.usr, None);
}

#[test]
fn initramfs_needs_the_disks_of_a_separate_usr() {
    let plan = planned("/", "/usr");
    let finishing = finishing(&plan);
    assert_eq!(disks_of(&finishing.root), ["/dev/sda"]);
    let usr = finishing.usr.as_ref().unwrap();
    assert_eq!((disks_of(usr), usr.format), (vec!["/dev/sdb"], Some(FilesystemFormat::Ext4)));
}
