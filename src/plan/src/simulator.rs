//! Simulated machine on which tests execute a plan. Each operation is checked against the current state of the machine.
//! The execution can be interrupted after any operation.

#![allow(clippy::unwrap_used)]

use crate::*;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{
    ArrayMember, DeviceSignature, DeviceUse, DiskPartition, DiskTable, Inventory, InventoryDisk, LvmLogicalVolume,
    LvmPhysicalVolume, LvmVolumeGroup, MdArray, MemberRole, StackedDevice, StackedDeviceKind,
};
use model::layout::FilesystemFormat;
use operations::{
    ActivateGroup, ActivationRehearsal, AssembleArray, AssertFree, BurnDisk, CreateArray, CreateGroup, CreateK8sVolume,
    CreateVolume, DeviceOp, DiskHolder, GrowFilesystem, InitialVolumeContent, LuksContainer, MakeFilesystem,
    MountReadOnly, OpenContainer, Operation, PartitionTable, ReceivedDevice, RemoveVariables, RemoveVolumes, RestoreOp,
    SessionOp, WriteK8sVolumeFiles,
};

mod created_objects;
mod devices;
mod partly_kept_disks;
mod volume_space;
#[cfg(test)]
pub(crate) use volume_space::add_thin_pool;

const MIB: u64 = 1 << 20;

/// Executes the plan until its filesystems are unmounted. Returns the inventory that the agent reads at its next start,
/// after it has assembled all devices.
///
/// # Panics
/// Panics if an operation uses an object that does not exist yet, or destroys a device beneath another object.
pub fn after(plan: &Plan, before: Inventory) -> Inventory {
    cut(plan, before, usize::MAX)
}

/// Executes the plan like [`after`], but simulates a power failure after this number of operations.
pub(crate) fn cut(plan: &Plan, before: Inventory, operations: usize) -> Inventory {
    // Plans without partly kept disks do not stop preserved arrays.
    let is_partly_kept = plan.disks.iter().any(|disk| disk.verdict == DiskVerdict::PartlyKept);
    let stopped = is_partly_kept.then(|| before.clone());
    let mut machine = Machine(before, stopped);
    for operation in plan.stages.iter().flat_map(|stage| &stage.operations).take(operations) {
        machine.run(operation);
    }
    machine.assemble_again();
    machine.0
}

/// Returns the UUID of the root filesystem after the plan was executed.
#[cfg(test)]
pub(crate) fn root_uuid(plan: &Plan) -> String {
    let root = plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| {
        let burn = match operation {
            Operation::Run(SessionOp::BurnDisk(burn)) => burn,
            Operation::Run(SessionOp::CreateSystem(create)) => &create.onto,
            _ => return None,
        };
        burn.filesystems.iter().find(|filesystem| filesystem.path == "/")
    });
    root.map_or_else(|| plan.root_uuid.clone(), |is| brought_uuid(is.number))
}

/// UUID of a filesystem in the simulated raw image. It is the same on every disk to which the image is written.
fn brought_uuid(number: u32) -> String {
    format!("brought-{number}")
}

/// Current state of the machine, and its state before the plan if the plan stops preserved arrays.
struct Machine(Inventory, Option<Inventory>);

impl Machine {
    fn run(&mut self, operation: &Operation) {
        match operation {
            Operation::Device(operation) => self.run_device_operation(operation),
            Operation::Run(operation) => self.run_session_operation(operation),
        }
    }

    fn run_device_operation(&mut self, operation: &DeviceOp) {
        match operation {
            DeviceOp::Release(release) => self.release(&release.0),
            DeviceOp::AssertFree(AssertFree { disks }) => disks.iter().for_each(|disk| self.assert_free(disk)),
            DeviceOp::WipeDisk(wipe) => self.wipe(&wipe.device),
            DeviceOp::WriteTable(table) => self.write_table(table),
            DeviceOp::ClearRanges(clear) => self.zero_ranges(clear),
            DeviceOp::EditTable(edit) => self.edit_table(edit),
            DeviceOp::CreateArray(array) => self.create_array(array),
            DeviceOp::CreateGroup(group) => self.create_group(group),
            DeviceOp::RemoveVolumes(remove) => self.remove_volumes(remove),
            DeviceOp::CreateVolume(volume) => self.create_volume(volume),
            DeviceOp::CreateContainer(creation) => self.create_container(&creation.0),
            DeviceOp::OpenContainer(OpenContainer { container, .. }) => {
                self.assemble_again();
                assert!(self.0.stacked.iter().any(|is| is.device == container.mapping), "{operation:?}");
            }
            DeviceOp::MakeFilesystem(make) => self.make_filesystem(make),
            DeviceOp::CreateK8sVolume(volume) => self.prepare(volume),
            DeviceOp::AssembleArray(AssembleArray { uuid, .. }) => {
                self.assemble_again();
                assert!(self.0.arrays.iter().any(|array| array.uuid == *uuid), "{operation:?}");
            }
            DeviceOp::ActivateGroup(ActivateGroup { name, volumes, .. }) => {
                self.assemble_again();
                let found = self.0.groups.iter().find(|group| group.name == *name);
                let found = found.unwrap_or_else(|| panic!("{operation:?}"));
                let there = |name: &String| found.volumes.iter().any(|volume| volume.name == *name);
                assert!(!volumes.is_empty() && volumes.iter().all(there), "{operation:?}");
            }
            // Deactivation is not simulated, because the agent assembles everything again at its next start.
            DeviceOp::StopInspectedDevices(_)
            | DeviceOp::DeactivateGroup(_)
            | DeviceOp::StopArray(_)
            | DeviceOp::CloseContainer(_) => {}
            DeviceOp::TryArray(_) | DeviceOp::TryFilesystem(_) | DeviceOp::ProveZeros(_) => {}
        }
    }

    fn run_session_operation(&mut self, operation: &SessionOp) {
        match operation {
            SessionOp::BurnDisk(burn) => self.burn_disk(burn),
            SessionOp::CreateSystem(create) => self.burn_disk(&create.onto),
            SessionOp::Rehearse(rehearsal) => self.rehearse(rehearsal),
            SessionOp::WriteK8sVolumeFiles(write) => self.write_files(write),
            SessionOp::RemoveVariables(removal) => self.remove_variables(removal),
            SessionOp::Receive(receive) => receive.devices.iter().for_each(|received| self.receive(received)),
            SessionOp::Mount(mount)
            | SessionOp::MountReadOnly(MountReadOnly(mount))
            | SessionOp::GrowFilesystem(GrowFilesystem(mount)) => {
                let kinds: Vec<String> = self.signatures(&mount.device).iter().map(|is| is.kind.clone()).collect();
                assert_eq!(kinds, [mount.format.name()], "{operation:?}");
            }
            // These operations change nothing that an inventory contains.
            SessionOp::ResolveImage(_)
            | SessionOp::VerifyDefinition(_)
            | SessionOp::FindPrograms(_)
            | SessionOp::IdentifyDisk(_)
            | SessionOp::CheckContainers(_)
            | SessionOp::LockDisk(_)
            | SessionOp::UnlockDisk(_)
            | SessionOp::AnnouncePointOfNoReturn(_)
            | SessionOp::CheckMigrationCanceled(_)
            | SessionOp::BurnImage(_)
            | SessionOp::WriteMachineFiles(_)
            | SessionOp::InjectFiles(_)
            | SessionOp::Finish(_)
            | SessionOp::AdaptImage(_)
            | SessionOp::AdaptMoved(_)
            | SessionOp::WriteFstab(_)
            | SessionOp::ExtendFstab(_)
            | SessionOp::WriteCrypttab(_)
            | SessionOp::FindBootLoader
            | SessionOp::WriteBootEntries(_)
            | SessionOp::LoadKernel(_)
            | SessionOp::ProvePreserved(_)
            | SessionOp::WriteMarker(_)
            | SessionOp::Unmount
            | SessionOp::FlushDisks(_)
            | SessionOp::Report(_)
            | SessionOp::Kexec => {}
        }
    }

    /// Carries out the operations of the rehearsal on a copy of the machine, and checks that they preserve its state.
    fn rehearse(&self, rehearsal: &ActivationRehearsal) {
        // The rehearsal also assembles preserved arrays that the plan has stopped on partly kept disks.
        let mut trial = Machine(self.0.clone(), self.1.clone());
        trial.assemble_again();
        let before = trial.0.clone();
        let (added, back): (Vec<RestoreOp>, Vec<RestoreOp>) = rehearsal
            .operations
            .iter()
            .cloned()
            .partition(|operation| matches!(operation, RestoreOp::RemoveVolumes(_) | RestoreOp::CreateVolume(_)));
        back.into_iter().map(Operation::from).for_each(|operation| trial.run(&operation));
        assert_eq!(trial.0, before, "{rehearsal:?}");
        let mut snapshots = Machine(before, self.1.clone());
        added.into_iter().map(Operation::from).for_each(|operation| snapshots.run(&operation));
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

    fn release(&mut self, holder: &DiskHolder) {
        let device = match holder {
            DiskHolder::Swap { device } => return self.uses(device).retain(|usage| *usage != DeviceUse::Swap),
            DiskHolder::Array { device }
            | DiskHolder::Mapping { device }
            | DiskHolder::Volume { device, .. }
            | DiskHolder::Bcache { device } => device,
        };
        let gone = self.0.stacked.iter().position(|stacked| stacked.device == *device);
        let gone =
            self.0.stacked.remove(gone.unwrap_or_else(|| panic!("internal error: the plan releases {device} twice")));
        let name = gone.name;
        assert!(gone.uses.is_empty(), "{device} is in use: {uses:?}", uses = gone.uses);
        assert!(!self.0.stacked.iter().any(|above| above.below.contains(&name)), "{device} is held");
        let parts = gone.table.iter().flat_map(|table| &table.partitions);
        assert!(
            parts.into_iter().all(|part| part.uses.is_empty()),
            "internal error: a partition of {device} is still in use"
        );
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

    /// Removes array members and physical volumes that are no longer visible.
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

    /// Writes an image that contains exactly the expected filesystems.
    fn burn_disk(&mut self, burn: &BurnDisk) {
        let disk = self.disk(&burn.device);
        assert!(disk.table.is_none() && disk.signatures.is_empty(), "{} was not wiped", burn.device);
        // The simulated image always fits on the disk, because an image that is too large would be refused.
        let size_bytes = (100 * MIB).min((disk.size_bytes - 2 * MIB) / burn.filesystems.len() as u64);
        let partitions = burn.filesystems.iter().map(|filesystem| DiskPartition {
            number: filesystem.number,
            device: filesystem.device.clone(),
            size_bytes,
            signatures: vec![DeviceSignature {
                kind: filesystem.format.name().to_owned(),
                usage: "filesystem".to_owned(),
                label: filesystem.label.clone().unwrap_or_default(),
                uuid: brought_uuid(filesystem.number),
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
        self.mark_written(&make.device);
        self.show_on_members(&make.device);
    }

    fn prepare(&mut self, volume: &CreateK8sVolume) {
        if let Some(create) = &volume.create {
            self.create_volume(create);
        }
        if volume.must_be_blank {
            let disk = self.disk(&volume.device);
            assert!(disk.blank && disk.table.is_none() && disk.signatures.is_empty(), "{disk:?}");
        }
        match &volume.filling {
            InitialVolumeContent::Filesystem(make) => self.make_filesystem(make),
            InitialVolumeContent::Partition { guid } => {
                let device = self.current_path(&volume.device);
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
                self.mark_written(&device);
            }
            InitialVolumeContent::Nothing => {}
        }
    }

    /// Writes the files of sparse volumes to the filesystem that the tests use for such files.
    fn write_files(&mut self, write: &WriteK8sVolumeFiles) {
        for sparse in &write.sparse {
            let mut files = self.0.filesystems.iter().flat_map(|filesystem| &filesystem.sparse);
            assert_eq!(files.any(|file| file.uid == sparse.uid), sparse.make.is_none(), "{sparse:?}");
        }
    }
}

fn is_part(disk: &InventoryDisk, partition: &DiskPartition) -> bool {
    partition.device == disk.device.partition_path(partition.number)
}
