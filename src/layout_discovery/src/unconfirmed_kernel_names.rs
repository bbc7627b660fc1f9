//! Kernel names in an fstab that may now belong to other devices.
//!
//! The kernel assigns `sda`, `sdb`, `md127` and similar names in the order in which it finds the devices, so a name
//! in an fstab may have moved to another device since the line was written. If the names of two disks were exchanged,
//! the data on one disk would be considered the system of the other, and erased. A kernel name is confirmed if the
//! running system has mounted its device at the mount point of the line, or if the line mounts `/` and the fstab was
//! found on this device. Other partitions on the disk of a confirmed partition are confirmed as well.

use crate::discovery_notes::DiscoveryNote;
use crate::fstab::FstabLine;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{DeviceUse, Inventory};
use model::storage_graph::{DeviceStack, StackUnit, all_units};
use std::collections::BTreeSet;

/// Returns an obstacle for each line with a kernel name that nothing confirms. `recorded_on` is the device on which the
/// fstab was found; `None` if this is unknown.
pub(crate) fn find_unconfirmed_names(
    lines: &[FstabLine],
    recorded_on: Option<&DevicePath>,
    inventory: &Inventory,
    stack: &DeviceStack,
) -> Vec<DiscoveryNote> {
    let recorded_on = recorded_on.map(|device| stack.kernel_name(device));
    let units: Vec<(KernelName, StackUnit)> =
        all_units(inventory).map(|(device, unit)| (stack.kernel_name(device), unit)).collect();
    let named = lines.iter().filter(|line| line.path.starts_with('/')).filter_map(|line| {
        let unit = units.iter().find(|(name, _)| name.device_path() == *line.source)?;
        Some((line, unit))
    });
    let named: Vec<(&FstabLine, &(KernelName, StackUnit))> = named.collect();
    let is_confirmed = |(line, (name, unit)): &&(&FstabLine, &(KernelName, StackUnit))| {
        unit.uses().contains(&DeviceUse::Mounted(line.path.clone()))
            || (line.path == "/" && recorded_on.as_ref() == Some(name))
    };
    let confirmed: BTreeSet<&KernelName> = named
        .iter()
        .filter(is_confirmed)
        .flat_map(|(_, (name, unit))| [Some(name), disk_of(*unit, stack)])
        .flatten()
        .collect();
    let unconfirmed = named.iter().filter(|(_, (name, unit))| {
        !confirmed.contains(name) && !disk_of(*unit, stack).is_some_and(|disk| confirmed.contains(disk))
    });
    unconfirmed.map(|(line, _)| describe_unconfirmed(line)).collect()
}

/// Returns the kernel name of the disk that contains the partition; `None` for other devices.
fn disk_of<'a>(unit: StackUnit<'a>, stack: &DeviceStack<'a>) -> Option<&'a KernelName> {
    let StackUnit::Partition(partition) = unit else { return None };
    match stack.whole_of(&partition.device)? {
        StackUnit::Disk(disk) => Some(&disk.name),
        _ => None,
    }
}

fn describe_unconfirmed(line: &FstabLine) -> DiscoveryNote {
    let FstabLine { source, path, .. } = line;
    DiscoveryNote::obstacle(format!(
        "fstab mounts {source} at {path}, but this kernel name may belong to another device now, and no mount of the running \
         system confirms it: use the UUID of the filesystem in fstab, or select a corrected copy with --fstab"
    ))
}
