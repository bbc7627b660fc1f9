//! Puts what was decided into the order in which it is done.

use super::verdict::{Decided, Decision};
use super::{
    FstabEntry, MakeFilesystem, Mode, MountFilesystem, Operation, Plan, Step, StepName, Subject, Verdict, WipeDisk,
};
use crate::inventory::EraseMethod;
use crate::layout::{Filesystem, Format, Layout};

pub fn arrange(layout: &Layout, mode: Mode, subject: Subject, decided: Decided) -> Plan {
    let filesystems = in_mount_order(layout, &decided.filesystems);
    let fstab: Vec<FstabEntry> =
        filesystems.iter().filter_map(|(filesystem, is)| fstab_entry(filesystem, is)).collect();
    let root = filesystems.iter().find(|(filesystem, _)| filesystem.path.as_deref() == Some("/"));
    let root_uuid = root.map(|(_, is)| is.uuid.clone()).unwrap_or_default();

    let of_verdict = |verdict: Verdict| decided.disks.iter().filter(move |disk| disk.verdict == verdict);
    let locked = decided.disks.iter().filter(|disk| disk.verdict != Verdict::Wipe);
    let mounts = |keep: bool| -> Vec<Operation> {
        filesystems.iter().filter(|(_, is)| is.keep == keep).filter_map(mount).map(Operation::Mount).collect()
    };
    let mut kept = mounts(true);
    if !kept.is_empty() {
        let unlocks = of_verdict(Verdict::Keep).map(|disk| Operation::UnlockDisk { device: disk.device.clone() });
        kept = unlocks.chain(kept).collect();
    }
    let wipes = decided.wipes.iter();
    let written = of_verdict(Verdict::Wipe).chain(of_verdict(Verdict::Keep)).map(|disk| disk.device.clone()).collect();

    let steps = [
        (StepName::ImageReach, vec![Operation::ReachImage { name: subject.image.clone(), url: subject.url.clone() }]),
        (StepName::StorageLock, locked.map(|disk| Operation::LockDisk { device: disk.device.clone() }).collect()),
        (
            StepName::StorageWipe,
            wipes
                .clone()
                .map(|wipe| {
                    Operation::WipeDisk(WipeDisk {
                        device: wipe.device.clone(),
                        methods: vec![EraseMethod::Discard],
                        strict: false,
                        budget_seconds: 60,
                        zero: wipe.zero.clone(),
                    })
                })
                .collect(),
        ),
        (StepName::StoragePartition, wipes.filter_map(|wipe| wipe.table.clone()).map(Operation::WriteTable).collect()),
        (
            StepName::StorageFormat,
            filesystems.iter().filter_map(make_filesystem).map(Operation::MakeFilesystem).collect(),
        ),
        (StepName::StorageMount, mounts(false)),
        (StepName::ImageBurn, vec![Operation::BurnImage { name: subject.image.clone() }]),
        (StepName::StorageMountKept, kept),
        (StepName::TargetFiles, vec![Operation::WriteMachineFiles]),
        (StepName::TargetInstaller, vec![Operation::RunInstaller]),
        (StepName::TargetFstab, vec![Operation::WriteFstab]),
        (StepName::BootLoad, vec![Operation::LoadKernel]),
        (StepName::StorageUnmount, vec![Operation::Unmount, Operation::FlushDisks { disks: written }]),
        (StepName::ReportFinal, vec![Operation::Report]),
        (StepName::BootKexec, vec![Operation::Kexec]),
    ];
    let steps: Vec<Step> = steps
        .into_iter()
        .filter(|(_, operations): &(StepName, Vec<Operation>)| !operations.is_empty())
        .map(|(name, operations)| Step { name, operations })
        .collect();
    let point_of_no_return = steps.iter().position(|step| step.name.is_destructive()).unwrap_or(steps.len());
    Plan { mode, subject, layout: layout.id.clone(), disks: decided.disks, steps, point_of_no_return, fstab, root_uuid }
}

impl StepName {
    /// Does this step destroy what was there?
    pub fn is_destructive(self) -> bool {
        matches!(self, StepName::StorageWipe | StepName::StoragePartition | StepName::StorageFormat)
    }

    /// Is each of its operations about a device that no other of them touches?
    pub fn runs_side_by_side(self) -> bool {
        matches!(self, StepName::StorageWipe | StepName::StoragePartition | StepName::StorageFormat)
    }
}

/// Parents before children whatever the listing order; what has no path comes last.
fn in_mount_order<'a>(layout: &'a Layout, decisions: &'a [Decision]) -> Vec<(&'a Filesystem, &'a Decision)> {
    let mut pairs: Vec<_> = layout.filesystems.iter().zip(decisions).collect();
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

fn make_filesystem((filesystem, is): &(&Filesystem, &Decision)) -> Option<MakeFilesystem> {
    if is.keep || filesystem.format == Format::None {
        return None;
    }
    Some(MakeFilesystem {
        device: is.device.clone(),
        format: filesystem.format,
        label: filesystem.label.clone(),
        uuid: is.uuid.clone(),
        createoptions: filesystem.createoptions.clone(),
    })
}

/// A tmpfs belongs to the running system: it has a line in fstab, and the image's files lie below it, unhidden.
fn mount((filesystem, is): &(&Filesystem, &Decision)) -> Option<MountFilesystem> {
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

fn fstab_entry(filesystem: &Filesystem, is: &Decision) -> Option<FstabEntry> {
    let path = match filesystem.format {
        Format::Swap => "none",
        _ => mountable(filesystem)?,
    };
    let source = match filesystem.format {
        Format::Tmpfs => "tmpfs".to_owned(),
        _ => format!("UUID={}", is.uuid),
    };
    let pass = match filesystem.format {
        Format::Tmpfs | Format::Swap => 0,
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
