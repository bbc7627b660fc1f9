//! Rules that assign a mount point or an unmounted partition to the system or to the data.
//!
//! | content | purpose |
//! |---|---|
//! | `/`, `/boot`, `/efi`, `/usr`, `/tmp`, `/var/tmp`, `/var/cache`, `/.snapshots`, and directories below them | system |
//! | `/usr/local` | data |
//! | swap | system |
//! | `/var`, `/var/lib` | data, to which a reinstall adds the image's files (`reinstall: merge`), because they also contain the package database |
//! | any other mount point | data |
//! | unmounted partition whose type is reserved for boot loaders or for the system | system |
//! | any other unmounted content | data |

use model::inventory::DiskPartition;

/// Mount points of the system. Directories below them, except those in [`LOCAL`], also belong to the system.
const SYSTEM: [&str; 7] = ["/boot", "/efi", "/usr", "/tmp", "/var/tmp", "/var/cache", "/.snapshots"];
/// Mount points of data below mount points of the system.
const LOCAL: [&str; 1] = ["/usr/local"];
/// Mount points of data that also contain files of the system.
const MERGED: [&str; 2] = ["/var", "/var/lib"];

/// Types of partitions that contain only the system, with their names (UEFI specification; Discoverable Partitions
/// Specification; disk_layout.json of Flatcar).
const SYSTEM_TYPES: [(&str, &str); 13] = [
    ("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "EFI system partition"),
    ("21686148-6449-6e6f-744e-656564454649", "BIOS boot partition"),
    ("9e1a2d38-c612-4316-aa26-8b49521e5a8b", "PReP boot partition"),
    ("bc13c2ff-59e6-4262-a352-b275fd6f7172", "extended boot loader partition"),
    ("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f", "swap"),
    ("4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "root"),
    ("b921b045-1df0-41c3-af44-4c6f280d3fae", "root"),
    ("8484680c-9521-48c6-9c11-b0720656f69e", "usr"),
    ("2c7357ed-ebd2-46d9-aec1-23d437ec2bf5", "usr verity"),
    ("7ec6f557-3bc5-4aca-b293-16ef5df639d1", "temporary files"),
    ("5dfbf5f4-2848-4bac-aa5e-0d9a20b745a6", "Flatcar usr"),
    ("3884dd41-8582-4404-b9a8-e9b84f2df50e", "Flatcar root"),
    ("c95dc21a-df0e-4340-8d7b-26cbfa9a03e0", "Flatcar reserved"),
];

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
    let is_system = path == "/" || (contains_path(&SYSTEM, path) && !contains_path(&LOCAL, path));
    if is_system { PurposeSet::SYSTEM } else { PurposeSet::DATA }
}

/// Returns whether a filesystem that is mounted at this path contains files of the system next to data.
pub(crate) fn is_merged_path(path: &str) -> bool {
    MERGED.contains(&path)
}

/// Returns the name of the partition's type if this type is reserved for the system.
pub(crate) fn name_system_type(partition: &DiskPartition) -> Option<&'static str> {
    SYSTEM_TYPES.iter().find(|(guid, _)| partition.kind.eq_ignore_ascii_case(guid)).map(|(_, name)| *name)
}

/// Returns whether the partition is an extended MBR partition, which only contains other partitions.
pub(crate) fn is_extended(partition: &DiskPartition) -> bool {
    ["0x5", "0xf", "0x85"].contains(&partition.kind.as_str())
}

fn contains_path(directories: &[&str], path: &str) -> bool {
    directories
        .iter()
        .any(|directory| path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_belong_to_the_system_or_to_the_data() {
        for path in
            ["/", "/boot", "/boot/efi", "/efi", "/usr", "/usr/share", "/tmp", "/var/tmp", "/boot/grub2/x86_64-efi"]
        {
            assert_eq!(purpose_of_path(path), PurposeSet::SYSTEM, "{path}");
        }
        for path in [
            "/home",
            "/srv",
            "/var",
            "/var/lib",
            "/var/lib/mysql",
            "/usr/local",
            "/usr/local/src",
            "/boots",
            "/opt",
            "/root",
        ] {
            assert_eq!(purpose_of_path(path), PurposeSet::DATA, "{path}");
        }
        assert!(is_merged_path("/var/lib") && !is_merged_path("/var/lib/docker"));
    }
}
