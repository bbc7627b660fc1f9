//! Short descriptions of disks and records for messages.

use super::recorded_disk::table_guid;
use model::disk_identifiers::{is_placeholder_serial, is_placeholder_wwn};
use model::install_marker::RecordedDisk;
use model::{inventory, layout};

/// Describes the disk of the machine that matches a disk of the layout. If the layout selects the disk by hints, the
/// description includes the name in the layout, which may differ from the kernel name.
pub fn describe_match(listed: &layout::DiskSpec, found: &inventory::InventoryDisk) -> String {
    let by_hints = format!(" (selected by the hints of {device})", device = listed.device);
    let by_hints = if listed.hints.is_empty() { "" } else { &by_hints };
    format!("{}{by_hints} is {}", found.device, describe_disk(found))
}

pub(crate) fn describe_disk(disk: &inventory::InventoryDisk) -> String {
    describe_identifiers(&disk.serial, &disk.wwn, table_guid(disk).as_deref(), disk.size_bytes)
}

pub(crate) fn describe_record(record: &RecordedDisk) -> String {
    describe_identifiers(&record.serial, &record.wwn, record.guid.as_deref(), record.size_bytes)
}

fn describe_identifiers(serial: &str, wwn: &str, guid: Option<&str>, size_bytes: u64) -> String {
    let (no_serial, no_wwn) = (is_placeholder_serial(serial), is_placeholder_wwn(wwn));
    let usable = [
        ("serial", if no_serial { "" } else { serial }),
        ("wwn", if no_wwn { "" } else { wwn }),
        ("GPT", guid.unwrap_or_default()),
    ];
    let name =
        usable.iter().find(|(_, name)| !name.is_empty()).map(|(kind, name)| format!("the disk with {kind} {name}"));
    let name = name.unwrap_or_else(|| match (no_serial, no_wwn) {
        (true, _) => format!("a disk with the placeholder serial number {serial:?} and without GPT"),
        (false, true) => format!("a disk with the placeholder WWN {wwn:?} and without GPT"),
        (false, false) => "a disk without serial number or GPT".to_owned(),
    });
    format!("{name} ({})", common::format::format_bytes(size_bytes))
}
