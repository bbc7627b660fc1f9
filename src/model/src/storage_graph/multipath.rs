//! Detection of disks that the kernel lists twice, because they are connected over two paths.

use crate::inventory::{Inventory, InventoryDisk};
use std::collections::HashMap;

/// Size, WWN and serial number of a disk. Two paths to the same disk have equal values.
type PathIdentity = (u64, String, Option<String>);

/// Index of a machine's disks by identity, so that all disks can be checked for a second path in linear time.
pub struct DiskPaths<'a>(HashMap<PathIdentity, Vec<&'a InventoryDisk>>);

impl<'a> DiskPaths<'a> {
    pub fn new(inventory: &'a Inventory) -> DiskPaths<'a> {
        let mut paths: HashMap<PathIdentity, Vec<&InventoryDisk>> = HashMap::new();
        for disk in &inventory.disks {
            if let Some(identity) = path_identity(disk) {
                paths.entry(identity).or_default().push(disk);
            }
        }
        DiskPaths(paths)
    }

    /// Returns another path to the same disk; `None` if there is no other path. Equal serial numbers do not prove that
    /// two disks are the same. For example, all USB bridges of a cheap model have the same serial number, and so do all
    /// namespaces of an NVMe controller. Disks whose WWN is a placeholder are considered different disks.
    pub fn find_other_path(&self, disk: &InventoryDisk) -> Option<&'a InventoryDisk> {
        self.0.get(&path_identity(disk)?)?.iter().find(|other| other.name != disk.name).copied()
    }
}

/// Returns the identity of a disk; `None` if its WWN is missing or a placeholder.
fn path_identity(disk: &InventoryDisk) -> Option<PathIdentity> {
    Some((disk.size_bytes, disk.comparable_wwn()?, disk.comparable_serial()))
}

/// Returns another path to the same disk; see [`DiskPaths::find_other_path`]. This function is for a single lookup,
/// without an index.
pub fn find_other_path<'a>(disk: &InventoryDisk, inventory: &'a Inventory) -> Option<&'a InventoryDisk> {
    DiskPaths::new(inventory).find_other_path(disk)
}

/// Explains why a disk with two paths is refused.
pub fn describe_refusal(disk: &InventoryDisk, other: &InventoryDisk) -> String {
    format!(
        "{first} and {second} are two paths to one disk (serial {serial}, wwn {wwn}): multipath is not supported; leave only one path connected (zoning, cabling)",
        first = disk.device,
        second = other.device,
        serial = if disk.serial.is_empty() { "none" } else { &disk.serial },
        wwn = disk.wwn
    )
}
