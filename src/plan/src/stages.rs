//! Arranges the decisions of the planner as stages, in the order of execution.

use super::filesystem_fate::{FilesystemFate, PlacedFilesystem, new_filesystem};
use super::plan_decisions::PlanDecisions;
use super::preserved_activation::{RestorePlan, mount_path};
use super::stale_boot_variables::{self, RemovalPolicy};
use super::system_source::{SourceInputs, StageOperations, SystemStages};
use super::{
    DiskVerdict, FirmwarePlan, Plan, PlanRequest, PlanSummary, attempt_record, creation_trials, display,
    image_boot_setup, install_marker, luks, opaque_objects, operation_args, preservation_proof, step_selection,
    writable_extents,
};
use model::device_name::KernelName;
use model::install_marker::InstallMarker;
use model::inventory::Inventory;
use model::layout::{FilesystemFormat, KeySource, Layout};
use model::storage_graph::{DeviceStack, LayoutMatch};
use operations::{
    ActivationRehearsal, DeviceOp, DiskIdentity, FstabEntry, LoadKernel, LockDisk, MachineFiles, MakeFilesystem,
    Operation, PlanStage, PreservedObject, ProvePreserved, SessionOp, StageName, WriteMachineFiles, WriteMarker,
};
use std::collections::BTreeSet;
use storage_operations::{
    create_arrays, create_groups_and_volumes, deactivate_operations, devices_with_verdict, lock_operations,
    prove_zeros, release_operations, try_arrays, unmount_operations, volume_operations,
};

mod storage_operations;

pub(crate) use storage_operations::writable_devices;

pub(crate) fn arrange_stages(
    layout: &Layout,
    inventory: &Inventory,
    request: PlanRequest,
    mut decided: PlanDecisions,
) -> Plan {
    let meant = LayoutMatch::new(layout, inventory);
    let marker = install_marker::build_marker(&meant, &request, &decided);
    let announcement = announce_attempt(&meant, &request, &decided, marker.as_ref());
    let expected = preservation_proof::list_preserved(layout, inventory, &decided);
    display::draw_preserved(&meant, &mut decided);
    let filesystems = sort_by_mount_order(layout, &decided.filesystems);
    let fstab: Vec<FstabEntry> = filesystems.iter().filter_map(|placed| fstab_entry(layout, placed)).collect();
    let returning = RestorePlan::new(&meant, &decided, &filesystems);
    let (mut formats, root_uuid) = (format_operations(&filesystems), root_uuid(&filesystems));
    let files = Box::new(operation_args::machine_files(&request, inventory, &decided, &formats, &root_uuid));
    let finishing = image_boot_setup::finish_inputs(&meant, &decided, &filesystems, &fstab, files.clone());
    let source = request.source();
    formats.retain(|operation| source.is_created(operation));
    let contents = request.assigned.allocation.image.contents.as_ref();
    let kernel = contents.and_then(|contents| contents.newest_kernel());
    let mut trials = creation_trials::filesystem_trials(&filesystems, kernel);
    trials.retain(|operation| source.is_created(operation));
    let (filesystems, returning) = (&filesystems, &returning);
    let inputs = SourceInputs { layout, meant: &meant, decided: &decided, filesystems, returning, fstab: &fstab };
    let mut system = source.build_stages(&inputs, finishing);
    let (firmware, cleaning) = clean_firmware(layout, inventory, &decided, system.entries.is_some());
    let mut warnings = std::mem::take(&mut system.warnings);
    warnings.extend(firmware.iter().flat_map(FirmwarePlan::warnings));
    let before_marker = system.before_marker.take();
    let stages = [
        checking_stages(&meant, &decided, &mut system, trials, returning.build_rehearsal()),
        storage_stages(&decided, returning, cleaning.before, formats),
        system_stages(&decided, system, returning, files, cleaning.after),
        closing_stages(&request, &decided, prove_preserved(&meant, &decided, expected), before_marker, marker),
    ];
    let stages = stages.into_iter().flatten().filter(|(name, _)| step_selection::includes_stage(&request.steps, *name));
    let stages = insert_announcement(drop_empty_stages(stages), announcement);
    drop(source);
    let placed = PlacedStages { stages, fstab, root_uuid, firmware, warnings };
    build_plan(layout, inventory, request, decided, placed)
}

/// Stages of a plan, and values that are derived from the stages.
struct PlacedStages {
    stages: Vec<PlanStage>,
    fstab: Vec<FstabEntry>,
    root_uuid: String,
    firmware: Option<FirmwarePlan>,
    warnings: Vec<String>,
}

fn build_plan(
    layout: &Layout,
    inventory: &Inventory,
    request: PlanRequest,
    decided: PlanDecisions,
    placed: PlacedStages,
) -> Plan {
    let PlacedStages { stages, fstab, root_uuid, firmware, warnings } = placed;
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
        warnings: decided.warnings.into_iter().chain(warnings).collect(),
        dismantled: decided.dismantled,
        opaque: opaque_objects::listed_objects(inventory),
        sizes: decided.sizes,
        extents: Vec::new(),
        volumes: decided.persistent.planned,
        firmware,
        verdicts: None,
    };
    plan.extents = writable_extents::compute_extents(&plan, inventory);
    operation_args::insert_extents(&mut plan.stages, &plan.extents);
    plan
}

/// Returns the operation that reports the start of this attempt to the control plane.
fn announce_attempt(
    meant: &LayoutMatch,
    request: &PlanRequest,
    decided: &PlanDecisions,
    marker: Option<&InstallMarker>,
) -> SessionOp {
    let started = install_marker::started_records(meant, marker);
    let secret = marker.and_then(|marker| marker.secret.as_ref()?.digest());
    let mut begun_on = attempt_record::record_disks(meant, request, decided, &started);
    begun_on.extend(attempt_record::record_volume_disks(meant.inventory, decided));
    operation_args::announce_start(request, begun_on, secret)
}

/// Operations that remove firmware variables, before and after the boot entries of the new system are written.
struct FirmwareCleaning {
    before: Option<Operation>,
    after: Option<Operation>,
}

fn clean_firmware(
    layout: &Layout,
    inventory: &Inventory,
    decided: &PlanDecisions,
    writes_entries: bool,
) -> (Option<FirmwarePlan>, FirmwareCleaning) {
    let policy = RemovalPolicy::from_layout(layout);
    let firmware = stale_boot_variables::plan_variables(inventory, Some(decided), policy);
    let before = firmware.as_ref().and_then(|plan| plan.remove_variables(policy, writes_entries));
    let after = writes_entries.then(|| firmware.as_ref()?.remove_own_entries()).flatten();
    (firmware, FirmwareCleaning { before, after })
}

/// Returns the stages that precede the first write. They check everything that can be checked without writing.
fn checking_stages(
    meant: &LayoutMatch,
    decided: &PlanDecisions,
    system: &mut SystemStages,
    trials: Vec<Operation>,
    rehearsal: Option<ActivationRehearsal>,
) -> Vec<StageOperations> {
    let identities = disks_to_identify(meant.inventory, decided, rehearsal.as_ref());
    let identities = identities.into_iter().map(SessionOp::IdentifyDisk).map(Operation::Run);
    let volume_trials = decided.persistent.trials.iter().cloned().map(DeviceOp::TryFilesystem).map(Operation::Device);
    let locked = lock_operations(meant, decided)
        .into_iter()
        .chain(try_arrays(decided))
        .chain(trials)
        .chain(volume_trials)
        .chain(prove_zeros(decided));
    vec![
        (StageName::ImageReach, system.reach.take().map(Operation::Run).into_iter().collect()),
        (StageName::DefinitionVerify, system.checks.drain(..).map(Operation::Run).collect()),
        (StageName::StorageIdentify, identities.chain(luks::check_containers(decided)).collect()),
        (StageName::StorageLock, locked.collect()),
        (StageName::StorageRelease, release_operations(decided)),
        (StageName::StorageRehearse, rehearsal.map(SessionOp::Rehearse).map(Operation::Run).into_iter().collect()),
    ]
}

/// Returns the stages that destroy data, and create everything up to the filesystems.
fn storage_stages(
    decided: &PlanDecisions,
    returning: &RestorePlan,
    cleaning: Option<Operation>,
    formats: Vec<Operation>,
) -> Vec<StageOperations> {
    let clears = decided.clears.iter().cloned().map(DeviceOp::ClearRanges);
    let wipes = decided.wipes.iter().cloned().map(DeviceOp::WipeDisk).chain(clears).map(Operation::Device);
    let edits = decided.edits.iter().cloned().map(DeviceOp::EditTable);
    let tables = decided.tables.iter().cloned().map(DeviceOp::WriteTable).chain(edits).map(Operation::Device);
    let containers = luks::create_containers(decided, true);
    let groups = [containers, returning.before_the_volumes(), create_groups_and_volumes(decided)].concat();
    vec![
        (StageName::StorageWipe, wipes.collect()),
        (StageName::BootClean, cleaning.into_iter().collect()),
        (StageName::StoragePartition, tables.collect()),
        (StageName::StorageRaid, create_arrays(decided)),
        (StageName::StorageLvm, groups),
        (StageName::StorageEncrypt, luks::create_containers(decided, false)),
        (StageName::StorageFormat, formats),
    ]
}

/// Returns the stages that write the system to the disks and make it bootable.
fn system_stages(
    decided: &PlanDecisions,
    system: SystemStages,
    returning: &RestorePlan,
    files: Box<MachineFiles>,
    cleaning: Option<Operation>,
) -> Vec<StageOperations> {
    vec![
        system.first,
        system.second,
        (StageName::StorageMountPreserved, returning.after_the_image()),
        (StageName::StorageVolumes, volume_operations(decided)),
        (StageName::TargetFiles, vec![Operation::Run(SessionOp::WriteMachineFiles(WriteMachineFiles { files }))]),
        (StageName::TargetInstaller, vec![system.installer]),
        (StageName::TargetFstab, system.fstab.into_iter().chain(luks::write_crypttab(decided)).collect()),
        (StageName::BootEntries, system.entries.into_iter().chain(cleaning).collect()),
        (StageName::BootLoad, vec![Operation::Run(SessionOp::LoadKernel(LoadKernel::default()))]),
    ]
}

/// Returns the last stages, which complete the system: they check the preserved objects, write the install marker, and
/// report success to the control plane.
fn closing_stages(
    request: &PlanRequest,
    decided: &PlanDecisions,
    proof: Option<Operation>,
    before_marker: Option<SessionOp>,
    marker: Option<InstallMarker>,
) -> Vec<StageOperations> {
    let marker = before_marker.into_iter().chain(marker.map(WriteMarker).map(SessionOp::WriteMarker));
    let report = operation_args::final_report(request, None, devices_with_verdict(decided, DiskVerdict::is_recreated));
    vec![
        (StageName::StorageProvePreserved, proof.into_iter().collect()),
        (StageName::TargetMarker, marker.map(Operation::Run).collect()),
        (StageName::StorageUnmount, unmount_operations(decided)),
        (StageName::StorageDeactivate, deactivate_operations(decided)),
        (StageName::ReportFinal, vec![Operation::Run(report)]),
        (StageName::BootKexec, vec![Operation::Run(SessionOp::Kexec)]),
    ]
}

/// Returns the disks whose identity is verified: the disks of the layout, unlisted disks that are used for Kubernetes
/// volumes, and other disks that contain a part of a preserved object.
fn disks_to_identify(
    inventory: &Inventory,
    decided: &PlanDecisions,
    rehearsal: Option<&ActivationRehearsal>,
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

/// Removes the stages without operations.
pub(crate) fn drop_empty_stages(stages: impl IntoIterator<Item = (StageName, Vec<Operation>)>) -> Vec<PlanStage> {
    let stages = stages.into_iter().filter(|(_, operations)| !operations.is_empty());
    stages.map(|(name, operations)| PlanStage { name, operations }).collect()
}

/// Inserts the announcement of this attempt to the control plane immediately before the first destructive stage.
fn insert_announcement(mut stages: Vec<PlanStage>, announce: SessionOp) -> Vec<PlanStage> {
    let first = stages.iter().position(|stage| stage.name.is_destructive());
    if let Some(first) = first {
        stages.insert(first, PlanStage { name: StageName::ReportBegin, operations: vec![Operation::Run(announce)] });
    }
    stages
}

/// Returns the operation that compares preserved objects and guarded ranges with their state before the installation.
/// Returns `None` if the plan preserves no object and guards no range.
fn prove_preserved(meant: &LayoutMatch, decided: &PlanDecisions, expected: Vec<PreservedObject>) -> Option<Operation> {
    let guards_ranges = lock_operations(meant, decided).iter().any(|operation| {
        matches!(operation, Operation::Run(SessionOp::LockDisk(LockDisk { untouched, .. })) if !untouched.is_empty())
    });
    let is_required = guards_ranges || !expected.is_empty();
    is_required.then_some(Operation::Run(SessionOp::ProvePreserved(ProvePreserved(expected))))
}

/// Sorts the filesystems so that parents precede children, regardless of their order in the layout. Filesystems without
/// a path come last.
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
    is.created_filesystem().map(|new| new_filesystem(filesystem, new))
}

/// Returns the line for a filesystem in fstab; `None` for a filesystem of a raw image, because the image contains its
/// own fstab.
fn fstab_entry(layout: &Layout, (filesystem, is): &PlacedFilesystem) -> Option<FstabEntry> {
    let source = match is {
        // The source of an encrypted filesystem is the mapping of its container. The name of the mapping contains the
        // UUID of the container.
        _ if filesystem.encrypted.is_some() && mount_path(filesystem).is_some() => match is {
            FilesystemFate::Unformatted { .. } => return None,
            _ => is.device()?.to_string(),
        },
        FilesystemFate::Created(_) | FilesystemFate::Filled(_) | FilesystemFate::Preserved { .. } => {
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
        // These filesystems are not checked at boot: the fsck programs of xfs and btrfs do nothing then (fsck.xfs(8),
        // btrfs-check(8)).
        FilesystemFormat::Tmpfs | FilesystemFormat::Swap | FilesystemFormat::Xfs | FilesystemFormat::Btrfs => 0,
        _ if path == "/" => 1,
        _ => 2,
    };
    let mut options = filesystem.mountoptions.clone();
    // For a container, systemd's device timeout starts only after the passphrase was entered. For a volume of a group
    // in the container, it starts earlier, and is therefore disabled (systemd.mount(5)).
    let within = layout.find_encrypted_group(&filesystem.device).and_then(|group| group.encrypted);
    if within.is_some_and(|encrypted| encrypted.key == KeySource::Prompt) {
        options.push("x-systemd.device-timeout=0".to_owned());
    }
    Some(FstabEntry { source, path: path.to_owned(), format: filesystem.format, options, pass })
}
