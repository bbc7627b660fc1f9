//! Arranges the decisions as stages in the order of the run.

use super::firmware::{self, RemovalPolicy};
use super::placed::{FilesystemFate, New, Placed};
use super::returning::{Returning, mountable};
use super::verdict::{ArrayFate, Decided, GroupFate};
use super::{
    DiskIdentity, DiskPlan, FirmwarePlan, FstabEntry, Kept, MakeFilesystem, OfRun, OnDevice, Operation, Plan,
    Rehearsal, Request, Stage, StageName, Summary, Verdict, WritePersistent,
};
use super::{
    contents, defining, display, extents, finishing, handing, image, kept, luks, making, marking, opaque, receiving,
    steps, trying, untouched,
};
use crate::device::{DevicePath, KernelName};
use crate::inventory::Inventory;
use crate::layout::{Filesystem, Format, KeySource, Layout};
use crate::order::{self, Gather};
use crate::topology::{Match, Stack};
use std::collections::BTreeSet;

pub fn arrange(layout: &Layout, inventory: &Inventory, request: Request, mut decided: Decided) -> Plan {
    let meant = Match::new(layout, inventory);
    let marker = marking::marker(&meant, &request, &decided);
    let begun_on = marking::begun_on(&meant, marker.as_ref());
    let secret = marker.as_ref().and_then(|marker| marker.secret.as_ref()?.digest());
    let mut begun_on = making::recorded(&meant, &request, &decided, &begun_on);
    begun_on.extend(making::of_volumes(inventory, &decided));
    let expected = kept::expected(layout, inventory, &decided);
    display::show_kept(&meant, &mut decided);
    let filesystems = in_mount_order(layout, &decided.filesystems);
    let fstab: Vec<FstabEntry> = filesystems.iter().filter_map(|placed| fstab_entry(layout, placed)).collect();
    let returning = Returning::new(&meant, &decided, &filesystems);
    let rehearsal = returning.rehearsal();
    let identities = identities(inventory, &decided, rehearsal.as_ref());
    let (mut formats, root_uuid) = (formats(&filesystems), root_uuid(&filesystems));
    let files = Box::new(handing::files(&request, inventory, &decided, &formats, &root_uuid));
    let finishing = finishing::of(&meant, &decided, &filesystems, &fstab, files.clone());
    formats.retain(|operation| receiving::is_made_here(&request, operation));
    let mut tries = trying::tries(&filesystems);
    tries.retain(|operation| receiving::is_made_here(&request, operation));
    let mut doubts = Vec::new();
    let (mut reach, mut asked) = (None, Vec::new());
    let image = match request.receiving() {
        Some(moving) => receiving::way(moving, &decided, &returning, finishing),
        None => {
            doubts.extend(contents::judged(layout, inventory, &request).warnings);
            doubts.extend(finishing::doubt(layout, &finishing));
            let needs = contents::Needs::of(layout, inventory, &request);
            let way = image::Way::of(&request.subject, &meant, &decided, &filesystems, &returning, &fstab, finishing);
            reach = defining::has_image(&request).then(|| handing::reach(&request, &way.first.1, needs));
            asked.extend(defining::verify(&request).into_iter().chain(defining::programs(&request)));
            way
        }
    };
    let policy = RemovalPolicy::of(layout);
    let firmware = firmware::plan(inventory, Some(&decided), policy);
    doubts.extend(firmware.iter().flat_map(FirmwarePlan::warnings));
    let cleaned = firmware.as_ref().and_then(|plan| plan.removal(policy, image.entries.is_some()));
    let cleaned_after = image.entries.is_some().then(|| firmware.as_ref()?.removal_of_own()).flatten();
    let stands = request.receiving().map(|moving| OfRun::MoveStands { order: moving.order.clone() });
    let stages = [
        (StageName::ImageReach, reach.map(Operation::Run).into_iter().collect()),
        (StageName::DefinitionVerify, asked.into_iter().map(Operation::Run).collect()),
        (
            StageName::StorageIdentify,
            identities.into_iter().map(OfRun::IdentifyDisk).map(Operation::Run).chain(luks::check(&decided)).collect(),
        ),
        (
            StageName::StorageLock,
            locks(&meant, &decided)
                .into_iter()
                .chain(array_trials(&decided))
                .chain(tries)
                .chain(decided.persistent.trials.iter().cloned().map(OnDevice::TryFilesystem).map(Operation::Device))
                .chain(zero_proofs(&decided))
                .collect(),
        ),
        (StageName::StorageRelease, releases(&decided)),
        (StageName::StorageRehearse, rehearsal.map(OfRun::Rehearse).map(Operation::Run).into_iter().collect()),
        (
            StageName::StorageWipe,
            decided.wipes.iter().cloned().map(OnDevice::WipeDisk).map(Operation::Device).collect(),
        ),
        (StageName::BootClean, cleaned.into_iter().collect()),
        (
            StageName::StoragePartition,
            decided.tables.iter().cloned().map(OnDevice::WriteTable).map(Operation::Device).collect(),
        ),
        (StageName::StorageRaid, arrays_to_make(&decided)),
        (StageName::StorageLvm, [luks::made(&decided, true), groups_and_volumes_to_make(&decided)].concat()),
        (StageName::StorageEncrypt, luks::made(&decided, false)),
        (StageName::StorageFormat, formats),
        image.first,
        image.second,
        (StageName::StorageMountKept, returning.after_the_image()),
        (StageName::StorageVolumes, volumes(&decided)),
        (StageName::TargetFiles, vec![Operation::Run(OfRun::WriteMachineFiles { files })]),
        (StageName::TargetInstaller, vec![image.installer]),
        (StageName::TargetFstab, image.fstab.into_iter().chain(luks::crypttab(&decided)).collect()),
        (StageName::BootEntries, image.entries.into_iter().chain(cleaned_after).collect()),
        (StageName::BootLoad, vec![Operation::Run(OfRun::LoadKernel)]),
        (StageName::StorageProveKept, prove(expected)),
        (
            StageName::TargetMarker,
            stands.into_iter().chain(marker.map(OfRun::WriteMarker)).map(Operation::Run).collect(),
        ),
        (StageName::StorageUnmount, unmount(&decided)),
        (StageName::ReportFinal, vec![Operation::Run(handing::closing(&request, None, devices(&decided, is_made)))]),
        (StageName::BootKexec, vec![Operation::Run(OfRun::Kexec)]),
    ];
    let stages = stages.into_iter().filter(|(name, _)| steps::include(&request.steps, *name));
    let stages = announced(with_work(stages), handing::announce(&request, begun_on, secret));
    let point_of_no_return = stages.iter().position(|stage| stage.name.is_destructive()).unwrap_or(stages.len());
    let Request { mode, subject, .. } = request;
    let mut plan = Plan {
        mode,
        subject,
        layout: layout.id.clone(),
        summary: Summary::of(&decided.disks),
        disks: decided.disks,
        stages,
        point_of_no_return,
        fstab,
        root_uuid,
        already: None,
        warnings: decided.warnings.into_iter().chain(doubts).collect(),
        torn: decided.torn,
        opaque: opaque::listed(inventory),
        sizes: decided.sizes,
        extents: Vec::new(),
        volumes: decided.persistent.planned,
        firmware,
        verdicts: None,
    };
    plan.extents = extents::of(&plan, inventory);
    handing::extents(&mut plan.stages, &plan.extents);
    plan
}

/// Returns the disks of the layout, and other disks that contain a part of a preserved object.
fn identities(inventory: &Inventory, decided: &Decided, rehearsal: Option<&Rehearsal>) -> Vec<DiskIdentity> {
    let stack = Stack::new(inventory);
    let over = rehearsal.iter().flat_map(|rehearsal| &rehearsal.over);
    let below: BTreeSet<KernelName> =
        over.flat_map(|device| stack.disks(&stack.name(&device.as_str().into()))).gather();
    let reached = inventory.disks.iter().filter(|disk| below.contains(&disk.name)).map(DiskIdentity::of);
    let others = reached.filter(|disk| !decided.identities.contains(disk));
    decided.identities.iter().cloned().chain(others).collect()
}

fn formats(filesystems: &[Placed]) -> Vec<Operation> {
    filesystems.iter().filter_map(make_filesystem).map(OnDevice::MakeFilesystem).map(Operation::Device).collect()
}

fn root_uuid(filesystems: &[Placed]) -> String {
    let root = filesystems.iter().find(|(filesystem, _)| filesystem.path.as_deref() == Some("/"));
    root.and_then(|(_, is)| is.uuid()).unwrap_or_default().to_owned()
}

/// Omits the stages without operations.
pub fn with_work(stages: impl IntoIterator<Item = (StageName, Vec<Operation>)>) -> Vec<Stage> {
    let stages = stages.into_iter().filter(|(_, operations)| !operations.is_empty());
    stages.map(|(name, operations)| Stage { name, operations }).collect()
}

/// Inserts the report of the start of this attempt immediately before the first destructive stage.
fn announced(mut stages: Vec<Stage>, announce: OfRun) -> Vec<Stage> {
    let first = stages.iter().position(|stage| stage.name.is_destructive());
    if let Some(first) = first {
        stages.insert(first, Stage { name: StageName::ReportBegin, operations: vec![Operation::Run(announce)] });
    }
    stages
}

fn prove(expected: Vec<Kept>) -> Vec<Operation> {
    if expected.is_empty() { Vec::new() } else { vec![Operation::Run(OfRun::ProveKept(expected))] }
}

fn is_made(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Wipe | Verdict::Make)
}

/// Returns the devices that the image's installer may write: recreated disks, and new arrays and volumes on them.
pub fn made(decided: &Decided) -> Vec<DevicePath> {
    let arrays = arrays_to_make(decided).into_iter().chain(groups_and_volumes_to_make(decided));
    let arrays = arrays.filter_map(|operation| match operation {
        Operation::Device(OnDevice::CreateArray(array)) => Some(array.device),
        Operation::Device(OnDevice::CreateVolume(volume)) => Some(volume.device),
        _ => None,
    });
    devices(decided, is_made).into_iter().chain(arrays).collect()
}

fn devices(decided: &Decided, is: impl Fn(Verdict) -> bool) -> Vec<DevicePath> {
    decided.disks.iter().filter(|disk| is(disk.verdict)).map(|disk| disk.device.clone()).collect()
}

fn locks(meant: &Match, decided: &Decided) -> Vec<Operation> {
    let disks = decided.disks.iter().filter(|disk| !is_made(disk.verdict));
    let lock = |disk: &DiskPlan| {
        // A disk that a volume takes is written later.
        let is_written = decided.persistent.written.contains(&disk.name);
        let mut untouched = if is_written { Vec::new() } else { untouched::ranges(meant, disk) };
        untouched.extend(luks::untouched(meant, decided, disk));
        Operation::Run(OfRun::LockDisk { device: disk.device.clone(), untouched })
    };
    disks.map(lock).collect()
}

/// Returns the proof of zeros. It is the last of the checks, because it may take hours, but precedes the release of holders, because arrays
/// and volumes are read too.
fn zero_proofs(decided: &Decided) -> Option<Operation> {
    let proofs = &decided.zero_proofs;
    (!proofs.is_empty()).then(|| Operation::Device(OnDevice::ProveZeros(proofs.clone())))
}

fn releases(decided: &Decided) -> Vec<Operation> {
    let disks = devices(decided, is_made);
    let assert = (!disks.is_empty()).then_some(Operation::Device(OnDevice::AssertFree { disks }));
    decided.releases.iter().cloned().map(OnDevice::Release).map(Operation::Device).chain(assert).collect()
}

/// Returns the operations in the order of the layout: an array lies only on arrays before it.
fn arrays_to_make(decided: &Decided) -> Vec<Operation> {
    let made = decided.arrays.iter().filter_map(|array| match array {
        ArrayFate::Made(array) => Some(Operation::Device(OnDevice::CreateArray(array.clone()))),
        ArrayFate::Kept { .. } => None,
    });
    made.collect()
}

fn groups_and_volumes_to_make(decided: &Decided) -> Vec<Operation> {
    let groups = decided.groups.iter().filter_map(|group| match group {
        GroupFate::Made(group) => Some(Operation::Device(OnDevice::CreateGroup(group.clone()))),
        GroupFate::Kept { .. } => None,
    });
    groups.chain(decided.volumes.iter().cloned().map(OnDevice::CreateVolume).map(Operation::Device)).collect()
}

fn array_trials(decided: &Decided) -> impl Iterator<Item = Operation> {
    decided.array_trials.iter().cloned().map(OnDevice::TryArray).map(Operation::Device)
}

/// Returns the operations that deactivate everything, in the reverse order of activation.
fn unmount(decided: &Decided) -> Vec<Operation> {
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
        Some(Operation::Device(OnDevice::DeactivateGroup { name: name.clone(), devices: devices.clone() }))
    });
    let arrays = decided.arrays.iter().rev().map(|array| match array {
        ArrayFate::Made(array) => Operation::Device(OnDevice::StopArray { device: array.device.clone() }),
        ArrayFate::Kept { device, .. } => Operation::Device(OnDevice::StopArray { device: device.clone() }),
    });
    let kept = devices(decided, |verdict| verdict == Verdict::Keep);
    let disks = devices(decided, is_made).into_iter().chain(kept).chain(written_for_volumes(decided)).collect();
    let flush = Operation::Run(OfRun::FlushDisks { disks });
    std::iter::once(Operation::Run(OfRun::Unmount))
        .chain(luks::closed(decided, false))
        .chain(groups)
        .chain(luks::closed(decided, true))
        .chain(arrays)
        .chain([flush])
        .collect()
}

/// Returns the disks that the layout does not list and that are written for volumes.
fn written_for_volumes(decided: &Decided) -> impl Iterator<Item = DevicePath> {
    let written = decided.disks.iter().filter(|disk| decided.persistent.written.contains(&disk.name));
    written.map(|disk| disk.device.clone())
}

/// Returns the operations for Kubernetes volumes, after all preserved objects are activated.
fn volumes(decided: &Decided) -> Vec<Operation> {
    let unlock = |device| Operation::Run(OfRun::UnlockDisk { device, others: Vec::new() });
    let prepares = decided.persistent.prepares.iter().cloned().map(Box::new);
    let prepares = prepares.map(OnDevice::PreparePersistent).map(Operation::Device);
    let (sparse, volumes) = (decided.persistent.sparse.clone(), decided.persistent.prepared.clone());
    let write = (!volumes.is_empty()).then_some(OfRun::WritePersistent(WritePersistent { sparse, volumes }));
    written_for_volumes(decided).map(unlock).chain(prepares).chain(write.map(Operation::Run)).collect()
}

/// Sorts parents before children, independent of their order in the layout. Filesystems without a path come last.
fn in_mount_order<'a>(layout: &'a Layout, fates: &'a [FilesystemFate]) -> Vec<Placed<'a>> {
    let mut pairs: Vec<_> = layout.filesystems.iter().zip(fates).collect();
    order::by_key(&mut pairs, |(filesystem, _)| {
        let path = filesystem.path.as_deref().filter(|path| path.starts_with('/'));
        (path.is_none(), path.map(depth).unwrap_or_default(), path.unwrap_or_default())
    });
    pairs
}

fn depth(path: &str) -> usize {
    path.split('/').filter(|part| !part.is_empty()).count()
}

fn make_filesystem((filesystem, is): &Placed) -> Option<MakeFilesystem> {
    is.made().map(|new| new_filesystem(filesystem, new))
}

pub fn new_filesystem(filesystem: &Filesystem, new: &New) -> MakeFilesystem {
    MakeFilesystem {
        device: new.device.clone(),
        format: filesystem.format,
        label: filesystem.label.clone(),
        uuid: new.uuid.clone(),
        createoptions: filesystem.createoptions.clone(),
    }
}

/// Returns the line in fstab. A filesystem of a raw image has its line in the fstab of the image.
fn fstab_entry(layout: &Layout, (filesystem, is): &Placed) -> Option<FstabEntry> {
    let source = match is {
        // The mapping is used as the source; its name contains the UUID of the container.
        _ if filesystem.encrypted.is_some() && mountable(filesystem).is_some() => match is {
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
        Format::Swap => "none",
        _ => mountable(filesystem)?,
    };
    let pass = match filesystem.format {
        // The fsck of xfs and btrfs does nothing at boot (fsck.xfs(8), btrfs-check(8)).
        Format::Tmpfs | Format::Swap | Format::Xfs | Format::Btrfs => 0,
        _ if path == "/" => 1,
        _ => 2,
    };
    let mut options = filesystem.mountoptions.clone();
    // systemd waits for a passphrase of a container, but not for volumes of a group in it (systemd.mount(5)).
    let within = layout.encrypted_group(&filesystem.device).and_then(|group| group.encrypted);
    if within.is_some_and(|encrypted| encrypted.key == KeySource::Prompt) {
        options.push("x-systemd.device-timeout=0".to_owned());
    }
    Some(FstabEntry { source, path: path.to_owned(), format: filesystem.format, options, pass })
}
