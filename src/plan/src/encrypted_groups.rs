//! Encrypted volume groups: each physical volume is in a separate LUKS container. The container is created or
//! preserved together with the device that contains it.
//!
//! | preserved devices of a group that is `encrypted` in the layout | result |
//! |---|---|
//! | have containers that open with the key | the group in the containers is compared and preserved like any other group |
//! | have a container that does not open, and the new system mounts a volume of the group without `nofail` or `noauto`, or swaps to it | refused, with the reason |
//! | have a container that does not open, and the new system does not require the group | `locked_containers` decides whether all containers stay locked |
//! | have a container that does not open, and an earlier attempt was interrupted while it recreated a disk with one of the devices | the disk is recreated if this solves all problems, otherwise refused |
//! | have a container that does not open, and a device of the group is missing | refused: the content of that device is unknown |
//! | have any other content | refused, with the expected and the found content |

use super::plan_decisions::GroupFate;
use crate::planner_state::UnopenedReason;

use super::filesystem_fate::FilesystemFate;
use super::filesystems::is_in_fstab;
use super::k8s_volumes;
use super::locked_containers::{self, LockedContainers};
use super::luks;
use super::plan_decisions::{LuksDecision, LuksFate};
use super::planned_devices::{DeviceFate, PlannedDevice, UnderlyingDevices};
use super::planner_state::PlannerState;
use super::preserved_activation::mount_path;
use common::error_code::ErrorCode;
use model::device_name::{DevicePath, LayoutPath};
use model::inventory::InspectionTarget;
use model::k8s_volume::{K8sVolume, VolumeSource};
use model::layout::{EncryptionSpec, FilesystemFormat, FilesystemSpec, VolumeGroupSpec};
use operations::LuksContainer;
use uuid::Uuid;

impl<'a> PlannerState<'a> {
    /// Returns the mappings of the containers on these devices. The physical volumes of the group are these mappings,
    /// and not the devices. Returns `None` if a container was refused or not inspected.
    pub(crate) fn open_containers(
        &mut self,
        place: &str,
        group: &'a VolumeGroupSpec,
        encrypted: EncryptionSpec,
        below: &UnderlyingDevices<'a>,
    ) -> Option<UnderlyingDevices<'a>> {
        let devices = match below.fate {
            DeviceFate::Wiped | DeviceFate::Blank => self.create_containers(place, group, encrypted, below)?,
            DeviceFate::Preserved => self.preserve_containers(place, group, encrypted, below)?,
        };
        Some(UnderlyingDevices { devices, fate: below.fate })
    }

    fn create_containers(
        &mut self,
        place: &str,
        group: &VolumeGroupSpec,
        encrypted: EncryptionSpec,
        below: &UnderlyingDevices<'a>,
    ) -> Option<Vec<PlannedDevice<'a>>> {
        let mut inside = Vec::new();
        for (index, device) in below.devices.iter().enumerate() {
            if device.absent.is_some() {
                inside.push(device.clone());
                continue;
            }
            if let Some(message) = luks::check_min_size(&group.devices[index], device) {
                self.refuse(ErrorCode::TooSmall, format!("{place}.devices[{index}]"), message);
                return None;
            }
            let uuid = (self.ids)();
            let container = self.add_group_container(group, encrypted, device, uuid, LuksFate::Created);
            inside.push(luks::mapping_on(device, container.mapping));
        }
        Some(inside)
    }

    fn preserve_containers(
        &mut self,
        place: &str,
        group: &'a VolumeGroupSpec,
        encrypted: EncryptionSpec,
        below: &UnderlyingDevices<'a>,
    ) -> Option<Vec<PlannedDevice<'a>>> {
        let mut uuids = Vec::new();
        for device in below.present() {
            match luks::container_uuid_on(device) {
                Ok(uuid) => uuids.push(uuid),
                Err(why) => {
                    let message = format!(
                        "vg:{group} must be preserved on {device} in LUKS, but {why}",
                        group = group.name,
                        device = device.now
                    );
                    self.refuse(ErrorCode::PreservedMismatch, place, message);
                    return None;
                }
            }
        }
        let opened: Option<Vec<PlannedDevice>> =
            below.present().zip(&uuids).map(|(device, uuid)| self.find_opened(device, *uuid)).collect();
        if let Some(opened) = opened {
            self.add_group_containers(group, encrypted, below, &uuids, LuksFate::Opened);
            return Some(opened.into_iter().chain(below.absent().map(|(_, device)| device.clone())).collect());
        }
        self.decide_unopened_group(place, group, encrypted, below, &uuids);
        None
    }

    /// Decides on a group for which at least one container was not opened.
    fn decide_unopened_group(
        &mut self,
        place: &str,
        group: &'a VolumeGroupSpec,
        encrypted: EncryptionSpec,
        below: &UnderlyingDevices<'a>,
        uuids: &[Uuid],
    ) {
        self.decided.matching.extend(group.devices.iter().cloned());
        // While a container is locked, it is unknown which disks belong to the group, and whether the group works
        // without the absent disk.
        if below.absent().next().is_some() {
            return self.refuse_without_physical(group, below);
        }
        let failure =
            |device: &&PlannedDevice| self.inventory.find_failure(&InspectionTarget::Container(device.now.clone()));
        let failed = below.present().find_map(|device| Some((device.now.clone(), failure(&device)?)));
        let Some((device, why)) = failed else {
            return self.preserve_untried_group(group, encrypted, below, uuids);
        };
        if let Some(needed) = self.find_requirement(group) {
            let message = format!(
                "vg:{} must be preserved in LUKS, and the new system {needed}, but {device} cannot be opened: {why}. \
                 Provide the key of the group; or, if the new system can start without the group, add nofail to the mountoptions \
                 of its filesystems, and order the reinstall with {options}",
                group.name,
                options = locked_containers::leave_locked_options(uuids)
            );
            return self.refuse(ErrorCode::EncryptionLocked, place, message);
        }
        if group.devices.iter().any(|device| self.was_being_recreated(device)) {
            return self.refuse(
                ErrorCode::EncryptionLocked,
                place,
                locked_containers::describe_incomplete_container(&format!("vg:{}", group.name), why),
            );
        }
        let object = format!("vg:{}", group.name);
        self.decide_locked(place, &LockedContainers { object: &object, uuids, device: &device, reason: why });
        self.add_group_containers(group, encrypted, below, uuids, LuksFate::Locked);
        let name = group.name.clone();
        self.decided.groups.push(GroupFate::Preserved { name, devices: Vec::new(), volumes: Vec::new() });
        self.unopened_groups.insert(&group.name, UnopenedReason::Locked);
    }

    /// Preserves a group without inspection, because no key was tried for this plan.
    fn preserve_untried_group(
        &mut self,
        group: &'a VolumeGroupSpec,
        encrypted: EncryptionSpec,
        below: &UnderlyingDevices<'a>,
        uuids: &[Uuid],
    ) {
        self.warn(format!(
            "vg:{group}: the group was not opened for this plan; the machine will open the group with its key and inspect the content", group = group.name));
        let devices = self.add_group_containers(group, encrypted, below, uuids, LuksFate::Opened);
        let volumes = self.layout.logicalvolumes.iter().filter(|volume| volume.volumegroup == group.name);
        let volumes = volumes.map(|volume| volume.name.clone()).collect();
        self.decided.groups.push(GroupFate::Preserved { name: group.name.clone(), devices, volumes });
        self.unopened_groups.insert(&group.name, UnopenedReason::Unopened);
    }

    /// Returns the reason why the new system requires the group.
    fn find_requirement(&self, group: &VolumeGroupSpec) -> Option<String> {
        let needed = self.filesystems_in(group).find(|is| !luks::is_optional(is) && is_in_fstab(is))?;
        Some(mount_path(needed).map_or_else(
            || format!("swaps to {}", needed.device),
            |path| format!("mounts {} at {path}", needed.device),
        ))
    }

    fn filesystems_in(&self, group: &VolumeGroupSpec) -> impl Iterator<Item = &'a FilesystemSpec> {
        let (layout, name) = (self.layout, group.name.clone());
        layout
            .filesystems
            .iter()
            .filter(move |is| layout.find_encrypted_group(&is.device).is_some_and(|group| group.name == name))
    }

    /// Records the containers of all present devices, and returns their mappings.
    fn add_group_containers(
        &mut self,
        group: &VolumeGroupSpec,
        encrypted: EncryptionSpec,
        below: &UnderlyingDevices<'a>,
        uuids: &[Uuid],
        fate: LuksFate,
    ) -> Vec<DevicePath> {
        let devices: Vec<&PlannedDevice> = below.present().collect();
        let all = devices.into_iter().zip(uuids);
        all.map(|(device, uuid)| self.add_group_container(group, encrypted, device, *uuid, fate).mapping).collect()
    }

    fn add_group_container(
        &mut self,
        group: &VolumeGroupSpec,
        encrypted: EncryptionSpec,
        device: &PlannedDevice,
        uuid: Uuid,
        fate: LuksFate,
    ) -> LuksContainer {
        let key = luks::find_key(&self.request.assigned.allocation, encrypted.key);
        let container = LuksContainer::new(device.path.clone(), uuid, device.sector_bytes, encrypted.key, key);
        let container = LuksContainer { withheld: self.is_withheld(encrypted.key), ..container };
        let needed = self.filesystems_in(group).filter(|is| !luks::is_optional(is)).find_map(mount_path);
        self.decided.luks.push(LuksDecision::for_group(container.clone(), fate, &group.name, needed));
        if fate == LuksFate::Opened {
            self.mark_foreign_tpm(device);
        }
        container
    }

    /// Returns why the content of a device is unknown, if the device is in an encrypted group that was not opened.
    pub(crate) fn unopened_reason(&self, device: &LayoutPath) -> Option<UnopenedReason> {
        self.unopened_groups.get(self.layout.find_encrypted_group(device)?.name.as_str()).copied()
    }

    /// Decides on a filesystem whose volume has unknown content, because the group was not opened.
    pub(crate) fn decide_hidden(&mut self, filesystem: &FilesystemSpec, hidden: UnopenedReason) {
        let device = filesystem.device.as_device();
        self.decided.filesystems.push(match hidden {
            UnopenedReason::Unopened if filesystem.format != FilesystemFormat::None => {
                FilesystemFate::Preserved { device, uuid: None }
            }
            UnopenedReason::Unopened | UnopenedReason::Locked => {
                FilesystemFate::Unformatted { device, is_preserved: true }
            }
        });
    }

    /// Refuses a Kubernetes volume in a group whose content is unknown, because the group was not opened.
    pub(crate) fn refuse_hidden(&self, volume: &K8sVolume) -> Result<(), k8s_volumes::VolumeRefusal> {
        let group = match &volume.source {
            VolumeSource::Logical { group, .. } => Some(group.as_str()),
            VolumeSource::Raw(path) => self.layout.find_encrypted_group(path).map(|group| group.name.as_str()),
            VolumeSource::Discover(_) | VolumeSource::Sparse { .. } => None,
        };
        match group.filter(|group| self.unopened_groups.contains_key(group)) {
            Some(group) => {
                Err(Some(format!("is in vg:{group}, which is encrypted and was not opened; provide its key")))
            }
            None => Ok(()),
        }
    }
}
