//! Contents of which the mounts prove that they belong to the installed system.
//!
//! This module is a second check of the purposes in [`crate::content_purposes`], and does not use them: a content that
//! was assigned to the system by mistake must not be erased without the knowledge of the operator.
//!
//! | content | proof |
//! |---|---|
//! | filesystem | fstab or the running system mounts it at `/`, `/usr`, `/boot` or `/efi`, or below `/boot` or `/efi`; or fstab mounts it at `/tmp`, `/var/tmp`, `/var/cache` or `/.snapshots`. Nothing mounts it anywhere else, except directories of `/` |
//! | swap area | its signature; for a hibernation image, its use as swap |
//! | EFI system partition, copy of an operating system's image | its type and content, on a disk that contains the mounted system |
//! | component of an array, group or mapping | the objects on top of it are checked |

use crate::fstab::MountTable;
use crate::mount_point_purposes::is_installation_path;
use crate::system_partition_types::is_image_copy;
use crate::underlying_devices::{find_partitioned_device, volume_name};
use model::device_name::{DevicePath, KernelName};
use model::inventory::{DeviceUse, Inventory};
use model::storage_graph::{DeviceStack, StackUnit, all_units};
use std::collections::BTreeSet;

/// Mount points whose files a system recreates.
const TEMPORARY: [&str; 4] = ["/tmp", "/var/tmp", "/var/cache", "/.snapshots"];

/// Content that may be data, although it may have been assigned to the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnprovenContent {
    /// Kernel name; for an inactive logical volume `GROUP/VOLUME`.
    pub name: KernelName,
    pub device: DevicePath,
    /// Types of the signatures: `ext4`.
    pub content: String,
}

/// Returns all contents with a signature that are not proven to belong to the installed system, and all inactive
/// logical volumes.
pub(crate) fn find_unproven(inventory: &Inventory, stack: &DeviceStack, mounts: &MountTable) -> Vec<UnprovenContent> {
    let proof = SystemProof { stack, mounts, disks: find_system_disks(inventory, stack, mounts) };
    let active = all_units(inventory).filter(|(_, unit)| !unit.signatures().is_empty());
    let active = active.filter(|(device, unit)| !proof.is_component(device, *unit) && !proof.is_system(device, *unit));
    let active = active.map(|(device, unit)| UnprovenContent {
        name: stack.kernel_name(device),
        device: device.clone(),
        content: unit.signatures().iter().map(|found| found.kind.as_str()).collect::<Vec<_>>().join(", "),
    });
    let volumes = inventory.groups.iter().flat_map(|group| group.volumes.iter().map(move |volume| (group, volume)));
    let is_listed = |name: &KernelName| stack.find_stacked(name).is_some();
    let inactive =
        volumes.filter(|(_, volume)| !volume.running.as_ref().is_some_and(is_listed)).map(|(group, volume)| {
            UnprovenContent {
                name: volume_name(group, volume),
                device: format!("/dev/{}/{}", group.name, volume.name).into(),
                content: "a logical volume that is not active".to_owned(),
            }
        });
    active.chain(inactive).collect()
}

/// Returns the disks below all filesystems of the installed system that are proven by their mounts.
fn find_system_disks(inventory: &Inventory, stack: &DeviceStack, mounts: &MountTable) -> BTreeSet<KernelName> {
    let mounted = all_units(inventory).filter(|(device, unit)| {
        let (listed, running) = mount_points(stack, mounts, device, *unit);
        listed.into_iter().chain(running).any(is_installation_path)
    });
    mounted.flat_map(|(device, _)| stack.disks_below(&stack.kernel_name(device))).collect()
}

/// Returns the mount points of the device in fstab and in the running system.
fn mount_points<'p>(
    stack: &DeviceStack,
    mounts: &'p MountTable,
    device: &DevicePath,
    unit: StackUnit<'p>,
) -> (Vec<&'p str>, Vec<&'p str>) {
    let lines = mounts.lines_of(&stack.kernel_name(device)).iter().map(|line| line.path.as_str());
    let running = unit.uses().iter().filter_map(|usage| match usage {
        DeviceUse::Mounted(path) => Some(path.as_str()),
        DeviceUse::Swap | DeviceUse::Holder(_) => None,
    });
    (lines.filter(|path| path.starts_with('/')).collect(), running.collect())
}

struct SystemProof<'p> {
    stack: &'p DeviceStack<'p>,
    mounts: &'p MountTable,
    /// Disks that contain the mounted system.
    disks: BTreeSet<KernelName>,
}

impl SystemProof<'_> {
    /// Returns whether the device is a component of objects that are checked themselves. A physical volume of a group
    /// without volumes, and a member of an object that is not assembled, are not such components.
    fn is_component(&self, device: &DevicePath, unit: StackUnit) -> bool {
        let name = self.stack.kernel_name(device);
        let groups = self.stack.groups_on(device);
        let is_in_group = !groups.is_empty() && groups.iter().all(|group| !group.volumes.is_empty());
        let mut arrays = self.stack.arrays_on(device).iter().filter_map(|array| array.running.as_ref());
        let is_in_array = arrays.any(|array| self.stack.find_stacked(array).is_some());
        let is_held = self.stack.is_held(&name) && self.stack.unknown_holders(&name).is_empty();
        let is_partitioned = unit.table().is_some_and(|table| !table.partitions.is_empty());
        is_held || is_in_group || is_in_array || is_partitioned
    }

    fn is_system(&self, device: &DevicePath, unit: StackUnit) -> bool {
        self.is_swap(device, unit) || self.is_mounted_system(device, unit) || self.is_unmounted_copy(device, unit)
    }

    fn is_swap(&self, device: &DevicePath, unit: StackUnit) -> bool {
        let lines = self.mounts.lines_of(&self.stack.kernel_name(device));
        let is_used = || lines.iter().any(|line| line.is_swap()) || unit.uses().contains(&DeviceUse::Swap);
        match unit.signatures() {
            [one] => one.kind == "swap" || (one.kind == "swsuspend" && is_used()),
            _ => false,
        }
    }

    fn is_mounted_system(&self, device: &DevicePath, unit: StackUnit) -> bool {
        let (listed, running) = mount_points(self.stack, self.mounts, device, unit);
        // The running system may also mount directories of `/` at other mount points. On a btrfs filesystem, such a
        // mount point may show a subvolume with data.
        let is_root = listed.contains(&"/") && unit.signatures().iter().all(|found| found.kind != "btrfs");
        let is_listed_system = listed.iter().all(|path| is_installation_path(path) || TEMPORARY.contains(path));
        let is_running_system = running.iter().all(|path| is_installation_path(path) || listed.contains(path));
        let is_mounted = !listed.is_empty() || !running.is_empty();
        is_mounted && is_listed_system && (is_running_system || is_root)
    }

    fn is_unmounted_copy(&self, device: &DevicePath, unit: StackUnit) -> bool {
        let (listed, running) = mount_points(self.stack, self.mounts, device, unit);
        let is_copy = matches!(unit, StackUnit::Partition(partition) if is_image_copy(partition));
        let is_on_system_disk = || {
            let whole = find_partitioned_device(self.stack, unit);
            whole.is_some_and(|whole| self.stack.disks_below(&whole).iter().any(|disk| self.disks.contains(disk)))
        };
        listed.is_empty() && running.is_empty() && is_copy && is_on_system_disk()
    }
}
