//! Rules that assign a mount point to the system or to the data.
//!
//! | mount point | purpose |
//! |---|---|
//! | `/`, `/usr`, `/tmp`, `/var/tmp`, `/var/cache`, `/.snapshots` | system |
//! | `/boot`, `/efi`, and directories below them | system |
//! | directories of packages in `/usr`, such as `/usr/share` | system |
//! | any other mount point, including other directories below `/usr`, `/tmp` and `/var` | data |
//!
//! `MachineContents` assigns swap areas and devices that are not mounted.

use model::inventory::DiskPartition;

/// Mount points of the system. Directories below them are data.
const SYSTEM: [&str; 6] = ["/", "/usr", "/tmp", "/var/tmp", "/var/cache", "/.snapshots"];
/// Mount points of the system. Directories below them also belong to the system.
const BOOT: [&str; 2] = ["/boot", "/efi"];
/// Directories of `/usr` that contain only files of packages.
const PACKAGES: [&str; 11] =
    ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share", "include", "src", "games"];
/// Mount points of data that also contain files of the system.
const MIXED: [&str; 2] = ["/var", "/var/lib"];

/// Purposes of the contents of a device: system, data, or both if it has several contents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PurposeSet {
    pub system: bool,
    pub data: bool,
}

impl PurposeSet {
    pub const SYSTEM: PurposeSet = PurposeSet { system: true, data: false };
    pub const DATA: PurposeSet = PurposeSet { system: false, data: true };

    pub fn union(self, other: PurposeSet) -> PurposeSet {
        PurposeSet { system: self.system || other.system, data: self.data || other.data }
    }

    pub fn is_shared(self) -> bool {
        self.system && self.data
    }
}

/// Returns the purpose of a filesystem that is mounted at this path.
pub(crate) fn purpose_of_path(path: &str) -> PurposeSet {
    let is_package_directory = path.strip_prefix("/usr/").is_some_and(|name| PACKAGES.contains(&name));
    let is_system = SYSTEM.contains(&path) || is_boot_path(path) || is_package_directory;
    if is_system { PurposeSet::SYSTEM } else { PurposeSet::DATA }
}

/// Returns whether this mount point shows that its disks contain the installed system: `/`, `/usr`, or a directory of
/// the boot loader. A disk with a swap area or with temporary files may belong to another installation.
pub(crate) fn is_installation_path(path: &str) -> bool {
    path == "/" || path == "/usr" || is_boot_path(path)
}

/// Returns whether a filesystem that is mounted at this path contains files of the system next to data.
pub(crate) fn is_mixed_path(path: &str) -> bool {
    MIXED.contains(&path)
}

/// Returns whether the partition is an extended MBR partition, which only contains other partitions.
pub(crate) fn is_extended(partition: &DiskPartition) -> bool {
    ["0x5", "0xf", "0x85"].contains(&partition.kind.as_str())
}

fn is_boot_path(path: &str) -> bool {
    let mut rest = BOOT.iter().filter_map(|directory| path.strip_prefix(directory));
    rest.any(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_belong_to_the_system_or_to_the_data() {
        for path in [
            "/",
            "/boot",
            "/boot/efi",
            "/efi",
            "/usr",
            "/usr/share",
            "/usr/lib64",
            "/tmp",
            "/var/tmp",
            "/boot/grub2/x86_64-efi",
        ] {
            assert_eq!(purpose_of_path(path), PurposeSet::SYSTEM, "{path}");
        }
        for path in [
            "/home",
            "/srv",
            "/var",
            "/var/lib",
            "/var/lib/mysql",
            "/var/cache/apt-cacher-ng",
            "/tmp/rescue",
            "/usr/local",
            "/usr/local/src",
            "/usr/sap",
            "/usr/share/nginx",
            "/usrs",
            "/boots",
            "/opt",
            "/root",
        ] {
            assert_eq!(purpose_of_path(path), PurposeSet::DATA, "{path}");
        }
        assert!(is_mixed_path("/var/lib") && !is_mixed_path("/var/lib/docker"));
        assert!(is_installation_path("/boot/efi") && !is_installation_path("/tmp"));
    }
}
