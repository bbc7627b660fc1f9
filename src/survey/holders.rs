//! Current users of block devices: mounts, swap, and block devices on top.

use super::mounts::{self, Mount};
use super::{Roots, attribute, names, number_text, proc_text};
use crate::device::DevicePath;
use crate::error::{Context, Phase, Result};
use crate::inventory::Use;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Mounts and swap from procfs, read once for all devices.
pub(super) struct Users {
    mounts: Vec<Mounted>,
    swaps: Vec<Named>,
}

/// Device by the path under which it was opened. A device may have several: `/dev/dm-1`, `/dev/mapper/vg00-swap`.
struct Named {
    path: String,
    /// Device number such as `253:1`, if a device node exists at that path.
    number: Option<String>,
}

impl Named {
    fn new(path: String, dev: &Path) -> Named {
        let node = path.strip_prefix("/dev/").and_then(|name| std::fs::metadata(dev.join(name)).ok());
        let node = node.filter(|node| node.file_type().is_block_device());
        Named { path, number: node.map(|node| number_text(node.rdev())) }
    }

    fn is(&self, device: &DevicePath, number: &str) -> bool {
        *device == self.path || self.number.as_deref().is_some_and(|known| known == number)
    }
}

/// Mount with its source device.
struct Mounted {
    mount: Mount,
    source: Named,
}

impl Users {
    /// Reads mounts and swap.
    ///
    /// # Errors
    /// procfs cannot be read, so that the users are unknown.
    pub(super) fn read(roots: &Roots) -> Result<Users> {
        let path = roots.proc.join("swaps");
        let swaps = match std::fs::read_to_string(&path) {
            // The kernel does not support swap.
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.context(Phase::Inventory, || format!("read {}", path.display()))?,
        };
        Ok(Users::parse(&proc_text(roots, "self/mountinfo")?, &swaps, &roots.dev))
    }

    fn parse(mountinfo: &str, swaps: &str, dev: &Path) -> Users {
        let mounted = |mount: Mount| Mounted { source: Named::new(mount.source.clone(), dev), mount };
        Users {
            mounts: mounts::mounts(mountinfo).into_iter().map(mounted).collect(),
            swaps: mounts::swaps(swaps).into_iter().map(|path| Named::new(path, dev)).collect(),
        }
    }

    /// Returns the uses of the disk or partition with this sysfs directory and device path.
    pub(super) fn of(&self, dir: &Path, device: &DevicePath) -> Result<Vec<Use>> {
        let number = attribute(&dir.join("dev"));
        let mut uses = Vec::new();
        for Mounted { mount, source } in &self.mounts {
            // btrfs mounts have an anonymous device number (major 0); their source identifies the device.
            let ours = mount.number == number || (mount.number.starts_with("0:") && source.is(device, &number));
            let found = Use::Mounted(mount.path.clone());
            if ours && !uses.contains(&found) {
                uses.push(found);
            }
        }
        if self.swaps.iter().any(|swap| swap.is(device, &number)) {
            uses.push(Use::Swap);
        }
        uses.extend(names(&dir.join("holders"))?.into_iter().map(|holder| Use::Holder(holder.into())));
        Ok(uses)
    }

    /// Returns whether this path shows the root of a filesystem. A mounted subdirectory does not count, nor does a
    /// path with several mounts on top of each other.
    pub(super) fn shows_root(&self, path: &str) -> bool {
        let mut there = self.mounts.iter().map(|mounted| &mounted.mount).filter(|mount| mount.path == path);
        there.next().is_some_and(|mount| mount.root == "/") && there.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::Tree;
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
        let tree = Tree::new();
        let users = Users::parse(MOUNTINFO, SWAPS, &tree.path("dev"));
        let uses = |name: &str, number: &str| {
            tree.write(&format!("sys/{name}/dev"), format!("{number}\n"));
            users.of(&tree.path(&format!("sys/{name}")), &format!("/dev/{name}").into()).unwrap()
        };
        let mounted = |path: &str| Use::Mounted(path.to_owned());
        assert_eq!(uses("sda2", "8:2"), [mounted("/"), mounted("/mnt/with space")]);
        assert_eq!(uses("sda3", "8:3"), [Use::Swap]);
        assert_eq!(uses("sdb", "8:16"), [mounted("/data")]);
        assert_eq!(uses("sda", "8:0"), []);
        let shown = ["/", "/mnt/with space", "/data", "/nowhere"].map(|path| users.shows_root(path));
        assert_eq!(shown, [false, false, true, false], "two are mounted at /");
        tree.write("sys/sdc/holders/md127", "");
        tree.write("sys/sdc/holders/dm-0", "");
        assert_eq!(uses("sdc", "8:32"), [Use::Holder("dm-0".into()), Use::Holder("md127".into())]);
    }

    #[test]
    fn without_mountinfo_it_fails_and_without_swap_it_does_not() {
        let tree = Tree::new();
        std::fs::remove_file(tree.path("proc/swaps")).unwrap();
        Users::read(&tree.roots()).unwrap();
        std::fs::remove_file(tree.path("proc/self/mountinfo")).unwrap();
        let error = Users::read(&tree.roots()).err().unwrap().to_string();
        assert!(error.contains("proc/self/mountinfo"), "{error}");
    }
}
