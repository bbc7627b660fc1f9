//! Target of a machine migration: an installation that receives the system of another machine instead of an image. The
//! migration specifies the disks. New objects get the same ids as on the source machine, and filesystems are received
//! instead of created.
//!
//! | refused before the first write | reason |
//! |---|---|
//! | a filesystem of the layout that the source machine lacks, or has in another format | the filesystem would stay empty |
//! | a device that is smaller than on the source machine, or has larger sectors | the filesystem does not fit |
//! | a device with smaller sectors than on the source machine, for `vfat` or unknown content | the content may contain sector numbers |
//! | an id that also exists on a disk that is not wiped | the system may use the wrong device |
//! | a disk that would be wiped, and has the partition table or hardware identifiers of a disk of the source machine | the disk contains the data that would be migrated |
//! | an architecture other than that of the source machine | the system cannot run |
//! | Kubernetes volumes | they are not migrated |

use super::plan_decisions::PlanDecisions;
use common::error_code::ErrorCode;
use operations::{AdaptMoved, CheckMigrationCanceled, GrowFilesystem};

use super::planner_state::PlannerState;

use super::planned_devices::PlannedDevice;
use super::planner::decide_plan;
use super::recorded_disk::{full_record, table_guid};
use super::system_source::{SourceInputs, SystemSource, SystemStages};
use super::{InstallMode, PlanRequest, PlanSubject, boot_entry_operations, stale_boot_variables, uuids_in_use};
use common::diagnostic::Diagnostic;
use common::format::format_bytes;
use model::architecture::Architecture;
use model::deploy_steps::StepList;
use model::device_name::{DevicePath, LayoutPath};
use model::install_marker::{InstallMarker, RecordedDisk};
use model::inventory::{Inventory, InventoryDisk};
use model::layout::{self, FilesystemFormat, Layout, root_device_hints};
use model::machine_migration::{MigratedFilesystem, MigratedMachine, MigrationOffer, MigrationSide};
use operations::{DeviceOp, FinishInputs, Operation, ReceiveMigration, ReceivedDevice, SessionOp, StageName};
use std::borrow::Cow;
use std::collections::BTreeMap;
use uuid::Uuid;

impl PlanRequest {
    /// Returns the migration in which this machine receives the system of another machine.
    pub(crate) fn receiving(&self) -> Option<&MigrationOffer> {
        self.assigned.allocation.moving.as_ref().filter(|moving| moving.part == MigrationSide::Target)
    }

    fn migrated_machine(&self) -> Option<&MigratedMachine> {
        self.receiving()?.carried.as_ref()
    }
}

/// Returns the reason why the system of the source machine cannot run on a machine of this architecture.
fn explain_mismatch(carried: &MigratedMachine, machine: Architecture) -> Option<Diagnostic> {
    let source = Some(carried.architecture).filter(|source| *source != machine)?;
    let why = format!(
        "the source machine is {source}, but this machine is {machine}; migrate the system to a machine with {source}"
    );
    Some(Diagnostic::new("moving", why).with_code(ErrorCode::ArchitectureMismatch))
}

/// Installation of a system that is received from another machine.
pub(crate) struct MigrationSource<'a> {
    pub request: &'a PlanRequest,
    pub offer: &'a MigrationOffer,
}

impl SystemSource for MigrationSource<'_> {
    fn adapt_layout<'a>(&self, layout: &'a Layout, inventory: &Inventory) -> Cow<'a, Layout> {
        Cow::Owned(add_disk_hints(layout, inventory, self.offer))
    }

    fn find_problems(&self, _: &Layout, inventory: &Inventory, decided: &PlanDecisions) -> Vec<Diagnostic> {
        let machine = inventory.system.architecture;
        let mismatch = self.offer.carried.as_ref().and_then(|carried| explain_mismatch(carried, machine));
        mismatch.into_iter().chain(refuse_taken_ids(self.request, inventory, decided)).collect()
    }

    /// Returns false for the creation of filesystems other than swap, because these filesystems are received from the
    /// source machine.
    fn is_created(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Device(DeviceOp::MakeFilesystem(make)) => make.format == FilesystemFormat::Swap,
            Operation::Device(DeviceOp::TryFilesystem(trial)) => trial.make.format == FilesystemFormat::Swap,
            _ => true,
        }
    }

    fn build_stages(&self, inputs: &SourceInputs, finishing: Box<FinishInputs>) -> SystemStages {
        let MigrationOffer { order, carried: migrated_machine, .. } = self.offer;
        let machine = migrated_machine
            .as_ref()
            .map(|migrated_machine| migrated_machine.marker.machine.clone())
            .unwrap_or_default();
        let devices = inputs.decided.received.clone();
        let receive = ReceiveMigration { order: order.clone(), machine, devices };
        SystemStages {
            reach: None,
            checks: Vec::new(),
            first: (StageName::MoveCopy, vec![Operation::Run(SessionOp::Receive(receive))]),
            second: (StageName::StorageMount, mount_and_grow(inputs)),
            entries: boot_entry_operations::write_entries_of_migrated(
                &finishing,
                stale_boot_variables::preserved_partitions(inputs, &finishing.esps),
            ),
            installer: Operation::Run(SessionOp::AdaptMoved(AdaptMoved(finishing))),
            fstab: Vec::new(),
            before_marker: Some(SessionOp::CheckMigrationCanceled(CheckMigrationCanceled { order: order.clone() })),
            warnings: Vec::new(),
        }
    }
}

/// Returns the operations that mount the received filesystems, and grow those whose devices are larger than on the
/// source machine.
fn mount_and_grow(inputs: &SourceInputs) -> Vec<Operation> {
    let mounts = inputs.returning.before_the_image().into_iter().flat_map(|mount| {
        let grow = match &mount {
            Operation::Run(SessionOp::Mount(mount)) if inputs.decided.grown_devices.contains(&mount.device) => {
                Some(Operation::Run(SessionOp::GrowFilesystem(GrowFilesystem(mount.clone()))))
            }
            _ => None,
        };
        [Some(mount), grow].into_iter().flatten()
    });
    mounts.collect()
}

/// Returns the layout with hints for the disks that the migration specifies, so that the layout does not depend on
/// kernel names.
fn add_disk_hints(layout: &Layout, inventory: &Inventory, moving: &MigrationOffer) -> Layout {
    let mut meant = layout.clone();
    for disk in &mut meant.disks {
        let Some(record) = disk_record(moving, disk) else { continue };
        let mut hints = BTreeMap::new();
        let serial = record.comparable_serial().map(|_| &record.serial);
        let wwn = record.comparable_wwn().map(|_| &record.wwn);
        for (hint, value) in [("serial", serial), ("wwn", wwn), ("by_path", Some(&record.by_path))] {
            // The slot is added only if there is no serial number or WWN, or if these select several disks.
            let is_told = hint == "by_path"
                && !hints.is_empty()
                && root_device_hints::find_candidates(&hints, &inventory.disks).len() < 2;
            if let Some(value) = value.filter(|value| !value.is_empty() && !is_told) {
                hints.insert(hint.to_owned(), format!("s== {value}"));
            }
        }
        if !hints.is_empty() {
            disk.hints = hints;
        }
    }
    meant
}

fn disk_record<'a>(moving: &'a MigrationOffer, disk: &layout::DiskSpec) -> Option<&'a RecordedDisk> {
    moving.disks.iter().find(|record| disk.device == record.device)
}

/// Returns the digest of the layout as stored in the control plane, without the disk hints that a migration adds.
pub(crate) fn stored_layout_digest(layout: &Layout, request: &PlanRequest) -> String {
    let stored = request.receiving().and_then(|_| request.assigned.allocation.parse_layout().ok());
    layout::compute_digest(stored.as_ref().map_or(layout, |stored| &stored.layout))
}

impl PlannerState<'_> {
    pub(crate) fn migrated_filesystem_uuid(&self, device: &LayoutPath) -> Option<String> {
        let mut filesystems = self.request.migrated_machine()?.filesystems.iter();
        filesystems
            .find(|filesystem| filesystem.device == *device)
            .map(|filesystem| filesystem.uuid.clone())
            .filter(|uuid| !uuid.is_empty())
    }

    pub(crate) fn migrated_array_uuid(&self, device: &LayoutPath) -> Option<Uuid> {
        let mut arrays = self.request.migrated_machine()?.arrays.iter();
        arrays.find(|array| array.device == *device).map(|array| array.uuid)
    }

    pub(crate) fn migrated_partition_guid(&self, device: &LayoutPath) -> Option<Uuid> {
        let mut partitions = self.request.migrated_machine()?.partitions.iter();
        partitions.find(|partition| partition.device == *device).map(|partition| partition.guid)
    }

    pub fn check_migration(&mut self) {
        let Some(moving) = self.request.receiving() else { return };
        let Some(migrated_machine) = &moving.carried else {
            let message = "the source machine has not reported its data; boot it into the ramdisk";
            return self.refuse(ErrorCode::MigrationTarget, "moving", message);
        };
        let volumes = &self.request.assigned.allocation.volumes;
        if !volumes.is_null() && volumes.as_array().is_none_or(|volumes| !volumes.is_empty()) {
            let message = "the allocation has Kubernetes volumes, which are not migrated; remove the volumes from the \
                allocation first (drophammer volume delete)";
            self.refuse(ErrorCode::MigrationTarget, "moving", message);
        }
        self.compare_migration_disks(moving, &migrated_machine.marker);
        let before = source_sizes(self.layout, &migrated_machine.marker);
        let layout = self.layout;
        for (index, wanted) in layout.filesystems.iter().enumerate() {
            if wanted.format == FilesystemFormat::Tmpfs {
                continue;
            }
            let place = format!("filesystems[{index}]");
            let device = self.devices.get_or_report(&place, &wanted.device).filter(|device| device.absent.is_none());
            let Some(device) = device else { continue };
            let is_it = |filesystem: &&MigratedFilesystem| {
                filesystem.device == wanted.device && filesystem.format == wanted.format
            };
            let Some(was) = migrated_machine.filesystems.iter().find(is_it) else {
                let message = format!(
                    "{} must have {} according to the layout, but the source machine does not have this filesystem; \
                        correct the layout, or create the filesystem on the source machine",
                    wanted.device, wanted.format
                );
                self.refuse(ErrorCode::MigrationTarget, place, message);
                continue;
            };
            // Swap areas are not compared. They are not received, but created with the size of their device.
            if was.format != FilesystemFormat::Swap {
                self.compare_size(&place, was, &device, before.get(index).copied().flatten());
                self.decided.received.push(ReceivedDevice {
                    name: wanted.device.clone(),
                    device: device.path.clone(),
                    format: was.format,
                    uuid: was.uuid.clone(),
                    size_bytes: was.size_bytes,
                });
            }
        }
    }

    /// Checks that this machine's disks are the ones that the control plane specifies, not disks of the source machine.
    fn compare_migration_disks(&mut self, moving: &MigrationOffer, marker: &InstallMarker) {
        let layout = self.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            let place = format!("disks[{index}].device");
            if listed.image {
                let message = "a raw image is written to this disk, and machines with raw images cannot be migrated";
                self.refuse(ErrorCode::MigrationTarget, format!("disks[{index}]"), message);
            }
            let Some(found) = self.found.get(&index).copied() else { continue };
            if let Some(message) = explain_other_disk(moving, listed, found) {
                self.refuse(ErrorCode::MigrationTarget, place.clone(), message);
            }
            if let Some(message) = explain_source_disk(found, marker) {
                self.refuse(ErrorCode::MigrationTarget, place, message);
            }
        }
    }

    fn compare_size(&mut self, place: &str, was: &MigratedFilesystem, device: &PlannedDevice, before: Option<u64>) {
        // The size of a new array is only known as a lower bound. It is compared with the bound that is computed in the
        // same way for the source machine.
        let below = self.graph.objects_below([&was.device]);
        let before = before.filter(|_| !below.arrays.is_empty());
        let disks = below.disks.iter().filter_map(|index| self.found.get(index));
        let disks: Vec<String> =
            disks.map(|disk| format!("{} ({})", disk.device, format_bytes(disk.size_bytes))).collect();
        let disks = disks.join(", ");
        let (here, there) = match (device.size_bytes, before) {
            (Some(here), _) if here >= was.size_bytes => (here, was.size_bytes),
            (Some(here), Some(before)) => (here, before),
            (Some(here), None) => (here, was.size_bytes),
            (None, _) => (device.most_bytes, was.size_bytes),
        };
        let what = if was.format == FilesystemFormat::None { "content".to_owned() } else { was.format.to_string() };
        if here < there {
            let message = format!(
                "{device} would have {size} ({here} bytes) on this machine, on {disks}, but has {source_size} ({source_bytes} bytes) on the source machine: its {what} does not fit; choose larger disks",
                device = was.device,
                size = format_bytes(here),
                source_size = format_bytes(was.size_bytes),
                source_bytes = was.size_bytes
            );
            self.refuse(ErrorCode::MigrationTarget, place, message);
        } else if here > there && was.format.can_grow() {
            self.decided.grown_devices.push(device.path.clone());
        }
        // vfat and unknown content may contain sector numbers, so they require exactly the sector size of the source.
        let counts_in_sectors = matches!(was.format, FilesystemFormat::Vfat | FilesystemFormat::None);
        let there = was.sector_bytes;
        let differs = device.sector_bytes != there;
        if device.sector_bytes > there || differs && counts_in_sectors {
            let message = format!(
                "{device} would be on {disks}, which has sectors of {sector_bytes} bytes, but its {what} was created on the source machine for sectors of {there} bytes; choose disks with sectors of {there} bytes, or reformat an NVMe disk to that sector size (nvme format)",
                device = was.device,
                sector_bytes = device.sector_bytes
            );
            self.refuse(ErrorCode::MigrationTarget, place, message);
        }
    }
}

/// Returns the reason why a disk of this machine is not the disk that the control plane specifies for `listed`.
fn explain_other_disk(moving: &MigrationOffer, listed: &layout::DiskSpec, found: &InventoryDisk) -> Option<String> {
    match disk_record(moving, listed) {
        Some(record) if record.size_bytes != 0 && record.size_bytes != found.size_bytes => Some(format!(
            "{listed} must be a disk of {required}, but {device} has {actual}; choose the disks of the migration again",
            listed = listed.device,
            required = format_bytes(record.size_bytes),
            device = found.device,
            actual = format_bytes(found.size_bytes)
        )),
        None if !moving.disks.is_empty() => Some(format!(
            "the migration does not assign a disk of this machine to {device} of the layout",
            device = listed.device
        )),
        Some(_) | None => None,
    }
}

/// Returns the reason why a disk of this machine may be a disk of the source machine.
fn explain_source_disk(found: &InventoryDisk, marker: &InstallMarker) -> Option<String> {
    let guid = table_guid(found);
    if guid.is_some() && marker.disks.iter().any(|disk| disk.guid == guid) {
        return Some(format!(
            "{disk} has the partition table of machine {machine}, whose system is migrated: this disk belongs to that machine, or is a copy of one of its disks. Return the disk to that machine, or erase the copy",
            disk = found.device,
            machine = marker.machine
        ));
    }
    // This check also applies to disks without a partition table, such as whole disks that are members of arrays.
    let here = full_record(found);
    let (there, by) = marker.disks.iter().find_map(|disk| Some((disk, disk.explain_same_disk(&here)?)))?;
    Some(format!(
        "{disk} has the same {by} as {source_disk} of machine {machine}, whose system is migrated: both machines have access to that disk, or the disk was moved to this machine. Return the disk to that machine, or choose another disk of this machine for the migration",
        disk = found.device,
        source_disk = there.device,
        machine = marker.machine
    ))
}

/// Estimates the sizes of the filesystems on the source machine with the same rules as for this machine. The result is
/// in the order of the layout, and is empty if the estimate fails.
fn source_sizes(layout: &Layout, marker: &InstallMarker) -> Vec<Option<u64>> {
    let (mut layout, mut inventory) = (layout.clone(), Inventory::default());
    for (index, disk) in layout.disks.iter_mut().enumerate() {
        let Some(record) = marker.disks.iter().find(|record| disk.device == record.device) else { continue };
        let name = format!("there{index}");
        let device = format!("/dev/{name}");
        disk.hints = [("name".to_owned(), device.clone())].into();
        inventory.disks.push(InventoryDisk {
            name: name.into(),
            device: device.into(),
            size_bytes: record.size_bytes,
            sector_bytes: if record.sector_bytes == 0 { 512 } else { record.sector_bytes },
            ..InventoryDisk::default()
        });
    }
    let (steps, assigned) = (StepList::default(), Default::default());
    let request =
        PlanRequest { mode: InstallMode::Install, steps, subject: PlanSubject::default(), assigned, claim: None };
    let decided = decide_plan(&layout, &inventory, &request, &Default::default(), &mut || Uuid::nil());
    if !decided.problems.is_empty() {
        return Vec::new();
    }
    let size = |fate: &super::FilesystemFate| decided.sizes.get(fate.device()?).copied();
    decided.filesystems.iter().map(size).collect()
}

/// Returns a problem for each migrated id that also exists on a disk that is not wiped.
fn refuse_taken_ids(request: &PlanRequest, inventory: &Inventory, decided: &PlanDecisions) -> Vec<Diagnostic> {
    let Some(migrated_machine) = request.migrated_machine() else { return Vec::new() };
    let taken = uuids_in_use::collect_uuids(inventory, &decided.disks);
    let filesystems =
        migrated_machine.filesystems.iter().map(|filesystem| (&filesystem.device, filesystem.uuid.to_lowercase()));
    let arrays = migrated_machine.arrays.iter().map(|array| (&array.device, array.uuid.to_string()));
    let partitions =
        migrated_machine.partitions.iter().map(|partition| (&partition.device, partition.guid.to_string()));
    let ids = filesystems.chain(arrays).chain(partitions);
    let problem = |(device, id): (&LayoutPath, String)| {
        let on: &DevicePath = taken.get(&id)?;
        let message = format!(
            "{device} has the id {id}, and {on}, on a disk that is not wiped, has the same id: the migrated system could not distinguish the two devices; disconnect that disk, or erase it"
        );
        Some(Diagnostic::new("moving", message).with_code(ErrorCode::MigrationTarget))
    };
    ids.filter_map(problem).collect()
}
