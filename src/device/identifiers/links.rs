//! Links of udev that are made of placeholders.

use super::{is_placeholder_serial, is_placeholder_wwn};

const FOLDER: &str = "/dev/disk/by-id/";
/// Beginnings of links whose rest is a world wide name. `scsi-2` is EUI-64, `scsi-3` NAA.
const WWN_STARTS: [&str; 6] = ["wwn-", "scsi-2", "scsi-3", "nvme-eui.", "nvme-uuid.", "nvme-nvme."];
/// Words that a serial number may have.
const WORDS: usize = 6;

/// Returns whether a path in `/dev/disk/by-id` is made of a placeholder: several disks may have it.
pub fn names_placeholder(path: &str) -> bool {
    let Some(name) = path.strip_prefix(FOLDER) else { return false };
    if let Some(start) = WWN_STARTS.iter().find(|start| name.starts_with(**start)) {
        // The kernel's own prefixes are part of a name of NVMe.
        let wwn = name.strip_prefix("nvme-").unwrap_or(&name[start.len()..]);
        return is_placeholder_wwn(wwn);
    }
    let Some((bus, rest)) = name.split_once('-') else { return false };
    // udev appends the number of an NVMe namespace.
    let without_namespace = rest.rsplit_once('_').filter(|(_, number)| bus == "nvme" && number.parse::<u32>().is_ok());
    ends_in_placeholder(rest, bus) || without_namespace.is_some_and(|(rest, _)| ends_in_placeholder(rest, bus))
}

/// The serial number is the end of the name, behind vendor and model; virtio has nothing else.
fn ends_in_placeholder(rest: &str, bus: &str) -> bool {
    if bus == "virtio" {
        return is_placeholder_serial(rest);
    }
    let ends = rest.match_indices('_').map(|(at, _)| &rest[at + 1..]);
    let ends: Vec<&str> = ends.collect();
    ends.into_iter().rev().take(WORDS).any(is_placeholder_serial)
}
