//! Contents of a machine: filesystems, swap areas and unmounted devices, with their purposes and the objects below.

use crate::fstab::{FstabLine, MountTable};
use crate::system_data_classification::{PurposeSet, is_extended, name_system_type, purpose_of_path};
use model::device_name::{DevicePath, KernelName};
use model::inventory::{DeviceSignature, DeviceUse, Inventory, LvmLogicalVolume, LvmVolumeGroup, StackedDeviceKind};
use model::storage_graph::{DeviceStack, StackUnit, all_units};
use std::collections::{BTreeMap, BTreeSet};

/// Signature types of devices whose content belongs to an object on top of them.
const COMPONENTS: [&str; 2] = ["linux_raid_member", "LVM2_member"];

/// Content of a device on top of which there is no other device.
#[derive(Debug)]
pub(crate) struct MachineContent<'a> {
    /// Kernel name; for an inactive logical volume `GROUP/VOLUME`.
    pub name: KernelName,
    pub device: DevicePath,
    pub unit: StackUnit<'a>,
    /// Lines of fstab that mount the device, or mounts that are not in fstab.
    pub mounts: Vec<FstabLine>,
    /// True if the mounts come from the running system instead of fstab.
    pub is_only_running: bool,
    pub purpose: PurposeSet,
}

impl<'a> MachineContent<'a> {
    pub fn signature(&self) -> Option<&'a DeviceSignature> {
        self.unit.signatures().first()
    }

    pub fn is_swap(&self) -> bool {
        self.mounts.iter().any(FstabLine::is_swap) || self.signature().is_some_and(|found| is_swap_kind(&found.kind))
    }

    /// Returns the mount points in the order of fstab.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.mounts.iter().map(|line| line.path.as_str()).filter(|path| path.starts_with('/'))
    }
}

fn is_swap_kind(kind: &str) -> bool {
    kind == "swap" || kind == "swsuspend"
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
            active.map(|(device, unit)| assign_purpose(stack.kernel_name(device), device.clone(), unit, mounts));
        let inactive = inventory.groups.iter().flat_map(|group| {
            let volumes = group.volumes.iter().filter(|volume| volume.running.is_none());
            volumes.map(|volume| inactive_volume(group, volume))
        });
        let contents: Vec<MachineContent> = active.chain(inactive).collect();
        let mut machine =
            MachineContents { inventory, stack, contents, purposes: BTreeMap::new(), groups: BTreeMap::new() };
        machine.spread_purposes();
        machine
    }

    pub fn purpose_of(&self, device: &KernelName) -> PurposeSet {
        self.purposes.get(device).copied().unwrap_or_default()
    }

    pub fn purpose_of_group(&self, group: &LvmVolumeGroup) -> PurposeSet {
        self.groups.get(&group.uuid).copied().unwrap_or_default()
    }

    /// Returns the volume and its group if the content is directly on a logical volume.
    pub fn volume_of(&self, content: &MachineContent) -> Option<(&'a LvmVolumeGroup, &'a LvmLogicalVolume)> {
        self.stack.find_volume(&content.name).or_else(|| {
            let mut groups = self.inventory.groups.iter();
            groups.find_map(|group| {
                let name = content.name.strip_prefix(group.name.as_str())?.strip_prefix('/')?;
                Some((group, group.volumes.iter().find(|volume| volume.name == name)?))
            })
        })
    }

    /// Assigns the purpose of each content to all objects below it.
    fn spread_purposes(&mut self) {
        for index in 0..self.contents.len() {
            let content = &self.contents[index];
            let (purpose, volume) = (content.purpose, self.volume_of(content));
            let mut pending = vec![content.name.clone()];
            pending.extend(volume.into_iter().flat_map(|(group, _)| self.physical_volumes(group)));
            let mut seen = BTreeSet::new();
            while let Some(name) = pending.pop() {
                if !seen.insert(name.clone()) {
                    continue;
                }
                let known = self.purposes.entry(name.clone()).or_default();
                *known = known.union(purpose);
                pending.extend(self.devices_below(&name));
                if let Some((group, _)) = self.stack.find_volume(&name).or(volume) {
                    let known = self.groups.entry(group.uuid.clone()).or_default();
                    *known = known.union(purpose);
                }
            }
        }
    }

    fn physical_volumes(&self, group: &LvmVolumeGroup) -> Vec<KernelName> {
        group.present_devices().map(|device| self.stack.kernel_name(device)).collect()
    }

    fn devices_below(&self, name: &KernelName) -> Vec<KernelName> {
        match self.stack.find_unit(name) {
            StackUnit::Partition(partition) => {
                let whole = self.stack.whole_of(&partition.device);
                whole.and_then(|whole| Some(self.stack.kernel_name(whole.device()?))).into_iter().collect()
            }
            StackUnit::Stacked(stacked) => {
                let group = self.stack.find_volume(name).map(|(group, _)| self.physical_volumes(group));
                stacked.below.iter().cloned().chain(group.into_iter().flatten()).collect()
            }
            StackUnit::Disk(_) | StackUnit::Unknown => Vec::new(),
        }
    }
}

/// Returns whether the device contains a filesystem, a swap area or unknown data, and is not a component of another
/// device.
fn is_content(inventory: &Inventory, stack: &DeviceStack, device: &DevicePath, unit: &StackUnit) -> bool {
    let name = stack.kernel_name(device);
    let is_part_of_group = || !stack.groups_on(device).is_empty();
    let is_hidden = matches!(unit, StackUnit::Stacked(stacked)
        if stacked.kind == StackedDeviceKind::Volume && stack.find_volume(&name).is_none());
    let is_container = matches!(unit, StackUnit::Partition(partition) if is_extended(partition));
    let is_blank_disk = matches!(unit, StackUnit::Disk(disk) if disk.blank);
    unit.table().is_none()
        && !stack.is_held(&name)
        && !is_part_of_group()
        && !is_hidden
        && !is_container
        && !is_blank_disk
        && !is_running_member(inventory, device)
}

/// Returns whether the device is a member of a running array. The arrays are searched, because a faulty member is not
/// held by its array.
fn is_running_member(inventory: &Inventory, device: &DevicePath) -> bool {
    let mut arrays = inventory.arrays.iter().filter(|array| array.running.is_some());
    arrays.any(|array| array.members.iter().any(|member| member.device == *device))
}

fn assign_purpose<'a>(
    name: KernelName,
    device: DevicePath,
    unit: StackUnit<'a>,
    table: &MountTable,
) -> MachineContent<'a> {
    let mut mounts = table.lines_of(&name).to_vec();
    let is_only_running = mounts.is_empty();
    if is_only_running {
        mounts.extend(unit.uses().iter().filter_map(|usage| running_mount(usage, unit, table)));
    }
    let mut content = MachineContent { name, device, unit, mounts, is_only_running, purpose: PurposeSet::DATA };
    let is_component = content.signature().is_some_and(|found| COMPONENTS.contains(&found.kind.as_str()));
    let is_system_type = matches!(unit, StackUnit::Partition(partition) if name_system_type(partition).is_some());
    content.purpose = if content.is_swap() || (content.mounts.is_empty() && is_system_type && !is_component) {
        PurposeSet::SYSTEM
    } else {
        let paths: Vec<PurposeSet> = content.paths().map(purpose_of_path).collect();
        let all = paths.into_iter().fold(PurposeSet::default(), PurposeSet::union);
        if all == PurposeSet::default() { PurposeSet::DATA } else { all }
    };
    content
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

/// Returns the content of a logical volume that is not active. Such content is treated as data, because it cannot be
/// inspected.
fn inactive_volume<'a>(group: &'a LvmVolumeGroup, volume: &LvmLogicalVolume) -> MachineContent<'a> {
    MachineContent {
        name: format!("{}/{}", group.name, volume.name).into(),
        device: format!("/dev/{}/{}", group.name, volume.name).into(),
        unit: StackUnit::Unknown,
        mounts: Vec::new(),
        is_only_running: false,
        purpose: PurposeSet::DATA,
    }
}
