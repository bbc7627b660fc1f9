//! Kubernetes volumes that are separate logical volumes in a group of the layout.

use super::super::PersistentVerdict;
use super::super::partition_placement::MIB;
use super::super::plan_decisions::GroupFate;
use super::super::planned_device_capacity::{self, CapacityShortage, EXTENT_BYTES};
use super::super::planned_devices::{DeviceFate, DeviceSize as Known};
use super::super::planner_state::PlannerState;
use super::{VolumeDecision, VolumeRefusal, as_preserved, group_extension_check, is_wiped_later, udev_path};
use crate::content_descriptions;
use common::format;
use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::install_marker::PendingCreation;
use model::inventory::{self, VolumeHealth};
use model::k8s_volume::{K8sVolume, VolumeContent};
use model::layout::{LvmType, RequestedSize};
use operations::{CreateK8sVolume, CreateVolume, InitialVolumeContent, VolumePath, logical_volume_link};
use std::collections::BTreeSet;

impl<'a> PlannerState<'a> {
    pub(super) fn decide_logical(
        &mut self,
        volume: &K8sVolume,
        group: &str,
        size_bytes: u64,
    ) -> Result<VolumeDecision, VolumeRefusal> {
        let layout = self.layout;
        if layout.logicalvolumes.iter().any(|listed| listed.volumegroup == group && listed.name == volume.name) {
            return Err(Some(format!(
                "has the name of a volume that the layout defines in vg:{group}; list the volume as rawBlockDevice"
            )));
        }
        let Some(listed) = layout.volumegroups.iter().find(|listed| listed.name == group) else {
            return Err(Some(format!("requires vg:{group}, which is not in the layout")));
        };
        // If the group is not in the plan, it was refused, and the refusal is already reported.
        let Some(found) = self.groups.get(group) else { return Err(None) };
        let (fate, preserved_group) = (found.fate, found.preserved);
        if is_wiped_later(self.request.mode, fate) {
            return Err(Some(format!(
                "requires vg:{group}, which a reinstall wipes; set wipeonreinstall: false for the disks of this group"
            )));
        }
        let mib = size_bytes.div_ceil(MIB);
        let create = CreateVolume {
            name: volume.name.clone(),
            group: group.to_owned(),
            device: format!("/dev/{group}/{}", volume.name).into(),
            physical: found.physical.clone(),
            size: RequestedSize::from(mib),
            kind: LvmType::Linear,
        };
        if fate != DeviceFate::Preserved {
            self.warn_of_wipes(volume, &listed.devices);
        }
        let same_name = preserved_group
            .and_then(|preserved_group| preserved_group.volumes.iter().find(|found| found.name == volume.name));
        if let Some(decision) = self.preserve_renamed_volume(volume, &create.device, same_name)? {
            return Ok(decision);
        }
        match (preserved_group, same_name) {
            (None, _) => self.make_logical(volume, create, mib, &listed.devices),
            (Some(preserved_group), Some(found)) => {
                self.preserve_logical_volume(volume, create, preserved_group, found, size_bytes, &listed.devices)
            }
            (Some(preserved_group), None) => {
                self.add_logical(volume, create, preserved_group, size_bytes, &listed.devices)
            }
        }
    }

    /// Preserves a renamed volume under its current name. The volume is found by its UUID, or by the recorded LVM UUID
    /// of a `Block` volume. Returns `None` if there is no such volume; the caller then decides on the volume with the
    /// requested name, if it exists.
    fn preserve_renamed_volume(
        &mut self,
        volume: &K8sVolume,
        named: &DevicePath,
        same_name: Option<&inventory::LvmLogicalVolume>,
    ) -> Result<Option<VolumeDecision>, VolumeRefusal> {
        if volume.content == VolumeContent::Block {
            return self.preserve_recorded_volume(volume, named, same_name);
        }
        let Some((device, unit)) = self.find_preserved(volume)?.filter(|_| same_name.is_none()) else {
            return Ok(None);
        };
        self.warn(format!(
            "volume {volume} refers to {named}, but is kept on {device}, which has the UUID of the volume",
            volume = volume.name
        ));
        Ok(Some(self.preserve_raw_device(volume, None, device, unit)))
    }

    fn preserve_recorded_volume(
        &mut self,
        volume: &K8sVolume,
        named: &DevicePath,
        same_name: Option<&inventory::LvmLogicalVolume>,
    ) -> Result<Option<VolumeDecision>, VolumeRefusal> {
        let recorded = self.find_record(volume).and_then(|record| self.recorded_logical(record));
        let stays = |group: &inventory::LvmVolumeGroup| !group.present_devices().any(|device| self.is_erased(device));
        let Some((group, found)) = recorded.filter(|(group, _)| stays(group)) else { return Ok(None) };
        if same_name.is_some_and(|same_name| same_name.uuid == found.uuid) {
            return Ok(None);
        }
        let device = DevicePath::from(format!("/dev/{}/{}", group.name, found.name));
        if found.health == VolumeHealth::Lost {
            return Err(Some(format!(
                "cannot be kept on {device}, which was {named}: part of the volume's data is missing; attach the missing disk"
            )));
        }
        self.warn(format!(
            "volume {volume} refers to {named}, but is kept on {device}, which has the recorded LVM UUID",
            volume = volume.name
        ));
        Ok(Some(VolumeDecision {
            device,
            disks: group.present_devices().flat_map(|device| self.disks_below(device)).collect(),
            verdict: PersistentVerdict::Keep,
            size: Known::Known(found.size_bytes),
            sector_bytes: 512,
            prepare: None,
            persistent: VolumePath::Known(logical_volume_link(&group.uuid, &found.uuid)),
        }))
    }

    fn make_logical(
        &mut self,
        volume: &K8sVolume,
        create: CreateVolume,
        mib: u64,
        on: &[LayoutPath],
    ) -> Result<VolumeDecision, VolumeRefusal> {
        let Some(group) = self.groups.get_mut(create.group.as_str()) else { return Err(None) };
        let sector_bytes = group.sector_bytes;
        let room = group.free.as_mut().map(|free| {
            planned_device_capacity::allocate_extents(LvmType::Linear, RequestedSize::from(mib), EXTENT_BYTES, free)
        });
        let size_bytes = match room.transpose() {
            Ok(known) => known.unwrap_or(mib.saturating_mul(MIB).next_multiple_of(EXTENT_BYTES)),
            Err(CapacityShortage { required_mib, existing_mib }) => {
                let why = format!(
                    "needs {required_mib} MiB in vg:{group}, which has {existing_mib} MiB left",
                    group = create.group
                );
                return Err(Some(why));
            }
        };
        let disks = self.disks_meant(on);
        Ok(self.created_decision(volume, create, size_bytes, sector_bytes, disks, PersistentVerdict::Make))
    }

    /// Adds the volume to a preserved group. On the disks of the group, only the new extents and the LVM metadata that
    /// records these extents are written.
    fn add_logical(
        &mut self,
        volume: &K8sVolume,
        create: CreateVolume,
        preserved_group: &'a inventory::LvmVolumeGroup,
        size_bytes: u64,
        on: &[LayoutPath],
    ) -> Result<VolumeDecision, VolumeRefusal> {
        let group = &create.group;
        if preserved_group.physical.iter().any(|physical| physical.device.is_none()) {
            return Err(Some(format!(
                "is new in vg:{group}, which lacks a physical volume, so no volume can be added"
            )));
        }
        let disks: BTreeSet<KernelName> =
            preserved_group.present_devices().flat_map(|device| self.disks_below(device)).collect();
        let mut beneath = self.inventory.disks.iter().filter(|disk| disks.contains(&disk.name));
        if let Some(disk) = beneath.find(|disk| disk.read_only) {
            return Err(Some(format!("is new in vg:{group}, but {disk} is read-only", disk = disk.device)));
        }
        let extent = preserved_group.extent_bytes.max(1);
        let size_bytes = size_bytes.div_ceil(MIB).saturating_mul(MIB).div_ceil(extent).saturating_mul(extent);
        let added = self.added.entry(group.clone()).or_default();
        if let Some(why) = group_extension_check::find_obstacle(preserved_group, size_bytes, added) {
            return Err(Some(why));
        }
        added.push(size_bytes);
        self.record_extension(&preserved_group.uuid, volume, &create, on);
        let sector_bytes = self.groups.get(create.group.as_str()).map_or(512, |group| group.sector_bytes);
        Ok(self.created_decision(volume, create, size_bytes, sector_bytes, disks, PersistentVerdict::Extend))
    }

    /// Records the new volume, so that the next attempt recognizes the volume if this attempt is interrupted.
    fn record_extension(&mut self, group: &str, volume: &K8sVolume, create: &CreateVolume, on: &[LayoutPath]) {
        self.decided.persistent.extended.insert(create.group.clone());
        if let VolumeContent::Filesystem { .. } = volume.content {
            let making =
                PendingCreation::for_filesystem(format!("volume {group} {}", volume.name), volume.uid.to_string());
            self.decided.new_filesystems.extend(on.first().map(|first| (first.clone(), making)));
        }
    }

    fn created_decision(
        &mut self,
        volume: &K8sVolume,
        create: CreateVolume,
        size_bytes: u64,
        sector_bytes: u32,
        disks: BTreeSet<KernelName>,
        verdict: PersistentVerdict,
    ) -> VolumeDecision {
        let device = create.device.clone();
        let persistent = match volume.content {
            VolumeContent::Filesystem { .. } => udev_path(volume),
            VolumeContent::Block => VolumePath::NewVolume(create.clone()),
        };
        let filling = self.volume_filling(volume, &device, true);
        let prepare = self.prepare_logical(volume, &device, Some(create), filling);
        VolumeDecision {
            device,
            disks,
            verdict,
            size: Known::Known(size_bytes),
            sector_bytes,
            prepare: Some(prepare),
            persistent,
        }
    }

    fn prepare_logical(
        &self,
        volume: &K8sVolume,
        device: &DevicePath,
        create: Option<CreateVolume>,
        filling: InitialVolumeContent,
    ) -> CreateK8sVolume {
        let (name, uid, device) = (volume.name.clone(), volume.uid, device.clone());
        CreateK8sVolume { name, uid, device, create, must_be_blank: false, filling }
    }

    /// Preserves the logical volume that has the requested name in the preserved group, if it is the Kubernetes volume.
    fn preserve_logical_volume(
        &mut self,
        volume: &K8sVolume,
        create: CreateVolume,
        preserved_group: &'a inventory::LvmVolumeGroup,
        found: &'a inventory::LvmLogicalVolume,
        size_bytes: u64,
        on: &[LayoutPath],
    ) -> Result<VolumeDecision, VolumeRefusal> {
        let device = create.device.clone();
        let refuse = |why: String| Err(Some(format!("cannot use {device}: {why}")));
        if let Some(why) = describe_unusable(found, size_bytes) {
            return refuse(why);
        }
        let running = found.running.as_ref().and_then(|name| self.stack.find_stacked(name));
        let is = VolumeDecision {
            device: device.clone(),
            disks: preserved_group.present_devices().flat_map(|device| self.disks_below(device)).collect(),
            verdict: PersistentVerdict::Keep,
            size: Known::Known(found.size_bytes),
            sector_bytes: self.groups.get(create.group.as_str()).map_or(512, |group| group.sector_bytes),
            prepare: None,
            persistent: udev_path(volume),
        };
        if volume.content == VolumeContent::Block {
            if let Some(other) = running.and_then(|running| self.volume_of_filesystem(&running.signatures)) {
                return refuse(format!("the device contains the filesystem of volume {other}"));
            }
            let persistent = VolumePath::Known(logical_volume_link(&preserved_group.uuid, &found.uuid));
            return Ok(VolumeDecision { persistent, ..is });
        }
        let elsewhere = self.find_preserved(volume)?;
        let Some(running) = running else {
            return refuse("the volume is not active, so its content is unknown".to_owned());
        };
        if let Some((carrier, _)) = elsewhere {
            let is_there = *carrier == running.device;
            return if is_there { Ok(is) } else { refuse(format!("the UUID of the volume is on {carrier}")) };
        }
        let content = as_preserved(&running.device, &running.signatures, found.size_bytes);
        let cut_off = self.find_unfinished(&content).is_some_and(|uuid| uuid == volume.uid.to_string());
        if let Some(why) = describe_foreign_content(running, found, cut_off) {
            return refuse(why);
        }
        if !cut_off {
            self.require_zeros(&running.device, found.size_bytes);
        }
        let prepare = self.initialize_existing(volume, &create, preserved_group, on);
        Ok(VolumeDecision { verdict: PersistentVerdict::Extend, prepare: Some(prepare), ..is })
    }

    /// Initializes a logical volume that an earlier attempt created but did not initialize.
    fn initialize_existing(
        &mut self,
        volume: &K8sVolume,
        create: &CreateVolume,
        preserved_group: &inventory::LvmVolumeGroup,
        on: &[LayoutPath],
    ) -> CreateK8sVolume {
        self.record_extension(&preserved_group.uuid, volume, create, on);
        self.activate_volume(create);
        let filling = self.volume_filling(volume, &create.device, true);
        self.prepare_logical(volume, &create.device, None, filling)
    }

    fn activate_volume(&mut self, create: &CreateVolume) {
        for fate in &mut self.decided.groups {
            if let GroupFate::Preserved { name, volumes, .. } = fate
                && *name == create.group
            {
                volumes.push(create.name.clone());
            }
        }
    }
}

fn describe_found(signatures: &[inventory::DeviceSignature]) -> String {
    match signatures {
        [] => content_descriptions::describe_unrecognized(false).to_owned(),
        found => found.iter().map(content_descriptions::describe_signature).collect::<Vec<_>>().join(" and "),
    }
}

/// Returns the reason why an existing logical volume cannot contain a volume of this size, or `None` if it can.
fn describe_unusable(found: &inventory::LvmLogicalVolume, size_bytes: u64) -> Option<String> {
    if found.health == VolumeHealth::Lost {
        return Some("part of the volume's data is missing".to_owned());
    }
    let (is, wanted) = (format::format_bytes(found.size_bytes), format::format_bytes(size_bytes));
    (found.size_bytes < size_bytes).then(|| format!("the size of the volume is {is} instead of {wanted}"))
}

/// Returns why an existing logical volume without the UUID of the Kubernetes volume must not be initialized; `None` if
/// the volume may be initialized. `cut_off` is true if an interrupted attempt was initializing the volume.
fn describe_foreign_content(
    running: &inventory::StackedDevice,
    found: &inventory::LvmLogicalVolume,
    cut_off: bool,
) -> Option<String> {
    if !running.blank && !cut_off {
        let there = describe_found(&running.signatures);
        return Some(format!("the device does not have the UUID of the volume, but contains {there}"));
    }
    let how = found.entangled.as_ref()?;
    Some(format!("the volume {how}; remove the snapshot, or complete the merge or move, in the installed system"))
}
