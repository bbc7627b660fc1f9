//! Order of mounts, and unmounting of busy filesystems.

use super::*;
use crate::storage::mkfs;
use crate::storage::test_loop_device::TestLoopDevice;
use operations::MakeFilesystem;
use std::os::unix::fs::PermissionsExt;

#[test]
fn mount_options_become_flags_and_data() {
    let none = MountFlags::empty();
    let cases = [
        ("", none, ""),
        ("defaults", none, ""),
        (
            "defaults,noatime,nosuid,nodev,noexec,mode=1777,size=512M",
            MountFlags::NOATIME | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
            "mode=1777,size=512M",
        ),
        ("nosuid,suid", none, ""),
        ("ro,relatime", MountFlags::RDONLY | MountFlags::RELATIME, ""),
        ("ro,rw", none, ""),
        ("noauto,nofail,x-systemd.automount,x-a=b,comment=c,_netdev,user,shared", none, ""),
        ("umask=0077,errors=remount-ro,discard", none, "umask=0077,errors=remount-ro,discard"),
        ("sync, dirsync", MountFlags::SYNCHRONOUS | MountFlags::DIRSYNC, ""),
    ];
    for (text, flags, data) in cases {
        assert_eq!(split_mount_options(&[text.to_owned()]), (flags, data.to_owned()), "{text}");
        let split: Vec<String> = text.split(',').map(str::to_owned).collect();
        assert_eq!(split_mount_options(&split), (flags, data.to_owned()), "{text}");
    }
}

#[test]
fn mount_points_are_created_without_following_symlinks() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let mounts = MountStack::new(&root);
    assert_eq!(mounts.create_mount_point("/").unwrap(), root);
    let point = mounts.create_mount_point("/boot/efi").unwrap();
    assert_eq!(point, root.join("boot/efi"));
    assert_eq!(point.metadata().unwrap().permissions().mode() & 0o777, 0o755);

    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("var")).unwrap();
    std::os::unix::fs::symlink("boot", root.join("inside")).unwrap();
    fs::write(root.join("file"), "").unwrap();
    for (path, expected) in [
        ("/var/lib", "var is a symlink"),
        ("/var", "var is a symlink"),
        ("/inside/efi", "inside is a symlink"),
        ("/file/x", "file is not a directory"),
        ("/../outside", "contains `..`"),
    ] {
        let error = mounts.create_mount_point(path).unwrap_err().to_string();
        assert!(error.contains(expected), "{path}: {error}");
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

fn ext4(disk: &TestLoopDevice, path: &str) -> MountFilesystem {
    let (device, uuid) = (disk.path().to_owned(), uuid::Uuid::new_v4().to_string());
    let make = MakeFilesystem {
        device,
        format: FilesystemFormat::Ext4,
        label: None,
        uuid: uuid.clone(),
        createoptions: vec![],
    };
    mkfs::make_filesystem(&make).unwrap();
    fs::remove_file(Path::new("/dev/disk/by-uuid").join(uuid)).unwrap();
    MountFilesystem {
        device: make.device,
        path: path.into(),
        format: FilesystemFormat::Ext4,
        options: vec!["noatime".into()],
        others: vec![],
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_mounts_stack_and_are_unmounted_cleanly() {
    let (root_disk, var_disk) = (TestLoopDevice::new(16 << 20, 512), TestLoopDevice::new(16 << 20, 512));
    let dir = tempfile::tempdir().unwrap();
    let mut mounts = MountStack::new(dir.path().join("target"));
    mounts.mount_filesystem(&ext4(&root_disk, "/")).unwrap();
    mounts.mount_filesystem(&ext4(&var_disk, "/var/lib")).unwrap();
    fs::write(mounts.root().join("var/lib/file"), "content").unwrap();
    assert_eq!(
        busy_device_users::list_mounts_below(mounts.root()),
        [mounts.root().to_owned(), mounts.root().join("var/lib")]
    );
    mounts.unmount_all().unwrap();
    assert_eq!(busy_device_users::list_mounts_below(mounts.root()), Vec::<PathBuf>::new());
    for disk in [&root_disk, &var_disk] {
        flush_disk(disk.path()).unwrap();
        crate::process::ToolCommand::new("fsck.ext4").args(["-fn", disk.path().as_str()]).run().unwrap();
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_busy_mount_is_an_error_that_names_the_process() {
    let disk = TestLoopDevice::new(16 << 20, 512);
    let dir = tempfile::tempdir().unwrap();
    let mut mounts = MountStack::new(dir.path().join("target"));
    mounts.mount_filesystem(&ext4(&disk, "/")).unwrap();
    let mut sleeper = std::process::Command::new("sleep").arg("600").current_dir(mounts.root()).spawn().unwrap();
    let error = mounts.unmount_all().unwrap_err().to_string();
    let expected = format!("unmount {}, used by: process {} (sleep)", mounts.root().display(), sleeper.id());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(error.contains(&expected), "{error}");
    mounts.unmount_all().unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_unmountable_device_is_named() {
    let disk = TestLoopDevice::new(16 << 20, 512);
    let dir = tempfile::tempdir().unwrap();
    let mut mounts = MountStack::new(dir.path());
    let blank = MountFilesystem {
        device: disk.path().clone(),
        path: "/".into(),
        format: FilesystemFormat::Ext4,
        options: vec![],
        others: vec![],
    };
    let error = mounts.mount_filesystem(&blank).unwrap_err().to_string();
    assert!(error.starts_with(&format!("mount {} at / of the target: Invalid argument", disk.path())), "{error}");
    assert!(error.contains("Invalid argument (mounted as ext4, with no options)"), "{error}");
}

#[test]
fn devices_without_a_filesystem_are_not_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let mut mounts = MountStack::new(dir.path());
    for (format, expected) in [
        (FilesystemFormat::Swap, "/dev/sda2: swap space cannot be mounted at /srv"),
        (FilesystemFormat::None, "/dev/sda2: a device without a filesystem cannot be mounted at /srv"),
    ] {
        let filesystem = MountFilesystem {
            device: "/dev/sda2".into(),
            path: "/srv".into(),
            format,
            options: vec![],
            others: vec![],
        };
        let error = mounts.mount_filesystem(&filesystem).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!dir.path().join("srv").exists(), "no mount point is created");
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_refused_mount_names_type_options_and_kernel_message() {
    let disk = TestLoopDevice::new(16 << 20, 512);
    let dir = tempfile::tempdir().unwrap();
    let mut mounts = MountStack::new(dir.path());
    let wrong = MountFilesystem { options: vec!["noatime,nosuch".into(), "ro".into()], ..ext4(&disk, "/") };
    let error = mounts.mount_filesystem(&wrong).unwrap_err().to_string();
    let start = format!("mount {} at / of the target: Invalid argument (mounted as ext4 read-only", disk.path());
    assert!(error.starts_with(&start), "{error}");
    assert!(error.contains(", with options nosuch); kernel log: "), "{error}");
    let said = error.split("kernel log: ").nth(1).unwrap();
    assert!(said.contains("nosuch"), "{error}");
}

/// Returns the mount options at this mount point according to the kernel.
pub(in crate::storage) fn options_of(point: &Path) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = point.to_str().unwrap();
    let line = text.lines().find(|line| line.split(' ').nth(4) == Some(point)).unwrap();
    line.split(' ').nth(5).unwrap().split(',').map(str::to_owned).collect()
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_inspection_mounts_are_inert_despite_their_options() {
    let disk = TestLoopDevice::new(16 << 20, 512);
    let dir = tempfile::tempdir().unwrap();
    let filesystem = MountFilesystem { options: vec!["suid,dev,exec".into()], ..ext4(&disk, "/") };
    type Way = fn(&mut MountStack, &MountFilesystem) -> Result<()>;
    let ways: [(Way, &[&str]); 3] = [
        (MountStack::mount_filesystem, &["rw"]),
        (MountStack::mount_inert, &["rw", "nosuid", "nodev", "noexec"]),
        (MountStack::mount_read_only, &["ro", "nosuid", "nodev", "noexec"]),
    ];
    for (mount, has) in ways {
        let mut mounts = MountStack::new(dir.path());
        mount(&mut mounts, &filesystem).unwrap();
        let options = options_of(dir.path());
        mounts.unmount_all().unwrap();
        let found: Vec<&str> = options.iter().map(String::as_str).filter(|word| *word != "relatime").collect();
        assert_eq!(found, has);
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_filesystem_with_ro_option_is_mounted_read_only() {
    let disk = TestLoopDevice::new(16 << 20, 512);
    let dir = tempfile::tempdir().unwrap();
    let mut mounts = MountStack::new(dir.path());
    mounts.mount_filesystem(&MountFilesystem { options: vec!["noatime,ro".into()], ..ext4(&disk, "/") }).unwrap();
    let error = fs::write(dir.path().join("file"), "").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
    mounts.unmount_all().unwrap();
}
