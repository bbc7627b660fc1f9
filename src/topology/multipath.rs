//! One disk that is reached by two paths is shown as two. What would be written by one of them is seen by the other.

use crate::device::identifiers::is_same_wwn;
use crate::inventory::{Disk, Inventory};

/// Another path to the same disk. A serial number alone does not tell: cheap bridges all have the same one, and so have the
/// namespaces of an NVMe controller. Disks with a placeholder for a world wide name are different disks.
pub fn other_path<'a>(disk: &Disk, inventory: &'a Inventory) -> Option<&'a Disk> {
    let is_same = |other: &&Disk| {
        other.name != disk.name
            && other.size_bytes == disk.size_bytes
            && is_same_wwn(&other.wwn, &disk.wwn) == Some(true)
            && other.comparable_serial() == disk.comparable_serial()
    };
    inventory.disks.iter().find(is_same)
}

/// Why a disk with two paths is not installed on.
pub fn refusal(disk: &Disk, other: &Disk) -> String {
    format!(
        "{} and {} are two paths to one disk (serial {}, wwn {}): multipath is not supported. Leave one path connected, or take the other one away (zoning, cabling)",
        disk.device,
        other.device,
        if disk.serial.is_empty() { "none" } else { &disk.serial },
        disk.wwn
    )
}
