//! Current users of block devices: mounts, swap, and block devices on top of them.

use super::proc_mounts::{self, MountEntry};
use super::sysfs::{ProbeRoots, format_device_number, list_names, read_attribute, read_proc_file};
use common::error::{Context, Phase, Result};
use model::device_name::DevicePath;
use model::inventory::DeviceUse;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Mounts and active swap areas from procfs, read once for all devices.
pub(super) struct DeviceUsers {
    mounts: Vec<MountedDevice>,
    swaps: Vec<NamedDevice>,
}

/// Device, identified by the path under which it was opened. A device may have several paths: `/dev/dm-1`,
/// `/dev/mapper/vg00-swap`.
struct NamedDevice {
    path: String,
    /// Device number such as `253:1`, if a device node exists at that path.
    number: Option<String>,
}

impl NamedDevice {
    fn new(path: String, dev: &Path) -> NamedDevice {
        let node = path.strip_prefix("/dev/").and_then(|name| std::fs::metadata(dev.join(name)).ok());
        let node = node.filter(|node| node.file_type().is_block_device());
        NamedDevice { path, number: node.map(|node| format_device_number(node.rdev())) }
    }

    fn is_device(&self, device: &DevicePath, number: &str) -> bool {
        *device == self.path || self.number.as_deref().is_some_and(|known| known == number)
    }
}

/// Mount of a filesystem, with its source device.
struct MountedDevice {
    mount: MountEntry,
    source: NamedDevice,
}

impl DeviceUsers {
    /// Reads mounts and swap.
    ///
    /// # Errors
    /// Returns an error if procfs cannot be read; the users are then unknown.
    pub(super) fn read(roots: &ProbeRoots) -> Result<DeviceUsers> {
        let path = roots.proc.join("swaps");
        let swaps = match std::fs::read_to_string(&path) {
            // The file is missing if the kernel does not support swap.
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.context(Phase::Inventory, || format!("read {}", path.display()))?,
        };
        Ok(DeviceUsers::parse(&read_proc_file(roots, "self/mountinfo")?, &swaps, &roots.dev))
    }

    fn parse(mountinfo: &str, swaps: &str, dev: &Path) -> DeviceUsers {
        let mounted = |mount: MountEntry| MountedDevice { source: NamedDevice::new(mount.source.clone(), dev), mount };
        DeviceUsers {
            mounts: proc_mounts::parse_mounts(mountinfo).into_iter().map(mounted).collect(),
            swaps: proc_mounts::parse_swaps(swaps).into_iter().map(|path| NamedDevice::new(path, dev)).collect(),
        }
    }

    /// Returns the uses of the disk or partition with this sysfs directory and device path.
    pub(super) fn find_uses(&self, dir: &Path, device: &DevicePath) -> Result<Vec<DeviceUse>> {
        let number = read_attribute(&dir.join("dev"));
        let mut uses = Vec::new();
        for MountedDevice { mount, source } in &self.mounts {
            // btrfs mounts have an anonymous device number (major 0); their source identifies the device.
            let ours = mount.number == number || (mount.number.starts_with("0:") && source.is_device(device, &number));
            let found = DeviceUse::Mounted(mount.path.clone());
            if ours && !uses.contains(&found) {
                uses.push(found);
            }
        }
        if self.swaps.iter().any(|swap| swap.is_device(device, &number)) {
            uses.push(DeviceUse::Swap);
        }
        uses.extend(list_names(&dir.join("holders"))?.into_iter().map(|holder| DeviceUse::Holder(holder.into())));
        Ok(uses)
    }

    /// Returns whether the root directory of a filesystem is mounted at this path. Returns false if a subdirectory is
    /// mounted there, or if several mounts are stacked on this path.
    pub(super) fn shows_root(&self, path: &str) -> bool {
        let mut there = self.mounts.iter().map(|mounted| &mounted.mount).filter(|mount| mount.path == path);
        there.next().is_some_and(|mount| mount.root == "/") && there.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulated_machine::FakeMachine;
    use super::*;

    const MOUNTINFO: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 8:2 / / rw,relatime shared:1 - ext4 /dev/root rw
30 27 8:1 / /boot/efi rw,relatime shared:2 master:3 - vfat /dev/sda1 rw
31 27 8:2 /var/lib/x /mnt/with\\040space rw - ext4 /dev/sda2 rw
32 27 8:2 / / rw - ext4 /dev/sda2 rw
33 27 0:45 / /data rw - btrfs /dev/sdb rw
34 27 0:46 / /tmp rw - tmpfs /dev/sda1 rw
broken line
";
    const SWAPS: &str = "\
Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/dev/sda3                               partition\t1048572\t\t0\t\t-2
/swap\\040file                          file\t\t1048572\t\t0\t\t-3
";

    #[test]
    fn mounts_swaps_and_holders_are_found() {
        let tree = FakeMachine::new();
        let users = DeviceUsers::parse(MOUNTINFO, SWAPS, &tree.path("dev"));
        let uses = |name: &str, number: &str| {
            tree.write(&format!("sys/{name}/dev"), format!("{number}\n"));
            users.find_uses(&tree.path(&format!("sys/{name}")), &format!("/dev/{name}").into()).unwrap()
        };
        let mounted = |path: &str| DeviceUse::Mounted(path.to_owned());
        assert_eq!(uses("sda2", "8:2"), [mounted("/"), mounted("/mnt/with space")]);
        assert_eq!(uses("sda3", "8:3"), [DeviceUse::Swap]);
        assert_eq!(uses("sdb", "8:16"), [mounted("/data")]);
        assert_eq!(uses("sda", "8:0"), []);
        let shown = ["/", "/mnt/with space", "/data", "/nowhere"].map(|path| users.shows_root(path));
        assert_eq!(shown, [false, false, true, false], "two are mounted at /");
        tree.write("sys/sdc/holders/md127", "");
        tree.write("sys/sdc/holders/dm-0", "");
        assert_eq!(uses("sdc", "8:32"), [DeviceUse::Holder("dm-0".into()), DeviceUse::Holder("md127".into())]);
    }

    #[test]
    fn missing_mountinfo_but_not_missing_swaps_is_an_error() {
        let tree = FakeMachine::new();
        std::fs::remove_file(tree.path("proc/swaps")).unwrap();
        DeviceUsers::read(&tree.roots()).unwrap();
        std::fs::remove_file(tree.path("proc/self/mountinfo")).unwrap();
        let error = DeviceUsers::read(&tree.roots()).err().unwrap().to_string();
        assert!(error.contains("proc/self/mountinfo"), "{error}");
    }
}
