//! Puts what was decided into the order in which it is done.

use super::verdict::{ArrayFate, Decided, FilesystemFate, GroupFate};
use super::{FstabEntry, MakeFilesystem, Mode, MountFilesystem, Operation, Plan, Step, StepName, Subject, Verdict};
use crate::layout::{Filesystem, Format, Layout};

pub fn arrange(layout: &Layout, mode: Mode, subject: Subject, decided: Decided) -> Plan {
    let filesystems = in_mount_order(layout, &decided.filesystems);
    let fstab = filesystems.iter().filter_map(|(filesystem, is)| fstab_entry(filesystem, is)).collect();
    let root = filesystems.iter().find(|(filesystem, _)| filesystem.path.as_deref() == Some("/"));
    let root_uuid = root.map(|(_, is)| is.uuid.clone()).unwrap_or_default();
    let steps = [
        (StepName::ImageReach, vec![Operation::ReachImage { name: subject.image.clone(), url: subject.url.clone() }]),
        (StepName::StorageIdentify, decided.identities.iter().cloned().map(Operation::IdentifyDisk).collect()),
        (StepName::StorageLock, locks(&decided)),
        (StepName::StorageRelease, releases(&decided)),
        (StepName::StorageWipe, decided.wipes.iter().cloned().map(Operation::WipeDisk).collect()),
        (StepName::StoragePartition, decided.tables.iter().cloned().map(Operation::WriteTable).collect()),
        (StepName::StorageRaid, arrays_to_make(&decided)),
        (StepName::StorageLvm, groups_and_volumes_to_make(&decided)),
        (
            StepName::StorageFormat,
            filesystems.iter().filter_map(make_filesystem).map(Operation::MakeFilesystem).collect(),
        ),
        (StepName::StorageMount, mounts(&filesystems, false)),
        (
            StepName::ImageBurn,
            vec![Operation::BurnImage { name: subject.image.clone(), hidden: vec![], merged: vec![] }],
        ),
        (StepName::StorageMountKept, kept(&decided, &filesystems)),
        (StepName::TargetFiles, vec![Operation::WriteMachineFiles]),
        (StepName::TargetInstaller, vec![Operation::RunInstaller]),
        (StepName::TargetFstab, vec![Operation::WriteFstab]),
        (StepName::BootLoad, vec![Operation::LoadKernel]),
        (StepName::StorageUnmount, unmount(&decided)),
        (StepName::ReportFinal, vec![Operation::Report]),
        (StepName::BootKexec, vec![Operation::Kexec]),
    ];
    let steps: Vec<Step> = steps
        .into_iter()
        .filter(|(_, operations): &(StepName, Vec<Operation>)| !operations.is_empty())
        .map(|(name, operations)| Step { name, operations })
        .collect();
    let point_of_no_return = steps.iter().position(|step| step.name.is_destructive()).unwrap_or(steps.len());
    Plan {
        mode,
        subject,
        layout: layout.id.clone(),
        disks: decided.disks,
        steps,
        point_of_no_return,
        fstab,
        root_uuid,
        already: None,
        warnings: decided.warnings,
    }
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

fn devices(decided: &Decided, verdict: Verdict) -> Vec<String> {
    decided.disks.iter().filter(|disk| disk.verdict == verdict).map(|disk| disk.device.clone()).collect()
}

fn locks(decided: &Decided) -> Vec<Operation> {
    let disks = decided.disks.iter().filter(|disk| disk.verdict != Verdict::Wipe);
    disks.map(|disk| Operation::LockDisk { device: disk.device.clone() }).collect()
}

fn releases(decided: &Decided) -> Vec<Operation> {
    let disks = devices(decided, Verdict::Wipe);
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

/// Everything that is kept comes back: disks writable, arrays, groups, filesystems.
fn kept(decided: &Decided, filesystems: &[Placed]) -> Vec<Operation> {
    let arrays = decided.arrays.iter().filter_map(|array| match array {
        ArrayFate::Made(_) => None,
        ArrayFate::Kept { device, uuid, members } => {
            Some(Operation::AssembleArray { device: device.clone(), uuid: *uuid, members: members.clone() })
        }
    });
    let groups = decided.groups.iter().filter_map(|group| match group {
        GroupFate::Made(_) => None,
        GroupFate::Kept { name, devices } => {
            Some(Operation::ActivateGroup { name: name.clone(), devices: devices.clone() })
        }
    });
    let fills = filesystems.iter().filter(|(_, is)| is.fill).map(new_filesystem).map(Operation::MakeFilesystem);
    let operations: Vec<Operation> = arrays.chain(groups).chain(fills).chain(mounts(filesystems, true)).collect();
    if operations.is_empty() {
        return operations;
    }
    let disks = devices(decided, Verdict::Keep).into_iter();
    disks.map(|device| Operation::UnlockDisk { device }).chain(operations).collect()
}

/// The reverse of how it was put together.
fn unmount(decided: &Decided) -> Vec<Operation> {
    let groups = decided.groups.iter().rev().map(|group| {
        let (name, devices) = match group {
            GroupFate::Made(group) => (&group.name, &group.devices),
            GroupFate::Kept { name, devices } => (name, devices),
        };
        Operation::DeactivateGroup { name: name.clone(), devices: devices.clone() }
    });
    let arrays = decided.arrays.iter().rev().map(|array| match array {
        ArrayFate::Made(array) => Operation::StopArray { device: array.device.clone() },
        ArrayFate::Kept { device, .. } => Operation::StopArray { device: device.clone() },
    });
    let disks = devices(decided, Verdict::Wipe).into_iter().chain(devices(decided, Verdict::Keep)).collect();
    let flush = Operation::FlushDisks { disks };
    std::iter::once(Operation::Unmount).chain(groups).chain(arrays).chain([flush]).collect()
}

/// A filesystem of the layout and its fate.
type Placed<'a> = (&'a Filesystem, &'a FilesystemFate);

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

fn mountable(filesystem: &Filesystem) -> Option<&str> {
    let path = filesystem.path.as_deref().filter(|path| path.starts_with('/'))?;
    (!matches!(filesystem.format, Format::Swap | Format::None)).then_some(path)
}

/// Before the image or after it: kept filesystems, and those below them, which they would hide.
fn mounts(filesystems: &[Placed], after_the_image: bool) -> Vec<Operation> {
    let kept = filesystems.iter().filter(|(_, is)| is.keep).filter_map(|(filesystem, _)| mountable(filesystem));
    let kept: Vec<&str> = kept.collect();
    let is_late = |path: &str| kept.iter().any(|kept| path == *kept || path.starts_with(&format!("{kept}/")));
    let mounts = filesystems.iter().filter_map(mount).filter(|mount| is_late(&mount.path) == after_the_image);
    mounts.map(Operation::Mount).collect()
}

fn make_filesystem((filesystem, is): &Placed) -> Option<MakeFilesystem> {
    if is.keep || matches!(filesystem.format, Format::None | Format::Tmpfs) {
        return None;
    }
    Some(new_filesystem(&(filesystem, is)))
}

fn new_filesystem((filesystem, is): &Placed) -> MakeFilesystem {
    MakeFilesystem {
        device: is.device.clone(),
        format: filesystem.format,
        label: filesystem.label.clone(),
        uuid: is.uuid.clone(),
        createoptions: filesystem.createoptions.clone(),
    }
}

/// A tmpfs belongs to the running system: it has a line in fstab, and the image's files lie below it, unhidden.
fn mount((filesystem, is): &Placed) -> Option<MountFilesystem> {
    if filesystem.format == Format::Tmpfs {
        return None;
    }
    Some(MountFilesystem {
        device: is.device.clone(),
        path: mountable(filesystem)?.to_owned(),
        format: filesystem.format,
        options: filesystem.mountoptions.clone(),
    })
}

fn fstab_entry(filesystem: &Filesystem, is: &FilesystemFate) -> Option<FstabEntry> {
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
