//! Rules for what stands between disks and filesystems: RAID arrays, volume groups, logical volumes.
//!
//! None of them is built yet. They are checked all the same, so that a layout has no surprises left when they are.

use super::{Check, Provider, is_device_path};
use crate::layout::{Layout, LogicalVolume, LvmType, Raid, VolumeGroup};

/// Checks arrays, groups and volumes, and notes which devices they provide.
pub(super) fn check(check: &mut Check, layout: &Layout) {
    for (index, raid) in layout.raid.iter().enumerate() {
        check_raid(check, &format!("raid[{index}]"), raid);
    }
    for (index, group) in layout.volumegroups.iter().enumerate() {
        check_group(check, &format!("volumegroups[{index}]"), group);
        if layout.volumegroups[..index].iter().any(|other| other.name == group.name) {
            check.report(&format!("volumegroups[{index}].name"), format!("vg:{} given more than once", group.name));
        }
    }
    for (index, volume) in layout.logicalvolumes.iter().enumerate() {
        check_volume(check, index, volume, layout);
    }
}

fn check_raid(check: &mut Check, place: &str, raid: &Raid) {
    let name = &raid.arrayname;
    let name_place = format!("{place}.arrayname");
    check.report(place, "RAID arrays are not built yet: use a layout without raid");
    if !is_device_path(name) {
        check.report(&name_place, format!("array:{name} is not the full path of a device below /dev"));
    } else if check.provided.contains_key(name) {
        check.report(&name_place, format!("array:{name} given more than once"));
    }
    check_members(check, place, &raid.devices, |device| {
        format!("device:{device} not provided by disk for raid:{name}")
    });
    let members = raid.devices.len();
    if members > 0 && raid.spares as usize >= members {
        let message =
            format!("raid:{name} has {members} devices, spares included: {} of them cannot be spare", raid.spares);
        check.report(&format!("{place}.spares"), message);
    }
    check.provided.insert(name.clone(), Provider::Stacked);
}

fn check_group(check: &mut Check, place: &str, group: &VolumeGroup) {
    check.report(place, "volume groups are not built yet: use a layout without volumegroups");
    let name = &group.name;
    if !is_lvm_name(name) {
        check.report(&format!("{place}.name"), format!("vg:{name} is not a name that LVM takes"));
    }
    check_members(check, place, &group.devices, |device| {
        format!("device:{device} not provided by machine for vg:{name}")
    });
}

fn check_members(check: &mut Check, place: &str, devices: &[String], not_provided: impl Fn(&str) -> String) {
    if devices.is_empty() {
        check.report(&format!("{place}.devices"), "no devices are given");
    }
    for (index, device) in devices.iter().enumerate() {
        let place = format!("{place}.devices[{index}]");
        if check.provided.contains_key(device) {
            check.occupy(&place, device);
        } else if check.all_devices_known() {
            let message = not_provided(device) + &check.hint(device);
            check.report(&place, message);
        }
    }
}

fn check_volume(check: &mut Check, index: usize, volume: &LogicalVolume, layout: &Layout) {
    let LogicalVolume { name, volumegroup, lvmtype, .. } = volume;
    let place = format!("logicalvolumes[{index}]");
    check.report(&place, "logical volumes are not built yet: use a layout without logicalvolumes");
    if !is_lvm_name(name) {
        check.report(&format!("{place}.name"), format!("lv:{name} is not a name that LVM takes"));
    }
    if volume.size_mib == 0 && index + 1 < layout.logicalvolumes.len() {
        let message = format!("lv:{name} in vg:{volumegroup}, variable sized lv must be the last");
        check.report(&format!("{place}.size"), message);
    }
    match layout.volumegroups.iter().find(|group| group.name == *volumegroup) {
        None if check.all_known("volumegroups", "name") => {
            let message = format!("volumegroup:{volumegroup} not configured for lv:{name}");
            check.report(&format!("{place}.volumegroup"), message);
        }
        Some(group)
            if *lvmtype != LvmType::Linear && group.devices.len() < 2 && check.all_known("volumegroups", "devices") =>
        {
            let message = format!(
                "fsl:\"{}\" lv:{name} in vg:{volumegroup} is configured for lvmtype:{lvmtype} but has only {} disk, consider linear instead",
                layout.id,
                group.devices.len()
            );
            check.report(&format!("{place}.lvmtype"), message);
        }
        _ => {}
    }
    let device = format!("/dev/{volumegroup}/{name}");
    if check.provided.insert(device.clone(), Provider::Stacked).is_some() {
        check.report(&format!("{place}.name"), format!("lv:{name} in vg:{volumegroup} given more than once: {device}"));
    }
}

/// lvm(8), "Valid names".
fn is_lvm_name(name: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || "+_.-".contains(c);
    !name.is_empty()
        && name.len() <= 127
        && name.chars().all(known)
        && !name.starts_with('-')
        && name != "."
        && name != ".."
}
