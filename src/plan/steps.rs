//! Puts what was decided into the order in which it is done.

use super::returning::{Returning, mountable};
use super::verdict::{ArrayFate, Decided, FilesystemFate, GroupFate};
use super::{DiskPlan, FstabEntry, Kept, MakeFilesystem, Operation, Plan, Request, Step, StepName, Summary, Verdict};
use super::{display, extents, image, kept, making, marking, trying, untouched};
use crate::inventory::Inventory;
use crate::layout::{Filesystem, Format, Layout};
use crate::marker::MarkedDisk;

pub fn arrange(layout: &Layout, inventory: &Inventory, request: Request, mut decided: Decided) -> Plan {
    let marker = marking::marker(layout, inventory, &request, &decided);
    let begun_on = marking::begun_on(layout, inventory, marker.as_ref());
    let begun_on = making::recorded(layout, &decided, inventory, &begun_on);
    let Request { mode, subject, .. } = request;
    let expected = kept::expected(layout, inventory, &decided);
    display::show_kept(layout, inventory, &mut decided);
    let filesystems = in_mount_order(layout, &decided.filesystems);
    let fstab: Vec<FstabEntry> = filesystems.iter().filter_map(fstab_entry).collect();
    let returning = Returning::new(layout, inventory, &decided, &filesystems);
    let image = image::Way::of(&subject, inventory, &decided, &filesystems, &returning, &fstab);
    let steps = [
        (StepName::ImageReach, vec![Operation::ReachImage { name: subject.image.clone(), url: subject.url.clone() }]),
        (StepName::StorageIdentify, decided.identities.iter().cloned().map(Operation::IdentifyDisk).collect()),
        (
            StepName::StorageLock,
            locks(layout, inventory, &decided)
                .into_iter()
                .chain(array_trials(&decided))
                .chain(trying::tries(&filesystems))
                .collect(),
        ),
        (StepName::StorageRelease, releases(&decided)),
        (StepName::StorageRehearse, returning.rehearsal(inventory).map(Operation::Rehearse).into_iter().collect()),
        (StepName::StorageWipe, decided.wipes.iter().cloned().map(Operation::WipeDisk).collect()),
        (StepName::StoragePartition, decided.tables.iter().cloned().map(Operation::WriteTable).collect()),
        (StepName::StorageRaid, arrays_to_make(&decided)),
        (StepName::StorageLvm, groups_and_volumes_to_make(&decided)),
        (StepName::StorageFormat, formats(&filesystems)),
        image.first,
        image.second,
        (StepName::StorageMountKept, returning.after_the_image()),
        (StepName::TargetFiles, vec![Operation::WriteMachineFiles]),
        (StepName::TargetInstaller, vec![image.installer]),
        (StepName::TargetFstab, image.fstab),
        (StepName::BootLoad, vec![Operation::LoadKernel]),
        (StepName::StorageProveKept, prove(expected)),
        (StepName::TargetMarker, marker.into_iter().map(Operation::WriteMarker).collect()),
        (StepName::StorageUnmount, unmount(&decided)),
        (StepName::ReportFinal, vec![Operation::Report]),
        (StepName::BootKexec, vec![Operation::Kexec]),
    ];
    let steps = announced(with_work(steps), begun_on);
    let point_of_no_return = steps.iter().position(|step| step.name.is_destructive()).unwrap_or(steps.len());
    let root_uuid = root_uuid(&filesystems);
    let plan = Plan {
        mode,
        subject,
        layout: layout.id.clone(),
        summary: Summary::of(&decided.disks),
        disks: decided.disks,
        steps,
        point_of_no_return,
        fstab,
        root_uuid,
        already: None,
        warnings: decided.warnings,
        torn: decided.torn,
        sizes: decided.sizes,
        extents: Vec::new(),
    };
    Plan { extents: extents::of(&plan, inventory), ..plan }
}

impl StepName {
    /// Does this step destroy what was there?
    pub fn is_destructive(self) -> bool {
        matches!(
            self,
            StepName::StorageWipe
                | StepName::StoragePartition
                | StepName::StorageRaid
                | StepName::StorageLvm
                | StepName::StorageFormat
        )
    }

    /// Is each operation of this step about a device that no other of them touches? Arrays and groups are not: one may
    /// lie on another.
    pub fn runs_side_by_side(self) -> bool {
        matches!(self, StepName::StorageWipe | StepName::StoragePartition | StepName::StorageFormat)
    }
}

fn formats(filesystems: &[Placed]) -> Vec<Operation> {
    filesystems.iter().filter_map(make_filesystem).map(Operation::MakeFilesystem).collect()
}

fn root_uuid(filesystems: &[Placed]) -> String {
    let root = filesystems.iter().find(|(filesystem, _)| filesystem.path.as_deref() == Some("/"));
    root.map(|(_, is)| is.uuid.clone()).unwrap_or_default()
}

/// Steps without operations are none.
fn with_work(steps: impl IntoIterator<Item = (StepName, Vec<Operation>)>) -> Vec<Step> {
    let steps = steps.into_iter().filter(|(_, operations)| !operations.is_empty());
    steps.map(|(name, operations)| Step { name, operations }).collect()
}

/// The control plane is told that it begins, right before anything is destroyed.
fn announced(mut steps: Vec<Step>, disks: Vec<MarkedDisk>) -> Vec<Step> {
    let first = steps.iter().position(|step| step.name.is_destructive());
    if let Some(first) = first {
        let operations = vec![Operation::TellPointOfNoReturn { disks }];
        steps.insert(first, Step { name: StepName::ReportBegin, operations });
    }
    steps
}

fn prove(expected: Vec<Kept>) -> Vec<Operation> {
    if expected.is_empty() { Vec::new() } else { vec![Operation::ProveKept(expected)] }
}

fn is_made(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Wipe | Verdict::Make)
}

/// What the image's installer may write: disks that are wiped, and what was made of them.
pub fn made(decided: &Decided) -> Vec<String> {
    let arrays = arrays_to_make(decided).into_iter().chain(groups_and_volumes_to_make(decided));
    let arrays = arrays.filter_map(|operation| match operation {
        Operation::CreateArray(array) => Some(array.device),
        Operation::CreateVolume(volume) => Some(volume.device),
        _ => None,
    });
    devices(decided, is_made).into_iter().chain(arrays).collect()
}

fn devices(decided: &Decided, is: impl Fn(Verdict) -> bool) -> Vec<String> {
    decided.disks.iter().filter(|disk| is(disk.verdict)).map(|disk| disk.device.clone()).collect()
}

fn locks(layout: &Layout, inventory: &Inventory, decided: &Decided) -> Vec<Operation> {
    let disks = decided.disks.iter().filter(|disk| !is_made(disk.verdict));
    let lock = |disk: &DiskPlan| Operation::LockDisk {
        device: disk.device.clone(),
        untouched: untouched::ranges(layout, inventory, disk),
    };
    disks.map(lock).collect()
}

fn releases(decided: &Decided) -> Vec<Operation> {
    let disks = devices(decided, is_made);
    let assert = (!disks.is_empty()).then_some(Operation::AssertFree { disks });
    decided.releases.iter().cloned().map(Operation::Release).chain(assert).collect()
}

/// In the layout's order: an array lies on earlier ones only.
fn arrays_to_make(decided: &Decided) -> Vec<Operation> {
    let made = decided.arrays.iter().filter_map(|array| match array {
        ArrayFate::Made(array) => Some(Operation::CreateArray(array.clone())),
        ArrayFate::Kept { .. } => None,
    });
    made.collect()
}

fn groups_and_volumes_to_make(decided: &Decided) -> Vec<Operation> {
    let groups = decided.groups.iter().filter_map(|group| match group {
        GroupFate::Made(group) => Some(Operation::CreateGroup(group.clone())),
        GroupFate::Kept { .. } => None,
    });
    groups.chain(decided.volumes.iter().cloned().map(Operation::CreateVolume)).collect()
}

fn array_trials(decided: &Decided) -> impl Iterator<Item = Operation> {
    decided.array_trials.iter().cloned().map(Operation::TryArray)
}

/// The reverse of how it was put together.
fn unmount(decided: &Decided) -> Vec<Operation> {
    let groups = decided.groups.iter().rev().filter_map(|group| {
        let (name, devices) = match group {
            GroupFate::Made(group) => (&group.name, &group.devices),
            // Of one without a volume of the layout nothing was activated.
            GroupFate::Kept { volumes, .. } if volumes.is_empty() => return None,
            GroupFate::Kept { name, devices, .. } => (name, devices),
        };
        Some(Operation::DeactivateGroup { name: name.clone(), devices: devices.clone() })
    });
    let arrays = decided.arrays.iter().rev().map(|array| match array {
        ArrayFate::Made(array) => Operation::StopArray { device: array.device.clone() },
        ArrayFate::Kept { device, .. } => Operation::StopArray { device: device.clone() },
    });
    let disks =
        devices(decided, is_made).into_iter().chain(devices(decided, |verdict| verdict == Verdict::Keep)).collect();
    let flush = Operation::FlushDisks { disks };
    std::iter::once(Operation::Unmount).chain(groups).chain(arrays).chain([flush]).collect()
}

/// A filesystem of the layout and its fate.
pub type Placed<'a> = (&'a Filesystem, &'a FilesystemFate);

/// Parents before children whatever the listing order; what has no path comes last.
fn in_mount_order<'a>(layout: &'a Layout, fates: &'a [FilesystemFate]) -> Vec<Placed<'a>> {
    let mut pairs: Vec<_> = layout.filesystems.iter().zip(fates).collect();
    pairs.sort_by_key(|(filesystem, _)| {
        let path = filesystem.path.as_deref().filter(|path| path.starts_with('/'));
        (path.is_none(), path.map(depth).unwrap_or_default(), path.unwrap_or_default())
    });
    pairs
}

fn depth(path: &str) -> usize {
    path.split('/').filter(|part| !part.is_empty()).count()
}

fn make_filesystem((filesystem, is): &Placed) -> Option<MakeFilesystem> {
    if is.keep || is.image_partition.is_some() || matches!(filesystem.format, Format::None | Format::Tmpfs) {
        return None;
    }
    Some(new_filesystem(&(filesystem, is)))
}

pub fn new_filesystem((filesystem, is): &Placed) -> MakeFilesystem {
    MakeFilesystem {
        device: is.device.clone(),
        format: filesystem.format,
        label: filesystem.label.clone(),
        uuid: is.uuid.clone(),
        createoptions: filesystem.createoptions.clone(),
    }
}

/// What a raw image brings has its line in the image's own fstab.
fn fstab_entry((filesystem, is): &Placed) -> Option<FstabEntry> {
    if is.image_partition.is_some() {
        return None;
    }
    let path = match filesystem.format {
        Format::Swap => "none",
        _ => mountable(filesystem)?,
    };
    let source = match filesystem.format {
        Format::Tmpfs => "tmpfs".to_owned(),
        _ => format!("UUID={}", is.uuid),
    };
    let pass = match filesystem.format {
        // The fsck of xfs and btrfs does nothing at boot (fsck.xfs(8), btrfs-check(8)).
        Format::Tmpfs | Format::Swap | Format::Xfs | Format::Btrfs => 0,
        _ if path == "/" => 1,
        _ => 2,
    };
    Some(FstabEntry {
        source,
        path: path.to_owned(),
        format: filesystem.format,
        options: filesystem.mountoptions.clone(),
        pass,
    })
}
