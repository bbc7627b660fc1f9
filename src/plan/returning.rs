//! How what is kept comes back: before the image where its files are merged into it, after the image all the rest.

use super::steps::{Placed, new_filesystem};
use super::untouched::foreign_partitions;
use super::verdict::{ArrayFate, Decided, FilesystemFate, GroupFate};
use super::{DiskPlan, MountFilesystem, Operation, Rehearsal, Verdict, find};
use crate::inventory::{Inventory, Signature};
use crate::layout::{Below, Filesystem, Format, Layout, OnReinstall};
use std::collections::{BTreeMap, BTreeSet};

/// When something comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    BeforeTheImage,
    AfterTheImage,
}

pub struct Returning<'a> {
    decided: &'a Decided,
    filesystems: &'a [Placed<'a>],
    /// Paths of disks and arrays, names of groups, that merged filesystems lie on.
    early: BTreeSet<String>,
    /// By path of the disk: numbers of the partitions that the layout does not speak of.
    others: BTreeMap<String, Vec<u32>>,
}

impl<'a> Returning<'a> {
    pub fn new(
        layout: &Layout,
        inventory: &Inventory,
        decided: &'a Decided,
        filesystems: &'a [Placed<'a>],
    ) -> Returning<'a> {
        let merged = filesystems.iter().filter(|placed| is_merged(placed));
        let Below { disks, arrays, groups } = layout.below(merged.map(|(wanted, _)| wanted.device.as_str()));
        let disks = disks.into_iter().filter_map(|index| find::disk(&layout.disks[index], inventory).ok());
        let arrays = arrays.into_iter().map(|index| layout.raid[index].arrayname.clone());
        let groups = groups.into_iter().map(|index| layout.volumegroups[index].name.clone());
        let early = disks.map(|disk| disk.device.clone()).chain(arrays).chain(groups).collect();
        let others = inventory.disks.iter();
        let others = others.map(|disk| (disk.device.clone(), foreign_partitions(layout, inventory, disk))).collect();
        Returning { decided, filesystems, early, others }
    }

    pub fn before_the_image(&self) -> Vec<Operation> {
        self.come_back(When::BeforeTheImage)
    }

    pub fn after_the_image(&self) -> Vec<Operation> {
        self.come_back(When::AfterTheImage)
    }

    /// What comes back, on the disks as they are now, with the layout's own options: an installed system that cannot mount it
    /// is no use either. What is blank is not mounted before it is made.
    pub fn rehearsal(&self, inventory: &Inventory) -> Option<Rehearsal> {
        let mounted = self.filesystems.iter().filter(|(_, is)| is.keep && !is.fill);
        let mounts = mounted.filter_map(|placed| {
            let options = placed.0.mountoptions.clone();
            mount(placed).map(|mount| MountFilesystem { options, ..mount })
        });
        let mounts: Vec<MountFilesystem> = mounts.collect();
        let stacked = self.arrays(|_| true).chain(self.groups(|_| true));
        let operations: Vec<Operation> = stacked.chain(mounts.iter().cloned().map(Operation::Mount)).collect();
        let over = bottom(&operations).into_iter().chain(self.parts_of_btrfs(inventory)).collect::<BTreeSet<String>>();
        (!operations.is_empty()).then(|| Rehearsal { over: over.into_iter().collect(), operations })
    }

    /// Disks and partitions that a btrfs of the layout lies on, those that only its superblocks name too.
    fn parts_of_btrfs(&self, inventory: &Inventory) -> Vec<String> {
        let kept = self.filesystems.iter().filter(|(wanted, is)| wanted.format == Format::Btrfs && is.keep && !is.fill);
        let uuids: BTreeSet<&str> =
            kept.filter(|(wanted, _)| mountable(wanted).is_some()).map(|(_, is)| is.uuid.as_str()).collect();
        let is_part = |signatures: &[Signature]| {
            signatures.iter().any(|found| found.kind == Format::Btrfs.name() && uuids.contains(found.uuid.as_str()))
        };
        let whole = inventory.disks.iter().map(|disk| (&disk.device, &disk.signatures));
        let parts = inventory.disks.iter().flat_map(|disk| disk.table.iter().flat_map(|table| &table.partitions));
        let all = whole.chain(parts.map(|part| (&part.device, &part.signatures)));
        all.filter(|(_, signatures)| is_part(signatures)).map(|(device, _)| device.clone()).collect()
    }

    fn arrays(&self, is: impl Fn(&str) -> bool) -> impl Iterator<Item = Operation> {
        self.decided.arrays.iter().filter_map(move |array| match array {
            ArrayFate::Kept { device, uuid, members } if is(device) => {
                Some(Operation::AssembleArray { device: device.clone(), uuid: *uuid, members: members.clone() })
            }
            _ => None,
        })
    }

    fn groups(&self, is: impl Fn(&str) -> bool) -> impl Iterator<Item = Operation> {
        self.decided.groups.iter().filter_map(move |group| match group {
            GroupFate::Kept { name, devices, volumes } if is(name) && !volumes.is_empty() => {
                let (name, devices, volumes) = (name.clone(), devices.clone(), volumes.clone());
                Some(Operation::ActivateGroup { name, devices, volumes })
            }
            _ => None,
        })
    }

    /// Mount points that will cover what the image has there.
    pub fn hidden(&self) -> Vec<String> {
        self.kept_paths(|placed| !is_merged(placed))
    }

    /// Mount points below which the image's files are added to what is there.
    pub fn merged(&self) -> Vec<String> {
        self.kept_paths(is_merged)
    }

    /// Mount points below `/` of what is made anew and mounted before the image.
    pub fn fresh(&self) -> Vec<String> {
        let made = self.filesystems.iter().filter(|(_, is)| !is.keep).filter_map(mount).map(|mount| mount.path);
        made.filter(|path| path != "/" && self.when_mounted(path) == When::BeforeTheImage).collect()
    }

    fn kept_paths(&self, is: impl Fn(&Placed) -> bool) -> Vec<String> {
        let kept = self.filesystems.iter().filter(|placed| placed.1.keep && is(placed));
        kept.filter_map(|(wanted, _)| mountable(wanted)).map(str::to_owned).collect()
    }

    fn come_back(&self, when: When) -> Vec<Operation> {
        let is_now = |what: &str| self.early.contains(what) == (when == When::BeforeTheImage);
        let (arrays, groups) = (self.arrays(is_now), self.groups(is_now));
        let fills = self.filesystems.iter().filter(|placed| placed.1.fill && self.when_filled(placed) == when);
        let fills = fills.map(new_filesystem).map(Operation::MakeFilesystem);
        let mounts = self.filesystems.iter().filter_map(mount).filter(|mount| self.when_mounted(&mount.path) == when);
        let operations: Vec<Operation> =
            arrays.chain(groups).chain(fills).chain(mounts.map(Operation::Mount)).collect();
        if operations.is_empty() {
            return operations;
        }
        let disks = self.decided.disks.iter().filter(|disk| disk.verdict == Verdict::Keep && is_now(&disk.device));
        let unlock = |disk: &DiskPlan| {
            let others = self.others.get(&disk.device).cloned().unwrap_or_default();
            Operation::UnlockDisk { device: disk.device.clone(), others }
        };
        disks.map(unlock).chain(operations).collect()
    }

    fn when_filled(&self, placed: &Placed) -> When {
        if is_merged(placed) { When::BeforeTheImage } else { When::AfterTheImage }
    }

    /// Kept filesystems, and those below them, which they would hide, come after the image.
    fn when_mounted(&self, path: &str) -> When {
        let late = self.hidden();
        let is_late = late.iter().any(|kept| path == kept || path.starts_with(&format!("{kept}/")));
        if is_late { When::AfterTheImage } else { When::BeforeTheImage }
    }
}

/// Devices that these operations take and that none of them brings about.
fn bottom(operations: &[Operation]) -> BTreeSet<String> {
    let (mut taken, mut brought) = (BTreeSet::new(), Vec::new());
    for operation in operations {
        match operation {
            Operation::AssembleArray { device, members, .. } => {
                taken.extend(members.iter().cloned());
                brought.push(device.clone());
            }
            Operation::ActivateGroup { name, devices, volumes } => {
                taken.extend(devices.iter().cloned());
                brought.extend(volumes.iter().map(|volume| format!("/dev/{name}/{volume}")));
            }
            Operation::Mount(mount) => {
                taken.insert(mount.device.clone());
                taken.extend(mount.named_devices().map(str::to_owned));
            }
            _ => {}
        }
    }
    taken.retain(|device| !brought.contains(device));
    taken
}

impl MountFilesystem {
    fn options(&self) -> impl Iterator<Item = &str> {
        self.options.iter().flat_map(|option| option.split(',')).map(str::trim)
    }

    /// Devices that its options name beside its own.
    pub fn named_devices(&self) -> impl Iterator<Item = &str> {
        let values = self.options().filter_map(|option| Some(option.split_once('=')?.1.trim()));
        values.filter(|value| value.starts_with("/dev/"))
    }

    /// The last word counts.
    pub fn is_read_only(&self) -> bool {
        self.options().filter(|option| ["ro", "rw"].contains(option)).last() == Some("ro")
    }
}

fn is_merged((wanted, is): &Placed) -> bool {
    is.keep && wanted.reinstall == OnReinstall::Merge
}

pub fn mountable(filesystem: &Filesystem) -> Option<&str> {
    let path = filesystem.path.as_deref().filter(|path| path.starts_with('/'))?;
    (!matches!(filesystem.format, Format::Swap | Format::None)).then_some(path)
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
        options: options(filesystem, is),
    })
}

/// The layout's, with two exceptions. What is made is written by the image, `ro` or not. What is kept and says `ro` is not
/// written by its journal either.
fn options(filesystem: &Filesystem, is: &FilesystemFate) -> Vec<String> {
    let own = || filesystem.mountoptions.iter();
    match (is.keep, filesystem.is_read_only()) {
        (false, true) => filesystem.options().filter(|option| *option != "ro").map(str::to_owned).collect(),
        (true, true) if !is.fill => {
            let more = without_replay(filesystem.format).filter(|option| !option.is_empty()).map(str::to_owned);
            own().cloned().chain(more).collect()
        }
        _ => own().cloned().collect(),
    }
}

/// What mount needs beside `ro` so that nothing is written, not even what a journal has pending; empty for nothing. `None`
/// cannot be mounted.
pub fn without_replay(format: Format) -> Option<&'static str> {
    match format {
        Format::Ext3 | Format::Ext4 => Some("noload"),
        Format::Xfs => Some("norecovery"),
        Format::Btrfs => Some("rescue=nologreplay"),
        Format::Vfat => Some(""),
        Format::Swap | Format::Tmpfs | Format::None => None,
    }
}
