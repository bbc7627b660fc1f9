//! Rules for RAID arrays.

use super::validation_state::{DeviceSource, LayoutCheck};
use crate::layout::{ArraySpec, Layout, RaidLevel};
use std::collections::BTreeSet;

/// Largest number of an array that mdadm supports (find_free_devnm in mdadm's mdopen.c).
const MAX_NUMBER: u32 = 511;
/// Maximum length of an array's name: size of the field `set_name` in superblocks 1.x.
const MAX_NAME_BYTES: usize = 32;
/// Maximum number of devices of an array with a superblock 0.90 (MD_SB_DISKS). According to mdadm(8), the maximum is
/// 28, but mdadm 4.2 refuses more than 27 devices.
const MAX_MEMBERS_0_90: usize = 27;
const METADATA: [&str; 4] = ["0.90", "1.0", "1.1", "1.2"];
/// Metadata versions whose superblock is at the end of the member.
const METADATA_AT_END: [&str; 2] = ["0.90", "1.0"];

/// Checks the arrays, and records them as block devices.
pub(super) fn check_arrays(check: &mut LayoutCheck, layout: &Layout) {
    let mut names = BTreeSet::new();
    for (index, raid) in layout.raid.iter().enumerate() {
        let place = format!("raid[{index}]");
        check_name(check, &place, raid.arrayname.as_str(), &mut names);
        let (earlier, later) = layout.raid.split_at(index);
        check_devices(check, &place, raid, &later[1..]);
        check_nested(check, &place, raid, earlier);
        check_count(check, &place, raid);
        check_options(check, &place, raid);
        check.add_device(raid.arrayname.clone(), DeviceSource::Array);
    }
    check_number_conflicts(check, &layout.raid);
    check_esp(check, layout);
}

/// Parses the path of an array. Returns its number, such as 7 for `/dev/md7`; `None` for names such as `/dev/md/root`.
fn parse_array_name(arrayname: &str) -> Result<Option<u32>, String> {
    let usage = || format!("array:{arrayname} is not a valid array name: write /dev/md0 or /dev/md/NAME");
    let Some(name) = arrayname.strip_prefix("/dev/md/") else {
        let number = arrayname.strip_prefix("/dev/md").ok_or_else(usage)?;
        return match number.parse::<u32>() {
            Ok(value) if value.to_string() != number => Err(usage()),
            Ok(value) if value > MAX_NUMBER => {
                Err(format!("array:{arrayname} has a number above {MAX_NUMBER}, the highest that mdadm supports"))
            }
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(usage()),
        };
    };
    let portable = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.starts_with(['.', '-']) || !name.chars().all(portable) {
        return Err(format!(
            "array:{arrayname} has a name that mdadm refuses: use letters, digits, '.', '_' and '-', without a leading '.' or '-'"
        ));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(format!(
            "array:{arrayname} has a name of {length} bytes, but md supports at most {MAX_NAME_BYTES} bytes",
            length = name.len()
        ));
    }
    let number = ["md_d", "md", "d"].iter().find_map(|start| name.strip_prefix(start)).unwrap_or(name);
    if !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit()) {
        return Err(format!(
            "array:{arrayname} has a name that mdadm interprets as a number: write /dev/md0 or choose another name"
        ));
    }
    Ok(None)
}

fn check_name<'a>(check: &mut LayoutCheck, place: &str, arrayname: &'a str, names: &mut BTreeSet<&'a str>) {
    let place = format!("{place}.arrayname");
    if let Err(message) = parse_array_name(arrayname) {
        check.report_problem(&place, message);
    } else if !names.insert(arrayname) || check.provided.contains_key(arrayname) {
        check.report_problem(&place, format!("array:{arrayname} given more than once"));
    }
}

fn check_devices(check: &mut LayoutCheck, place: &str, raid: &ArraySpec, later: &[ArraySpec]) {
    let name = &raid.arrayname;
    check.use_devices(place, &raid.devices, |device| {
        let order = match later.iter().any(|other| other.arrayname == *device) {
            true => ", because this array is defined later in raid: list each array after the arrays that it contains",
            false => "",
        };
        format!("device:{device} not provided by disk for raid:{name}{order}")
    });
}

/// Checks that no member of this array is an array with its superblock at the end. Otherwise, the superblock of this
/// array would also be visible on the members of the inner array, and mdadm could not determine to which array those
/// members belong.
fn check_nested(check: &mut LayoutCheck, place: &str, raid: &ArraySpec, earlier: &[ArraySpec]) {
    for member in earlier.iter().filter(|member| raid.devices.contains(&member.arrayname)) {
        let metadata = member.requested_metadata().unwrap_or_default();
        if METADATA_AT_END.contains(&metadata.as_str()) {
            let message = format!(
                "raid:{} contains the array {}, whose members would show the superblocks of both arrays: use metadata 1.2 for {} instead of {metadata}",
                raid.arrayname, member.arrayname, member.arrayname
            );
            check.report_problem(&format!("{place}.devices"), message);
        }
    }
}

/// Returns the minimum number of members. An array with fewer than two members requires --force or is impossible
/// (mdadm(8)). A RAID 5 with two members, or a RAID 6 with three, would be equivalent to a mirror.
fn minimum_members(level: RaidLevel) -> usize {
    match level {
        RaidLevel::Raid0 | RaidLevel::Raid1 | RaidLevel::Raid10 => 2,
        RaidLevel::Raid5 => 3,
        RaidLevel::Raid6 => 4,
    }
}

fn check_count(check: &mut LayoutCheck, place: &str, raid: &ArraySpec) {
    let ArraySpec { arrayname, devices, level, .. } = raid;
    let (members, spares) = (devices.len(), raid.spares as usize);
    let [devices_place, level_place, spares_place] =
        ["devices", "level", "spares"].map(|name| format!("{place}.{name}"));
    if members == 0 || !check.is_list_readable(&devices_place, "devices") {
        return;
    }
    if spares >= members {
        let message =
            format!("raid:{arrayname} has {members} devices including spares, so it cannot have {spares} spares");
        check.report_problem(&spares_place, message);
        return;
    }
    if !check.is_readable(&level_place) || !check.is_readable(&spares_place) {
        return;
    }
    let (active, least) = (raid.count_active(), minimum_members(*level));
    if active < least {
        let without = if spares > 0 { " without the spares" } else { "" };
        let message = format!("raid:{arrayname} has {active} of the {least} devices that {level} needs{without}");
        check.report_problem(&devices_place, message);
    }
    if spares > 0 && *level == RaidLevel::Raid0 {
        check.report_problem(&spares_place, format!("raid:{arrayname} has level 0, which does not support spares"));
    }
}

fn check_options(check: &mut LayoutCheck, place: &str, raid: &ArraySpec) {
    let name = &raid.arrayname;
    let options_place = format!("{place}.createoptions");
    check.check_words(&options_place, &raid.createoptions);
    // The options are checked only if the level and the number of spares could be read, because the validity of an
    // option depends on them.
    if ["level", "spares"].iter().all(|field| check.is_readable(&format!("{place}.{field}"))) {
        for message in raid.check_options() {
            check.report_problem(&options_place, message);
        }
    }
    match raid.requested_metadata().as_deref() {
        Some("0.90") if raid.devices.len() > MAX_MEMBERS_0_90 => {
            let message = format!("raid:{name} has more than {MAX_MEMBERS_0_90} devices, the maximum of metadata 0.90");
            check.report_problem(&format!("{place}.devices"), message);
        }
        Some("0.90") if raid.level == RaidLevel::Raid0 && check.is_readable(&format!("{place}.level")) => {
            let message = format!(
                "raid:{name} has level 0 with metadata 0.90, which cannot store the layout of level 0 and which mdadm refuses: use 1.2"
            );
            check.report_problem(&options_place, message);
        }
        Some(metadata) if !METADATA.contains(&metadata) => {
            let message = format!("raid:{name} metadata {metadata} is not supported, but:{}", METADATA.join(","));
            check.report_problem(&options_place, message);
        }
        _ => {}
    }
}

/// Checks that no array has a number that mdadm assigns to a named array. mdadm assigns the numbers from 127 downwards.
fn check_number_conflicts(check: &mut LayoutCheck, arrays: &[ArraySpec]) {
    let named = arrays.iter().filter(|raid| matches!(parse_array_name(raid.arrayname.as_str()), Ok(None))).count();
    for (index, raid) in arrays.iter().enumerate() {
        if let Ok(Some(number)) = parse_array_name(raid.arrayname.as_str())
            && number <= 127
            && number as usize + named > 127
        {
            let message = format!(
                "array:{array} may already be in use: mdadm assigns numbers to named arrays from 127 downwards; use a lower number",
                array = raid.arrayname
            );
            check.report_problem(&format!("raid[{index}].arrayname"), message);
        }
    }
}

/// Checks arrays that contain an ESP. Firmware cannot assemble arrays: each member must begin with the FAT filesystem.
fn check_esp(check: &mut LayoutCheck, layout: &Layout) {
    for (index, raid) in layout.raid.iter().enumerate() {
        if !check.is_list_readable("filesystems", "format") || !layout.is_esp(raid) {
            continue;
        }
        let ArraySpec { arrayname, level, .. } = raid;
        if *level != RaidLevel::Raid1 {
            let message = format!(
                "raid:{arrayname} contains a vfat filesystem, and firmware can read the filesystem only if each member contains all of it: use level 1 instead of {level}"
            );
            check.report_problem(&format!("raid[{index}].level"), message);
        }
        if let Some(metadata) = raid.requested_metadata()
            && METADATA.contains(&metadata.as_str())
            && !METADATA_AT_END.contains(&metadata.as_str())
        {
            let message = format!(
                "raid:{arrayname} contains a vfat filesystem, which firmware expects at the beginning of a member, but metadata {metadata} reserves space there: use metadata 1.0"
            );
            check.report_problem(&format!("raid[{index}].createoptions"), message);
        }
    }
}
