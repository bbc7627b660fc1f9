//! Rules for disks and their partitions.

use super::validation_state::{DeviceSource, LayoutCheck};

use super::is_device_path;
use crate::device_name::LayoutPath;
use crate::layout::{DiskSpec, MAX_PARTITION_NUMBER, PartitionSpec, RequestedSize, root_device_hints};
use std::collections::BTreeSet;

/// Maximum length of a partition name, in UTF-16 code units.
const MAX_NAME_UNITS: usize = 36;
const MIB: u64 = 1 << 20;

/// Checks the disks, and records the block devices that they define: disks and partitions.
pub(super) fn check_disks(check: &mut LayoutCheck, disks: &[DiskSpec]) {
    for (index, disk) in disks.iter().enumerate() {
        let place = format!("disks[{index}]");
        let device = &disk.device;
        let device_place = format!("{place}.device");
        let found_by_hints = !disk.hints.is_empty() || !check.is_whole_readable(&format!("{place}.hints"));
        if let Some(message) = find_name_error(device.as_str(), found_by_hints) {
            check.report_problem(&device_place, message);
        } else if let Some(first) = disks[..index].iter().position(|other| other.device == *device) {
            check.report_problem(&device_place, format!("device:{device} is already given as disks[{first}]"));
        } else if check.provided.get(device) == Some(&DeviceSource::Partition) {
            check.report_problem(
                &device_place,
                format!("device:{device} is a partition of another disk in this layout"),
            );
        }
        if let Some(first) = disks[..index].iter().position(|other| !disk.hints.is_empty() && other.hints == disk.hints)
        {
            check.report_problem(
                &format!("{place}.hints"),
                format!("disks[{first}] has the same hints, so both would select the same disk"),
            );
        }
        for (hint, message) in root_device_hints::check_hints(&disk.hints) {
            check.report_problem(&format!("{place}.hints.{hint}"), message);
        }
        for (number, partition) in disk.partitions.iter().enumerate() {
            check_partition(check, &format!("{place}.partitions[{number}]"), device, partition);
        }
        check_numbers(check, &place, disk);
        check_sizes(check, &place, disk);
        add_devices(check, &place, disk);
    }
}

/// Returns the reason why the name of a disk is invalid; `None` if the name is valid. If the disk is selected by hints,
/// any plain name is valid.
fn find_name_error(device: &str, found_by_hints: bool) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_name = device.starts_with(|c: char| c.is_ascii_alphanumeric()) && device.chars().all(plain);
    if is_device_path(device) {
        None
    } else if found_by_hints {
        let usable = is_name && device != "tmpfs";
        (!usable).then(|| format!("device:{device} is neither the full path of a device below /dev nor a plain name"))
    } else {
        let without = if is_name { "; any other name needs hints" } else { "" };
        Some(format!("device:{device} is not the full path of a device below /dev{without}"))
    }
}

fn add_devices(check: &mut LayoutCheck, place: &str, disk: &DiskSpec) {
    if disk.image {
        check.provided.insert(disk.device.clone(), DeviceSource::PartitionedDisk);
        for number in 1..=MAX_PARTITION_NUMBER {
            check.add_device(disk.device.partition_path(number), DeviceSource::ImagePartition);
            record_partition_names(check, &disk.device, number);
        }
    } else if disk.partitions.is_empty() {
        check.provided.entry(disk.device.clone()).or_insert(DeviceSource::Disk);
    } else {
        check.provided.insert(disk.device.clone(), DeviceSource::PartitionedDisk);
    }
    for (index, partition) in disk.partitions.iter().enumerate() {
        let right = record_partition_names(check, &disk.device, partition.number);
        if let Some(DeviceSource::Disk | DeviceSource::PartitionedDisk) = check.provided.get(&right) {
            let message = format!("device:{right} is already given as a disk");
            check.report_problem(&format!("{place}.partitions[{index}].number"), message);
        }
        check.provided.insert(right, DeviceSource::Partition);
    }
}

/// Returns the correct name of a partition, and records likely incorrect names for suggestions.
fn record_partition_names(check: &mut LayoutCheck, device: &LayoutPath, number: u32) -> LayoutPath {
    let right = device.partition_path(number);
    for infix in ["", "p", "-part"] {
        check.misnamed.insert(format!("{device}{infix}{number}").into(), right.clone());
    }
    right
}

fn check_partition(check: &mut LayoutCheck, place: &str, device: &LayoutPath, partition: &PartitionSpec) {
    let number = partition.number;
    if !(1..=MAX_PARTITION_NUMBER).contains(&number) {
        let message = format!("device:{device} partition number:{number} is not between 1 and {MAX_PARTITION_NUMBER}");
        check.report_problem(&format!("{place}.number"), message);
    }
    if let Some(label) = &partition.label {
        let place = format!("{place}.label");
        let units = label.encode_utf16().count();
        if units > MAX_NAME_UNITS {
            let message =
                format!("the label {label} has {units} UTF-16 units, but a GPT entry is limited to {MAX_NAME_UNITS}");
            check.report_problem(&place, message);
        }
        if label.contains(char::is_control) {
            check.report_problem(&place, "the label contains a control character");
        }
    }
}

fn check_numbers(check: &mut LayoutCheck, place: &str, disk: &DiskSpec) {
    let mut seen = BTreeSet::new();
    for (index, partition) in disk.partitions.iter().enumerate() {
        let place = format!("{place}.partitions[{index}].number");
        if check.is_readable(&place) && !seen.insert(partition.number) {
            let message = format!("device:{} partition number:{} given more than once", disk.device, partition.number);
            check.report_problem(&place, message);
        }
    }
}

fn check_sizes(check: &mut LayoutCheck, place: &str, disk: &DiskSpec) {
    let device = &disk.device;
    let partitions = || disk.partitions.iter().enumerate();
    let place_of = |index: usize| format!("{place}.partitions[{index}].size");
    let mut variable = partitions().filter(|(_, partition)| partition.size == RequestedSize::Rest);
    if let Some((first, partition)) = variable.next() {
        let others: Vec<usize> = variable.map(|(index, _)| index).collect();
        let later = disk.partitions.iter().any(|other| other.number > partition.number);
        if others.is_empty() && later && check.is_list_readable(&format!("{place}.partitions"), "number") {
            check
                .report_problem(&place_of(first), format!("device:{device} variable sized partition not the last one"));
        }
        for index in others {
            let message =
                format!("device:{device} more than one variable sized partition: only the last can take the rest");
            check.report_problem(&place_of(index), message);
        }
    }
    let mut bytes: u64 = 0;
    for (index, partition) in partitions() {
        let sum = partition
            .size
            .as_mib()
            .map_or(Some(0), |mib| mib.checked_mul(MIB))
            .and_then(|size| bytes.checked_add(size));
        let Some(sum) = sum else {
            let message =
                format!("device:{device} partitions up to and including this one exceed the size of any possible disk");
            check.report_problem(&place_of(index), message);
            return;
        };
        bytes = sum;
    }
}
