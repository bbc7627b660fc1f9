//! Rules for volume groups and logical volumes.

use super::validation_state::{DeviceSource, LayoutCheck};
use crate::device_name::LayoutPath;
use crate::layout::logical_volume_name_limits::{explain_excessive_name, mapper_name};
use crate::layout::{Layout, LogicalVolumeSpec, LvmType, RequestedSize, VolumeGroupSpec};

/// Maximum length of a name: NAME_LEN in LVM's metadata-exported.h, without the closing NUL.
const MAX_NAME_BYTES: usize = 127;
/// Maximum length of a tag (lvm(8), "Valid tags", and tags in lvm2's lib/metadata/tags).
const MAX_TAG_BYTES: usize = 1024;
/// Prefixes that LVM reserves for its own volumes (lvm(8), "Valid names").
const RESERVED_STARTS: [&str; 2] = ["snapshot", "pvmove"];
/// Substrings of names that LVM reserves (lvm2's lib/misc/lvm-string.c, _lvname_has_reserved_string).
const RESERVED_PARTS: [&str; 19] = [
    "_cdata", "_cmeta", "_corig", "_cpool", "_cvol", "_imeta", "_iorig", "_mimage", "_mlog", "_pmspare", "_rimage",
    "_rmeta", "_tdata", "_tmeta", "_vdata", "_vorigin", "_vpool", "_wcorig", "_dcow",
];
/// Names of files and directories that already exist below /dev. No group can have one of these names, because LVM
/// creates a directory with the name of the group.
const RESERVED_GROUP_NAMES: [&str; 17] = [
    "block", "bsg", "bus", "char", "cpu", "disk", "dri", "fd", "input", "mapper", "md", "mqueue", "net", "pts", "shm",
    "snd", "vfio",
];

/// Checks groups and volumes, and records the volumes as block devices.
pub(super) fn check_lvm(check: &mut LayoutCheck, layout: &Layout) {
    for (index, group) in layout.volumegroups.iter().enumerate() {
        let place = format!("volumegroups[{index}]");
        check_group(check, &place, group);
        if layout.volumegroups[..index].iter().any(|other| other.name == group.name) {
            check.report_problem(&format!("{place}.name"), format!("vg:{} given more than once", group.name));
        }
    }
    for (index, volume) in layout.logicalvolumes.iter().enumerate() {
        check_volume(check, index, volume, layout);
    }
}

fn check_group(check: &mut LayoutCheck, place: &str, group: &VolumeGroupSpec) {
    let name = &group.name;
    let name_place = format!("{place}.name");
    let device = LayoutPath::from(format!("/dev/{name}"));
    if !is_lvm_name(name) || name == "." || name == ".." {
        check.report_problem(&name_place, format!("vg:{name} is not a valid LVM name: {NAME_RULE}"));
    } else if RESERVED_GROUP_NAMES.contains(&name.as_str()) || check.provided.contains_key(&device) {
        check.report_problem(
            &name_place,
            format!("vg:{name} cannot have its volumes below {device}, which already exists: choose another name"),
        );
    }
    check.use_devices(place, &group.devices, |device| format!("device:{device} not provided by machine for vg:{name}"));
    for (index, tag) in group.tags.iter().enumerate() {
        let place = format!("{place}.tags[{index}]");
        if group.tags[..index].contains(tag) {
            check.report_problem(&place, format!("tag:{tag} of vg:{name} given more than once"));
        } else if !is_tag(tag) {
            let message = format!(
                "tag:{tag} of vg:{name} is not a valid LVM tag: use letters, digits and _+.-/=!:#&, without a leading -"
            );
            check.report_problem(&place, message);
        }
    }
}

const NAME_RULE: &str = "use at most 127 letters, digits and +_.-, without a leading -";

fn check_volume(check: &mut LayoutCheck, index: usize, volume: &LogicalVolumeSpec, layout: &Layout) {
    let LogicalVolumeSpec { name, volumegroup, .. } = volume;
    let place = format!("logicalvolumes[{index}]");
    let name_place = format!("{place}.name");
    if let Some(message) = find_name_error(volume) {
        check.report_problem(&name_place, message);
    }
    if volume.size == RequestedSize::Rest && index + 1 < layout.logicalvolumes.len() {
        let message = format!("lv:{name} in vg:{volumegroup}, variable sized lv must be the last");
        check.report_problem(&format!("{place}.size"), message);
    }
    check_volume_group(check, &place, volume, layout);
    let device = volume.device_path();
    if check.provided.contains_key(&device) {
        check.report_problem(&name_place, format!("lv:{name} in vg:{volumegroup} given more than once: {device}"));
    }
    check.add_device(device.clone(), DeviceSource::Volume);
    check.misnamed.insert(format!("/dev/mapper/{}", mapper_name(volumegroup, name)).into(), device);
}

fn check_volume_group(check: &mut LayoutCheck, place: &str, volume: &LogicalVolumeSpec, layout: &Layout) {
    let LogicalVolumeSpec { name, volumegroup, lvmtype, .. } = volume;
    let Some(group) = layout.volumegroups.iter().find(|group| group.name == *volumegroup) else {
        if check.is_list_readable("volumegroups", "name") {
            let message = format!("volumegroup:{volumegroup} not configured for lv:{name}");
            check.report_problem(&format!("{place}.volumegroup"), message);
        }
        return;
    };
    let disks = group.devices.len();
    if *lvmtype != LvmType::Linear && disks < 2 && check.is_list_readable("volumegroups", "devices") {
        let message = format!(
            "fsl:\"{}\" lv:{name} in vg:{volumegroup} is configured for lvmtype:{lvmtype} but has only {disks} disk, consider linear instead",
            layout.id,
        );
        check.report_problem(&format!("{place}.lvmtype"), message);
    }
}

fn find_name_error(volume: &LogicalVolumeSpec) -> Option<String> {
    let LogicalVolumeSpec { name, volumegroup, lvmtype, .. } = volume;
    if !is_lvm_name(name) || name == "." || name == ".." {
        return Some(format!("lv:{name} is not a valid LVM name: {NAME_RULE}"));
    }
    let reserved = RESERVED_STARTS.iter().find(|start| name.starts_with(**start));
    let reserved = reserved.or_else(|| RESERVED_PARTS.iter().find(|part| name.contains(**part)));
    if let Some(reserved) = reserved {
        return Some(format!("lv:{name} contains {reserved}, which LVM reserves for its own volumes"));
    }
    let why = explain_excessive_name(volumegroup, name, *lvmtype)?;
    Some(format!("lv:{name} in vg:{volumegroup} has {why}"))
}

fn is_lvm_name(name: &str) -> bool {
    is_word(name, "+_.-", MAX_NAME_BYTES)
}

fn is_tag(tag: &str) -> bool {
    is_word(tag, "_+.-/=!:#&", MAX_TAG_BYTES)
}

fn is_word(word: &str, also: &str, most: usize) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || also.contains(c);
    !word.is_empty() && word.len() <= most && word.chars().all(known) && !word.starts_with('-')
}
