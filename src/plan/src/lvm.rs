//! Decisions on volume groups and logical volumes. On new devices, they are created. On preserved devices, they are
//! compared with the layout.

use super::DiskVerdict;
use super::partition_placement::MIB;
use super::plan_decisions::GroupFate;
use super::planned_device_capacity::{self as capacity, CapacityShortage, EXTENT_BYTES};
use super::planned_devices::{DeviceFate, PlannedDevice, UnderlyingDevices};
use super::planner_state::PlannerState;
use crate::content_descriptions;
use crate::planner_state::PlannedGroup;
use crate::renewed_volumes;
use common::error_code::ErrorCode;
use model::device_name::DevicePath;
use model::inventory::{self, VolumeHealth};
use model::layout::preserved_objects::PreservedObjects;
use model::layout::{LogicalVolumeSpec, LvmType, RequestedSize, VolumeGroupSpec};
use model::storage_graph::find_groups_on;
use operations::{CreateGroup, CreateVolume};
use std::cmp::Ordering;

impl<'a> PlannerState<'a> {
    pub(crate) fn decide_groups(&mut self) {
        for (index, group) in self.layout.volumegroups.iter().enumerate() {
            let place = format!("volumegroups[{index}]");
            let Some(below) = self.common_fate(&place, &format!("vg:{}", group.name), &group.devices) else { continue };
            let below = match group.encrypted {
                Some(encrypted) => self.open_containers(&place, group, encrypted, &below),
                None => Some(below),
            };
            // There are no devices if the group was refused, or if its containers stay locked.
            let Some(below) = below else { continue };
            self.refuse_same_name(&place, group, &below);
            if below.fate == DeviceFate::Preserved {
                self.preserve_group(&place, group, &below);
            } else {
                self.make_group(&place, group, &below);
            }
        }
    }

    /// Refuses the name of a group if another group on unwiped disks has the same name, because the installed system
    /// identifies groups by name.
    fn refuse_same_name(&mut self, place: &str, group: &VolumeGroupSpec, below: &UnderlyingDevices) {
        let ours = if below.fate == DeviceFate::Preserved { below.present_paths() } else { Vec::new() };
        for twin in self.inventory.groups.iter().filter(|twin| twin.name == group.name) {
            // If a disk is recreated after an interruption, the group that the previous attempt created on it is lost.
            let is_lost = |verdict: &DiskVerdict| matches!(verdict, DiskVerdict::Wipe | DiskVerdict::Make);
            let stays = |device: &&DevicePath| {
                let verdicts = self.verdicts_on(device);
                verdicts.is_empty() || !verdicts.iter().all(is_lost)
            };
            let devices: Vec<DevicePath> = twin.present_devices().filter(stays).cloned().collect();
            if !devices.is_empty() && !devices.iter().any(|device| ours.iter().any(|our| our == device)) {
                let message = format!(
                    "vg:{group} is also the name of another volume group on {devices}, which is not wiped; choose another name",
                    group = group.name,
                    devices = devices.join(", ")
                );
                self.refuse(ErrorCode::NameTaken, format!("{place}.name"), message);
            }
        }
    }

    fn make_group(&mut self, place: &str, group: &'a VolumeGroupSpec, below: &UnderlyingDevices) {
        if below.absent().next().is_some() {
            return self.refuse_without_physical(group, below);
        }
        let mut sectors: Vec<u32> = below.devices.iter().map(|device| device.sector_bytes).collect();
        sectors.sort();
        sectors.dedup();
        if sectors.len() > 1 {
            let each = below.devices.iter().map(|device| format!("{} {}", device.path, device.sector_bytes));
            let message = format!(
                "vg:{group} combines devices with different sector sizes, which LVM does not support: {sizes} bytes",
                group = group.name,
                sizes = each.collect::<Vec<_>>().join(", ")
            );
            return self.refuse(ErrorCode::ObjectNotCreatable, format!("{place}.devices"), message);
        }
        let mut free = Vec::new();
        for (index, device) in below.devices.iter().enumerate() {
            let extents = device.size_bytes.map(|bytes| capacity::physical_volume_extents(bytes, device.stripe_bytes));
            if extents == Some(0) {
                let message = format!(
                    "device:{device} is not big enough required:{required_mib}MiB, existing:{existing_mib}MiB (for one extent and the metadata of vg:{group})",
                    device = group.devices[index],
                    required_mib = EXTENT_BYTES / MIB + 1,
                    existing_mib = device.size_bytes.unwrap_or_default() / MIB,
                    group = group.name
                );
                return self.refuse(ErrorCode::TooSmall, format!("{place}.devices[{index}]"), message);
            }
            free.push(extents);
        }
        let (physical, free) = (below.install_paths(), free.into_iter().collect());
        let (name, devices, tags) = (group.name.clone(), physical.clone(), group.tags.clone());
        self.decided.groups.push(GroupFate::Created(CreateGroup { name, devices, tags }));
        let most_bytes = below.devices.iter().fold(0, |sum: u64, device| sum.saturating_add(device.size().max_bytes()));
        let (sector_bytes, fate) = (below.sector_bytes(), below.fate);
        let (preserved, extent_bytes, renewed) = (None, EXTENT_BYTES, Vec::new());
        let planned = PlannedGroup { physical, free, most_bytes, sector_bytes, fate, preserved, extent_bytes, renewed };
        self.groups.insert(&group.name, planned);
    }

    fn preserve_group(&mut self, place: &str, group: &'a VolumeGroupSpec, below: &UnderlyingDevices) {
        let wanted = below.present_paths();
        let found = find_groups_on(self.inventory, &wanted);
        let preserved = match found.as_slice() {
            [one] if one.name == group.name && is_same_group(one, &wanted, below.absent().count()) => *one,
            [] if wanted.is_empty() => return self.refuse_without_physical(group, below),
            several => {
                let there: Vec<String> = several.iter().map(|group| describe_group(group)).collect();
                let there = match there.is_empty() {
                    true => "none of the devices is a physical volume of a known group".to_owned(),
                    false => format!("there is {}", there.join(" and ")),
                };
                let remedy = suggest_after_extension(group, &wanted, several).unwrap_or_default();
                let message = format!(
                    "vg:{group} must be preserved on {devices}, but {there}{remedy}",
                    group = group.name,
                    devices = wanted.join(", ")
                );
                return self.refuse(ErrorCode::PreservedMismatch, place, message);
            }
        };
        self.decided.matching.extend(group.devices.iter().cloned());
        if !self.is_usable(place, group, below, preserved) || !self.is_complete(place, group, below, preserved) {
            return;
        }
        let physical = below.install_paths();
        let volumes = self.layout.logicalvolumes.iter().filter(|volume| volume.volumegroup == group.name);
        let Some(renewal) = self.renew_volumes(place, group, below, preserved) else { return };
        let volumes = volumes.filter(|volume| !renewal.renewed.contains(&volume.name.as_str()));
        let volumes = volumes.map(|volume| volume.name.clone()).collect();
        self.decided.groups.push(GroupFate::Preserved { name: group.name.clone(), devices: physical.clone(), volumes });
        let (sector_bytes, fate, extent_bytes) = (below.sector_bytes(), below.fate, preserved.extent_bytes);
        let most_bytes =
            preserved.physical.iter().fold(0, |sum: u64, physical| sum.saturating_add(physical.size_bytes));
        let (free, renewed, preserved) = (renewal.free, renewal.renewed, Some(preserved));
        let planned = PlannedGroup { physical, free, most_bytes, sector_bytes, fate, preserved, extent_bytes, renewed };
        self.groups.insert(&group.name, planned);
    }

    /// Returns whether the group can be activated on this machine.
    fn is_usable(
        &mut self,
        place: &str,
        group: &VolumeGroupSpec,
        below: &UnderlyingDevices,
        preserved: &inventory::LvmVolumeGroup,
    ) -> bool {
        if let Some(device) = below.present().find(|device| device.content.as_ref().is_ok_and(|found| found.len() > 1))
        {
            let there: Vec<String> =
                device.content.iter().copied().flatten().map(content_descriptions::describe_signature).collect();
            let message = format!(
                "vg:{group} must be preserved on {device}, but there are several signatures: {signatures}",
                group = group.name,
                device = device.now,
                signatures = there.join(" and ")
            );
            self.refuse(ErrorCode::PreservedMismatch, place, message);
            return false;
        }
        if let Some(why) = &preserved.closed {
            let message = format!("vg:{group} must be preserved, but {why}", group = group.name);
            self.refuse(ErrorCode::PreservedUnusable, place, message);
            return false;
        }
        true
    }

    /// Returns whether all data of the group is available, including data of volumes that the layout does not list.
    /// The data of renewed volumes is not needed.
    fn is_complete(
        &mut self,
        place: &str,
        group: &VolumeGroupSpec,
        below: &UnderlyingDevices,
        preserved: &inventory::LvmVolumeGroup,
    ) -> bool {
        let renewed = PreservedObjects::from_graph(self.graph).renewed_volumes(group);
        let of = |health: VolumeHealth| -> String {
            let remaining = preserved.volumes.iter().filter(|volume| !renewed_volumes::is_removed(volume, &renewed));
            let volumes = remaining.filter(|volume| volume.health == health);
            volumes.map(|volume| volume.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let (lost, degraded) = (of(VolumeHealth::Lost), of(VolumeHealth::Degraded));
        if !lost.is_empty() {
            let there = describe_group(preserved);
            let message = format!(
                "vg:{group} must be preserved, but data of the volumes {lost} is missing: {there}",
                group = group.name
            );
            self.refuse(ErrorCode::IncompleteObject, place, message);
            self.refuse_without_physical(group, below);
        } else if !degraded.is_empty() {
            let there = describe_group(preserved);
            self.warn(format!(
                "vg:{group} is kept DEGRADED: without redundancy for {degraded} ({there})",
                group = group.name
            ));
        } else if below.absent().next().is_some() {
            self.warn(format!(
                "vg:{group} is kept, although a physical volume is missing: {found}",
                group = group.name,
                found = describe_group(preserved)
            ));
        }
        lost.is_empty()
    }

    pub(crate) fn refuse_without_physical(&mut self, group: &VolumeGroupSpec, below: &UnderlyingDevices) {
        for (_, device) in below.absent() {
            self.refuse_absent(device, format!("vg:{} requires {}", group.name, device.path));
        }
    }

    pub(crate) fn decide_volumes(&mut self) {
        let mut order: Vec<usize> = (0..self.layout.logicalvolumes.len()).collect();
        // Volumes that take the remaining space come last.
        order.sort_by_key(|&index| self.layout.logicalvolumes[index].size == RequestedSize::Rest);
        for index in order {
            let volume = &self.layout.logicalvolumes[index];
            let place = format!("logicalvolumes[{index}]");
            // If the group is not in the plan, it was refused, and the refusal is already reported.
            let Some(mut group) = self.groups.remove(volume.volumegroup.as_str()) else { continue };
            match group.preserved.filter(|_| !group.renewed.contains(&volume.name.as_str())) {
                Some(preserved) => self.preserve_volume(&place, volume, &group, preserved),
                None => self.make_volume(&place, volume, &mut group),
            }
            self.groups.insert(&volume.volumegroup, group);
        }
    }

    fn make_volume(&mut self, place: &str, volume: &LogicalVolumeSpec, group: &mut PlannedGroup<'a>) {
        let LogicalVolumeSpec { name, volumegroup, size, lvmtype, .. } = volume;
        let extent_bytes = group.extent_bytes;
        let allocate = |free: &mut Vec<u64>| capacity::allocate_extents(*lvmtype, *size, extent_bytes, free);
        let size_bytes = match group.free.as_mut().map(allocate).transpose() {
            Ok(Some(size_bytes)) => Some(size_bytes),
            Ok(None) => capacity::requested_bytes(*lvmtype, *size, group.physical.len()),
            Err(CapacityShortage { required_mib, existing_mib }) => {
                let extents = match lvmtype {
                    LvmType::Linear => "in extents of",
                    LvmType::Striped => "an equal share on each physical volume, in extents of",
                    LvmType::Raid1 => "two physical volumes, each with a copy and one metadata extent of",
                };
                let remark = match group.preserved {
                    Some(_) => "; preserved volumes are neither shrunk nor moved",
                    None => "",
                };
                let message = format!(
                    "vg:{volumegroup} is not big enough for lv:{name} required:{required_mib}MiB, existing:{existing_mib}MiB ({lvmtype}: {extents} {extent}{remark})",
                    extent = describe_extent(extent_bytes)
                );
                return self.refuse(ErrorCode::TooSmall, format!("{place}.size"), message);
            }
        };
        let path = volume.device_path();
        let device = PlannedDevice {
            path: path.as_device(),
            now: path.as_device(),
            // A volume that is renewed in a preserved group counts as new, because its content is new.
            fate: if group.fate == DeviceFate::Preserved { DeviceFate::Wiped } else { group.fate },
            absent: None,
            blank: false,
            size_bytes,
            most_bytes: if *lvmtype == LvmType::Raid1 { group.most_bytes / 2 } else { group.most_bytes },
            sector_bytes: group.sector_bytes,
            stripe_bytes: 0,
            content: Ok(&[]),
        };
        self.devices.insert(path.clone(), device);
        self.decided.volumes.push(CreateVolume {
            name: name.clone(),
            group: volumegroup.clone(),
            device: path.as_device(),
            physical: group.physical.clone(),
            size: *size,
            kind: *lvmtype,
        });
    }

    fn preserve_volume(
        &mut self,
        place: &str,
        volume: &LogicalVolumeSpec,
        group: &PlannedGroup<'a>,
        preserved: &'a inventory::LvmVolumeGroup,
    ) {
        let path = volume.device_path();
        let found = preserved.volumes.iter().find(|found| found.name == volume.name);
        let size = found.filter(|found| found.kind == volume.lvmtype.name());
        let size = size.map(|found| (found, compare_volume_size(volume, found, group, preserved)));
        let Some((found, size)) = size.filter(|(_, size)| *size != Ordering::Less) else {
            let size = volume.size.as_mib().map(|mib| format!(" {mib} MiB")).unwrap_or_default();
            let there = match found {
                Some(found) => format!("is {} {} MiB", found.kind, found.size_bytes / MIB),
                None => format!("is missing: {}", describe_group(preserved)),
            };
            return self.refuse(
                ErrorCode::PreservedMismatch,
                place,
                format!(
                    "{path} must be preserved, and must be {type_name}{size}, but {there}",
                    type_name = volume.lvmtype
                ),
            );
        };
        if size == Ordering::Greater {
            let (actual, layout) = (found.size_bytes / MIB, volume.size.as_mib().unwrap_or_default());
            self.warn(format!("{path} has {actual} MiB instead of {layout} MiB; it is preserved, and not resized"));
        }
        if let Some(how) = &found.entangled {
            let message = format!(
                "{path} must be preserved, but the volume {how}; remove the snapshot, or complete the merge or move, in the installed system"
            );
            return self.refuse(ErrorCode::PreservedUnusable, place, message);
        }
        let running = found.running.as_ref().and_then(|name| self.stack.find_stacked(name));
        let not_running = || "the volume is not active, so its content is unknown".to_owned();
        let device = PlannedDevice {
            path: path.as_device(),
            now: running.map_or_else(|| path.as_device(), |running| running.device.clone()),
            fate: DeviceFate::Preserved,
            absent: None,
            blank: running.is_some_and(|running| running.blank),
            size_bytes: Some(found.size_bytes),
            most_bytes: found.size_bytes,
            sector_bytes: group.sector_bytes,
            stripe_bytes: 0,
            content: running.map(|running| running.signatures.as_slice()).ok_or_else(not_running),
        };
        self.devices.insert(path, device);
    }
}

fn describe_extent(bytes: u64) -> String {
    match bytes.is_multiple_of(MIB) {
        true => format!("{} MiB", bytes / MIB),
        false => format!("{bytes} bytes"),
    }
}

/// Returns whether the present physical volumes of the group are exactly the expected devices, and the number of
/// missing physical volumes is the number of absent disks.
fn is_same_group(group: &inventory::LvmVolumeGroup, wanted: &[DevicePath], absent: usize) -> bool {
    let mut found: Vec<&DevicePath> = group.present_devices().collect();
    found.sort();
    found.iter().copied().eq(wanted.iter()) && group.physical.len() - found.len() == absent
}

/// Compares the size of a volume with the size that lvcreate derives from the layout. lvcreate rounds the size to whole
/// extents, with the same number of extents on all stripes.
fn compare_volume_size(
    volume: &LogicalVolumeSpec,
    found: &inventory::LvmLogicalVolume,
    group: &PlannedGroup,
    preserved: &inventory::LvmVolumeGroup,
) -> Ordering {
    let extent = preserved.extent_bytes.max(1);
    let unit = match volume.lvmtype {
        LvmType::Striped => extent.saturating_mul(group.physical.len() as u64),
        _ => extent,
    };
    let expected = |mib: u64| mib.saturating_mul(MIB).div_ceil(unit).saturating_mul(unit);
    volume.size.as_mib().map_or(Ordering::Equal, |mib| found.size_bytes.cmp(&expected(mib)))
}

/// Returns the remedy for a group to which an administrator has added physical volumes.
fn suggest_after_extension(
    group: &VolumeGroupSpec,
    wanted: &[DevicePath],
    found: &[&inventory::LvmVolumeGroup],
) -> Option<String> {
    let [extended] = found else { return None };
    let (expected, added): (Vec<&DevicePath>, Vec<_>) =
        extended.present_devices().partition(|device| wanted.contains(device));
    let is_complete = expected.len() == wanted.len() && extended.physical.len() == expected.len() + added.len();
    if extended.name != group.name || !is_complete || added.is_empty() {
        return None;
    }
    let added: Vec<&str> = added.into_iter().map(DevicePath::as_str).collect();
    let added = added.join(", ");
    Some(format!(
        "; the group was extended: add {added} to the devices of the group in the layout, on disks without \
            wipeonreinstall, or remove {added} from the group with pvmove and vgreduce in the installed system"
    ))
}

/// Describes a group: `vg:vg00 on /dev/sda, a missing device (volumes: root, data)`.
pub fn describe_group(group: &inventory::LvmVolumeGroup) -> String {
    let devices = group.physical.iter().map(|physical| physical.device.as_ref());
    let on: Vec<&str> = devices.map(|device| device.map_or("a missing device", DevicePath::as_str)).collect();
    let volumes: Vec<&str> = group.volumes.iter().map(|volume| volume.name.as_str()).collect();
    let volumes = if volumes.is_empty() { "none".to_owned() } else { volumes.join(", ") };
    format!("vg:{group} on {devices} (volumes: {volumes})", group = group.name, devices = on.join(", "))
}
