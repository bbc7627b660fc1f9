//! Lookup of the disk of the machine that matches a disk of the layout.

use super::multipath;
use crate::device::identifiers::names_placeholder;
use crate::inventory::{self, Inventory};
use crate::layout::{self, hints};
use crate::text::bytes;

/// Returns the matching disk: by its kernel name or `/dev/disk/by-*` path, or the only one that matches its hints.
///
/// # Errors No disk matches, or more than one: the message lists the disks, and how they differ.
pub fn disk<'a>(wanted: &layout::Disk, inventory: &'a Inventory) -> Result<&'a inventory::Disk, String> {
    if let Some(why) = selected_by_placeholder(wanted) {
        return Err(why);
    }
    if wanted.hints.is_empty() {
        return inventory.disk(wanted.device.as_str()).ok_or_else(|| missing(wanted, inventory));
    }
    match hints::candidates(&wanted.hints, &inventory.disks).as_slice() {
        [one] => Ok(one),
        [] => Err(none_matches(wanted, inventory)),
        several => Err(several_match(wanted, several, inventory)),
    }
}

/// Returns whether no disk matches. A disk that is present twice is not absent, nor is one that is selected by a placeholder, because it
/// may be any disk.
pub fn is_absent(wanted: &layout::Disk, inventory: &Inventory) -> bool {
    match wanted.hints.is_empty() {
        _ if selected_by_placeholder(wanted).is_some() => false,
        true => !inventory.disks.iter().any(|disk| disk.is(wanted.device.as_str())),
        false => hints::candidates(&wanted.hints, &inventory.disks).is_empty(),
    }
}

/// Returns why the disk of the layout cannot be identified in any machine.
fn selected_by_placeholder(wanted: &layout::Disk) -> Option<String> {
    let remedy = "select the disk by another hint: wwn, serial, by_path, size";
    if let Some(found) = hints::placeholder(&wanted.hints) {
        return Some(format!("device:{} cannot be found by its hint {}: {found}; {remedy}", wanted.device, found.hint));
    }
    (wanted.hints.is_empty() && names_placeholder(wanted.device.as_str())).then(|| {
        format!(
            "device:{} cannot be found: the link is derived from a placeholder that many disks report; {remedy}",
            wanted.device
        )
    })
}

fn missing(wanted: &layout::Disk, inventory: &Inventory) -> String {
    let there: Vec<String> = inventory.disks.iter().map(disk_in_short).collect();
    let there =
        if there.is_empty() { "no disks were found".to_owned() } else { format!("its disks are {}", there.join(", ")) };
    let likely = layout::likely_disk(wanted.device.as_str()).map(|likely| format!("; did you mean {likely}?"));
    format!("device:{} does not exist on given hardware: {there}{}", wanted.device, likely.unwrap_or_default())
}

fn none_matches(wanted: &layout::Disk, inventory: &Inventory) -> String {
    let differs = |disk: &inventory::Disk| hints::differs(&wanted.hints, disk).join(", ");
    let tried = inventory.disks.iter().map(|disk| format!("{} ({})", disk.device, differs(disk)));
    let tried: Vec<String> = tried.collect();
    let tried = if tried.is_empty() { "no disks were found".to_owned() } else { tried.join("; ") };
    format!("device:{} does not exist on given hardware: no disk matches its hints: {tried}", wanted.device)
}

fn several_match(wanted: &layout::Disk, candidates: &[&inventory::Disk], inventory: &Inventory) -> String {
    let paths = candidates.iter().find_map(|disk| Some((disk, multipath::other_path(disk, inventory)?)));
    if let Some((disk, other)) = paths {
        return format!("device:{}: {}", wanted.device, multipath::refusal(disk, other));
    }
    let listed: Vec<String> = candidates.iter().map(|disk| attributes(disk)).collect();
    format!(
        "device:{} is ambiguous: its hints match {} disks: {}; add a hint that only one of them matches",
        wanted.device,
        candidates.len(),
        listed.join("; ")
    )
}

/// Describes all properties that hints can use.
fn attributes(disk: &inventory::Disk) -> String {
    let known = [("serial", &disk.serial), ("wwn", &disk.wwn), ("tran", &disk.transport), ("by_path", &disk.by_path)];
    let known = known.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name} {value}"));
    let details: Vec<String> = known.collect();
    let details = if details.is_empty() { String::new() } else { format!(" {}", details.join(", ")) };
    format!("{}{details}", disk_in_short(disk))
}

fn disk_in_short(disk: &inventory::Disk) -> String {
    let model = if disk.model.is_empty() { String::new() } else { format!(" {}", disk.model) };
    format!("{} ({}{model})", disk.device, bytes(disk.size_bytes))
}
