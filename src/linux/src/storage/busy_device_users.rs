//! Users of devices and mounts. The users are appended to EBUSY errors, because the kernel's error does not include
//! them.

use super::block_device;
use crate::probe::{self, proc_mounts::MountEntry};
use model::device_name::DevicePath;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Describes the holders of this device, and the processes that have it open. The result may be incomplete; it is empty
/// if no holder and no process is found.
pub fn list_device_users(device: &DevicePath) -> Vec<String> {
    let mut users = list_device_holders(device);
    let devices = sysfs_with_partitions(device);
    let numbers: Vec<String> = devices.iter().filter_map(|sysfs| fs::read_to_string(sysfs.join("dev")).ok()).collect();
    users.extend(list_processes().filter(|process| process.opens_device(&numbers)).map(|process| process.to_string()));
    users
}

/// Returns descriptions of the mounts, swap and block devices that use this device or a partition of it.
pub fn list_device_holders(device: &DevicePath) -> Vec<String> {
    let mounts = read_mounts();
    let swaps = probe::proc_mounts::parse_swaps(&fs::read_to_string("/proc/swaps").unwrap_or_default());
    let mut users = Vec::new();
    for sysfs in sysfs_with_partitions(device) {
        let name = sysfs.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number = fs::read_to_string(sysfs.join("dev")).unwrap_or_default();
        let mounted = mounts.iter().filter(|mount| is_mount_of(mount, &number));
        users.extend(mounted.map(|mount| format!("{name} is mounted at {path}", path = mount.path)));
        if swaps.iter().any(|path| is_device(path, &number)) {
            users.push(format!("{name} is in use as swap"));
        }
        let holders = fs::read_dir(sysfs.join("holders")).into_iter().flatten().flatten();
        users.extend(holders.map(|holder| format!("{name} is held by {holder}", holder = holder_name(&holder.path()))));
    }
    users
}

/// Returns the sysfs directories of the device and its partitions.
pub(super) fn sysfs_with_partitions(device: &DevicePath) -> Vec<PathBuf> {
    let Ok(disk) = block_device::sysfs_path(device) else { return Vec::new() };
    let partitions = block_device::read_partitions(device).unwrap_or_default();
    let partitions: Vec<PathBuf> = partitions.into_iter().map(|partition| disk.join(partition.name.as_str())).collect();
    [vec![disk], partitions].concat()
}

/// Formats the name of a holder: `md127`, `dm-0 (vg00-root)`.
fn holder_name(sysfs: &Path) -> String {
    let kernel = sysfs.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match fs::read_to_string(sysfs.join("dm/name")) {
        Ok(name) => format!("{kernel} ({})", name.trim()),
        Err(_) => kernel,
    }
}

/// Returns descriptions of the mounts and processes that prevent the filesystem at `path` from being unmounted.
pub(crate) fn list_mount_users(path: &Path) -> Vec<String> {
    let below = list_mounts_below(path).into_iter().filter(|below| below != path);
    let mut users: Vec<String> = below.map(|below| format!("a mount at {}", below.display())).collect();
    users.extend(list_processes().filter(|process| process.is_below(path)).map(|process| process.to_string()));
    users
}

/// Formats users as `", used by: a, b"`; returns an empty string if there are no users.
pub fn format_users(users: &[String]) -> String {
    if users.is_empty() { String::new() } else { format!(", used by: {}", users.join(", ")) }
}

/// Returns the paths of all mounts at or below `path`, oldest first.
pub fn list_mounts_below(path: &Path) -> Vec<PathBuf> {
    read_mounts().into_iter().map(|mount| PathBuf::from(mount.path)).filter(|mount| mount.starts_with(path)).collect()
}

/// Returns the processes whose root directory is `root` or a directory below it: daemons such as sshd change their root
/// directory again. Omits the calling process.
pub fn find_processes_rooted_in(root: &Path) -> Vec<RunningProcess> {
    let is_in = |process: &RunningProcess| process.read_link("root").is_some_and(|path| path.starts_with(root));
    list_processes().filter(|process| i32::try_from(std::process::id()) != Ok(process.id) && is_in(process)).collect()
}

/// Running process that may use a device or mount.
#[derive(Debug)]
pub struct RunningProcess {
    pub id: i32,
    name: String,
}

impl std::fmt::Display for RunningProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} ({})", self.id, self.name)
    }
}

impl RunningProcess {
    fn read_link(&self, name: &str) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/{name}", self.id)).ok()
    }

    fn open_files(&self) -> impl Iterator<Item = PathBuf> {
        fs::read_dir(format!("/proc/{}/fd", self.id)).into_iter().flatten().flatten().map(|entry| entry.path())
    }

    fn is_below(&self, path: &Path) -> bool {
        ["root", "cwd", "exe"].iter().any(|name| self.read_link(name).is_some_and(|link| link.starts_with(path)))
            || self.open_files().any(|file| fs::read_link(file).is_ok_and(|link| link.starts_with(path)))
    }

    fn opens_device(&self, numbers: &[String]) -> bool {
        self.open_files().any(|file| {
            let Ok(link) = fs::read_link(&file) else { return false };
            link.starts_with("/dev")
                && numbers.iter().any(|number| is_device(&link.to_string_lossy(), number))
                && !self.is_own_read_only_disk(&file, &link.to_string_lossy().as_ref().into())
        })
    }

    /// Returns whether `file` is a read-only descriptor with which drophammer itself keeps a disk of the plan open.
    /// Such descriptors do not block other users, and are therefore not reported.
    fn is_own_read_only_disk(&self, file: &Path, device: &DevicePath) -> bool {
        let info = Path::new("/proc/self/fdinfo").join(file.file_name().unwrap_or_default());
        let info = || fs::read_to_string(info).unwrap_or_default();
        let flags = |info: String| {
            info.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok())
        };
        let is_read_only = || flags(info()).is_some_and(|flags| flags & nix::libc::O_ACCMODE == nix::libc::O_RDONLY);
        let is_disk = || block_device::sysfs_path(device).is_ok_and(|sysfs| !sysfs.join("partition").exists());
        i32::try_from(std::process::id()) == Ok(self.id) && is_read_only() && is_disk()
    }
}

fn list_processes() -> impl Iterator<Item = RunningProcess> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?.trim().to_owned();
        Some(RunningProcess { id, name })
    })
}

fn is_device(path: &str, number: &str) -> bool {
    fs::metadata(path).is_ok_and(|metadata| {
        metadata.mode() & nix::libc::S_IFMT == nix::libc::S_IFBLK
            && probe::format_device_number(metadata.rdev()) == number.trim()
    })
}

/// Returns whether the mounted filesystem is on the device with this number. A btrfs mount has an anonymous device
/// number, so the device number of its source is also compared.
fn is_mount_of(mount: &MountEntry, number: &str) -> bool {
    mount.number == number.trim() || is_device(&mount.source, number)
}

fn read_mounts() -> Vec<MountEntry> {
    probe::proc_mounts::parse_mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_open_file_below_the_path_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let file = fs::File::create(dir.join("open")).unwrap();
        let me = format!("process {} (", std::process::id());
        assert!(list_mount_users(&dir).iter().any(|user| user.starts_with(&me)), "{:?}", list_mount_users(&dir));
        drop(file);
        assert!(!list_mount_users(&dir).iter().any(|user| user.starts_with(&me)), "{:?}", list_mount_users(&dir));
    }
}
