//! Classification of load options by the nodes of their device path.

use crate::efi::{DevicePathNode, LoadOption};
use model::inventory::LoadTarget;

/// Returns the location from which the option loads its program; [`LoadTarget::Unknown`] for a path that combines
/// several locations.
pub(super) fn classify_target(option: &LoadOption) -> LoadTarget {
    let Some(nodes) = option.nodes() else { return LoadTarget::Malformed };
    if let Some(uri) = nodes.iter().find(|node| is_uri(node) && !node.data.is_empty()) {
        let uri = super::to_printable(uri.data).chars().take(super::MAXIMUM_CHARS).collect();
        return LoadTarget::Uri(uri);
    }
    if nodes.iter().any(is_remote_address) {
        return LoadTarget::RemoteAddress;
    }
    let media: Vec<&DevicePathNode> = nodes.iter().filter(|node| !is_hardware(node)).collect();
    match media.as_slice() {
        [] if nodes.is_empty() => LoadTarget::Unknown,
        [] if nodes.iter().any(is_network) => LoadTarget::Network,
        // The path ends at a device, such as a CD-ROM (next line), and names no file: the firmware starts the program
        // at the fallback path of the device.
        [] => LoadTarget::Device,
        [cd] if (cd.kind, cd.subtype) == (4, 2) => LoadTarget::Device,
        // Nodes of type 5 belong to the BIOS Boot Specification: the firmware boots in BIOS mode.
        [bios] if bios.kind == 5 => LoadTarget::Firmware,
        [disk, files @ ..] if is_partition(disk) && files.iter().all(|node| is_file(node)) => classify_partition(disk),
        volumes if volumes.iter().all(|node| is_firmware_volume(node)) => LoadTarget::Firmware,
        _ => LoadTarget::Unknown,
    }
}

/// Returns whether the node only locates a device. That is the case for hardware, ACPI and messaging nodes.
fn is_hardware(node: &DevicePathNode) -> bool {
    (1..=3).contains(&node.kind)
}

fn is_uri(node: &DevicePathNode) -> bool {
    (node.kind, node.subtype) == (3, 24)
}

/// Returns whether the type of the node is MAC address, IPv4, IPv6 or URI.
fn is_network(node: &DevicePathNode) -> bool {
    node.kind == 3 && matches!(node.subtype, 11 | 12 | 13 | 24)
}

/// Returns whether the node specifies an iSCSI target, a DNS server, an NVMe over Fabrics namespace, or a fixed remote
/// IP address.
fn is_remote_address(node: &DevicePathNode) -> bool {
    let remote = match (node.kind, node.subtype) {
        (3, 19 | 31 | 34) => return true,
        (3, 12) => 4..8,
        (3, 13) => 16..32,
        _ => return false,
    };
    node.data.get(remote).is_some_and(|address| address.iter().any(|byte| *byte != 0))
}

fn is_partition(node: &DevicePathNode) -> bool {
    (node.kind, node.subtype) == (4, 1)
}

fn is_file(node: &DevicePathNode) -> bool {
    (node.kind, node.subtype) == (4, 4)
}

/// Returns whether the node is a firmware volume, or a file in a firmware volume.
fn is_firmware_volume(node: &DevicePathNode) -> bool {
    node.kind == 4 && matches!(node.subtype, 6 | 7)
}

fn classify_partition(node: &DevicePathNode) -> LoadTarget {
    match (node.partition_guid(), node.data.get(36..38)) {
        (Some(guid), _) => LoadTarget::Partition(guid),
        (None, Some([1, 1])) => LoadTarget::MbrPartition,
        _ => LoadTarget::Malformed,
    }
}
