//! Checks for duplicate UUIDs of a raw image. All disks to which the same image is written have the same UUIDs. If
//! another disk with the same image is still attached, a mount by UUID may find the wrong disk.

use super::disk_image_detection::rejection;
use model::device_name::DevicePath;
use model::inventory::DiskTable;
use std::collections::BTreeMap;
use std::io;

/// Rejects the partition table of an image for `disk` if it contains a UUID of a preserved disk (`taken`).
///
/// # Errors
/// Returns an error that lists all duplicate UUIDs, each with the two devices.
pub fn check_duplicate_uuids(
    table: &DiskTable,
    disk: &DevicePath,
    taken: &BTreeMap<String, DevicePath>,
) -> io::Result<()> {
    let mut brought: Vec<(DevicePath, String)> = Vec::new();
    brought.extend(table.guid.map(|guid| (disk.clone(), guid.to_string())));
    for partition in &table.partitions {
        let guid = partition.guid.iter().map(ToString::to_string);
        let uuids = guid.chain(partition.signatures.iter().map(|signature| signature.uuid.to_lowercase()));
        brought.extend(uuids.map(|uuid| (disk.partition_path(partition.number), uuid)));
    }
    let twice = brought.iter().filter_map(|(device, uuid)| {
        let other = taken.get(uuid)?;
        Some(format!("{uuid} of {device} is also the UUID of {other}"))
    });
    let twice: Vec<String> = twice.collect();
    if twice.is_empty() {
        return Ok(());
    }
    Err(rejection(format!(
        "the image contains UUIDs that preserved disks also use, so the wrong filesystem could be mounted: {}; detach \
         or wipe the preserved disk, or change its UUIDs",
        twice.join(", ")
    )))
}
