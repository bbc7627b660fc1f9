//! Names of block devices. The three types of names have different rules, so each of them is a Rust type.

pub mod by_path_spellings;

use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

/// Defines the Rust type for one type of name. The types do not convert into each other implicitly, so that one type
/// of name cannot be used for another.
macro_rules! kind_of_names {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        /// Allows lists of names to be joined with `join`, like lists of strings.
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                $name(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                $name(text)
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, text: &str) -> bool {
                self.0 == text
            }
        }

        impl PartialEq<String> for $name {
            fn eq(&self, text: &String) -> bool {
                self.0 == *text
            }
        }

        impl PartialEq<$name> for String {
            fn eq(&self, name: &$name) -> bool {
                *self == name.0
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, text: &&str) -> bool {
                self.0 == *text
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

kind_of_names! {
    /// Kernel name of a device in sysfs: `sda1`, `md127`, `dm-0`. If the device node is in a subdirectory of `/dev`,
    /// the name contains an exclamation mark instead of the slash: `cciss!c0d0p1`.
    KernelName
}

kind_of_names! {
    /// Path of a device node or link: `/dev/sda1`, `/dev/cciss/c0d0p1`, `/dev/mapper/vg00-root`.
    DevicePath
}

kind_of_names! {
    /// Name of a device in a layout: `/dev/sda1`, `/dev/disk/by-path/…`, `/dev/md/root`, `/dev/vg00/root`, or any other
    /// name if the layout selects the disk by hints. `storage_graph` finds the matching device of the machine.
    LayoutPath
}

impl std::ops::Deref for KernelName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Conversion to a path, with which the device node can be opened, found and removed.
impl AsRef<Path> for DevicePath {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

/// Conversion to an argument of an external program.
impl AsRef<OsStr> for DevicePath {
    fn as_ref(&self) -> &OsStr {
        OsStr::new(&self.0)
    }
}

impl KernelName {
    /// Returns the path of the device node that the kernel creates for this device.
    pub fn device_path(&self) -> DevicePath {
        DevicePath(format!("/dev/{}", self.0.replace('!', "/")))
    }

    /// Returns whether the device is a hardware area of an eMMC other than the user data area: a boot area, the RPMB,
    /// or a general purpose area (`mmcblk0boot0`, `mmcblk0rpmb`, `mmcblk0gp1`). The kernel shows such areas as whole
    /// block devices, but they are not disks.
    pub fn is_emmc_area(&self) -> bool {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let Some(rest) = self.0.strip_prefix("mmcblk") else { return false };
        let area = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        area.len() < rest.len()
            && (area == "rpmb" || ["boot", "gp"].iter().any(|kind| area.strip_prefix(kind).is_some_and(digits)))
    }
}

impl DevicePath {
    /// Returns the kernel name of a device whose node the kernel created. The function must not be used for paths that
    /// device mapper or mdadm created; `storage_graph` resolves such paths.
    pub fn kernel_name(&self) -> KernelName {
        KernelName(self.0.strip_prefix("/dev/").unwrap_or(&self.0).replace('/', "!"))
    }

    /// Returns the path of partition `number` of this disk.
    pub fn partition_path(&self, number: u32) -> DevicePath {
        DevicePath(append_partition_number(&self.0, number))
    }
}

impl LayoutPath {
    /// Returns the name that the layout uses for partition `number` of this disk.
    pub fn partition_path(&self, number: u32) -> LayoutPath {
        LayoutPath(append_partition_number(&self.0, number))
    }

    /// Returns this name as a device path. The path is valid on the machine only for arrays and volumes. For disks,
    /// `storage_graph` finds the device path.
    pub fn as_device(&self) -> DevicePath {
        DevicePath(self.0.clone())
    }
}

/// In a JSON Schema, a `LayoutPath` is an inline string type, not a reference to a definition.
#[cfg(feature = "schema")]
impl schemars::JsonSchema for LayoutPath {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LayoutPath".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

/// Returns the path of partition `number` of `disk`. If the name of the disk ends in a digit, a `p` precedes the number
/// (`disk_name()` in block/partitions/core.c). In links in `/dev/disk/by-*`, `-part` precedes the number
/// (60-persistent-storage.rules).
fn append_partition_number(disk: &str, number: u32) -> String {
    if disk.starts_with("/dev/disk/by-") {
        format!("{disk}-part{number}")
    } else if disk.ends_with(|c: char| c.is_ascii_digit()) {
        format!("{disk}p{number}")
    } else {
        format!("{disk}{number}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_names_convert_to_device_paths_and_back() {
        for (name, path) in [("sda1", "/dev/sda1"), ("cciss!c0d0p1", "/dev/cciss/c0d0p1"), ("dm-0", "/dev/dm-0")] {
            let (name, path) = (KernelName::from(name), DevicePath::from(path));
            assert_eq!((name.device_path(), path.kernel_name()), (path, name));
        }
    }

    #[test]
    fn emmc_boot_areas_are_distinguished_from_disks_and_partitions() {
        for (name, expected) in [
            ("mmcblk0boot0", true),
            ("mmcblk12boot1", true),
            ("mmcblk0rpmb", true),
            ("mmcblk0gp3", true),
            ("mmcblk0", false),
            ("mmcblk0p1", false),
            ("mmcblkboot0", false),
            ("mmcblk0boot", false),
            ("mmcblk0boot0p1", false),
            ("sda", false),
        ] {
            assert_eq!(KernelName::from(name).is_emmc_area(), expected, "{name}");
        }
    }

    #[test]
    fn names_are_plain_text_in_json() {
        let name = KernelName::from("cciss!c0d0");
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"cciss!c0d0\"");
        assert_eq!(serde_json::from_str::<KernelName>("\"cciss!c0d0\"").unwrap(), name);
    }
}
