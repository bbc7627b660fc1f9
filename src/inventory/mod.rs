//! What is there: disks, what is on them and who holds them, and the rest of the hardware. Reads only.

pub mod ata;
mod disks;
mod erase;
#[cfg(test)]
mod fake;
mod hardware;
mod holders;
pub mod nvme;
mod paths;
mod signatures;
mod types;

pub use disks::serial_and_wwn;
pub use types::*;

use crate::error::{Context, Phase, Result};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where the kernel shows itself. Tests point it at a tree of their own.
#[derive(Debug, Clone)]
pub struct Roots {
    /// sysfs.
    pub sys: PathBuf,
    /// procfs.
    pub proc: PathBuf,
    /// devtmpfs.
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Roots { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into() }
    }
}

/// The inventory of this machine.
///
/// Needs root for the SMBIOS UUID and for what is on the disks. A disk that cannot be read is in it all the same,
/// and says so in [`Disk::unreadable`].
///
/// # Errors
/// sysfs or procfs is not mounted, or does not say who uses which disk.
pub fn read() -> Result<Inventory> {
    read_at(&Roots::default())
}

/// As [`read`], from these roots.
///
/// # Errors
/// As [`read`].
pub fn read_at(roots: &Roots) -> Result<Inventory> {
    Ok(Inventory {
        system: hardware::system(&roots.sys),
        cpus: hardware::cpus(&proc_text(roots, "cpuinfo")?),
        memory_bytes: hardware::memory_bytes(&proc_text(roots, "meminfo")?)?,
        nics: hardware::nics(&roots.sys)?,
        disks: disks::read(roots)?,
        ..Inventory::default()
    })
}

/// A file of procfs that is always there.
fn proc_text(roots: &Roots, name: &str) -> Result<String> {
    let path = roots.proc.join(name);
    std::fs::read_to_string(&path).context(Phase::Inventory, || format!("read {}", path.display()))
}

/// A sysfs attribute without its padding; empty when there is none. Firmware and disks may put any byte there.
fn attribute(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    printable(&bytes)
}

/// Bytes that a device supplied, as text for people: no control characters, no padding.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.trim().to_owned()
}

/// The names in a sysfs directory, sorted; none when there is no such directory.
fn names(dir: &Path) -> Result<Vec<String>> {
    let reading = || format!("read the directory {}", dir.display());
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.context(Phase::Inventory, reading)?,
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<std::io::Result<Vec<OsString>>>();
    let names = names.context(Phase::Inventory, reading)?;
    let mut names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
    names.sort_unstable();
    Ok(names)
}

/// Where a link of sysfs ends, by its last name: `driver` → `virtio_net`.
fn link_name(path: &Path) -> String {
    let target = std::fs::read_link(path).unwrap_or_default();
    target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every recorded inventory is what today's program reads back, so that a plan on a desk stays possible.
    #[test]
    fn recorded_inventories_are_read_back() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/inventories");
        let files = names(&dir).unwrap();
        assert_eq!(files, ["five-sata.json", "installed-default.json", "nvme-sata.json", "sata-1.json"]);
        for file in files {
            let text = std::fs::read_to_string(dir.join(&file)).unwrap();
            let inventory: Inventory = serde_json::from_str(&text).unwrap();
            assert!(inventory.memory_bytes > 0 && !inventory.cpus.is_empty() && !inventory.nics.is_empty(), "{file}");
            assert!(!inventory.disks.is_empty(), "{file}");
            for disk in &inventory.disks {
                assert!(disk.size_bytes > 0 && disk.size_bytes % u64::from(disk.sector_bytes) == 0, "{file}");
                assert_eq!(disk.device, format!("/dev/{}", disk.name), "{file}");
                for partition in disk.table.iter().flat_map(|table| &table.partitions) {
                    assert!(partition.size_bytes > 0, "{file}");
                    assert!(partition.start_bytes + partition.size_bytes <= disk.size_bytes, "{file}");
                }
            }
            // Nothing in the file that the types do not know.
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_value(&inventory).unwrap(), value, "{file}");
        }
    }

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
        let inventory = read().unwrap();
        println!("{}", serde_json::to_string_pretty(&inventory).unwrap());
        assert!(inventory.memory_bytes > 0);
        assert!(inventory.cpus.iter().all(|cpu| cpu.cores > 0 && cpu.threads >= cpu.cores));
        assert!(inventory.disks.iter().all(|disk| disk.size_bytes > 0 && !disk.name.starts_with("loop")));
    }
}
