//! Contents of a machine: filesystems, swap areas and unmounted devices, with their purposes and the objects below.
//!
//! | content | purpose |
//! |---|---|
//! | mounted filesystem | purpose of its mount points ([`crate::mount_point_purposes`]) |
//! | swap area that fstab or the running system uses | system |
//! | unmounted swap area, or unmounted partition whose type and content are those of the system, on a disk or array that also contains the mounted system | system |
//! | partition inside a logical volume or mapping, such as the disk of a virtual machine | data |
//! | any other content | data |

use crate::fstab::{FstabLine, MountTable};
use crate::mount_point_purposes::{PurposeSet, is_extended, is_installation_path, purpose_of_path};
use crate::system_partition_types::{is_swap_area, is_system_partition};
use crate::underlying_devices::{find_layers, find_partitioned_device, find_volume, physical_volumes, volume_name};
use model::device_name::{DevicePath, KernelName};
use model::inventory::{DeviceSignature, DeviceUse, Inventory, LvmLogicalVolume, LvmVolumeGroup, StackedDeviceKind};
use model::storage_graph::{DeviceStack, StackUnit, all_units};
use std::collections::{BTreeMap, BTreeSet};

/// Content of a device on top of which there is no other device.
#[derive(Debug)]
pub(crate) struct MachineContent<'a> {
    /// Kernel name; for an inactive logical volume `GROUP/VOLUME`.
    pub name: KernelName,
    pub device: DevicePath,
    pub unit: StackUnit<'a>,
    /// Lines of fstab that mount the device, or mounts that are not in fstab.
    pub mounts: Vec<FstabLine>,
    /// Mount points of the running system in addition to `mounts` that may show other contents of the filesystem.
    pub running: Vec<&'a str>,
    /// True if the mounts come from the running system instead of fstab.
    pub is_only_running: bool,
    pub purpose: PurposeSet,
}

impl<'a> MachineContent<'a> {
    fn new(name: KernelName, device: DevicePath, unit: StackUnit<'a>, table: &MountTable) -> MachineContent<'a> {
        let mut mounts = table.lines_of(&name).to_vec();
        let is_only_running = mounts.is_empty();
        if is_only_running {
            mounts.extend(unit.uses().iter().filter_map(|usage| running_mount(usage, unit, table)));
        }
        let running = if is_only_running { Vec::new() } else { find_running_points(unit, &mounts) };
        MachineContent { name, device, unit, mounts, running, is_only_running, purpose: PurposeSet::DATA }
    }

    pub fn signature(&self) -> Option<&'a DeviceSignature> {
        self.unit.signatures().first()
    }

    /// Returns whether the device contains a swap area. A line of fstab does not prove this: swapon would refuse the
    /// device.
    pub fn is_swap(&self) -> bool {
        self.signature().is_some_and(is_swap_area)
    }

    /// Returns whether the device contains a swap area of the installed system.
    pub fn is_system_swap(&self) -> bool {
        self.is_swap() && (self.purpose.system || self.mounts.iter().any(FstabLine::is_swap))
    }

    /// Returns the mount points in the order of fstab.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.mounts.iter().map(|line| line.path.as_str()).filter(|path| path.starts_with('/'))
    }

    /// Returns the mount points of fstab, and then those of the running system.
    pub fn all_paths(&self) -> impl Iterator<Item = &str> {
        self.paths().chain(self.running.iter().copied())
    }

    fn assign_purpose(&self, stack: &DeviceStack, installation: &BTreeSet<KernelName>) -> PurposeSet {
        let partitioned = find_partitioned_device(stack, self.unit);
        let is_partition = matches!(self.unit, StackUnit::Partition(_));
        let is_next_to_system = partitioned.as_ref().is_some_and(|whole| installation.contains(whole));
        let is_on_disk = partitioned.is_some_and(|whole| matches!(stack.find_unit(&whole), StackUnit::Disk(_)));
        if is_partition && !is_on_disk && !is_next_to_system {
            return PurposeSet::DATA;
        }
        let is_used_swap = self.is_swap() && self.mounts.iter().any(FstabLine::is_swap);
        let is_unmounted_system = self.mounts.is_empty()
            && !self.unit.uses().iter().any(|usage| matches!(usage, DeviceUse::Mounted(_)))
            && is_next_to_system
            && (self.is_swap()
                || matches!(self.unit, StackUnit::Partition(partition) if is_system_partition(partition)));
        let none = if is_used_swap || is_unmounted_system { PurposeSet::SYSTEM } else { PurposeSet::default() };
        let all = self.all_paths().map(purpose_of_path).fold(none, PurposeSet::union);
        if all == PurposeSet::default() { PurposeSet::DATA } else { all }
    }
}

/// All contents of a machine, and the purposes of the objects below them.
pub(crate) struct MachineContents<'a> {
    pub inventory: &'a Inventory,
    pub stack: DeviceStack<'a>,
    pub contents: Vec<MachineContent<'a>>,
    /// Purposes of disks, partitions, arrays, mappings and volumes.
    purposes: BTreeMap<KernelName, PurposeSet>,
    /// Purposes of volume groups, by UUID.
    groups: BTreeMap<String, PurposeSet>,
}

impl<'a> MachineContents<'a> {
    pub fn new(inventory: &'a Inventory, stack: DeviceStack<'a>, mounts: &MountTable) -> MachineContents<'a> {
        let active = all_units(inventory).filter(|(device, unit)| is_content(inventory, &stack, device, unit));
        let active =
            active.map(|(device, unit)| MachineContent::new(stack.kernel_name(device), device.clone(), unit, mounts));
        let inactive = all_volumes(inventory).filter(|(_, volume)| volume.running.is_none());
        let inactive = inactive.map(|(group, volume)| unmounted_volume(&stack, group, volume));
        let mut contents: Vec<MachineContent> = active.chain(inactive).collect();
        let is_installed = |content: &&MachineContent| {
            let is_inside_volume = matches!(content.unit, StackUnit::Partition(_))
                && find_partitioned_device(&stack, content.unit).is_none();
            !is_inside_volume && content.paths().any(is_installation_path)
        };
        let mounted = contents.iter().filter(is_installed).map(|content| content.name.clone());
        let installation = find_layers(&stack, mounted);
        for content in &mut contents {
            content.purpose = content.assign_purpose(&stack, &installation);
        }
        let mut machine =
            MachineContents { inventory, stack, contents, purposes: BTreeMap::new(), groups: BTreeMap::new() };
        machine.spread_purposes(0);
        machine.add_unreached_volumes();
        machine
    }

    pub fn purpose_of(&self, device: &KernelName) -> PurposeSet {
        self.purposes.get(device).copied().unwrap_or_default()
    }

    pub fn purpose_of_volume(&self, group: &LvmVolumeGroup, volume: &LvmLogicalVolume) -> PurposeSet {
        self.purpose_of(&volume_name(group, volume))
    }

    pub fn purpose_of_group(&self, group: &LvmVolumeGroup) -> PurposeSet {
        self.groups.get(&group.uuid).copied().unwrap_or_default()
    }

    /// Returns the volume and its group if the content is directly on a logical volume.
    pub fn volume_of(&self, content: &MachineContent) -> Option<(&'a LvmVolumeGroup, &'a LvmLogicalVolume)> {
        find_volume(self.inventory, &self.stack, &content.name)
    }

    /// Assigns the purpose of each content from this index on to all objects below it.
    fn spread_purposes(&mut self, first: usize) {
        for index in first..self.contents.len() {
            let content = &self.contents[index];
            let (purpose, volume) = (content.purpose, self.volume_of(content));
            let physical = volume.into_iter().flat_map(|(group, _)| physical_volumes(&self.stack, group));
            let layers = find_layers(&self.stack, std::iter::once(content.name.clone()).chain(physical));
            let groups = layers.iter().filter_map(|name| self.stack.find_volume(name)).chain(volume);
            for (group, _) in groups {
                let known = self.groups.entry(group.uuid.clone()).or_default();
                *known = known.union(purpose);
            }
            for name in layers {
                let known = self.purposes.entry(name).or_default();
                *known = known.union(purpose);
            }
        }
    }

    /// Adds the volumes below which no content was found, such as a volume with an empty partition table. They are
    /// data, because their contents are unknown.
    fn add_unreached_volumes(&mut self) {
        let unreached = all_volumes(self.inventory)
            .filter(|(group, volume)| self.purpose_of_volume(group, volume) == PurposeSet::default());
        let unreached: Vec<_> = unreached.map(|(group, volume)| unmounted_volume(&self.stack, group, volume)).collect();
        let first = self.contents.len();
        self.contents.extend(unreached);
        self.spread_purposes(first);
    }
}

fn all_volumes(inventory: &Inventory) -> impl Iterator<Item = (&LvmVolumeGroup, &LvmLogicalVolume)> {
    inventory.groups.iter().flat_map(|group| group.volumes.iter().map(move |volume| (group, volume)))
}

/// Returns whether the device contains a filesystem, a swap area or unknown data, and is not a component of another
/// device.
fn is_content(inventory: &Inventory, stack: &DeviceStack, device: &DevicePath, unit: &StackUnit) -> bool {
    let name = stack.kernel_name(device);
    // The contents of a holder that the inventory does not list, such as DRBD, are unknown.
    let is_below_known = stack.is_held(&name) && stack.unknown_holders(&name).is_empty();
    let is_part_of_group = || !stack.groups_on(device).is_empty();
    let is_hidden = matches!(unit, StackUnit::Stacked(stacked)
        if stacked.kind == StackedDeviceKind::Volume && stack.find_volume(&name).is_none());
    let is_container = matches!(unit, StackUnit::Partition(partition) if is_extended(partition));
    let is_blank_disk = matches!(unit, StackUnit::Disk(disk) if disk.blank);
    let is_partitioned =
        unit.table().is_some_and(|table| !table.partitions.is_empty() || matches!(unit, StackUnit::Disk(_)));
    !is_partitioned
        && !is_below_known
        && !is_part_of_group()
        && !is_hidden
        && !is_container
        && !is_blank_disk
        && !is_running_member(inventory, stack, device)
}

/// Returns whether the device is a member of a running array. The arrays are searched, because a faulty member is not
/// held by its array.
fn is_running_member(inventory: &Inventory, stack: &DeviceStack, device: &DevicePath) -> bool {
    let is_running = |name: &KernelName| stack.find_stacked(name).is_some();
    let mut arrays = inventory.arrays.iter().filter(|array| array.running.as_ref().is_some_and(is_running));
    arrays.any(|array| array.members.iter().any(|member| member.device == *device))
}

/// Returns the mount of a running system as a line of fstab, unless fstab mounts another device at this path.
fn running_mount(usage: &DeviceUse, unit: StackUnit, table: &MountTable) -> Option<FstabLine> {
    let format = unit.signatures().first().map(|found| found.kind.clone()).unwrap_or_default();
    match usage {
        DeviceUse::Mounted(path) if !table.has_path(path) => {
            Some(FstabLine { path: path.clone(), format, ..FstabLine::default() })
        }
        DeviceUse::Swap => {
            Some(FstabLine { path: "none".to_owned(), format: "swap".to_owned(), ..FstabLine::default() })
        }
        DeviceUse::Mounted(_) | DeviceUse::Holder(_) => None,
    }
}

/// Returns the mount points of the running system that are not in these lines of fstab, and that may show contents of
/// another purpose.
///
/// | device | mount points |
/// |---|---|
/// | btrfs | all, because each of them may show another subvolume |
/// | other filesystem that fstab mounts at `/` | none: they are bind mounts of directories of `/` |
/// | any other filesystem | `/`, and the mount points of data. Directories of data that are bound to a mount point of the system, such as `/tmp`, remain data |
fn find_running_points<'a>(unit: StackUnit<'a>, lines: &[FstabLine]) -> Vec<&'a str> {
    let is_btrfs = unit.signatures().iter().any(|found| found.kind == "btrfs");
    let is_root = lines.iter().any(|line| line.path == "/");
    let points = unit.uses().iter().filter_map(|usage| match usage {
        DeviceUse::Mounted(path) => Some(path.as_str()),
        DeviceUse::Swap | DeviceUse::Holder(_) => None,
    });
    let points = points.filter(|path| lines.iter().all(|line| line.path != *path));
    points.filter(|path| is_btrfs || (!is_root && (*path == "/" || purpose_of_path(path).data))).collect()
}

/// Returns the content of a logical volume that is not active, or whose content is unknown. Such content is treated as
/// data, because it cannot be inspected.
fn unmounted_volume<'a>(
    stack: &DeviceStack<'a>,
    group: &'a LvmVolumeGroup,
    volume: &'a LvmLogicalVolume,
) -> MachineContent<'a> {
    let name = volume_name(group, volume);
    MachineContent {
        unit: stack.find_unit(&name),
        name,
        device: format!("/dev/{}/{}", group.name, volume.name).into(),
        mounts: Vec::new(),
        running: Vec::new(),
        is_only_running: false,
        purpose: PurposeSet::DATA,
    }
}
