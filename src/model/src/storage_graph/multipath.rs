//! Detection of disks that are visible through two paths. Data that are written through one path are then visible through the other.

use crate::device_name::identifiers::is_same_wwn;
use crate::inventory::{Inventory, InventoryDisk};

/// Returns another path to the same disk; `None` if there is no other path. Equal serial numbers do not prove that two
/// disks are the same. For example, all USB bridges of a cheap model have the same serial number, and so do all
/// namespaces of an NVMe controller. Disks whose WWN is a placeholder are considered different disks.
pub fn find_other_path<'a>(disk: &InventoryDisk, inventory: &'a Inventory) -> Option<&'a InventoryDisk> {
    let is_same = |other: &&InventoryDisk| {
        other.name != disk.name
            && other.size_bytes == disk.size_bytes
            && is_same_wwn(&other.wwn, &disk.wwn) == Some(true)
            && other.comparable_serial() == disk.comparable_serial()
    };
    inventory.disks.iter().find(is_same)
}

/// Explains why a disk with two paths is refused.
pub fn describe_refusal(disk: &InventoryDisk, other: &InventoryDisk) -> String {
    format!(
        "{} and {} are two paths to one disk (serial {}, wwn {}): multipath is not supported; leave only one path connected (zoning, cabling)",
        disk.device,
        other.device,
        if disk.serial.is_empty() { "none" } else { &disk.serial },
        disk.wwn
    )
}
