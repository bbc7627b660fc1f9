//! Restricted /dev for programs of the image, with the usual pseudo devices and the disks that these programs may
//! write.
//!
//! If programs of the image had access to the ramdisk's /dev, they could write to every disk, and clear the read-only
//! flags of disks.

use common::error::{Context, Phase, Result};
use linux::storage::block_device;
use linux::storage::mount::MountStack;
use model::device_name::DevicePath;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use std::{io, thread};
use sys_mount::MountFlags;

/// Pseudo devices: name, major and minor number (Documentation/admin-guide/devices.txt of Linux), mode.
const PSEUDO: [(&str, u64, u64, u32); 7] = [
    ("null", 1, 3, 0o666),
    ("zero", 1, 5, 0o666),
    ("full", 1, 7, 0o666),
    ("random", 1, 8, 0o666),
    ("urandom", 1, 9, 0o666),
    ("tty", 5, 0, 0o666),
    ("console", 5, 1, 0o600),
];

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Control device of the device mapper, which LVM's tools require if there are logical volumes.
const DM_CONTROL: &str = "/dev/mapper/control";

/// Mounts the restricted /dev in the target, with nodes and links of these devices and of their partitions.
///
/// # Errors
/// Returns an error if a device is missing, or a mount fails.
pub(crate) fn mount_restricted_dev(special: &mut MountStack, devices: &[DevicePath]) -> Result<()> {
    let allowed = find_allowed_numbers(devices)?;
    special.mount_at("tmpfs", "/dev", "tmpfs", MountFlags::NOSUID, "mode=0755,size=1m")?;
    let dev = special.root().join("dev");
    let what = || format!("create device nodes in {folder} for programs from the image", folder = dev.display());
    populate_dev(&dev, Path::new("/dev"), &allowed).context(Phase::Target, what)?;
    let options = "newinstance,ptmxmode=0666,mode=0620,gid=5";
    special.mount_at("devpts", "/dev/pts", "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, options)
}

/// Interval at which partition nodes are updated.
const UPDATE_INTERVAL: Duration = Duration::from_millis(20);

/// Runs a function that may partition these devices, and keeps the partition nodes in `dev` up to date in the meantime,
/// as udev would.
pub(crate) fn run_with_partition_nodes<T>(dev: &Path, devices: &[DevicePath], run: impl FnOnce() -> T) -> T {
    let (done, ends) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut shown = BTreeSet::new();
            while let Err(mpsc::RecvTimeoutError::Timeout) = ends.recv_timeout(UPDATE_INTERVAL) {
                // An error is only logged: an update fails if a partition disappears meanwhile, and the next update
                // then succeeds.
                if let Err(error) = update_partition_nodes(dev, devices, &mut shown) {
                    tracing::debug!("cannot update the device nodes in {folder}: {error}", folder = dev.display());
                }
            }
        });
        let ran = run();
        drop(done);
        ran
    })
}

/// Updates the partition nodes in `dev`. `shown` contains the partitions whose nodes the previous update created.
fn update_partition_nodes(dev: &Path, devices: &[DevicePath], shown: &mut BTreeSet<String>) -> Result<()> {
    let mut there = BTreeSet::new();
    for device in devices {
        there.extend(block_device::read_partitions(device)?.into_iter().map(|partition| partition.name.to_string()));
    }
    for gone in shown.difference(&there) {
        let _ = fs::remove_file(dev.join(gone));
    }
    shown.clone_from(&there);
    for name in there {
        let path = Path::new("/dev").join(&name);
        let what = || format!("stat {}", path.display());
        let number = fs::metadata(&path).context(Phase::Target, what)?.rdev();
        let copy = dev.join(&name);
        if fs::metadata(&copy).is_ok_and(|is| is.rdev() == number) {
            continue;
        }
        let _ = fs::remove_file(&copy);
        create_node(&copy, SFlag::S_IFBLK, number, 0o660)
            .context(Phase::Target, || format!("create {}", copy.display()))?;
    }
    Ok(())
}

/// Returns the device numbers of these devices and of their partitions.
fn find_allowed_numbers(devices: &[DevicePath]) -> Result<BTreeSet<u64>> {
    let mut allowed = BTreeSet::new();
    for device in devices {
        let partitions =
            block_device::read_partitions(device)?.into_iter().map(|partition| partition.name.device_path());
        for path in std::iter::once(device.clone()).chain(partitions) {
            allowed.insert(fs::metadata(&path).context(Phase::Target, || format!("stat {path}"))?.rdev());
        }
        if block_device::sysfs_path(device)?.join("dm").is_dir()
            && let Ok(control) = fs::metadata(DM_CONTROL)
        {
            allowed.insert(control.rdev());
        }
    }
    Ok(allowed)
}

fn populate_dev(dev: &Path, ours: &Path, allowed: &BTreeSet<u64>) -> io::Result<()> {
    for (name, major, minor, mode) in PSEUDO {
        create_node(&dev.join(name), SFlag::S_IFCHR, makedev(major, minor), mode)?;
    }
    LINKS.iter().try_for_each(|(name, to)| symlink(to, dev.join(name)))?;
    fs::create_dir(dev.join("shm"))?;
    fs::set_permissions(dev.join("shm"), Permissions::from_mode(0o1777))?;
    copy_allowed_nodes(dev, ours, Path::new(""), allowed)
}

/// Copies device nodes with allowed numbers, and the links to them, from the ramdisk's /dev.
fn copy_allowed_nodes(dev: &Path, ours: &Path, within: &Path, allowed: &BTreeSet<u64>) -> io::Result<()> {
    for entry in fs::read_dir(ours.join(within))? {
        let entry = entry?;
        let (path, kind) = (within.join(entry.file_name()), entry.file_type()?);
        if kind.is_dir() {
            copy_allowed_nodes(dev, ours, &path, allowed)?;
            continue;
        }
        // A dangling link is skipped.
        let Ok(there) = fs::metadata(entry.path()) else { continue };
        let is_device = there.file_type().is_block_device() || there.file_type().is_char_device();
        if !is_device || !allowed.contains(&there.rdev()) {
            continue;
        }
        let copy = dev.join(&path);
        fs::create_dir_all(copy.parent().unwrap_or(dev))?;
        if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, &copy)?;
        } else {
            let kind = if kind.is_block_device() { SFlag::S_IFBLK } else { SFlag::S_IFCHR };
            create_node(&copy, kind, there.rdev(), there.permissions().mode() & 0o777)?;
        }
    }
    Ok(())
}

fn create_node(path: &Path, kind: SFlag, device: u64, mode: u32) -> io::Result<()> {
    mknod(path, kind, Mode::S_IRUSR, device)?;
    // The mode is set explicitly, because the umask may have cleared bits of the mode.
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Returns the mount points on which device nodes of the image must be unusable: all of `mounts` except those below
/// /dev.
pub(crate) fn mounts_without_devices(mounts: Vec<PathBuf>, root: &Path) -> Vec<PathBuf> {
    let dev = root.join("dev");
    mounts.into_iter().filter(|mount| !mount.starts_with(&dev)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::storage::test_loop_device::TestLoopDevice;

    #[test]
    #[ignore = "needs root and loop devices"]
    fn root_only_allowed_nodes_and_their_links_are_copied() {
        let disk = TestLoopDevice::new(16 << 20, 512);
        linux::storage::partition_table::write_partition_table(&disk.table(512, &[(1, 2048, 4095), (2, 4096, 8191)]))
            .unwrap();
        let other = TestLoopDevice::new(16 << 20, 512);
        let allowed = find_allowed_numbers(&[disk.path().to_owned()]).unwrap();
        assert_eq!(allowed.len(), 3);
        let dir = tempfile::tempdir().unwrap();
        let (ours, dev) = (dir.path().join("ours"), dir.path().join("dev"));
        fs::create_dir_all(ours.join("disk/by-uuid")).unwrap();
        fs::create_dir(&dev).unwrap();
        let number = |path: &str| fs::metadata(path).unwrap().rdev();
        for (name, path) in [("sda", disk.path()), ("sda2", &disk.partition(2)), ("sdb", other.path())] {
            create_node(&ours.join(name), SFlag::S_IFBLK, number(path.as_str()), 0o600).unwrap();
        }
        for (name, to) in [("disk/by-uuid/a", "../../sda2"), ("disk/by-uuid/b", "../../sdb"), ("dangling", "sdz")] {
            symlink(to, ours.join(name)).unwrap();
        }
        populate_dev(&dev, &ours, &allowed).unwrap();
        let there = |name: &str| dev.join(name).symlink_metadata().is_ok();
        assert_eq!(["sda", "sda2", "sdb", "dangling"].map(there), [true, true, false, false]);
        assert_eq!(["disk/by-uuid/a", "disk/by-uuid/b"].map(there), [true, false]);
        assert_eq!(number(dev.join("disk/by-uuid/a").to_str().unwrap()), number(disk.partition(2).as_str()));
        assert!(PSEUDO.iter().all(|(name, ..)| there(name)) && LINKS.iter().all(|(name, _)| there(name)));
        let null = fs::metadata(dev.join("null")).unwrap();
        assert_eq!((null.rdev(), null.permissions().mode() & 0o777), (makedev(1, 3), 0o666));
    }

    #[test]
    fn device_nodes_are_restricted_to_dev() {
        let mounts = ["/t", "/t/proc", "/t/dev", "/t/dev/pts", "/t/device"].map(PathBuf::from).to_vec();
        assert_eq!(mounts_without_devices(mounts, Path::new("/t")), ["/t", "/t/proc", "/t/device"].map(PathBuf::from));
    }
}
