//! Volume groups and logical volumes of the layout.

use super::LayoutBuilder;
use crate::layout_device_names::is_supported_volume;
use crate::underlying_devices::{find_layers, physical_volumes};
use model::device_name::KernelName;
use model::inventory::{LvmLogicalVolume, LvmVolumeGroup, StackedDeviceKind};
use model::layout::{EncryptionSpec, GroupPreservation, KeySource, LogicalVolumeSpec, LvmType, VolumeGroupSpec};
use model::storage_graph::{DeviceStack, StackUnit};

const MIB: u64 = 1 << 20;

impl LayoutBuilder<'_> {
    /// Adds all groups on listed disks, with the volumes that layouts support. A group on logical volumes of another
    /// group, such as that of a virtual machine, is part of the content of these volumes.
    pub fn add_groups(&mut self) {
        for group in self.machine.inventory.groups.iter().filter(|group| !is_on_volumes(&self.machine.stack, group)) {
            let devices = group.present_devices().map(|device| self.machine.name_path(device, &self.disks));
            let Ok(devices) = devices.collect::<Result<Vec<_>, _>>() else { continue };
            self.check_group(group);
            let purpose = self.machine.purpose_of_group(group);
            let devices: Vec<_> = devices.into_iter().map(|device| device.path).collect();
            self.used.extend(devices.iter().cloned());
            let is_encrypted = self.is_encrypted_group(group) && purpose.data;
            self.layout.volumegroups.push(VolumeGroupSpec {
                name: group.name.clone(),
                devices,
                tags: group.tags.clone(),
                encrypted: is_encrypted.then_some(EncryptionSpec { key: KeySource::Prompt }),
                preserve: self.find_preservation(group),
            });
            for volume in self.sort_volumes(group) {
                self.add_volume(group, volume);
            }
        }
    }

    /// Returns the volumes in the order of their devices. Inactive volumes follow.
    fn sort_volumes<'g>(&self, group: &'g LvmVolumeGroup) -> Vec<&'g LvmLogicalVolume> {
        let stacked = &self.machine.inventory.stacked;
        let position = |name: &KernelName| stacked.iter().position(|stacked| stacked.name == *name);
        let mut volumes: Vec<&LvmLogicalVolume> = group.volumes.iter().collect();
        volumes.sort_by_cached_key(|volume| volume.running.as_ref().and_then(position).unwrap_or(usize::MAX));
        volumes
    }

    /// Adds the volume, unless the group preserves it without an entry. The purpose of a volume includes that of all
    /// objects on it, such as partitions and LUKS containers.
    fn add_volume(&mut self, group: &LvmVolumeGroup, volume: &LvmLogicalVolume) {
        let name = format!("/dev/{}/{}", group.name, volume.name);
        let lvmtype = LvmType::ALL.into_iter().find(|lvmtype| lvmtype.name() == volume.kind);
        let Some(lvmtype) = lvmtype else { return };
        let is_mounted = self.used.contains(name.as_str());
        let is_data = self.machine.purpose_of_volume(group, volume).data;
        if is_data && !is_mounted && (self.is_preserved_group(group) || !is_activated_alone(volume)) {
            return;
        }
        self.layout.logicalvolumes.push(LogicalVolumeSpec {
            name: volume.name.clone(),
            volumegroup: group.name.clone(),
            size: (volume.size_bytes / MIB).into(),
            lvmtype,
            preserve: is_data && !is_mounted && self.is_renewed_group(group),
        });
    }

    fn check_group(&mut self, group: &LvmVolumeGroup) {
        let name = &group.name;
        if group.physical.iter().any(|physical| physical.device.is_none()) {
            self.prevent(format!("vg:{name}: a physical volume is missing: connect its disk"));
        }
        if let Some(why) = &group.closed {
            self.prevent(format!("vg:{name}: {why}"));
        }
        let purpose = self.machine.purpose_of_group(group);
        let others: Vec<String> = group
            .volumes
            .iter()
            .filter(|volume| !is_supported_volume(&volume.kind))
            .map(|volume| format!("{} ({})", volume.name, volume.kind))
            .collect();
        if !others.is_empty() {
            let remark = match purpose.system {
                true => "; the image must contain the tools that activate them, such as thin-provisioning-tools",
                false => "",
            };
            self.report(format!(
                "vg:{name}: the group is preserved, including volumes of types that layouts do not support: {}{remark}",
                others.join(", ")
            ));
        }
        if purpose.is_shared() && self.is_encrypted_group(group) {
            self.prevent(format!("vg:{name} is encrypted and contains the system and data, but layouts do not support an encrypted system"));
        }
        if purpose.system && !purpose.data && self.is_encrypted_group(group) {
            self.report(format!("vg:{name}: the system is encrypted, but layouts support encryption only for data; the new system is not encrypted"));
        }
        for volume in &group.volumes {
            let is_mounted = self.used.contains(format!("/dev/{name}/{}", volume.name).as_str());
            if let Some(why) = volume.entangled.as_ref().filter(|_| is_mounted) {
                self.report(format!(
                    "/dev/{name}/{}: {why}; remove the snapshot or complete the operation before the reinstall",
                    volume.name
                ));
            }
        }
    }

    /// Returns the value of `preserve` of the group. The whole group is preserved if it contains only data. In a group
    /// that also contains the system, volumes are preserved individually; the value `unlisted` preserves data that the
    /// layout does not list.
    fn find_preservation(&self, group: &LvmVolumeGroup) -> GroupPreservation {
        let purpose = self.machine.purpose_of_group(group);
        let mut data = group.volumes.iter().filter(|volume| self.machine.purpose_of_volume(group, volume).data);
        match () {
            () if !purpose.data || !self.is_renewed_group(group) => GroupPreservation::None,
            () if !purpose.system => GroupPreservation::All,
            () if data.all(is_activated_alone) => GroupPreservation::None,
            () => GroupPreservation::Unlisted,
        }
    }

    /// Returns whether the whole group needs `preserve: true`.
    pub fn is_preserved_group(&self, group: &LvmVolumeGroup) -> bool {
        self.find_preservation(group) == GroupPreservation::All
    }

    /// Returns whether a reinstall recreates parts of the group's disks outside the group.
    fn is_renewed_group(&self, group: &LvmVolumeGroup) -> bool {
        group.present_devices().any(|device| self.is_partly_renewed(&self.machine.stack.kernel_name(device)))
    }

    pub fn is_encrypted_group(&self, group: &LvmVolumeGroup) -> bool {
        let stack = &self.machine.stack;
        group.present_devices().any(|device| {
            matches!(stack.find_unit(&stack.kernel_name(device)), StackUnit::Stacked(stacked) if stacked.kind == StackedDeviceKind::Crypt)
        })
    }
}

/// Returns whether a physical volume of the group is on a logical volume.
fn is_on_volumes(stack: &DeviceStack, group: &LvmVolumeGroup) -> bool {
    find_layers(stack, physical_volumes(stack, group)).iter().any(|name| stack.find_volume(name).is_some())
}

/// Returns whether a layout can list the volume: LVM activates it without other volumes.
fn is_activated_alone(volume: &LvmLogicalVolume) -> bool {
    is_supported_volume(&volume.kind) && volume.entangled.is_none()
}
