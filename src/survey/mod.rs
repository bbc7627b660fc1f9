//! Hardware and storage probing: reads this machine into an [`Inventory`] of disks, their contents and users, and
//! other hardware. Writes nothing.

mod arrays;
pub mod ata;
mod ata_identity;
mod blank;
mod by_id;
mod contents;
mod disks;
mod erase;
#[cfg(test)]
mod fake;
mod firmware;
mod groups;
mod hardware;
mod holders;
mod inside;
mod legs;
#[cfg(feature = "agent")]
pub mod lldp;
pub mod mounts;
pub mod nvme;
mod parts;
mod paths;
mod signatures;
mod stacked;
mod volume_mappings;

pub use blank::whole_is_blank as is_blank;
pub use disks::serial_and_wwn;
pub use groups::{COPY as LVM_COPY, LOOK as LVM_LOOKS};
pub use inside::filesystem;
pub use legs::Piece;
pub use volume_mappings::{VolumeMapping, needs_mapping, volume_mappings};

use crate::device::DevicePath;
use crate::error::{Context, Phase, Result};
use crate::inventory::{Inventory, Nic, System, Table};
use crate::order;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Mount points of the kernel's filesystems; tests use a simulated tree.
#[derive(Debug, Clone)]
pub struct Roots {
    /// Mount point of sysfs.
    pub sys: PathBuf,
    /// Mount point of procfs.
    pub proc: PathBuf,
    /// Mount point of devtmpfs.
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Roots { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into() }
    }
}

/// Depth of an inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Only what the kernel knows: hardware, disks, and their users. Disks are not accessed, so their contents are
    /// unknown.
    Shallow,
    /// Complete inventory.
    Deep,
}

/// Reads the inventory of this machine.
///
/// Requires root for the SMBIOS UUID and for the contents of disks. An unreadable disk is listed with the reason in
/// [`crate::inventory::Disk::unreadable`].
///
/// # Errors
/// sysfs or procfs is not mounted, or the users of a disk are unknown.
pub fn read(depth: Depth) -> Result<Inventory> {
    read_at(&Roots::default(), depth)
}

/// Reads an inventory from these mount points.
///
/// # Errors
/// As for [`read`].
pub fn read_at(roots: &Roots, depth: Depth) -> Result<Inventory> {
    let users = holders::Users::read(roots)?;
    let mut inventory = Inventory {
        system: hardware::system(&roots.sys),
        cpus: hardware::cpus(&proc_text(roots, "cpuinfo")?),
        memory_bytes: hardware::memory_bytes(&proc_text(roots, "meminfo")?)?,
        nics: hardware::nics(&roots.sys)?,
        disks: disks::read(roots, &users, depth)?,
        ..Inventory::default()
    };
    if depth == Depth::Shallow {
        return Ok(inventory);
    }
    inventory.firmware_variables = firmware::read(&roots.sys);
    inventory.stacked = stacked::read(roots, &users)?;
    let (arrays, unexamined) = arrays::read(roots, &inventory);
    inventory.arrays = arrays;
    let (groups, unlisted) = groups::read(roots, &inventory);
    inventory.groups = groups;
    inventory.unknown = [unexamined, unlisted].concat();
    inventory.parts = parts::read(roots, &inventory);
    inventory.filesystems = inside::read(&users, &inventory);
    inventory.limit_markers();
    Ok(inventory)
}

/// Returns the partition table of a disk, with the contents of its partitions.
///
/// # Errors
/// The contents cannot be read completely.
pub fn table(device: &DevicePath, sector_bytes: u32, size_bytes: u64) -> Result<Option<Table>> {
    let roots = Roots::default();
    let what = || format!("read the contents of {device}");
    let node = std::fs::canonicalize(device).context(Phase::Inventory, what)?;
    let (name, device) = (DevicePath::from(node.to_string_lossy().as_ref()).kernel_name(), device.clone());
    let target = contents::Target { name: &name, device: &device, sector_bytes, size_bytes };
    let contents = contents::read(&target, &roots, &holders::Users::read(&roots)?)?;
    match contents.unreadable {
        Some(why) => Err(std::io::Error::other(why)).context(Phase::Inventory, what),
        None => Ok(contents.table),
    }
}

/// Returns the identity of this machine without its disks: SMBIOS data and NICs.
///
/// # Errors
/// A sysfs directory cannot be read.
pub fn identity(sys: &Path) -> Result<(System, Vec<Nic>)> {
    Ok((hardware::system(sys), hardware::nics(sys)?))
}

/// Unit of sizes and offsets in sysfs, regardless of the disk's sector size (Documentation/ABI/stable/sysfs-block).
const SYSFS_UNIT_BYTES: u64 = 512;

/// Converts a number of 512-byte units to bytes.
fn units(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(SYSFS_UNIT_BYTES)
}

/// Formats a device number as sysfs and mountinfo do: `8:1`.
pub fn number_text(dev: u64) -> String {
    format!("{}:{}", nix::sys::stat::major(dev), nix::sys::stat::minor(dev))
}

/// Reads a procfs file that always exists.
fn proc_text(roots: &Roots, name: &str) -> Result<String> {
    let path = roots.proc.join(name);
    std::fs::read_to_string(&path).context(Phase::Inventory, || format!("read {}", path.display()))
}

/// Reads a sysfs attribute without padding; empty if it does not exist. Firmware and disks may supply arbitrary
/// bytes.
fn attribute(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    printable(&bytes)
}

/// Converts bytes supplied by a device to text without control characters and padding.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.trim().to_owned()
}

/// Returns the sorted names in a sysfs directory; empty if it does not exist.
fn names(dir: &Path) -> Result<Vec<String>> {
    let reading = || format!("read {}", dir.display());
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.context(Phase::Inventory, reading)?,
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<std::io::Result<Vec<OsString>>>();
    let names = names.context(Phase::Inventory, reading)?;
    let mut names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
    order::sort(&mut names);
    Ok(names)
}

/// Returns the last path component of a link's target: `driver` → `virtio_net`.
fn link_name(path: &Path) -> String {
    let target = std::fs::read_link(path).unwrap_or_default();
    target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_devices_is_made_printable() {
        let cases: [(&[u8], &str); 4] =
            [(b"  QEMU HARDDISK \n", "QEMU HARDDISK"), (b"S45N\x00\x00", "S45N"), (b"\x1b[2Jred", "[2Jred"), (b"", "")];
        for (bytes, expected) in cases {
            assert_eq!(printable(bytes), expected);
        }
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_this_machine_is_read() {
        let inventory = read(Depth::Deep).unwrap();
        println!("{}", serde_json::to_string_pretty(&inventory).unwrap());
        assert!(inventory.memory_bytes > 0);
        assert!(inventory.cpus.iter().all(|cpu| cpu.cores > 0 && cpu.threads >= cpu.cores));
        assert!(inventory.disks.iter().all(|disk| disk.size_bytes > 0 && !disk.name.starts_with("loop")));
    }
}
