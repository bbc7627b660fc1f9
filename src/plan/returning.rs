//! How what is kept comes back: before the image if the image's files are merged into it, otherwise after the image.

use super::luks::{Luks, LuksFate, is_mapping};
use super::placed::{FilesystemFate, Placed};
use super::stages::new_filesystem;
use super::together::Together;
use super::untouched::foreign_partitions;
use super::verdict::{ArrayFate, Decided, GroupFate};
use super::{
    ActivateGroup, AssembleArray, CreateVolume, DiskPlan, MountFilesystem, OfRun, OnDevice, OpenContainer, Operation,
    Rehearsal, Restore, Verdict,
};
use crate::device::DevicePath;
use crate::inventory::{Inventory, Signature};
use crate::layout::{Below, Filesystem, Format, OnReinstall};
use crate::order::Gather;
use crate::topology::Match;
use std::collections::{BTreeMap, BTreeSet};

/// When something comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    BeforeTheImage,
    AfterTheImage,
}

pub struct Returning<'a> {
    inventory: &'a Inventory,
    decided: &'a Decided,
    filesystems: &'a [Placed<'a>],
    /// Paths of the disks, arrays and open containers, and names of the groups, on which merged filesystems lie.
    early: BTreeSet<String>,
    /// Path of a disk to the numbers of its partitions that the layout does not list.
    others: BTreeMap<DevicePath, Vec<u32>>,
}

impl<'a> Returning<'a> {
    pub fn new(meant: &Match<'a>, decided: &'a Decided, filesystems: &'a [Placed<'a>]) -> Returning<'a> {
        let layout = meant.graph.layout;
        let merged = || filesystems.iter().filter(|placed| is_merged(placed));
        let mappings = merged().filter(|(wanted, _)| wanted.encrypted.is_some()).filter_map(|(_, is)| is.device());
        let Below { disks, arrays, groups } = meant.graph.below(merged().map(|(wanted, _)| &wanted.device));
        let disks = disks.into_iter().filter_map(|index| meant.disk(index));
        let arrays = arrays.into_iter().map(|index| layout.raid[index].arrayname.to_string());
        let groups = groups.into_iter().map(|index| layout.volumegroups[index].name.clone());
        let mappings = mappings.map(DevicePath::to_string);
        let early = disks.map(|disk| disk.device.to_string()).chain(arrays).chain(groups).chain(mappings).gather();
        let others = meant.inventory.disks.iter();
        let others = others.map(|disk| (disk.device.clone(), foreign_partitions(meant, disk))).gather();
        Returning { inventory: meant.inventory, decided, filesystems, early, others }
    }

    pub fn before_the_image(&self) -> Vec<Operation> {
        self.come_back(When::BeforeTheImage)
    }

    pub fn after_the_image(&self) -> Vec<Operation> {
        self.come_back(When::AfterTheImage)
    }

    /// Everything that comes back, and every volume that is added to a kept group, tried on the disks as they are now. The mounts have the layout's own options, because the
    /// installed system must mount with them too. Filesystems that are still to be made are not mounted.
    pub fn rehearsal(&self) -> Option<Rehearsal> {
        let mounted = self.filesystems.iter().filter(|(_, is)| is.is_kept());
        let mounts = mounted.filter_map(|placed| {
            let options = placed.0.mountoptions.clone();
            self.mount(placed).map(|mount| MountFilesystem { options, ..mount })
        });
        let stacked = self.stacked(|_| true).chain(self.added_volumes().map(Restore::CreateVolume));
        let operations: Vec<Restore> = stacked.chain(mounts.map(Restore::Mount)).collect();
        let over = bottom(&operations).into_iter().collect();
        (!operations.is_empty()).then_some(Rehearsal { over, operations })
    }

    /// How the filesystem is mounted for the image. A tmpfs is not: it would hide the image's files, and has only a line in fstab.
    /// Nor is what stays locked.
    fn mount(&self, placed: &Placed) -> Option<MountFilesystem> {
        let (filesystem, is) = placed;
        if matches!(is, FilesystemFate::Unformatted { .. }) {
            return None;
        }
        Some(MountFilesystem {
            device: is.device()?.clone(),
            path: mountable(filesystem)?.to_owned(),
            format: filesystem.format,
            options: options(filesystem, is),
            others: self.other_parts(placed),
        })
    }

    /// Disks and partitions with a superblock of this kept btrfs, beside its device.
    fn other_parts(&self, (wanted, is): &Placed) -> Vec<DevicePath> {
        let FilesystemFate::Kept { device: own, uuid: Some(uuid) } = is else { return Vec::new() };
        if wanted.format != Format::Btrfs {
            return Vec::new();
        }
        let is_part = |signatures: &[Signature]| {
            signatures.iter().any(|found| found.kind == Format::Btrfs.name() && found.uuid == *uuid)
        };
        let disks = self.inventory.disks.iter();
        let whole = disks.clone().map(|disk| (&disk.device, &disk.signatures));
        let parts = disks.flat_map(|disk| disk.table.iter().flat_map(|table| &table.partitions));
        let all = whole.chain(parts.map(|part| (&part.device, &part.signatures)));
        let parts = all.filter(|(device, signatures)| *device != own && is_part(signatures));
        parts.map(|(device, _)| device.clone()).collect()
    }

    /// Restores kept arrays first, then the groups that may lie on them, with their containers before them, then containers of
    /// filesystems.
    fn stacked(&self, is: impl Fn(&str) -> bool + Copy) -> impl Iterator<Item = Restore> {
        let arrays = self.decided.arrays.iter().filter_map(move |array| match array {
            ArrayFate::Kept { device, uuid, members } if is(device.as_str()) => {
                let (device, uuid, members) = (device.clone(), *uuid, members.clone());
                Some(Restore::AssembleArray(AssembleArray { device, uuid, members }))
            }
            ArrayFate::Kept { .. } | ArrayFate::Made(_) => None,
        });
        let groups = self.decided.groups.iter().filter_map(move |group| match group {
            GroupFate::Kept { name, devices, volumes } if is(name) && !volumes.is_empty() => {
                let (name, devices, volumes) = (name.clone(), devices.clone(), volumes.clone());
                Some(Restore::ActivateGroup(ActivateGroup { name, devices, volumes }))
            }
            GroupFate::Kept { .. } | GroupFate::Made(_) => None,
        });
        let opened = self.decided.luks.iter().filter(|luks| luks.fate == LuksFate::Opened);
        let open = |luks: &Luks, is_written: bool| {
            Restore::OpenContainer(OpenContainer { container: luks.container.clone(), read_only: !is_written })
        };
        let of_groups = opened.clone().filter_map(move |luks| {
            let group = luks.group.as_deref().filter(|group| is(group))?;
            Some(open(luks, self.is_written(group)))
        });
        let of_filesystems = opened.filter(move |luks| luks.group.is_none() && is(luks.container.mapping.as_str()));
        let of_filesystems = of_filesystems.map(move |luks| open(luks, luks.is_written()));
        arrays.chain(of_groups).chain(groups).chain(of_filesystems)
    }

    /// Is anything of this kept group activated, or added to it?
    fn is_written(&self, group: &str) -> bool {
        let is_active = |fate: &GroupFate| matches!(fate, GroupFate::Kept { name, volumes, .. } if *name == group && !volumes.is_empty());
        self.decided.persistent.extended.contains(group) || self.decided.groups.iter().any(is_active)
    }

    /// Volumes of Kubernetes that are added to kept groups.
    fn added_volumes(&self) -> impl Iterator<Item = CreateVolume> {
        let extended = &self.decided.persistent.extended;
        let created = self.decided.persistent.prepares.iter().filter_map(|prepare| prepare.create.as_ref());
        created.filter(|create| extended.contains(&create.group)).cloned()
    }

    /// Mount points of kept filesystems that will cover the image's files there.
    pub fn hidden(&self) -> Vec<String> {
        self.kept_paths(|placed| !is_merged(placed))
    }

    /// Mount points of kept filesystems that get the image's files beside their own.
    pub fn merged(&self) -> Vec<String> {
        self.kept_paths(is_merged)
    }

    /// Mount points, `/` apart, of filesystems that are made anew and mounted before the image.
    pub fn fresh(&self) -> Vec<String> {
        let made = self.filesystems.iter().filter(|(_, is)| is.made().is_some());
        let made = made.filter_map(|placed| self.mount(placed)).map(|mount| mount.path);
        made.filter(|path| path != "/" && self.when_mounted(path) == When::BeforeTheImage).collect()
    }

    fn kept_paths(&self, is: impl Fn(&Placed) -> bool) -> Vec<String> {
        let kept = self.filesystems.iter().filter(|placed| placed.1.comes_back() && is(placed));
        kept.filter_map(|(wanted, _)| mountable(wanted)).map(str::to_owned).collect()
    }

    fn come_back(&self, when: When) -> Vec<Operation> {
        let is_now = |what: &str| self.early.contains(what) == (when == When::BeforeTheImage);
        let stacked: Vec<Restore> = self.stacked(is_now).collect();
        // Arrays and groups on these devices may run read-only and under other names: they were assembled to look inside.
        // Nothing of a kept group may come back, and a volume is added to it all the same.
        let extended = self.decided.groups.iter().filter_map(|group| match group {
            GroupFate::Kept { name, devices, volumes } if is_now(name) && volumes.is_empty() => {
                self.decided.persistent.extended.contains(name).then_some(devices)
            }
            GroupFate::Kept { .. } | GroupFate::Made(_) => None,
        });
        let extended: Vec<DevicePath> = extended.flatten().cloned().collect();
        let mut devices: Vec<DevicePath> = bottom(&stacked).into_iter().collect();
        // What lies on an array that comes back is taken down with it.
        devices.extend(self.on_what_is_there(extended));
        let down = (!devices.is_empty()).then_some(Operation::Device(OnDevice::TakeDown { devices }));
        let fills = self.filesystems.iter().filter(|placed| self.when_filled(placed) == when);
        let fills = fills.filter_map(|(wanted, is)| Some(new_filesystem(wanted, is.filled()?)));
        let fills = fills.map(OnDevice::MakeFilesystem).map(Operation::Device);
        let mounts = self.filesystems.iter().filter_map(|placed| self.mount(placed));
        let mounts = mounts.filter(|mount| self.when_mounted(&mount.path) == when);
        let mounts = mounts.map(OfRun::Mount).map(Operation::Run);
        let operations: Vec<Operation> =
            down.into_iter().chain(stacked.into_iter().map(Operation::from)).chain(fills).chain(mounts).collect();
        if operations.is_empty() {
            return operations;
        }
        let disks =
            self.decided.disks.iter().filter(|disk| disk.verdict == Verdict::Keep && is_now(disk.device.as_str()));
        let unlock = |disk: &DiskPlan| {
            let others = self.others.get(&disk.device).cloned().unwrap_or_default();
            Operation::Run(OfRun::UnlockDisk { device: disk.device.clone(), others })
        };
        disks.map(unlock).chain(operations).collect()
    }

    /// Physical volumes that are no arrays and no containers of the plan: those are put together of what is taken down anyway.
    fn on_what_is_there(&self, devices: Vec<DevicePath>) -> impl Iterator<Item = DevicePath> {
        let is_array = |device: &DevicePath| {
            self.decided
                .arrays
                .iter()
                .any(|array| matches!(array, ArrayFate::Kept { device: named, .. } if named == device))
        };
        devices.into_iter().filter(move |device| !is_array(device) && !is_mapping(self.decided, device))
    }

    fn when_filled(&self, placed: &Placed) -> When {
        if is_merged(placed) { When::BeforeTheImage } else { When::AfterTheImage }
    }

    /// A kept filesystem that is not merged comes after the image. So does every mount below it, which it would hide.
    fn when_mounted(&self, path: &str) -> When {
        let late = self.hidden();
        let is_late = late.iter().any(|kept| path == kept || path.starts_with(&format!("{kept}/")));
        if is_late { When::AfterTheImage } else { When::BeforeTheImage }
    }
}

/// Devices that these operations use and that none of them creates.
pub fn bottom(operations: &[Restore]) -> BTreeSet<DevicePath> {
    let (mut together, mut taken) = (Together::default(), BTreeSet::<DevicePath>::new());
    for operation in operations {
        let devices = match operation {
            Restore::AssembleArray(array) => {
                together.array(array);
                array.members.clone()
            }
            Restore::ActivateGroup(group) => {
                together.group(group);
                group.devices.clone()
            }
            Restore::OpenContainer(open) => {
                together.container(&open.container);
                vec![open.container.device.clone()]
            }
            Restore::Mount(mount) => mount.devices().collect(),
            Restore::CreateVolume(volume) => volume.physical.clone(),
        };
        taken.extend(devices);
    }
    together.bottoms(taken)
}

impl MountFilesystem {
    fn options(&self) -> impl Iterator<Item = &str> {
        self.options.iter().flat_map(|option| option.split(',')).map(str::trim)
    }

    /// All devices that the kernel writes: the filesystem's own, those that its mount options name, and its others.
    pub fn devices(&self) -> impl Iterator<Item = DevicePath> {
        let values = self.options().filter_map(|option| Some(option.split_once('=')?.1.trim()));
        let named = values.filter(|value| value.starts_with("/dev/")).map(DevicePath::from);
        std::iter::once(self.device.clone()).chain(named).chain(self.others.iter().cloned())
    }

    /// Do the options say `ro`? The last of `ro` and `rw` counts.
    pub fn is_read_only(&self) -> bool {
        self.options().filter(|option| ["ro", "rw"].contains(option)).last() == Some("ro")
    }
}

fn is_merged((wanted, is): &Placed) -> bool {
    is.comes_back() && wanted.reinstall == OnReinstall::Merge
}

pub fn mountable(filesystem: &Filesystem) -> Option<&str> {
    let path = filesystem.path.as_deref().filter(|path| path.starts_with('/'))?;
    (!matches!(filesystem.format, Format::Swap | Format::None)).then_some(path)
}

/// The layout's mount options, with two exceptions. A filesystem that is made is mounted without `ro`, because the image is
/// written to it. A kept filesystem with `ro` does not replay its journal either.
fn options(filesystem: &Filesystem, is: &FilesystemFate) -> Vec<String> {
    if !filesystem.is_read_only() {
        return filesystem.mountoptions.clone();
    }
    match is {
        FilesystemFate::Kept { .. } => {
            let more = without_replay(filesystem.format).filter(|option| !option.is_empty()).map(str::to_owned);
            filesystem.mountoptions.iter().cloned().chain(more).collect()
        }
        FilesystemFate::Filled(_) => filesystem.mountoptions.clone(),
        FilesystemFate::Made(_)
        | FilesystemFate::InImage { .. }
        | FilesystemFate::Tmpfs
        | FilesystemFate::Unformatted { .. } => {
            filesystem.options().filter(|option| *option != "ro").map(str::to_owned).collect()
        }
    }
}

/// The option that mount needs beside `ro` so that it does not even replay a journal; empty where `ro` is enough. `None`:
/// nothing that can be mounted from a disk.
pub fn without_replay(format: Format) -> Option<&'static str> {
    match format {
        Format::Ext3 | Format::Ext4 => Some("noload"),
        Format::Xfs => Some("norecovery"),
        Format::Btrfs => Some("rescue=nologreplay"),
        Format::Vfat => Some(""),
        Format::Swap | Format::Tmpfs | Format::None => None,
    }
}
