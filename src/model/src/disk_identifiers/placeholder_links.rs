//! Recognition of udev links that are derived from placeholders.

use super::{is_placeholder_serial, is_placeholder_wwn};

const BY_ID_DIRECTORY: &str = "/dev/disk/by-id/";
/// Prefixes of links that end with a world wide name. The prefix `scsi-2` denotes an EUI-64, and the prefix `scsi-3`
/// denotes an NAA name.
const WWN_STARTS: [&str; 6] = ["wwn-", "scsi-2", "scsi-3", "nvme-eui.", "nvme-uuid.", "nvme-nvme."];
/// Maximum number of words in a serial number at the end of a link. The words are separated by underscores.
const MAXIMUM_SERIAL_WORDS: usize = 6;

/// Returns whether a path in `/dev/disk/by-id` is derived from a placeholder. Several disks may share a path that is
/// derived from a placeholder.
pub(crate) fn names_placeholder(path: &str) -> bool {
    let Some(name) = path.strip_prefix(BY_ID_DIRECTORY) else { return false };
    if let Some(start) = WWN_STARTS.iter().find(|start| name.starts_with(**start)) {
        // In links of NVMe disks, the prefix after `nvme-`, such as `eui.`, is part of the WWN.
        let wwn = name.strip_prefix("nvme-").unwrap_or(&name[start.len()..]);
        return is_placeholder_wwn(wwn);
    }
    let Some((bus, rest)) = name.split_once('-') else { return false };
    // For an NVMe namespace, udev appends the number of the namespace to the serial number.
    let without_namespace = rest.rsplit_once('_').filter(|(_, number)| bus == "nvme" && number.parse::<u32>().is_ok());
    ends_in_placeholder(rest, bus) || without_namespace.is_some_and(|(rest, _)| ends_in_placeholder(rest, bus))
}

/// Returns whether the serial number at the end of a link is a placeholder. In most links, the serial number follows
/// vendor and model; virtio links contain only the serial number.
fn ends_in_placeholder(rest: &str, bus: &str) -> bool {
    if bus == "virtio" {
        return is_placeholder_serial(rest);
    }
    let ends = rest.match_indices('_').map(|(at, _)| &rest[at + 1..]);
    let ends: Vec<&str> = ends.collect();
    ends.into_iter().rev().take(MAXIMUM_SERIAL_WORDS).any(is_placeholder_serial)
}
