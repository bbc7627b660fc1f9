//! Arrays, groups, volumes, and containers that a plan creates on the simulated machine.

use super::*;

impl Machine {
    pub(super) fn create_array(&mut self, array: &CreateArray) {
        let active = array.devices.len() - array.spares as usize;
        let there = array.devices.iter().enumerate();
        let there = there.filter_map(|(index, member)| Some((index, member.device()?)));
        let members = there.map(|(index, device)| ArrayMember {
            device: self.current_path(device),
            role: if index < active { MemberRole::Active(index as u32) } else { MemberRole::Spare },
        });
        let members: Vec<ArrayMember> = members.collect();
        let name = match array.device.as_str().strip_prefix("/dev/md/") {
            Some(_) => self.free_name((0..128).rev().map(|number| format!("md{number}"))),
            None => array.device.kernel_name(),
        };
        assert!(!self.0.stacked.iter().any(|stacked| stacked.name == name), "{name} runs already");
        let sizes: Vec<u64> = members.iter().map(|member| self.size(&member.device)).collect();
        let least = sizes.iter().min().copied().unwrap();
        self.occupy(members.iter().map(|member| member.device.clone()).collect(), "linux_raid_member", &name);
        let below = members.iter().map(|member| self.0.resolve_kernel_name(&member.device)).collect();
        self.0.stacked.push(StackedDevice {
            device: name.device_path(),
            kind: StackedDeviceKind::Array,
            below,
            // Every simulated array has the size of its smallest member, regardless of its level.
            size_bytes: least,
            assembled: true,
            name: name.clone(),
            ..StackedDevice::default()
        });
        self.0.arrays.push(MdArray {
            uuid: array.uuid,
            name: array.device.as_str().rsplit('/').next().unwrap().trim_start_matches("md").to_owned(),
            level: array.level.to_string(),
            metadata: array.metadata.clone(),
            raid_devices: active as u32,
            members,
            running: Some(name),
            ..MdArray::default()
        });
    }

    pub(super) fn create_group(&mut self, group: &CreateGroup) {
        assert!(!self.0.groups.iter().any(|is| is.name == group.name), "{} is there already", group.name);
        let devices: Vec<DevicePath> = group.devices.iter().map(|device| self.current_path(device)).collect();
        for device in &devices {
            self.claim(device, "LVM2_member");
        }
        let physical = devices.into_iter().map(|device| LvmPhysicalVolume {
            size_bytes: self.size(&device),
            uuid: device.to_string(),
            device: Some(device),
        });
        let physical = physical.collect();
        let (name, tags) = (group.name.clone(), group.tags.clone());
        let extents = |physical: &LvmPhysicalVolume| physical.size_bytes.saturating_sub(MIB) / (4 * MIB);
        let physical: Vec<LvmPhysicalVolume> = physical;
        let free_bytes = Some(physical.iter().map(extents).sum::<u64>() * 4 * MIB);
        let extent_bytes = 4 * MIB;
        let group = LvmVolumeGroup { name, extent_bytes, tags, free_bytes, physical, ..LvmVolumeGroup::default() };
        self.0.groups.push(group);
    }

    pub(super) fn create_volume(&mut self, volume: &CreateVolume) {
        let physical: Vec<DevicePath> = volume.physical.iter().map(|device| self.current_path(device)).collect();
        let name = self.free_name((0..).map(|number| format!("dm-{number}")));
        let unit = if volume.kind.name() == "striped" { 4 * physical.len() as u64 } else { 4 } * MIB;
        let size_bytes = (volume.size.as_mib().unwrap_or(1) * MIB).next_multiple_of(unit);
        for device in &physical {
            assert!(
                self.signatures(device).iter().any(|signature| signature.kind == "LVM2_member"),
                "{device} for {}",
                volume.name
            );
            self.uses(device).push(DeviceUse::Holder(name.clone()));
        }
        self.0.stacked.push(StackedDevice {
            device: format!("/dev/mapper/{}-{}", volume.group.replace('-', "--"), volume.name.replace('-', "--"))
                .into(),
            kind: StackedDeviceKind::Volume,
            below: physical.iter().map(|device| self.0.resolve_kernel_name(device)).collect(),
            size_bytes,
            assembled: true,
            name: name.clone(),
            ..StackedDevice::default()
        });
        let group = self.0.groups.iter_mut().find(|group| group.name == volume.group).unwrap();
        assert!(group.volumes.iter().all(|is| is.name != volume.name), "{} is there already", volume.name);
        let ranges = volume_space::allocate_ranges(group, volume.kind, size_bytes);
        let taken = volume_space::occupied_bytes(volume.kind.name(), size_bytes);
        group.free_bytes = group.free_bytes.map(|free| free.saturating_sub(taken));
        group.volumes.push(LvmLogicalVolume {
            name: volume.name.clone(),
            size_bytes,
            kind: volume.kind.name().to_owned(),
            running: Some(name),
            ranges,
            ..LvmLogicalVolume::default()
        });
        volume_space::update_allocation(group);
    }

    pub(super) fn create_container(&mut self, container: &LuksContainer) {
        let LuksContainer { device, uuid, mapping, .. } = container;
        let (kind, usage) = ("crypto_LUKS".to_owned(), "crypto".to_owned());
        let signatures = self.signatures(device);
        assert!(signatures.is_empty(), "{device} has {signatures:?}");
        signatures.push(DeviceSignature { kind, usage, uuid: uuid.to_string(), ..DeviceSignature::default() });
        self.mark_written(device);
        self.show_on_members(device);
        let name = self.free_name((0..).map(|number| format!("dm-{number}")));
        self.uses(device).push(DeviceUse::Holder(name.clone()));
        let (below, size_bytes) =
            (self.0.resolve_kernel_name(&self.current_path(device)), self.size(&self.current_path(device)) - 16 * MIB);
        let (kind, assembled) = (StackedDeviceKind::Crypt, true);
        let (device, below) = (mapping.clone(), vec![below]);
        self.0.stacked.push(StackedDevice {
            name,
            device,
            kind,
            below,
            size_bytes,
            assembled,
            ..StackedDevice::default()
        });
    }
}
