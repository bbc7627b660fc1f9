//! Devices of the simulated machine: their names, users, signatures, and sizes.

use super::*;

impl Machine {
    pub(super) fn free_name(&self, names: impl Iterator<Item = String>) -> KernelName {
        let is_taken = |machine: &Inventory, name: &KernelName| machine.stacked.iter().any(|is| is.name == *name);
        // Devices that were stopped get their names back, so these names remain reserved.
        let is_free = |name: &KernelName| !is_taken(&self.0, name) && !self.1.iter().any(|old| is_taken(old, name));
        names.map(KernelName::from).find(is_free).unwrap()
    }

    pub(super) fn occupy(&mut self, devices: Vec<DevicePath>, kind: &str, holder: &KernelName) {
        for device in devices {
            self.claim(&device, kind);
            self.uses(&device).push(DeviceUse::Holder(holder.clone()));
        }
    }

    pub(super) fn claim(&mut self, device: &DevicePath, kind: &str) {
        let signatures = self.signatures(device);
        assert!(signatures.is_empty(), "{device} has {signatures:?}");
        signatures.push(DeviceSignature {
            kind: kind.to_owned(),
            usage: "raid".to_owned(),
            ..DeviceSignature::default()
        });
        self.mark_written(device);
        self.show_on_members(device);
    }

    /// Copies the signatures on an array to its members if the array's metadata is at the end of the members, because
    /// the signatures are then also visible on the members.
    pub(super) fn show_on_members(&mut self, device: &DevicePath) {
        let content = self.signatures(device).clone();
        let name = self.0.resolve_kernel_name(&self.current_path(device));
        let is_it = |array: &&MdArray| {
            array.running.as_ref() == Some(&name) && ["0.90", "1.0"].contains(&array.metadata.as_str())
        };
        let members = self.0.arrays.iter().find(is_it).map(|array| array.members.clone()).unwrap_or_default();
        for member in members {
            self.signatures(&member.device).extend(content.iter().cloned());
        }
    }

    /// Returns the current path of a device of the plan: an array or volume may be active under another name.
    pub(super) fn current_path(&self, device: &DevicePath) -> DevicePath {
        let array = |array: &&MdArray| {
            *device == format!("/dev/md/{}", array.name) || *device == format!("/dev/md{}", array.name)
        };
        let running = self.0.arrays.iter().rev().find(array).and_then(|array| array.running.clone());
        let volume =
            device.as_str().strip_prefix("/dev/").and_then(|path| path.split_once('/')).and_then(|(group, name)| {
                let group = self.0.groups.iter().find(|is| is.name == group)?;
                group.volumes.iter().find(|volume| volume.name == name)?.running.clone()
            });
        match volume.or(running) {
            Some(name) => self.0.stacked.iter().find(|stacked| stacked.name == name).unwrap().device.clone(),
            None => device.clone(),
        }
    }

    pub(super) fn disk(&mut self, device: &DevicePath) -> &mut InventoryDisk {
        self.0.disks.iter_mut().find(|disk| disk.device == *device).unwrap()
    }

    pub(super) fn uses(&mut self, device: &DevicePath) -> &mut Vec<DeviceUse> {
        self.unit(device).1
    }

    pub(super) fn signatures(&mut self, device: &DevicePath) -> &mut Vec<DeviceSignature> {
        self.unit(device).0
    }

    /// Records that a disk or partition is no longer blank.
    pub(super) fn mark_written(&mut self, device: &DevicePath) {
        for disk in &mut self.0.disks {
            disk.blank &= disk.device != *device;
            let partitions = disk.table.iter_mut().flat_map(|table| &mut table.partitions);
            partitions.for_each(|part| part.blank &= part.device != *device);
        }
    }

    pub(super) fn unit(&mut self, device: &DevicePath) -> (&mut Vec<DeviceSignature>, &mut Vec<DeviceUse>) {
        let device = self.current_path(device);
        let disks = self.0.disks.iter_mut();
        let disks = disks.map(|disk| (&disk.device, &disk.name, &mut disk.table, &mut disk.signatures, &mut disk.uses));
        let stacked = self.0.stacked.iter_mut();
        let stacked = stacked.map(|stacked| {
            (&stacked.device, &stacked.name, &mut stacked.table, &mut stacked.signatures, &mut stacked.uses)
        });
        for (path, name, table, signatures, uses) in disks.chain(stacked) {
            if *path == device || device == name.device_path() {
                return (signatures, uses);
            }
            let mut partitions = table.iter_mut().flat_map(|table| &mut table.partitions);
            if let Some(partition) = partitions.find(|partition| partition.device == device) {
                return (&mut partition.signatures, &mut partition.uses);
            }
        }
        panic!("{device} does not exist")
    }

    pub(super) fn size(&self, device: &DevicePath) -> u64 {
        let disks = self.0.disks.iter().map(|disk| (&disk.device, disk.size_bytes));
        let stacked = self.0.stacked.iter().map(|stacked| (&stacked.device, stacked.size_bytes));
        let partitions = self.0.disks.iter().flat_map(|disk| &disk.table).flat_map(|table| &table.partitions);
        let partitions = partitions.map(|partition| (&partition.device, partition.size_bytes));
        disks.chain(stacked).chain(partitions).find(|(path, _)| *path == device).unwrap().1
    }
}
