//! Hardware and storage probing: reads this machine into an [`Inventory`] of disks, their contents and users, and
//! other hardware. Writes nothing.

mod ata_identity;
pub(crate) mod ata_security;
mod blank_detection;
mod blkid;
mod by_id;
mod device_contents;
mod device_users;
mod disk_connection;
mod disks;
mod erase_methods;
mod filesystem_contents;
mod firmware_variables;
mod hardware;
pub mod lldp_receiver;
mod lvm_raid1_copies;
mod md_arrays;
mod multi_device_storage;
pub(crate) mod nvme;
pub mod proc_mounts;
mod read_only_volume_mappings;
#[cfg(test)]
mod simulated_machine;
mod stacked_devices;
mod sysfs;
mod volume_groups;

use crate::probe::sysfs::read_proc_file;
pub(crate) use blank_detection::is_whole_device_blank as is_blank;
pub(crate) use disks::read_serial_and_wwn;
pub(crate) use filesystem_contents::read_filesystem;
pub(crate) use lvm_raid1_copies::DeviceRange;
pub(crate) use read_only_volume_mappings::{VolumeMapping, find_volume_mappings, needs_mapping};
pub use sysfs::{ProbeRoots, format_device_number};
pub(crate) use volume_groups::{READ_CONFIG as LVM_READ_CONFIG, READ_ONLY_MAPPING_UUID_PREFIX};

use common::error::{Context, Phase, Result};
use model::device_name::DevicePath;
use model::inventory::{DiskTable, Inventory, Nic, SystemInfo};
use std::path::Path;

/// Extent of an inventory: whether the disks are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeDepth {
    /// Only data that the kernel already has: hardware, disks, and the users of the disks. Disks are not accessed, so
    /// their contents are unknown.
    Shallow,
    /// Complete inventory, including the contents of disks.
    Deep,
}

/// Reads the inventory of this machine.
///
/// Root privileges are required for the SMBIOS UUID and for the contents of disks. An unreadable disk is listed with
/// the reason in [`model::inventory::InventoryDisk::unreadable`].
///
/// # Errors
/// Returns an error if sysfs or procfs is not mounted, or the users of a disk cannot be determined.
pub fn read_inventory(depth: ProbeDepth) -> Result<Inventory> {
    read_inventory_at(&ProbeRoots::default(), depth)
}

/// Reads an inventory from sysfs, procfs and devtmpfs at these mount points.
///
/// # Errors
/// The same errors as for [`read_inventory`].
pub fn read_inventory_at(roots: &ProbeRoots, depth: ProbeDepth) -> Result<Inventory> {
    let users = device_users::DeviceUsers::read(roots)?;
    let mut inventory = Inventory {
        system: hardware::read_system(&roots.sys),
        cpus: hardware::parse_cpus(&read_proc_file(roots, "cpuinfo")?),
        memory_bytes: hardware::parse_memory_bytes(&read_proc_file(roots, "meminfo")?)?,
        nics: hardware::read_nics(&roots.sys)?,
        disks: disks::read_disks(roots, &users, depth)?,
        ..Inventory::default()
    };
    if depth == ProbeDepth::Shallow {
        return Ok(inventory);
    }
    inventory.firmware_variables = firmware_variables::read_firmware_variables(&roots.sys);
    inventory.stacked = stacked_devices::read_stacked_devices(roots, &users)?;
    let (arrays, unexamined) = md_arrays::read_arrays(roots, &inventory);
    inventory.arrays = arrays;
    let (groups, unlisted) = volume_groups::read_groups(roots, &inventory);
    inventory.groups = groups;
    inventory.unknown = [unexamined, unlisted].concat();
    inventory.parts = multi_device_storage::read_components(roots, &inventory);
    inventory.filesystems = filesystem_contents::read_filesystems(&users, &inventory);
    inventory.limit_markers();
    Ok(inventory)
}

/// Returns the partition table of a disk, with the contents of its partitions.
///
/// # Errors
/// Returns an error if the contents cannot be read completely.
pub(crate) fn read_table(device: &DevicePath, sector_bytes: u32, size_bytes: u64) -> Result<Option<DiskTable>> {
    let roots = ProbeRoots::default();
    let what = || format!("read the contents of {device}");
    let node = std::fs::canonicalize(device).context(Phase::Inventory, what)?;
    let (name, device) = (DevicePath::from(node.to_string_lossy().as_ref()).kernel_name(), device.clone());
    let target =
        device_contents::ProbeTarget { name: &name, device: &device, sector_bytes, size_bytes, may_be_cut_off: false };
    let contents = device_contents::read_contents(&target, &roots, &device_users::DeviceUsers::read(&roots)?)?;
    match contents.unreadable {
        Some(why) => Err(std::io::Error::other(why)).context(Phase::Inventory, what),
        None => Ok(contents.table),
    }
}

/// Returns the identity of this machine without its disks: SMBIOS data and NICs.
///
/// # Errors
/// Returns an error if a sysfs directory cannot be read.
pub fn read_machine_identity(sys: &Path) -> Result<(SystemInfo, Vec<Nic>)> {
    Ok((hardware::read_system(sys), hardware::read_nics(sys)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_reads_the_inventory_of_this_machine() {
        let inventory = read_inventory(ProbeDepth::Deep).unwrap();
        println!("{}", serde_json::to_string_pretty(&inventory).unwrap());
        assert!(inventory.memory_bytes > 0);
        assert!(inventory.cpus.iter().all(|cpu| cpu.cores > 0 && cpu.threads >= cpu.cores));
        assert!(inventory.disks.iter().all(|disk| disk.size_bytes > 0 && !disk.name.starts_with("loop")));
    }
}
