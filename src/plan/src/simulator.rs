//! The machine after a plan has been executed, and while it is: every operation is checked against what is there.

#![allow(clippy::unwrap_used)]

use crate::*;
use model::device::{DevicePath, KernelName};
use model::inventory::{
    ArrayMember, DeviceSignature, DeviceUse, DiskPartition, DiskTable, Inventory, InventoryDisk, LvmLogicalVolume,
    LvmPhysicalVolume, LvmVolumeGroup, MdArray, MemberRole, StackedDevice, StackedDeviceKind,
};
use model::layout::FilesystemFormat;
use operations::{
    ActivateGroup, AssembleArray, BurnDisk, CreateArray, CreateGroup, CreateVolume, DeviceOp, Holder, LuksContainer,
    MakeFilesystem, OpenContainer, Operation, PartitionTable, PreparePersistent, ReceivedDevice, RemoveVariables,
    RestoreOp, SessionOp, VolumeFilling, WritePersistent,
};
use operations::{AssertFree, GrowFilesystem, MountReadOnly};

const MIB: u64 = 1 << 20;

/// Runs the plan up to the unmounting, and assembles what is there then, as the next run does.
///
/// # Panics
/// An operation uses what does not exist yet, or destroys what something else lies on.
pub fn after(plan: &Plan, before: Inventory) -> Inventory {
    cut(plan, before, usize::MAX)
}

/// The same with a power cut after so many operations.
pub(crate) fn cut(plan: &Plan, before: Inventory, operations: usize) -> Inventory {
    let mut machine = Machine(before);
    for operation in plan.stages.iter().flat_map(|stage| &stage.operations).take(operations) {
        machine.run(operation);
    }
    machine.0
}

/// What the root filesystem is known by once the plan has been executed.
#[cfg(test)]
pub(crate) fn root_uuid(plan: &Plan) -> String {
    let root = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| {
        let burn = match operation {
            Operation::Run(SessionOp::BurnDisk(burn)) => burn,
            Operation::Run(SessionOp::CreateSystem(create)) => &create.onto,
            _ => return None,
        };
        burn.filesystems.iter().find(|is| is.path == "/")
    });
    root.map_or_else(|| plan.root_uuid.clone(), |is| brought_uuid(is.number))
}

/// A raw image has the same UUIDs wherever it is written.
fn brought_uuid(number: u32) -> String {
    format!("brought-{number}")
}

struct Machine(Inventory);

impl Machine {
    fn run(&mut self, operation: &Operation) {
        match operation {
            Operation::Device(operation) => self.on_device(operation),
            Operation::Run(operation) => self.of_run(operation),
        }
    }

    fn on_device(&mut self, operation: &DeviceOp) {
        match operation {
            DeviceOp::Release(holder) => self.release(holder),
            DeviceOp::AssertFree(AssertFree { disks }) => disks.iter().for_each(|disk| self.assert_free(disk)),
            DeviceOp::WipeDisk(wipe) => self.wipe(&wipe.device),
            DeviceOp::WriteTable(table) => self.write_table(table),
            DeviceOp::CreateArray(array) => self.create_array(array),
            DeviceOp::CreateGroup(group) => self.create_group(group),
            DeviceOp::CreateVolume(volume) => self.create_volume(volume),
            DeviceOp::CreateContainer(container) => self.create_container(container),
            DeviceOp::OpenContainer(OpenContainer { container, .. }) => {
                assert!(self.0.stacked.iter().any(|is| is.device == container.mapping), "{operation:?}");
            }
            DeviceOp::MakeFilesystem(make) => self.make_filesystem(make),
            DeviceOp::PreparePersistent(volume) => self.prepare(volume),
            DeviceOp::AssembleArray(AssembleArray { uuid, .. }) => {
                assert!(self.0.arrays.iter().any(|array| array.uuid == *uuid), "{operation:?}");
            }
            DeviceOp::ActivateGroup(ActivateGroup { name, volumes, .. }) => {
                let found = self.0.groups.iter().find(|is| is.name == *name);
                let found = found.unwrap_or_else(|| panic!("{operation:?}"));
                let there = |name: &String| found.volumes.iter().any(|volume| volume.name == *name);
                assert!(!volumes.is_empty() && volumes.iter().all(there), "{operation:?}");
            }
            // What is there afterwards is what the next run assembles to look inside.
            DeviceOp::TakeDown(_)
            | DeviceOp::DeactivateGroup(_)
            | DeviceOp::StopArray(_)
            | DeviceOp::CloseContainer(_) => {}
            DeviceOp::TryArray(_) | DeviceOp::TryFilesystem(_) | DeviceOp::ProveZeros(_) => {}
        }
    }

    fn of_run(&mut self, operation: &SessionOp) {
        match operation {
            SessionOp::BurnDisk(burn) => self.burn_disk(burn),
            SessionOp::CreateSystem(create) => self.burn_disk(&create.onto),
            SessionOp::Rehearse(rehearsal) => {
                let before = self.0.clone();
                let (added, back): (Vec<RestoreOp>, Vec<RestoreOp>) =
                    rehearsal.operations.iter().cloned().partition(|is| matches!(is, RestoreOp::CreateVolume(_)));
                back.into_iter().map(Operation::from).for_each(|operation| self.run(&operation));
                assert_eq!(self.0, before, "{rehearsal:?}");
                let mut snapshots = Machine(before);
                added.into_iter().map(Operation::from).for_each(|operation| snapshots.run(&operation));
            }
            SessionOp::WritePersistent(write) => self.write_files(write),
            SessionOp::RemoveVariables(removal) => self.remove_variables(removal),
            SessionOp::Receive(receive) => receive.devices.iter().for_each(|received| self.receive(received)),
            SessionOp::Mount(mount)
            | SessionOp::MountReadOnly(MountReadOnly(mount))
            | SessionOp::GrowFilesystem(GrowFilesystem(mount)) => {
                let kinds: Vec<String> = self.signatures(&mount.device).iter().map(|is| is.kind.clone()).collect();
                assert_eq!(kinds, [mount.format.name()], "{operation:?}");
            }
            // These change nothing that an inventory shows.
            SessionOp::ReachImage(_)
            | SessionOp::VerifyDefinition(_)
            | SessionOp::FindPrograms(_)
            | SessionOp::IdentifyDisk(_)
            | SessionOp::CheckContainers(_)
            | SessionOp::LockDisk(_)
            | SessionOp::UnlockDisk(_)
            | SessionOp::TellPointOfNoReturn(_)
            | SessionOp::MoveStands(_)
            | SessionOp::BurnImage(_)
            | SessionOp::WriteMachineFiles(_)
            | SessionOp::InjectFiles(_)
            | SessionOp::Finish(_)
            | SessionOp::AdaptImage(_)
            | SessionOp::AdaptMoved(_)
            | SessionOp::WriteFstab(_)
            | SessionOp::ExtendFstab(_)
            | SessionOp::WriteCrypttab(_)
            | SessionOp::FindLoader
            | SessionOp::WriteBootEntries(_)
            | SessionOp::LoadKernel
            | SessionOp::ProveKept(_)
            | SessionOp::WriteMarker(_)
            | SessionOp::Unmount
            | SessionOp::FlushDisks(_)
            | SessionOp::Report(_)
            | SessionOp::Kexec => {}
        }
    }

    fn remove_variables(&mut self, removal: &RemoveVariables) {
        let Some(found) = &mut self.0.firmware_variables else { return };
        let is_removed = |name: &str| removal.variables.iter().any(|variable| variable.name == name);
        found.load_options.retain(|option| !is_removed(&option.variable_name()));
        found.others.retain(|other| !is_removed(&other.name));
        found.boot_next = found.boot_next.filter(|_| !is_removed("BootNext"));
    }

    fn receive(&mut self, received: &ReceivedDevice) {
        let ReceivedDevice { device, format, uuid, .. } = received.clone();
        if format != FilesystemFormat::None {
            self.make_filesystem(&MakeFilesystem { device, format, label: None, uuid, createoptions: Vec::new() });
        }
    }

    fn release(&mut self, holder: &Holder) {
        let device = match holder {
            Holder::Swap { device } => return self.uses(device).retain(|usage| *usage != DeviceUse::Swap),
            Holder::Array { device }
            | Holder::Mapping { device }
            | Holder::Volume { device, .. }
            | Holder::Bcache { device } => device,
        };
        let gone = self.0.stacked.iter().position(|stacked| stacked.device == *device);
        let gone = self.0.stacked.remove(gone.unwrap_or_else(|| panic!("{device} is released twice")));
        let name = gone.name;
        assert!(gone.uses.is_empty(), "{device} is in use: {:?}", gone.uses);
        assert!(!self.0.stacked.iter().any(|above| above.below.contains(&name)), "{device} is held");
        let parts = gone.table.iter().flat_map(|table| &table.partitions);
        assert!(parts.into_iter().all(|part| part.uses.is_empty()), "a partition of {device} is in use");
        let held = DeviceUse::Holder(name.clone());
        for below in &gone.below {
            self.uses(&below.device_path()).retain(|usage| *usage != held);
        }
        let arrays = self.0.arrays.iter_mut().map(|array| &mut array.running);
        let volumes = self.0.groups.iter_mut().flat_map(|group| &mut group.volumes).map(|volume| &mut volume.running);
        for running in arrays.chain(volumes) {
            running.take_if(|running| *running == name);
        }
        self.forget(&[gone.device]);
    }

    fn assert_free(&mut self, device: &DevicePath) {
        let disk = self.disk(device);
        assert!(disk.uses.is_empty(), "{device}: {:?}", disk.uses);
        let partitions = disk.table.iter().flat_map(|table| &table.partitions);
        let names: Vec<DevicePath> = partitions.map(|partition| partition.device.clone()).collect();
        assert!(names.iter().all(|partition| self.uses(partition).is_empty()), "partitions of {device}");
        let on = |below: &KernelName| *device == below.device_path() || names.contains(&below.device_path());
        assert!(!self.0.stacked.iter().any(|stacked| stacked.below.iter().any(on)), "{device}");
    }

    fn wipe(&mut self, device: &DevicePath) {
        self.assert_free(device);
        let disk = self.disk(device);
        let partitions = disk.table.take().into_iter().flat_map(|table| table.partitions);
        let mut gone: Vec<DevicePath> = partitions.map(|partition| partition.device).collect();
        gone.push(device.clone());
        disk.signatures.clear();
        disk.unreadable = None;
        self.forget(&gone);
    }

    /// Members of arrays and physical volumes that cannot be seen any more.
    fn forget(&mut self, gone: &[DevicePath]) {
        for array in &mut self.0.arrays {
            array.members.retain(|member| !gone.contains(&member.device));
        }
        self.0.arrays.retain(|array| !array.members.is_empty());
        for group in &mut self.0.groups {
            let lost = group
                .physical
                .iter_mut()
                .filter(|physical| physical.device.as_ref().is_some_and(|device| gone.contains(device)));
            lost.for_each(|physical| physical.device = None);
        }
        self.0.groups.retain(|group| group.present_devices().next().is_some());
    }

    fn write_table(&mut self, table: &PartitionTable) {
        let disk = self.disk(&table.device);
        let (blank, sector) = (disk.blank, u64::from(table.sector_bytes));
        let partitions = table.partitions.iter().map(|new| DiskPartition {
            number: new.number,
            device: new.device.clone(),
            start_bytes: new.first_lba * sector,
            size_bytes: (new.last_lba + 1 - new.first_lba) * sector,
            kind: new.kind.to_string(),
            guid: Some(new.guid),
            label: new.name.clone(),
            blank,
            ..DiskPartition::default()
        });
        let partitions: Vec<DiskPartition> = partitions.collect();
        assert!(disk.table.is_none() && disk.signatures.is_empty(), "{} was not wiped", disk.device);
        assert!(partitions.iter().all(|new| is_part(disk, new)), "{partitions:?} of {}", disk.device);
        disk.table = Some(DiskTable { kind: "gpt".to_owned(), guid: Some(table.guid), partitions });
        disk.blank = false;
    }

    /// The image has what was expected, and no more.
    fn burn_disk(&mut self, burn: &BurnDisk) {
        let disk = self.disk(&burn.device);
        assert!(disk.table.is_none() && disk.signatures.is_empty(), "{} was not wiped", burn.device);
        // One that does not fit would be refused.
        let size_bytes = (100 * MIB).min((disk.size_bytes - 2 * MIB) / burn.filesystems.len() as u64);
        let partitions = burn.filesystems.iter().map(|is| DiskPartition {
            number: is.number,
            device: is.device.clone(),
            size_bytes,
            signatures: vec![DeviceSignature {
                kind: is.format.name().to_owned(),
                usage: "filesystem".to_owned(),
                label: is.label.clone().unwrap_or_default(),
                uuid: brought_uuid(is.number),
            }],
            ..DiskPartition::default()
        });
        let mut partitions: Vec<DiskPartition> = partitions.collect();
        partitions.sort_by_key(|partition| partition.number);
        for (index, partition) in (0u64..).zip(&mut partitions) {
            partition.start_bytes = MIB + index * partition.size_bytes;
        }
        disk.table = Some(DiskTable { kind: "gpt".to_owned(), guid: None, partitions });
        disk.blank = false;
    }

    fn create_array(&mut self, array: &CreateArray) {
        let active = array.devices.len() - array.spares as usize;
        let there = array.devices.iter().enumerate();
        let there = there.filter_map(|(index, member)| Some((index, member.device()?)));
        let members = there.map(|(index, device)| ArrayMember {
            device: self.now(device),
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
            // At least what the plan counts on.
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

    fn create_group(&mut self, group: &CreateGroup) {
        assert!(!self.0.groups.iter().any(|is| is.name == group.name), "{} is there already", group.name);
        let devices: Vec<DevicePath> = group.devices.iter().map(|device| self.now(device)).collect();
        for device in &devices {
            self.claim(device, "LVM2_member");
        }
        let physical = devices.into_iter().map(|device| LvmPhysicalVolume {
            size_bytes: self.size(&device),
            device: Some(device),
            uuid: String::new(),
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

    fn create_volume(&mut self, volume: &CreateVolume) {
        let physical: Vec<DevicePath> = volume.physical.iter().map(|device| self.now(device)).collect();
        let name = self.free_name((0..).map(|number| format!("dm-{number}")));
        let unit = if volume.kind.name() == "striped" { 4 * physical.len() as u64 } else { 4 } * MIB;
        let size_bytes = (volume.size.as_mib().unwrap_or(1) * MIB).next_multiple_of(unit);
        for device in &physical {
            assert!(self.signatures(device).iter().any(|is| is.kind == "LVM2_member"), "{device} for {}", volume.name);
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
        let taken = if volume.kind.name() == "raid1" { 2 * (size_bytes + 4 * MIB) } else { size_bytes };
        group.free_bytes = group.free_bytes.map(|free| free.saturating_sub(taken));
        group.volumes.push(LvmLogicalVolume {
            name: volume.name.clone(),
            size_bytes,
            kind: volume.kind.name().to_owned(),
            running: Some(name),
            ..LvmLogicalVolume::default()
        });
    }

    fn create_container(&mut self, container: &LuksContainer) {
        let LuksContainer { device, uuid, mapping, .. } = container;
        let (kind, usage) = ("crypto_LUKS".to_owned(), "crypto".to_owned());
        let signatures = self.signatures(device);
        assert!(signatures.is_empty(), "{device} has {signatures:?}");
        signatures.push(DeviceSignature { kind, usage, uuid: uuid.to_string(), ..DeviceSignature::default() });
        self.written(device);
        self.show_on_members(device);
        let name = self.free_name((0..).map(|number| format!("dm-{number}")));
        self.uses(device).push(DeviceUse::Holder(name.clone()));
        let (below, size_bytes) =
            (self.0.resolve_kernel_name(&self.now(device)), self.size(&self.now(device)) - 16 * MIB);
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

    fn make_filesystem(&mut self, make: &MakeFilesystem) {
        assert_ne!(make.format, FilesystemFormat::None);
        let signature = DeviceSignature {
            kind: make.format.name().to_owned(),
            usage: String::new(),
            label: make.label.clone().unwrap_or_default(),
            uuid: make.uuid.clone(),
        };
        let signatures = self.signatures(&make.device);
        assert!(signatures.is_empty(), "{} has {signatures:?}", make.device);
        signatures.push(signature);
        self.written(&make.device);
        self.show_on_members(&make.device);
    }

    fn prepare(&mut self, volume: &PreparePersistent) {
        if let Some(create) = &volume.create {
            self.create_volume(create);
        }
        if volume.must_be_blank {
            let disk = self.disk(&volume.device);
            assert!(disk.blank && disk.table.is_none() && disk.signatures.is_empty(), "{disk:?}");
        }
        match &volume.filling {
            VolumeFilling::Filesystem(make) => self.make_filesystem(make),
            VolumeFilling::Partition { guid } => {
                let device = self.now(&volume.device);
                let size_bytes = self.size(&device);
                let partition = DiskPartition {
                    number: 1,
                    device: device.partition_path(1),
                    start_bytes: MIB,
                    size_bytes: size_bytes - 2 * MIB,
                    guid: Some(volume.uid),
                    label: volume.name.clone(),
                    ..DiskPartition::default()
                };
                assert!(self.signatures(&volume.device).is_empty(), "{volume:?}");
                let table = Some(DiskTable { kind: "gpt".to_owned(), guid: Some(*guid), partitions: vec![partition] });
                match self.0.stacked.iter_mut().find(|stacked| stacked.device == device) {
                    Some(stacked) => stacked.table = table,
                    None => self.disk(&device).table = table,
                }
                self.written(&device);
            }
            VolumeFilling::Nothing => {}
        }
    }

    /// On the one filesystem that the tests mount for them.
    fn write_files(&mut self, write: &WritePersistent) {
        for sparse in &write.sparse {
            let mut files = self.0.filesystems.iter().flat_map(|is| &is.sparse);
            assert_eq!(files.any(|file| file.uid == sparse.uid), sparse.make.is_none(), "{sparse:?}");
        }
    }

    fn free_name(&self, names: impl Iterator<Item = String>) -> KernelName {
        names.map(KernelName::from).find(|name| !self.0.stacked.iter().any(|stacked| stacked.name == *name)).unwrap()
    }

    fn occupy(&mut self, devices: Vec<DevicePath>, kind: &str, holder: &KernelName) {
        for device in devices {
            self.claim(&device, kind);
            self.uses(&device).push(DeviceUse::Holder(holder.clone()));
        }
    }

    fn claim(&mut self, device: &DevicePath, kind: &str) {
        let signatures = self.signatures(device);
        assert!(signatures.is_empty(), "{device} has {signatures:?}");
        signatures.push(DeviceSignature {
            kind: kind.to_owned(),
            usage: "raid".to_owned(),
            ..DeviceSignature::default()
        });
        self.written(device);
        self.show_on_members(device);
    }

    /// The content of an array whose metadata is at the end of its members is visible on them too.
    fn show_on_members(&mut self, device: &DevicePath) {
        let content = self.signatures(device).clone();
        let name = self.0.resolve_kernel_name(&self.now(device));
        let is_it = |array: &&MdArray| {
            array.running.as_ref() == Some(&name) && ["0.90", "1.0"].contains(&array.metadata.as_str())
        };
        let members = self.0.arrays.iter().find(is_it).map(|array| array.members.clone()).unwrap_or_default();
        for member in members {
            self.signatures(&member.device).extend(content.iter().cloned());
        }
    }

    /// The device that the inventory shows for a path of the plan.
    fn now(&self, device: &DevicePath) -> DevicePath {
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

    fn disk(&mut self, device: &DevicePath) -> &mut InventoryDisk {
        self.0.disks.iter_mut().find(|disk| disk.device == *device).unwrap()
    }

    fn uses(&mut self, device: &DevicePath) -> &mut Vec<DeviceUse> {
        self.unit(device).1
    }

    fn signatures(&mut self, device: &DevicePath) -> &mut Vec<DeviceSignature> {
        self.unit(device).0
    }

    /// A disk or partition is not blank any more.
    fn written(&mut self, device: &DevicePath) {
        for disk in &mut self.0.disks {
            disk.blank &= disk.device != *device;
            let partitions = disk.table.iter_mut().flat_map(|table| &mut table.partitions);
            partitions.for_each(|part| part.blank &= part.device != *device);
        }
    }

    fn unit(&mut self, device: &DevicePath) -> (&mut Vec<DeviceSignature>, &mut Vec<DeviceUse>) {
        let device = self.now(device);
        let disks = self.0.disks.iter_mut();
        let disks = disks.map(|disk| (&disk.device, &disk.name, &mut disk.table, &mut disk.signatures, &mut disk.uses));
        let stacked = self.0.stacked.iter_mut();
        let stacked = stacked.map(|is| (&is.device, &is.name, &mut is.table, &mut is.signatures, &mut is.uses));
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

    fn size(&self, device: &DevicePath) -> u64 {
        let disks = self.0.disks.iter().map(|disk| (&disk.device, disk.size_bytes));
        let stacked = self.0.stacked.iter().map(|stacked| (&stacked.device, stacked.size_bytes));
        let partitions = self.0.disks.iter().flat_map(|disk| &disk.table).flat_map(|table| &table.partitions);
        let partitions = partitions.map(|partition| (&partition.device, partition.size_bytes));
        disks.chain(stacked).chain(partitions).find(|(path, _)| *path == device).unwrap().1
    }
}

fn is_part(disk: &InventoryDisk, partition: &DiskPartition) -> bool {
    partition.device == disk.device.partition_path(partition.number)
}
