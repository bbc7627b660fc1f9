//! Functions that read sysfs and procfs.

use common::error::{Context, Phase, Result};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Mount points of the kernel's filesystems; tests use a simulated tree.
#[derive(Debug, Clone)]
pub struct ProbeRoots {
    /// Mount point of sysfs.
    pub sys: PathBuf,
    /// Mount point of procfs.
    pub proc: PathBuf,
    /// Mount point of devtmpfs.
    pub dev: PathBuf,
}

impl Default for ProbeRoots {
    fn default() -> Self {
        ProbeRoots { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into() }
    }
}

/// Unit of sizes and offsets in sysfs, regardless of the disk's sector size (Documentation/ABI/stable/sysfs-block).
const SYSFS_UNIT_BYTES: u64 = 512;

/// Converts a number of 512-byte units to bytes.
pub(crate) fn parse_sectors(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(SYSFS_UNIT_BYTES)
}

/// Formats a device number as sysfs and mountinfo do: `8:1`.
pub fn format_device_number(dev: u64) -> String {
    format!("{}:{}", nix::sys::stat::major(dev), nix::sys::stat::minor(dev))
}

/// Reads a procfs file that always exists.
pub(crate) fn read_proc_file(roots: &ProbeRoots, name: &str) -> Result<String> {
    let path = roots.proc.join(name);
    std::fs::read_to_string(&path).context(Phase::Inventory, || format!("read {}", path.display()))
}

/// Reads a sysfs attribute without padding and control characters, since firmware and disks may supply arbitrary bytes.
/// Returns an empty string if the attribute does not exist.
pub(crate) fn read_attribute(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    to_printable(&bytes)
}

/// Converts bytes supplied by a device to text without control characters and padding.
pub(crate) fn to_printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.trim().to_owned()
}

/// Returns the sorted names in a sysfs directory; empty if the directory does not exist.
pub(crate) fn list_names(dir: &Path) -> Result<Vec<String>> {
    let reading = || format!("read {}", dir.display());
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.context(Phase::Inventory, reading)?,
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<std::io::Result<Vec<OsString>>>();
    let names = names.context(Phase::Inventory, reading)?;
    let mut names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// Returns the last component of the path to which a link refers: `driver` → `virtio_net`.
pub(crate) fn read_link_name(path: &Path) -> String {
    let target = std::fs::read_link(path).unwrap_or_default();
    target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_text_is_sanitized() {
        let cases: [(&[u8], &str); 4] =
            [(b"  QEMU HARDDISK \n", "QEMU HARDDISK"), (b"S45N\x00\x00", "S45N"), (b"\x1b[2Jred", "[2Jred"), (b"", "")];
        for (bytes, expected) in cases {
            assert_eq!(to_printable(bytes), expected);
        }
    }
}
