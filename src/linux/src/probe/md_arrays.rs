//! md arrays as described by the superblocks of their members: `mdadm --examine` reads every device with a member
//! signature. The arrays need not be running, and this module does not start any.

mod array_name_check;

use super::sysfs::{ProbeRoots, read_attribute};
use crate::process::ToolCommand;
use array_name_check::require_plain_names;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{
    ArrayMember, Inventory, MdArray, MemberRole, StackedDevice, StackedDeviceKind, UnassignedDevices,
};
use std::path::Path;
use std::time::Duration;
use uuid::Uuid;

/// Types of array members in libblkid: md's own type, and the types of the firmware RAIDs that mdadm supports.
pub(crate) const MEMBERS: [&str; 3] = ["linux_raid_member", "isw_raid_member", "ddf_raid_member"];

/// Time limit for mdadm. It is generous, because failing disks respond slowly.
const MDADM_TIMEOUT: Duration = Duration::from_secs(60);

/// Metadata formats of firmware RAIDs.
const FIRMWARE: [&str; 2] = ["imsm", "ddf"];
const CONTAINER: &str = "container";

/// Maximum number of lines of unparsable mdadm output that are reported.
const MAXIMUM_REPORTED_LINES: usize = 5;

/// Superblock of a member.
#[derive(Debug, PartialEq, Eq)]
struct MdSuperblock {
    uuid: Uuid,
    name: String,
    level: String,
    metadata: String,
    raid_devices: u32,
    role: MemberRole,
    /// Event count of this superblock. If the superblocks of the members differ, the superblock with the highest event
    /// count is current.
    events: u64,
    /// Slots of the array that were empty when this superblock was written.
    empty: Vec<u32>,
    writes_at_start: bool,
}

/// Returns all arrays with at least one member on this machine, and the members that mdadm cannot read.
pub(super) fn read_arrays(roots: &ProbeRoots, inventory: &Inventory) -> (Vec<MdArray>, Vec<UnassignedDevices>) {
    let inside = inventory.partitions_inside_volumes();
    let devices: Vec<&DevicePath> =
        inventory.devices_with_signature(&MEMBERS).into_iter().filter(|device| !inside.contains(device)).collect();
    let (found, unknown) = examine_members(&devices, &run_mdadm_examine);
    let mut arrays = group_by_uuid(found);
    for array in &mut arrays {
        array.running = find_running_array(roots, inventory, array);
    }
    (arrays, unknown)
}

/// Returns the superblock of each member, and the members whose superblock cannot be read, with the reason.
fn examine_members(
    devices: &[&DevicePath],
    examine: &impl Fn(&DevicePath) -> Result<String, String>,
) -> (Vec<(DevicePath, MdSuperblock)>, Vec<UnassignedDevices>) {
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    for device in devices {
        let none = |text: &str| {
            let said: Vec<&str> =
                text.lines().map(str::trim).filter(|line| !line.is_empty()).take(MAXIMUM_REPORTED_LINES).collect();
            format!("mdadm does not report an array for the member {device}: {output}", output = said.join(" | "))
        };
        match examine(device).and_then(|text| parse_superblock(&text).ok_or_else(|| none(&text))) {
            Ok(superblock) => found.push(((*device).clone(), superblock)),
            Err(reason) => {
                tracing::warn!(%device, "cannot assign the RAID member to an array: {reason}");
                unknown.push(UnassignedDevices { devices: vec![(*device).clone()], reason });
            }
        }
    }
    (found, unknown)
}

fn run_mdadm_examine(device: &DevicePath) -> Result<String, String> {
    require_plain_names(Path::new(device.as_str()))?;
    let output = ToolCommand::new("mdadm").arg("--examine").arg(device).deadline(MDADM_TIMEOUT).run();
    output.map(|output| output.stdout).map_err(|error| error.to_string())
}

/// Parses the output of `mdadm --examine`, with lines like `Raid Level : raid1`. `--export` would be easier to parse,
/// but lacks the metadata version and the member's role (export_examine_super1 in mdadm's super1.c).
fn parse_superblock(text: &str) -> Option<MdSuperblock> {
    let field = |name: &str| {
        let found = text.lines().filter_map(|line| line.split_once(" : ")).find(|(key, _)| key.trim() == name);
        found.map(|(_, value)| value.trim())
    };
    // For metadata 0.90 and firmware RAIDs, mdadm prints the UUID with the label `UUID`.
    let uuid = field("Array UUID").or_else(|| field("UUID"))?;
    let uuid = uuid.split_whitespace().next()?.replace(':', "").parse().ok()?;
    let metadata = parse_metadata_version(field("Magic").unwrap_or_default(), field("Version").unwrap_or_default());
    if FIRMWARE.contains(&metadata.as_str()) {
        return Some(container_superblock(uuid, metadata));
    }
    Some(MdSuperblock {
        uuid,
        name: field("Name").map(strip_home_host).unwrap_or_default(),
        level: field("Raid Level").unwrap_or(CONTAINER).to_owned(),
        metadata,
        raid_devices: field("Raid Devices").and_then(|text| text.parse().ok()).unwrap_or_default(),
        role: match field("Device Role") {
            // A member with a recovery offset counts as a spare, because data is still being copied to it.
            Some(_) if field("Recovery Offset").is_some() => MemberRole::Spare,
            Some(role) => parse_role_1(role),
            None => text.lines().find_map(parse_role_090).unwrap_or(MemberRole::Spare),
        },
        empty: match field("Array State") {
            Some(state) => parse_empty_slots_1(state),
            None => text.lines().filter_map(parse_empty_slot_090).collect(),
        },
        writes_at_start: writes_at_start(
            field("Feature Map").unwrap_or_default(),
            field("Version").unwrap_or_default(),
        ),
        events: field("Events").and_then(|text| text.parse().ok()).unwrap_or_default(),
    })
}

/// Returns the superblock of a firmware RAID container. mdadm's output after the container's UUID is not parsed,
/// because it contains the names of the container's volumes, and these names may contain newlines.
fn container_superblock(uuid: Uuid, metadata: String) -> MdSuperblock {
    MdSuperblock {
        uuid,
        name: String::new(),
        level: CONTAINER.to_owned(),
        metadata,
        raid_devices: 0,
        role: MemberRole::Spare,
        events: 0,
        empty: Vec::new(),
        writes_at_start: false,
    }
}

/// Returns whether the kernel writes more than a bitmap and superblocks when it starts the array, even if the array is
/// started read-only. This is the case if the kernel would empty a partial parity log (PPL), replay a journal, or
/// continue a reshape. Feature bits (linux/raid/md_p.h) indicate each of these three cases; a reshape is also indicated
/// by metadata version 0.91.
fn writes_at_start(features: &str, version: &str) -> bool {
    const RESHAPE: u32 = 4;
    const JOURNAL: u32 = 512;
    const PPL: u32 = 1024 | 2048;
    let features = features.strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok()).unwrap_or_default();
    features & (RESHAPE | JOURNAL | PPL) != 0 || version.starts_with("0.91")
}

/// Removes the home host from an array name. Examples: `any:root`, `storage-7:root  (local to host storage-7)` →
/// `root`.
fn strip_home_host(name: &str) -> String {
    let name = name.split("  (local to host").next().unwrap_or(name);
    name.split_once(':').map_or(name, |(_, name)| name).to_owned()
}

fn parse_metadata_version(magic: &str, version: &str) -> String {
    match (magic, version) {
        (magic, _) if magic.starts_with("Intel Raid ISM") => "imsm".to_owned(),
        (magic, _) if magic.starts_with("DE11DE11") => "ddf".to_owned(),
        (_, version) if version.starts_with("0.90") => "0.90".to_owned(),
        (_, version) => version.to_owned(),
    }
}

/// Parses the role of a member in mdadm's output for metadata 1.x: `Active device 0`, `spare`, `Replacement device 1`,
/// `Journal`.
fn parse_role_1(text: &str) -> MemberRole {
    match text.strip_prefix("Active device ").map(str::parse) {
        Some(Ok(place)) => MemberRole::Active(place),
        _ if ["spare", "Journal"].contains(&text) || text.starts_with("Replacement") => MemberRole::Spare,
        _ => MemberRole::Faulty,
    }
}

/// Parses the line for the examined member in the output for metadata 0.90. The slot and the state follow the number,
/// major and minor: `this 0     254        0        0      active sync   /dev/vda`.
fn parse_role_090(line: &str) -> Option<MemberRole> {
    let mut words = line.split_whitespace();
    (words.next() == Some("this")).then_some(())?;
    let place = words.nth(3)?.parse();
    let state: Vec<&str> = words.collect();
    Some(match place {
        Ok(place) if state.contains(&"active") => MemberRole::Active(place),
        _ if state.contains(&"spare") => MemberRole::Spare,
        _ => MemberRole::Faulty,
    })
}

/// Parses the empty slots in mdadm's output for metadata 1.x: `A.A ('A' == active, '.' == missing, 'R' == replacing)`.
fn parse_empty_slots_1(text: &str) -> Vec<u32> {
    let states = text.split(' ').next().unwrap_or_default();
    (0..).zip(states.chars()).filter(|(_, state)| *state == '.').map(|(place, _)| place).collect()
}

/// Parses the line about a slot in mdadm's output for metadata 0.90. Returns the number of the slot if the slot is
/// empty, as in ` 1 1 0 0 1 faulty removed`.
fn parse_empty_slot_090(line: &str) -> Option<u32> {
    let mut words = line.split_whitespace();
    words.next()?.parse::<u32>().ok()?;
    let place = words.nth(3)?.parse().ok()?;
    words.any(|state| ["faulty", "removed"].contains(&state)).then_some(place)
}

/// Marks members with outdated data as faulty. mdadm excludes such members as well (Assemble.c). A member is outdated
/// if other members were used without it, or if its event count is lower than the highest count by more than one. A
/// difference of one may be caused by stopping the array, so it is accepted. If two members have diverged, because each
/// of them was used without the other, both are marked: the operator must decide which member is correct.
fn mark_outdated_members(members: &mut [(DevicePath, MdSuperblock)]) {
    let place = |superblock: &MdSuperblock| match superblock.role {
        MemberRole::Active(place) => Some(place),
        _ => None,
    };
    let active = members.iter().filter_map(|(_, it)| Some((place(it)?, it.events, it.empty.clone())));
    let active: Vec<(u32, u64, Vec<u32>)> = active.collect();
    let without = |one: u32, other: u32| active.iter().any(|(place, _, empty)| *place == one && empty.contains(&other));
    let latest = active.iter().map(|(_, events, _)| *events).max().unwrap_or_default();
    for (device, superblock) in members {
        let Some(own) = place(superblock) else { continue };
        let rival = active.iter().find(|(other, ..)| without(*other, own) && without(own, *other));
        let left = active.iter().any(|(other, events, _)| *events >= superblock.events && without(*other, own));
        let why = match rival {
            Some((other, ..)) => {
                format!(
                    "this member and member {other} have different contents, because each was used without the other: the operator must choose one of them"
                )
            }
            None if superblock.events.saturating_add(1) < latest => {
                "the contents of this member are older than those of the other members".to_owned()
            }
            None if left => "the other members were used without this member".to_owned(),
            None => continue,
        };
        tracing::warn!(%device, "member {own} of array {array} is ignored: {why}", array = superblock.uuid);
        superblock.role = MemberRole::Faulty;
    }
}

/// Returns one array for each UUID, in the order of the devices.
fn group_by_uuid(found: Vec<(DevicePath, MdSuperblock)>) -> Vec<MdArray> {
    let mut arrays: Vec<Vec<(DevicePath, MdSuperblock)>> = Vec::new();
    for member in found {
        match arrays.iter_mut().find(|array| array[0].1.uuid == member.1.uuid) {
            Some(array) => array.push(member),
            None => arrays.push(vec![member]),
        }
    }
    arrays.into_iter().filter_map(build_array).collect()
}

/// Builds an array from the superblock with the highest event count, or from the first such superblock if several
/// superblocks have this count.
fn build_array(mut members: Vec<(DevicePath, MdSuperblock)>) -> Option<MdArray> {
    mark_outdated_members(&mut members);
    let role = |(device, superblock): &(DevicePath, MdSuperblock)| ArrayMember {
        device: device.clone(),
        role: superblock.role,
    };
    let roles = members.iter().map(role).collect();
    let writes_at_start = members.iter().any(|(_, superblock)| superblock.writes_at_start);
    let (_, latest) = members.into_iter().rev().max_by_key(|(_, superblock)| superblock.events)?;
    let MdSuperblock { uuid, name, level, metadata, raid_devices, .. } = latest;
    Some(MdArray { uuid, name, level, metadata, raid_devices, members: roles, writes_at_start, running: None })
}

/// Returns the running array that uses one of the members. The volumes in a firmware RAID container also use the
/// container's members; they are not returned, because the members' metadata describes the container.
fn find_running_array(roots: &ProbeRoots, inventory: &Inventory, array: &MdArray) -> Option<KernelName> {
    let members: Vec<KernelName> =
        array.members.iter().map(|member| inventory.resolve_kernel_name(&member.device)).collect();
    let holds = |stacked: &&StackedDevice| {
        let version = read_attribute(&roots.sys.join("block").join(stacked.name.as_str()).join("md/metadata_version"));
        stacked.kind == StackedDeviceKind::Array
            && !version.starts_with("external:/")
            && stacked.below.iter().any(|below| members.contains(resolve_overlay(inventory, below)))
    };
    inventory.stacked.iter().find(holds).map(|stacked| stacked.name.clone())
}

/// Returns the device below an overlay; returns a device that is not an overlay unchanged.
fn resolve_overlay<'a>(inventory: &'a Inventory, name: &'a KernelName) -> &'a KernelName {
    let overlay = inventory.stacked.iter().find(|stacked| stacked.name == *name && stacked.is_overlay());
    overlay.and_then(|overlay| overlay.below.first()).unwrap_or(name)
}

#[cfg(test)]
mod tests;
