//! Content of disks and partitions, as text.

use model::inventory::{self, DeviceSignature, DiskPartition};
use operations::operation_text::strip_dev;

/// Description of a device without recognized content that is not proven blank: it may contain data of an unsupported
/// format.
pub(crate) const UNRECOGNIZED_DATA: &str = "data of no known kind";
/// Description of a device that is proven blank.
const BLANK: &str = "blank";

/// Describes the content of a disk in one line.
pub(crate) fn describe_contents(disk: &inventory::InventoryDisk) -> String {
    let mut parts = Vec::new();
    if let Some(table) = &disk.table {
        let count = table.partitions.len();
        let plural = if count == 1 { "" } else { "s" };
        parts.push(format!("{} {count} partition{plural}", table.kind.to_uppercase()));
        parts.extend(table.partitions.iter().flat_map(|partition| &partition.signatures).map(describe_signature));
        let nameless: Vec<&str> =
            table.partitions.iter().filter(|part| is_unrecognized(part)).map(|part| strip_dev(&part.device)).collect();
        if !nameless.is_empty() {
            parts.push(format!("{UNRECOGNIZED_DATA} on {}", nameless.join(", ")));
        }
    }
    parts.extend(disk.signatures.iter().map(describe_signature));
    parts.extend(disk.unreadable.as_ref().map(|why| format!("partly unreadable: {why}")));
    if parts.is_empty() { describe_unrecognized(disk.blank).to_owned() } else { parts.join(" · ") }
}

/// Describes a device on which nothing is recognized. The text contains "blank" only if the device is proven blank.
pub(crate) fn describe_unrecognized(is_blank: bool) -> &'static str {
    if is_blank { BLANK } else { UNRECOGNIZED_DATA }
}

/// Returns whether a partition is an extended MBR partition, which contains a partition table instead of a signature.
pub(crate) fn is_extended(partition: &DiskPartition) -> bool {
    ["0x5", "0xf", "0x85"].contains(&partition.kind.as_str())
}

pub(crate) fn is_unrecognized(partition: &DiskPartition) -> bool {
    partition.signatures.is_empty() && !partition.blank && !is_extended(partition)
}

pub(crate) fn describe_signature(signature: &DeviceSignature) -> String {
    let kind = match signature.kind.as_str() {
        "LVM2_member" => "LVM physical volume",
        "linux_raid_member" => "RAID member",
        other => other,
    };
    if signature.label.is_empty() { kind.to_owned() } else { format!("{kind} \"{}\"", signature.label) }
}
