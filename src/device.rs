//! What a block device is called. It has three kinds of names, and what holds of one kind does not hold of the others.

pub mod identifiers;

use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

/// Defines a kind of names: text that nobody takes for a name of another kind.
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

        /// For lists of names in words.
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
    /// What the kernel calls a device in sysfs: `sda1`, `md127`, `dm-0`. Where a driver has a directory of its own in `/dev`, the
    /// slash is an exclamation mark here: `cciss!c0d0p1`.
    KernelName
}

kind_of_names! {
    /// Where a device is found: `/dev/sda1`, `/dev/cciss/c0d0p1`, `/dev/mapper/vg00-root`.
    DevicePath
}

kind_of_names! {
    /// What a layout calls a device: `/dev/sda1`, `/dev/disk/by-path/…`, `/dev/md/root`, `/dev/vg00/root`, or any name that it gives to
    /// a disk with hints. Which device of a machine that is, the match of `topology` tells.
    LayoutPath
}

impl std::ops::Deref for KernelName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// What is opened, looked up or unlinked.
impl AsRef<Path> for DevicePath {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

/// What a tool is told.
impl AsRef<OsStr> for DevicePath {
    fn as_ref(&self) -> &OsStr {
        OsStr::new(&self.0)
    }
}

impl KernelName {
    /// The node that the kernel itself makes.
    pub fn path(&self) -> DevicePath {
        DevicePath(format!("/dev/{}", self.0.replace('!', "/")))
    }
}

impl DevicePath {
    /// The kernel's name of a device whose node the kernel has made. What device mapper or mdadm have named is another matter:
    /// `topology` knows these.
    pub fn kernel_name(&self) -> KernelName {
        KernelName(self.0.strip_prefix("/dev/").unwrap_or(&self.0).replace('/', "!"))
    }

    /// Where the kernel shows partition `number` of this disk.
    pub fn partition(&self, number: u32) -> DevicePath {
        DevicePath(partition(&self.0, number))
    }
}

impl LayoutPath {
    /// What the layout calls partition `number` of this disk.
    pub fn partition(&self, number: u32) -> LayoutPath {
        LayoutPath(partition(&self.0, number))
    }

    /// The device of this very name: that of an array or a volume is where the layout says. Where a disk is, the match of `topology`
    /// tells.
    pub fn as_device(&self) -> DevicePath {
        DevicePath(self.0.clone())
    }
}

/// Path of partition `number` of `disk`, as the kernel names it: names that end in a digit get a `p`
/// (`disk_name()` in block/partitions/core.c), by-* links get `-partN` (60-persistent-storage.rules).
fn partition(disk: &str, number: u32) -> String {
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
    fn the_kernel_names_a_device_in_dev_and_in_sysfs() {
        for (name, path) in [("sda1", "/dev/sda1"), ("cciss!c0d0p1", "/dev/cciss/c0d0p1"), ("dm-0", "/dev/dm-0")] {
            let (name, path) = (KernelName::from(name), DevicePath::from(path));
            assert_eq!((name.path(), path.kernel_name()), (path, name));
        }
    }

    #[test]
    fn names_are_plain_text_in_json() {
        let name = KernelName::from("cciss!c0d0");
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"cciss!c0d0\"");
        assert_eq!(serde_json::from_str::<KernelName>("\"cciss!c0d0\"").unwrap(), name);
    }
}
