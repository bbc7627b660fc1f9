//! Drawings of disks. Each disk is as wide as the page, and the widths of partitions are proportional to their sizes.

use common::format::format_bytes;
use maud::{Markup, html};
use model::inventory::{DeviceSignature, DeviceUse, DiskPartition, Inventory, InventoryDisk};
use plan::DiskVerdict;

/// Minimum width of a partition in the drawing, in percent, so that every partition is visible.
const MINIMUM_WIDTH_PERCENT: f64 = 2.5;
/// Minimum width at which a partition is drawn with its label, in percent.
const MINIMUM_LABEL_WIDTH_PERCENT: f64 = 8.0;

/// Draws all disks of a machine. `verdict` returns what the plan does with the device at a path, such as wiping or
/// keeping it.
pub(crate) fn draw_disks(inventory: &Inventory, verdict: impl Fn(&str) -> Option<DiskVerdict>) -> Markup {
    html! { @for disk in &inventory.disks { (draw_disk(disk, verdict(disk.device.as_str()))) } }
}

fn draw_disk(disk: &InventoryDisk, verdict: Option<DiskVerdict>) -> Markup {
    let (class, word) = match verdict {
        Some(DiskVerdict::Wipe) => (" wiped", "WIPE"),
        Some(DiskVerdict::Keep) => (" kept", "keep"),
        Some(DiskVerdict::Make) => (" wiped", "make"),
        Some(DiskVerdict::PartlyKept) => (" wiped", "partly kept"),
        Some(DiskVerdict::NotOurs) => ("", "not ours"),
        Some(DiskVerdict::Volumes) => (" kept", "volumes"),
        None => ("", ""),
    };
    let kind = if is_rotating(disk) { "rotating" } else { "" };
    let signatures = describe_content(&disk.signatures, &disk.uses);
    let nothing = if disk.blank { "blank" } else { "no partition table" };
    let bare = if signatures.is_empty() { nothing } else { &signatures };
    html! {
        div {
            code { (disk.name) } " " (format_bytes(disk.size_bytes)) " " (disk.model) " " span.faint { (disk.serial) " " (disk.transport) " " (kind) }
            @if !word.is_empty() { " " span.tag.bad[verdict == Some(DiskVerdict::Wipe)] { (word) } }
            @if let Some(why) = &disk.unreadable { " " span.tag.bad { (why) } }
        }
        svg.disk role="img" aria-label=(describe_disk(disk)) {
            rect class={ "whole" (class) } x="0" y="1" width="100%" height="49" rx="4" {}
            @match &disk.table {
                None => { text x="8" y="30" { (bare) } }
                Some(table) => {
                    @for (partition, left, width) in place_partitions(&table.partitions, disk.size_bytes) {
                        svg x=(format_percent(left)) y="1" width=(format_percent(width)) height="49" {
                            title { (describe_partition(partition)) }
                            rect class={ "part" (class) } x="1" y="1" width="100%" height="47" rx="3" {}
                            @if width >= MINIMUM_LABEL_WIDTH_PERCENT {
                                text x="7" y="20" { (partition.number) " " (partition.label) }
                                text x="7" y="38" { (format_bytes(partition.size_bytes)) " " (describe_content(&partition.signatures, &partition.uses)) }
                            } @else {
                                text x="5" y="30" { (partition.number) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns whether the disk is a hard disk. NVMe disks never are, although some virtual machines report them as
/// rotational.
fn is_rotating(disk: &InventoryDisk) -> bool {
    disk.rotational && disk.transport != "nvme"
}

fn format_percent(part: f64) -> String {
    format!("{part:.2}%")
}

/// Returns the start and width of each partition in percent. Each partition has at least the minimum width, and
/// partitions do not overlap.
fn place_partitions(partitions: &[DiskPartition], disk_bytes: u64) -> Vec<(&DiskPartition, f64, f64)> {
    let mut sorted: Vec<&DiskPartition> = partitions.iter().collect();
    sorted.sort_by_key(|partition| partition.start_bytes);
    let least = MINIMUM_WIDTH_PERCENT.min(100.0 / sorted.len().max(1) as f64);
    let whole = disk_bytes.max(1) as f64;
    let widths: Vec<f64> =
        sorted.iter().map(|part| (part.size_bytes as f64 / whole * 100.0).clamp(least, 100.0)).collect();
    // If the widths together exceed the page, partitions wider than the minimum are shrunk in proportion.
    let sum: f64 = widths.iter().sum();
    let (over, spare) = (sum - 100.0, widths.iter().map(|width| width - least).sum::<f64>());
    let shrink = if over > 0.0 && spare > 0.0 { over / spare } else { 0.0 };
    let mut end: f64 = 0.0;
    let mut rest: f64 = widths.iter().map(|width| width - (width - least) * shrink).sum();
    let mut all = Vec::new();
    for (part, width) in sorted.into_iter().zip(widths) {
        let width = width - (width - least) * shrink;
        let left = (part.start_bytes as f64 / whole * 100.0).max(end).min((100.0 - rest).max(end));
        all.push((part, left, width));
        end = left + width;
        rest -= width;
    }
    all
}

/// Describes a partition, such as `ext4 "root" mounted at /`.
fn describe_content(signatures: &[DeviceSignature], uses: &[DeviceUse]) -> String {
    let signatures = signatures.iter().map(|signature| match signature.label.as_str() {
        "" => signature.kind.clone(),
        label => format!("{} {label:?}", signature.kind),
    });
    signatures.chain(uses.iter().map(ToString::to_string)).collect::<Vec<_>>().join(", ")
}

fn describe_partition(partition: &DiskPartition) -> String {
    let DiskPartition { number, label, size_bytes, signatures, uses, .. } = partition;
    format!("{number} {label} {} {}", format_bytes(*size_bytes), describe_content(signatures, uses))
}

/// Returns the description of a disk for screen readers.
fn describe_disk(disk: &InventoryDisk) -> String {
    let partitions = disk.table.iter().flat_map(|table| &table.partitions).map(describe_partition);
    let all = partitions.collect::<Vec<_>>().join("; ");
    format!("{}: {}", disk.name, if all.is_empty() { "no partitions" } else { &all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_nvme_disk_is_not_rotating() {
        for (transport, rotational, expected) in [
            ("sata", true, true),
            ("sata", false, false),
            ("nvme", true, false),
            ("nvme", false, false),
            ("", true, true),
        ] {
            let disk = InventoryDisk { transport: transport.to_owned(), rotational, ..InventoryDisk::default() };
            assert_eq!(is_rotating(&disk), expected, "{transport} {rotational}");
            assert_eq!(draw_disk(&disk, None).0.contains("rotating"), expected, "{transport} {rotational}");
        }
    }

    #[test]
    fn drawn_partitions_are_ordered_and_within_the_disk() {
        let part = |start_bytes, size_bytes| DiskPartition { start_bytes, size_bytes, ..DiskPartition::default() };
        for (partitions, disk) in [
            (vec![part(1, 998), part(999, 1)], 1000),
            (vec![part(0, 1), part(1, 1), part(2, 996), part(998, 2)], 1000),
            ((0..128).map(|n| part(n, 1)).collect(), u64::MAX),
            (vec![part(u64::MAX, u64::MAX), part(0, u64::MAX)], 1),
            (vec![part(0, 0)], 0),
            (vec![part(500, 100)], 1000),
        ] {
            let placed = place_partitions(&partitions, disk);
            assert_eq!(placed.len(), partitions.len());
            let mut end = 0.0;
            for (_, left, width) in placed {
                assert!(left >= end - 0.001 && width > 0.5, "{left} {width} {end}");
                end = left + width;
            }
            assert!(end <= 100.01, "{end}");
        }
        let one = [part(500, 100)];
        let [(_, left, width)] = place_partitions(&one, 1000)[..] else { panic!() };
        assert!((left - 50.0).abs() < 0.01 && (width - 10.0).abs() < 0.01);
    }
}
