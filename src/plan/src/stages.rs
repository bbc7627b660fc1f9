//! Arranges the decisions as stages in the order of the run.

use super::decide::{ArrayFate, GroupFate, PlanDecisions};
use super::filesystem_fate::{FilesystemFate, NewFilesystem, PlacedFilesystem};
use super::firmware::{self, RemovalPolicy};
use super::restore::{RestorePlan, mount_path};
use super::system_source::SourceInputs;
use super::{DiskPlan, DiskVerdict, FirmwarePlan, Plan, PlanRequest, PlanSummary};
use super::{
    attempt, bootable, display, extents, guard_ranges, install_marker, luks, opaque, operation_args, preserved, steps,
    trials,
};
use model::device::{DevicePath, KernelName};
use model::inventory::Inventory;
use model::layout::{FilesystemFormat, FilesystemSpec, KeySource, Layout};
use model::storage_graph::{DeviceStack, LayoutMatch};
use operations::{
    AssertFree, DeactivateGroup, DeviceOp, DiskIdentity, FlushDisks, FstabEntry, LockDisk, MakeFilesystem, Operation,
    PlanStage, PreservedObject, ProveKept, ProveZeros, Rehearsal, SessionOp, StageName, StopArray, UnlockDisk,
    WriteMachineFiles, WriteMarker, WritePersistent,
};
use std::collections::BTreeSet;

pub fn arrange_stages(
    layout: &Layout,
    inventory: &Inventory,
    request: PlanRequest,
    mut decided: PlanDecisions,
) -> Plan {
    let meant = LayoutMatch::new(layout, inventory);
    let marker = install_marker::build_marker(&meant, &request, &decided);
    let begun_on = install_marker::started_records(&meant, marker.as_ref());
    let secret = marker.as_ref().and_then(|marker| marker.secret.as_ref()?.digest());
    let mut begun_on = attempt::record_disks(&meant, &request, &decided, &begun_on);
    begun_on.extend(attempt::record_volume_disks(inventory, &decided));
    let expected = preserved::list_preserved(layout, inventory, &decided);
    display::draw_preserved(&meant, &mut decided);
    let filesystems = sort_by_mount_order(layout, &decided.filesystems);
    let fstab: Vec<FstabEntry> = filesystems.iter().filter_map(|placed| fstab_entry(layout, placed)).collect();
    let returning = RestorePlan::new(&meant, &decided, &filesystems);
    let rehearsal = returning.build_rehearsal();
    let identities = disks_to_identify(inventory, &decided, rehearsal.as_ref());
    let (mut formats, root_uuid) = (format_operations(&filesystems), root_uuid(&filesystems));
    let files = Box::new(operation_args::machine_files(&request, inventory, &decided, &formats, &root_uuid));
    let finishing = bootable::finish_inputs(&meant, &decided, &filesystems, &fstab, files.clone());
    let source = request.source();
    formats.retain(|operation| source.is_created(operation));
    let mut tries = trials::filesystem_trials(&filesystems);
    tries.retain(|operation| source.is_created(operation));
    let inputs = SourceInputs {
        layout,
        meant: &meant,
        decided: &decided,
        filesystems: &filesystems,
        returning: &returning,
        fstab: &fstab,
    };
    let system = source.build_stages(&inputs, finishing);
    drop(source);
    let mut doubts = system.warnings;
    let policy = RemovalPolicy::from_layout(layout);
    let firmware = firmware::plan_variables(inventory, Some(&decided), policy);
    doubts.extend(firmware.iter().flat_map(FirmwarePlan::warnings));
    let cleaned = firmware.as_ref().and_then(|plan| plan.remove_variables(policy, system.entries.is_some()));
    let cleaned_after = system.entries.is_some().then(|| firmware.as_ref()?.remove_own_entries()).flatten();
    let stages = [
        (StageName::ImageReach, system.reach.map(Operation::Run).into_iter().collect()),
        (StageName::DefinitionVerify, system.checks.into_iter().map(Operation::Run).collect()),
        (
            StageName::StorageIdentify,
            identities
                .into_iter()
                .map(SessionOp::IdentifyDisk)
                .map(Operation::Run)
                .chain(luks::check_containers(&decided))
                .collect(),
        ),
        (
            StageName::StorageLock,
            lock_operations(&meant, &decided)
                .into_iter()
                .chain(try_arrays(&decided))
                .chain(tries)
                .chain(decided.persistent.trials.iter().cloned().map(DeviceOp::TryFilesystem).map(Operation::Device))
                .chain(prove_zeros(&decided))
                .collect(),
        ),
        (StageName::StorageRelease, release_operations(&decided)),
        (StageName::StorageRehearse, rehearsal.map(SessionOp::Rehearse).map(Operation::Run).into_iter().collect()),
        (
            StageName::StorageWipe,
            decided.wipes.iter().cloned().map(DeviceOp::WipeDisk).map(Operation::Device).collect(),
        ),
        (StageName::BootClean, cleaned.into_iter().collect()),
        (
            StageName::StoragePartition,
            decided.tables.iter().cloned().map(DeviceOp::WriteTable).map(Operation::Device).collect(),
        ),
        (StageName::StorageRaid, create_arrays(&decided)),
        (
            StageName::StorageLvm,
            [luks::create_containers(&decided, true), create_groups_and_volumes(&decided)].concat(),
        ),
        (StageName::StorageEncrypt, luks::create_containers(&decided, false)),
        (StageName::StorageFormat, formats),
        system.first,
        system.second,
        (StageName::StorageMountKept, returning.after_the_image()),
        (StageName::StorageVolumes, volume_operations(&decided)),
        (StageName::TargetFiles, vec![Operation::Run(SessionOp::WriteMachineFiles(WriteMachineFiles { files }))]),
        (StageName::TargetInstaller, vec![system.installer]),
        (StageName::TargetFstab, system.fstab.into_iter().chain(luks::write_crypttab(&decided)).collect()),
        (StageName::BootEntries, system.entries.into_iter().chain(cleaned_after).collect()),
        (StageName::BootLoad, vec![Operation::Run(SessionOp::LoadKernel)]),
        (StageName::StorageProveKept, prove_preserved(expected)),
        (
            StageName::TargetMarker,
            system
                .before_marker
                .into_iter()
                .chain(marker.map(WriteMarker).map(SessionOp::WriteMarker))
                .map(Operation::Run)
                .collect(),
        ),
        (StageName::StorageUnmount, unmount_operations(&decided)),
        (
            StageName::ReportFinal,
            vec![Operation::Run(operation_args::final_report(&request, None, devices_with_verdict(&decided, is_made)))],
        ),
        (StageName::BootKexec, vec![Operation::Run(SessionOp::Kexec)]),
    ];
    let stages = stages.into_iter().filter(|(name, _)| steps::includes_stage(&request.steps, *name));
    let stages =
        insert_announcement(drop_empty_stages(stages), operation_args::announce_start(&request, begun_on, secret));
    let point_of_no_return = stages.iter().position(|stage| stage.name.is_destructive()).unwrap_or(stages.len());
    let PlanRequest { mode, subject, .. } = request;
    let mut plan = Plan {
        mode,
        subject,
        layout: layout.id.clone(),
        summary: PlanSummary::from_disks(&decided.disks),
        disks: decided.disks,
        stages,
        point_of_no_return,
        fstab,
        root_uuid,
        already: None,
        warnings: decided.warnings.into_iter().chain(doubts).collect(),
        torn: decided.torn,
        opaque: opaque::listed_objects(inventory),
        sizes: decided.sizes,
        extents: Vec::new(),
        volumes: decided.persistent.planned,
        firmware,
        verdicts: None,
    };
    plan.extents = extents::compute_extents(&plan, inventory);
    operation_args::insert_extents(&mut plan.stages, &plan.extents);
    plan
}

/// Returns the disks of the layout, and other disks that contain a part of a preserved object.
fn disks_to_identify(
    inventory: &Inventory,
    decided: &PlanDecisions,
    rehearsal: Option<&Rehearsal>,
) -> Vec<DiskIdentity> {
    let stack = DeviceStack::new(inventory);
    let over = rehearsal.iter().flat_map(|rehearsal| &rehearsal.over);
    let below: BTreeSet<KernelName> =
        over.flat_map(|device| stack.disks_below(&stack.kernel_name(&device.as_str().into()))).collect();
    let reached = inventory.disks.iter().filter(|disk| below.contains(&disk.name)).map(DiskIdentity::from_disk);
    let others = reached.filter(|disk| !decided.identities.contains(disk));
    decided.identities.iter().cloned().chain(others).collect()
}

fn format_operations(filesystems: &[PlacedFilesystem]) -> Vec<Operation> {
    filesystems.iter().filter_map(make_filesystem).map(DeviceOp::MakeFilesystem).map(Operation::Device).collect()
}

fn root_uuid(filesystems: &[PlacedFilesystem]) -> String {
    let root = filesystems.iter().find(|(filesystem, _)| filesystem.path.as_deref() == Some("/"));
    root.and_then(|(_, is)| is.uuid()).unwrap_or_default().to_owned()
}

/// Omits the stages without operations.
pub fn drop_empty_stages(stages: impl IntoIterator<Item = (StageName, Vec<Operation>)>) -> Vec<PlanStage> {
    let stages = stages.into_iter().filter(|(_, operations)| !operations.is_empty());
    stages.map(|(name, operations)| PlanStage { name, operations }).collect()
}

/// Inserts the report of the start of this attempt immediately before the first destructive stage.
fn insert_announcement(mut stages: Vec<PlanStage>, announce: SessionOp) -> Vec<PlanStage> {
    let first = stages.iter().position(|stage| stage.name.is_destructive());
    if let Some(first) = first {
        stages.insert(first, PlanStage { name: StageName::ReportBegin, operations: vec![Operation::Run(announce)] });
    }
    stages
}

fn prove_preserved(expected: Vec<PreservedObject>) -> Vec<Operation> {
    if expected.is_empty() { Vec::new() } else { vec![Operation::Run(SessionOp::ProveKept(ProveKept(expected)))] }
}

fn is_made(verdict: DiskVerdict) -> bool {
    matches!(verdict, DiskVerdict::Wipe | DiskVerdict::Make)
}

/// Returns the devices that the image's installer may write: recreated disks, and new arrays and volumes on them.
pub fn writable_devices(decided: &PlanDecisions) -> Vec<DevicePath> {
    let arrays = create_arrays(decided).into_iter().chain(create_groups_and_volumes(decided));
    let arrays = arrays.filter_map(|operation| match operation {
        Operation::Device(DeviceOp::CreateArray(array)) => Some(array.device),
        Operation::Device(DeviceOp::CreateVolume(volume)) => Some(volume.device),
        _ => None,
    });
    devices_with_verdict(decided, is_made).into_iter().chain(arrays).collect()
}

fn devices_with_verdict(decided: &PlanDecisions, is: impl Fn(DiskVerdict) -> bool) -> Vec<DevicePath> {
    decided.disks.iter().filter(|disk| is(disk.verdict)).map(|disk| disk.device.clone()).collect()
}

fn lock_operations(meant: &LayoutMatch, decided: &PlanDecisions) -> Vec<Operation> {
    let disks = decided.disks.iter().filter(|disk| !is_made(disk.verdict));
    let lock = |disk: &DiskPlan| {
        // A disk that a volume takes is written later.
        let is_written = decided.persistent.written.contains(&disk.name);
        let mut untouched = if is_written { Vec::new() } else { guard_ranges::guarded_ranges(meant, disk) };
        untouched.extend(luks::guard_locked(meant, decided, disk));
        Operation::Run(SessionOp::LockDisk(LockDisk { device: disk.device.clone(), untouched }))
    };
    disks.map(lock).collect()
}

/// Returns the proof of zeros. It is the last of the checks, because it may take hours, but precedes the release of holders, because arrays
/// and volumes are read too.
fn prove_zeros(decided: &PlanDecisions) -> Option<Operation> {
    let proofs = &decided.zero_proofs;
    (!proofs.is_empty()).then(|| Operation::Device(DeviceOp::ProveZeros(ProveZeros(proofs.clone()))))
}

fn release_operations(decided: &PlanDecisions) -> Vec<Operation> {
    let disks = devices_with_verdict(decided, is_made);
    let assert = (!disks.is_empty()).then_some(Operation::Device(DeviceOp::AssertFree(AssertFree { disks })));
    decided.releases.iter().cloned().map(DeviceOp::Release).map(Operation::Device).chain(assert).collect()
}

/// Returns the operations in the order of the layout: an array lies only on arrays before it.
fn create_arrays(decided: &PlanDecisions) -> Vec<Operation> {
    let made = decided.arrays.iter().filter_map(|array| match array {
        ArrayFate::Made(array) => Some(Operation::Device(DeviceOp::CreateArray(array.clone()))),
        ArrayFate::Kept { .. } => None,
    });
    made.collect()
}

fn create_groups_and_volumes(decided: &PlanDecisions) -> Vec<Operation> {
    let groups = decided.groups.iter().filter_map(|group| match group {
        GroupFate::Made(group) => Some(Operation::Device(DeviceOp::CreateGroup(group.clone()))),
        GroupFate::Kept { .. } => None,
    });
    groups.chain(decided.volumes.iter().cloned().map(DeviceOp::CreateVolume).map(Operation::Device)).collect()
}

fn try_arrays(decided: &PlanDecisions) -> impl Iterator<Item = Operation> {
    decided.array_trials.iter().cloned().map(DeviceOp::TryArray).map(Operation::Device)
}

/// Returns the operations that deactivate everything, in the reverse order of activation.
fn unmount_operations(decided: &PlanDecisions) -> Vec<Operation> {
    let groups = decided.groups.iter().rev().filter_map(|group| {
        let (name, devices) = match group {
            GroupFate::Made(group) => (&group.name, &group.devices),
            // No volume was activated in a preserved group without volumes of the layout.
            GroupFate::Kept { name, volumes, .. }
                if volumes.is_empty() && !decided.persistent.extended.contains(name) =>
            {
                return None;
            }
            GroupFate::Kept { name, devices, .. } => (name, devices),
        };
        Some(Operation::Device(DeviceOp::DeactivateGroup(DeactivateGroup {
            name: name.clone(),
            devices: devices.clone(),
        })))
    });
    let arrays = decided.arrays.iter().rev().map(|array| match array {
        ArrayFate::Made(array) => Operation::Device(DeviceOp::StopArray(StopArray { device: array.device.clone() })),
        ArrayFate::Kept { device, .. } => Operation::Device(DeviceOp::StopArray(StopArray { device: device.clone() })),
    });
    let kept = devices_with_verdict(decided, |verdict| verdict == DiskVerdict::Keep);
    let disks =
        devices_with_verdict(decided, is_made).into_iter().chain(kept).chain(written_for_volumes(decided)).collect();
    let flush = Operation::Run(SessionOp::FlushDisks(FlushDisks { disks }));
    std::iter::once(Operation::Run(SessionOp::Unmount))
        .chain(luks::close_containers(decided, false))
        .chain(groups)
        .chain(luks::close_containers(decided, true))
        .chain(arrays)
        .chain([flush])
        .collect()
}

/// Returns the disks that the layout does not list and that are written for volumes.
fn written_for_volumes(decided: &PlanDecisions) -> impl Iterator<Item = DevicePath> {
    let written = decided.disks.iter().filter(|disk| decided.persistent.written.contains(&disk.name));
    written.map(|disk| disk.device.clone())
}

/// Returns the operations for Kubernetes volumes, after all preserved objects are activated.
fn volume_operations(decided: &PlanDecisions) -> Vec<Operation> {
    let unlock = |device| Operation::Run(SessionOp::UnlockDisk(UnlockDisk { device, others: Vec::new() }));
    let prepares = decided.persistent.prepares.iter().cloned().map(Box::new);
    let prepares = prepares.map(DeviceOp::PreparePersistent).map(Operation::Device);
    let (sparse, volumes) = (decided.persistent.sparse.clone(), decided.persistent.prepared.clone());
    let write = (!volumes.is_empty()).then_some(SessionOp::WritePersistent(WritePersistent { sparse, volumes }));
    written_for_volumes(decided).map(unlock).chain(prepares).chain(write.map(Operation::Run)).collect()
}

/// Sorts parents before children, independent of their order in the layout. Filesystems without a path come last.
fn sort_by_mount_order<'a>(layout: &'a Layout, fates: &'a [FilesystemFate]) -> Vec<PlacedFilesystem<'a>> {
    let mut pairs: Vec<_> = layout.filesystems.iter().zip(fates).collect();
    pairs.sort_by_key(|(filesystem, _)| {
        let path = filesystem.path.as_deref().filter(|path| path.starts_with('/'));
        (path.is_none(), path.map(path_depth).unwrap_or_default(), path.unwrap_or_default())
    });
    pairs
}

fn path_depth(path: &str) -> usize {
    path.split('/').filter(|part| !part.is_empty()).count()
}

fn make_filesystem((filesystem, is): &PlacedFilesystem) -> Option<MakeFilesystem> {
    is.as_made().map(|new| new_filesystem(filesystem, new))
}

pub fn new_filesystem(filesystem: &FilesystemSpec, new: &NewFilesystem) -> MakeFilesystem {
    MakeFilesystem {
        device: new.device.clone(),
        format: filesystem.format,
        label: filesystem.label.clone(),
        uuid: new.uuid.clone(),
        createoptions: filesystem.createoptions.clone(),
    }
}

/// Returns the line in fstab. A filesystem of a raw image has its line in the fstab of the image.
fn fstab_entry(layout: &Layout, (filesystem, is): &PlacedFilesystem) -> Option<FstabEntry> {
    let source = match is {
        // The mapping is used as the source; its name contains the UUID of the container.
        _ if filesystem.encrypted.is_some() && mount_path(filesystem).is_some() => match is {
            FilesystemFate::Unformatted { .. } => return None,
            _ => is.device()?.to_string(),
        },
        FilesystemFate::Made(_) | FilesystemFate::Filled(_) | FilesystemFate::Kept { .. } => {
            format!("UUID={}", is.uuid()?)
        }
        FilesystemFate::Tmpfs => "tmpfs".to_owned(),
        FilesystemFate::InImage { .. } | FilesystemFate::Unformatted { .. } => return None,
    };
    let path = match filesystem.format {
        FilesystemFormat::Swap => "none",
        _ => mount_path(filesystem)?,
    };
    let pass = match filesystem.format {
        // The fsck of xfs and btrfs does nothing at boot (fsck.xfs(8), btrfs-check(8)).
        FilesystemFormat::Tmpfs | FilesystemFormat::Swap | FilesystemFormat::Xfs | FilesystemFormat::Btrfs => 0,
        _ if path == "/" => 1,
        _ => 2,
    };
    let mut options = filesystem.mountoptions.clone();
    // systemd waits for a passphrase of a container, but not for volumes of a group in it (systemd.mount(5)).
    let within = layout.find_encrypted_group(&filesystem.device).and_then(|group| group.encrypted);
    if within.is_some_and(|encrypted| encrypted.key == KeySource::Prompt) {
        options.push("x-systemd.device-timeout=0".to_owned());
    }
    Some(FstabEntry { source, path: path.to_owned(), format: filesystem.format, options, pass })
}
