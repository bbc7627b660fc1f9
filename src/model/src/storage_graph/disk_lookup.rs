//! Lookup of the machine's disk that matches a disk of the layout.

use super::multipath;
use crate::disk_identifiers::names_placeholder;
use crate::inventory::{self, Inventory};
use crate::layout::{self, root_device_hints};
use common::format::format_bytes;

/// Returns the disk of the machine that matches a disk of the layout. The returned disk has the kernel name or
/// `/dev/disk/by-*` path in the layout, or is the only disk that matches the hints in the layout.
///
/// # Errors
/// Fails if no disk matches, or if several disks match. The message lists the disks, and their differences from the
/// layout or from each other.
pub fn find_disk<'a>(
    wanted: &layout::DiskSpec,
    inventory: &'a Inventory,
) -> Result<&'a inventory::InventoryDisk, String> {
    if let Some(why) = selected_by_placeholder(wanted) {
        return Err(why);
    }
    if wanted.hints.is_empty() {
        return inventory.find_disk(wanted.device.as_str()).ok_or_else(|| describe_missing(wanted, inventory));
    }
    match root_device_hints::find_candidates(&wanted.hints, &inventory.disks).as_slice() {
        [one] => Ok(one),
        [] => Err(describe_no_match(wanted, inventory)),
        several => Err(describe_ambiguity(&format!("device:{}", wanted.device), several, inventory)),
    }
}

/// Returns whether no disk of the machine matches. Returns false if several disks match, or if the layout selects
/// the disk by a placeholder, because any disk of the machine may then be the intended one.
pub fn is_absent(wanted: &layout::DiskSpec, inventory: &Inventory) -> bool {
    match wanted.hints.is_empty() {
        _ if selected_by_placeholder(wanted).is_some() => false,
        true => !inventory.disks.iter().any(|disk| disk.has_path(wanted.device.as_str())),
        false => root_device_hints::find_candidates(&wanted.hints, &inventory.disks).is_empty(),
    }
}

/// Returns a message if the layout selects the disk by a placeholder, which cannot identify a disk on any machine;
/// otherwise `None`.
fn selected_by_placeholder(wanted: &layout::DiskSpec) -> Option<String> {
    let remedy = "select the disk by another hint: wwn, serial, by_path, size";
    if let Some(found) = root_device_hints::find_placeholder(&wanted.hints) {
        return Some(format!(
            "device:{device} cannot be identified by its hint {hint}: {found}; {remedy}",
            device = wanted.device,
            hint = found.hint
        ));
    }
    (wanted.hints.is_empty() && names_placeholder(wanted.device.as_str())).then(|| {
        format!(
            "device:{device} cannot be found: this name is derived from a placeholder serial number that many disks report; {remedy}", device = wanted.device)
    })
}

fn describe_missing(wanted: &layout::DiskSpec, inventory: &Inventory) -> String {
    let there: Vec<String> = inventory.disks.iter().map(describe_disk).collect();
    let there =
        if there.is_empty() { "no disks were found".to_owned() } else { format!("its disks are {}", there.join(", ")) };
    let likely = layout::suggest_disk(wanted.device.as_str()).map(|likely| format!("; did you mean {likely}?"));
    format!(
        "device:{device} does not exist on given hardware: {there}{suggestion}",
        device = wanted.device,
        suggestion = likely.unwrap_or_default()
    )
}

fn describe_no_match(wanted: &layout::DiskSpec, inventory: &Inventory) -> String {
    let differs =
        |disk: &inventory::InventoryDisk| root_device_hints::explain_differences(&wanted.hints, disk).join(", ");
    let tried = inventory.disks.iter().map(|disk| format!("{} ({})", disk.device, differs(disk)));
    let tried: Vec<String> = tried.collect();
    let tried = if tried.is_empty() { "no disks were found".to_owned() } else { tried.join("; ") };
    let doubts = root_device_hints::collect_doubts(&wanted.hints).into_iter();
    let doubts: String = doubts.map(|(hint, doubt)| format!("; hint {hint}: {doubt}")).collect();
    format!(
        "device:{device} does not exist on given hardware: no disk matches its hints: {tried}{doubts}",
        device = wanted.device
    )
}

/// Explains that the hints of `subject` match several disks.
pub fn describe_ambiguity(subject: &str, candidates: &[&inventory::InventoryDisk], inventory: &Inventory) -> String {
    let paths = candidates.iter().find_map(|disk| Some((disk, multipath::find_other_path(disk, inventory)?)));
    if let Some((disk, other)) = paths {
        return format!("{subject}: {}", multipath::describe_refusal(disk, other));
    }
    format!(
        "{subject} is ambiguous: its hints match {count} disks: {disks}; add a hint that only one of these disks matches",
        count = candidates.len(),
        disks = describe_candidates(candidates)
    )
}

/// Describes the disks with all properties that hints can match.
pub fn describe_candidates(candidates: &[&inventory::InventoryDisk]) -> String {
    let listed: Vec<String> = candidates.iter().map(|disk| describe_attributes(disk)).collect();
    listed.join("; ")
}

/// Describes the disk with all properties that hints can match.
fn describe_attributes(disk: &inventory::InventoryDisk) -> String {
    let known = [("serial", &disk.serial), ("wwn", &disk.wwn), ("tran", &disk.transport), ("by_path", &disk.by_path)];
    let known = known.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name} {value}"));
    let details: Vec<String> = known.collect();
    let details = if details.is_empty() { String::new() } else { format!(" {}", details.join(", ")) };
    format!("{}{details}", describe_disk(disk))
}

fn describe_disk(disk: &inventory::InventoryDisk) -> String {
    let model = if disk.model.is_empty() { String::new() } else { format!(" {}", disk.model) };
    format!("{} ({}{model})", disk.device, format_bytes(disk.size_bytes))
}
