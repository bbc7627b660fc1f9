//! The UUIDs of a raw image are the same wherever it is. Another disk that has it, an old one that was left plugged in, answers
//! to the same names, and what is mounted by UUID may be found there.

use super::sniff::refused;
use crate::device::DevicePath;
use crate::inventory::Table;
use std::collections::BTreeMap;
use std::io;

/// Refuses the table of an image on `disk` where a disk that stays has one of its UUIDs.
///
/// # Errors
/// All of them, with both devices.
pub fn check(table: &Table, disk: &DevicePath, taken: &BTreeMap<String, DevicePath>) -> io::Result<()> {
    let mut brought: Vec<(DevicePath, String)> = Vec::new();
    brought.extend(table.guid.map(|guid| (disk.clone(), guid.to_string())));
    for partition in &table.partitions {
        let guid = partition.guid.iter().map(ToString::to_string);
        let uuids = guid.chain(partition.signatures.iter().map(|signature| signature.uuid.to_lowercase()));
        brought.extend(uuids.map(|uuid| (disk.partition(partition.number), uuid)));
    }
    let twice = brought.iter().filter_map(|(device, uuid)| {
        let other = taken.get(uuid)?;
        Some(format!("{uuid} of {device} is that of {other}"))
    });
    let twice: Vec<String> = twice.collect();
    if twice.is_empty() {
        return Ok(());
    }
    Err(refused(format!(
        "the image has UUIDs that are on disks which stay, so that one could be mounted for the other: {}; detach that disk, wipe \
         it, or give it UUIDs of its own",
        twice.join(", ")
    )))
}
