//! Activation of preserved objects. Objects into which files of the image are merged are activated before the image is
//! written; all other objects are activated afterwards.

use super::assembly_graph::AssembledMembers;
use super::filesystem_fate::{FilesystemFate, PlacedFilesystem, new_filesystem};
use super::guard_ranges::foreign_partitions;
use super::luks::is_mapping;
use super::plan_decisions::{ArrayFate, GroupFate, LuksDecision, LuksFate, PlanDecisions};
use super::{DiskPlan, DiskVerdict};
use model::device_name::DevicePath;
use model::inventory::{DeviceSignature, Inventory};
use model::layout::{FilesystemFormat, FilesystemSpec, OnReinstall, UnderlyingObjects};
use model::storage_graph::LayoutMatch;
use operations::{
    ActivateGroup, AssembleArray, CreateVolume, DeviceOp, MountFilesystem, OpenContainer, Operation, Rehearsal,
    RestoreOp, SessionOp, TakeDown, UnlockDisk,
};
use std::collections::{BTreeMap, BTreeSet};

/// Time at which a preserved object is activated, relative to the writing of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestoreTime {
    BeforeTheImage,
    AfterTheImage,
}

/// Preserved objects of a plan, and the time at which each of them is activated.
pub(crate) struct RestorePlan<'a> {
    inventory: &'a Inventory,
    decided: &'a PlanDecisions,
    filesystems: &'a [PlacedFilesystem<'a>],
    /// Objects below merged filesystems, which are therefore activated before the image is written: paths of disks, arrays and
    /// open containers, and names of groups.
    early: BTreeSet<String>,
    /// Numbers of the partitions that the layout does not list, by disk.
    others: BTreeMap<DevicePath, Vec<u32>>,
}

impl<'a> RestorePlan<'a> {
    pub(crate) fn new(
        meant: &LayoutMatch<'a>,
        decided: &'a PlanDecisions,
        filesystems: &'a [PlacedFilesystem<'a>],
    ) -> RestorePlan<'a> {
        let layout = meant.graph.layout;
        let merged = || filesystems.iter().filter(|placed| is_merged(placed));
        let mappings = merged().filter(|(wanted, _)| wanted.encrypted.is_some()).filter_map(|(_, is)| is.device());
        let UnderlyingObjects { disks, arrays, groups } =
            meant.graph.objects_below(merged().map(|(wanted, _)| &wanted.device));
        let disks = disks.into_iter().filter_map(|index| meant.matched_disk(index));
        let arrays = arrays.into_iter().map(|index| layout.raid[index].arrayname.to_string());
        let groups = groups.into_iter().map(|index| layout.volumegroups[index].name.clone());
        let mappings = mappings.map(DevicePath::to_string);
        let early = disks.map(|disk| disk.device.to_string()).chain(arrays).chain(groups).chain(mappings).collect();
        let others = meant.inventory.disks.iter();
        let others = others.map(|disk| (disk.device.clone(), foreign_partitions(meant, disk))).collect();
        RestorePlan { inventory: meant.inventory, decided, filesystems, early, others }
    }

    pub(crate) fn before_the_image(&self) -> Vec<Operation> {
        self.restore_operations(RestoreTime::BeforeTheImage)
    }

    pub(crate) fn after_the_image(&self) -> Vec<Operation> {
        self.restore_operations(RestoreTime::AfterTheImage)
    }

    /// Returns the operations of the rehearsal. On the disks that are present, the rehearsal activates all preserved
    /// objects, and creates all volumes that are added to preserved groups. The filesystems are mounted with the
    /// options of the layout, because the installed system must be able to use these options. Filesystems that the plan
    /// creates are not mounted.
    pub(crate) fn build_rehearsal(&self) -> Option<Rehearsal> {
        let mounted = self.filesystems.iter().filter(|(_, is)| is.is_kept());
        let mounts = mounted.filter_map(|placed| {
            let options = placed.0.mountoptions.clone();
            self.build_mount(placed).map(|mount| MountFilesystem { options, ..mount })
        });
        let stacked = self.restore_stacked(|_| true).chain(self.added_volumes().map(RestoreOp::CreateVolume));
        let operations: Vec<RestoreOp> = stacked.chain(mounts.map(RestoreOp::Mount)).collect();
        let over = bottom_devices(&operations).into_iter().collect();
        (!operations.is_empty()).then_some(Rehearsal { over, operations })
    }

    /// Returns the mount of a filesystem during the installation. A tmpfs has only a line in fstab; it is not mounted,
    /// because it would hide files of the image. Locked filesystems are not mounted either.
    fn build_mount(&self, placed: &PlacedFilesystem) -> Option<MountFilesystem> {
        let (filesystem, is) = placed;
        if matches!(is, FilesystemFate::Unformatted { .. }) {
            return None;
        }
        Some(MountFilesystem {
            device: is.device()?.clone(),
            path: mount_path(filesystem)?.to_owned(),
            format: filesystem.format,
            options: mount_options(filesystem, is),
            others: self.other_parts(placed),
        })
    }

    /// Returns the disks and partitions with a superblock of this preserved btrfs. The device by which the plan mounts
    /// the btrfs is not included.
    fn other_parts(&self, (wanted, is): &PlacedFilesystem) -> Vec<DevicePath> {
        let FilesystemFate::Kept { device: own, uuid: Some(uuid) } = is else { return Vec::new() };
        if wanted.format != FilesystemFormat::Btrfs {
            return Vec::new();
        }
        let is_part = |signatures: &[DeviceSignature]| {
            signatures.iter().any(|found| found.kind == FilesystemFormat::Btrfs.name() && found.uuid == *uuid)
        };
        let disks = self.inventory.disks.iter();
        let whole = disks.clone().map(|disk| (&disk.device, &disk.signatures));
        let parts = disks.flat_map(|disk| disk.table.iter().flat_map(|table| &table.partitions));
        let all = whole.chain(parts.map(|part| (&part.device, &part.signatures)));
        let parts = all.filter(|(device, signatures)| *device != own && is_part(signatures));
        parts.map(|(device, _)| device.clone()).collect()
    }

    /// Returns the operations that activate preserved objects, in this order: arrays, the containers of groups, groups,
    /// and the containers of filesystems.
    fn restore_stacked(&self, is: impl Fn(&str) -> bool + Copy) -> impl Iterator<Item = RestoreOp> {
        let arrays = self.decided.arrays.iter().filter_map(move |array| match array {
            ArrayFate::Kept { device, uuid, members } if is(device.as_str()) => {
                let (device, uuid, members) = (device.clone(), *uuid, members.clone());
                Some(RestoreOp::AssembleArray(AssembleArray { device, uuid, members }))
            }
            ArrayFate::Kept { .. } | ArrayFate::Made(_) => None,
        });
        let groups = self.decided.groups.iter().filter_map(move |group| match group {
            GroupFate::Kept { name, devices, volumes } if is(name) && !volumes.is_empty() => {
                let (name, devices, volumes) = (name.clone(), devices.clone(), volumes.clone());
                Some(RestoreOp::ActivateGroup(ActivateGroup { name, devices, volumes }))
            }
            GroupFate::Kept { .. } | GroupFate::Made(_) => None,
        });
        let opened = self.decided.luks.iter().filter(|luks| luks.fate == LuksFate::Opened);
        let open = |luks: &LuksDecision, is_written: bool| {
            RestoreOp::OpenContainer(OpenContainer { container: luks.container.clone(), read_only: !is_written })
        };
        let of_groups = opened.clone().filter_map(move |luks| {
            let group = luks.group.as_deref().filter(|group| is(group))?;
            Some(open(luks, self.is_written(group)))
        });
        let of_filesystems = opened.filter(move |luks| luks.group.is_none() && is(luks.container.mapping.as_str()));
        let of_filesystems = of_filesystems.map(move |luks| open(luks, luks.is_written()));
        arrays.chain(of_groups).chain(groups).chain(of_filesystems)
    }

    /// Returns whether the plan writes to this preserved group because it activates a volume of the group, or adds a
    /// volume to the group.
    fn is_written(&self, group: &str) -> bool {
        let is_active = |fate: &GroupFate| matches!(fate, GroupFate::Kept { name, volumes, .. } if *name == group && !volumes.is_empty());
        self.decided.persistent.extended.contains(group) || self.decided.groups.iter().any(is_active)
    }

    /// Returns the Kubernetes volumes that are added to preserved groups.
    fn added_volumes(&self) -> impl Iterator<Item = CreateVolume> {
        let extended = &self.decided.persistent.extended;
        let created = self.decided.persistent.prepares.iter().filter_map(|prepare| prepare.create.as_ref());
        created.filter(|create| extended.contains(&create.group)).cloned()
    }

    /// Returns the mount points of preserved filesystems that will hide files of the image.
    pub(crate) fn hiding_paths(&self) -> Vec<String> {
        self.kept_paths(|placed| !is_merged(placed))
    }

    /// Returns the mount points of preserved filesystems to which files of the image are added.
    pub(crate) fn merged_paths(&self) -> Vec<String> {
        self.kept_paths(is_merged)
    }

    /// Returns the mount points of new filesystems that are mounted before the image is written. `/` is not included.
    pub(crate) fn new_paths(&self) -> Vec<String> {
        let made = self.filesystems.iter().filter(|(_, is)| is.as_made().is_some());
        let made = made.filter_map(|placed| self.build_mount(placed)).map(|mount| mount.path);
        made.filter(|path| path != "/" && self.when_mounted(path) == RestoreTime::BeforeTheImage).collect()
    }

    fn kept_paths(&self, is: impl Fn(&PlacedFilesystem) -> bool) -> Vec<String> {
        let kept = self.filesystems.iter().filter(|placed| placed.1.is_restored() && is(placed));
        kept.filter_map(|(wanted, _)| mount_path(wanted)).map(str::to_owned).collect()
    }

    fn restore_operations(&self, when: RestoreTime) -> Vec<Operation> {
        let is_now = |what: &str| self.early.contains(what) == (when == RestoreTime::BeforeTheImage);
        let stacked: Vec<RestoreOp> = self.restore_stacked(is_now).collect();
        // Arrays and groups on these devices may be active read-only and under other names, because they were assembled for inspection. A
        // volume may also be added to a preserved group of which no volume is activated.
        let extended = self.decided.groups.iter().filter_map(|group| match group {
            GroupFate::Kept { name, devices, volumes } if is_now(name) && volumes.is_empty() => {
                self.decided.persistent.extended.contains(name).then_some(devices)
            }
            GroupFate::Kept { .. } | GroupFate::Made(_) => None,
        });
        let extended: Vec<DevicePath> = extended.flatten().cloned().collect();
        let mut devices: Vec<DevicePath> = bottom_devices(&stacked).into_iter().collect();
        // Devices on an array are deactivated together with the array.
        devices.extend(self.on_existing_devices(extended));
        let down = (!devices.is_empty()).then_some(Operation::Device(DeviceOp::TakeDown(TakeDown { devices })));
        let fills = self.filesystems.iter().filter(|placed| self.when_filled(placed) == when);
        let fills = fills.filter_map(|(wanted, is)| Some(new_filesystem(wanted, is.as_filled()?)));
        let fills = fills.map(DeviceOp::MakeFilesystem).map(Operation::Device);
        let mounts = self.filesystems.iter().filter_map(|placed| self.build_mount(placed));
        let mounts = mounts.filter(|mount| self.when_mounted(&mount.path) == when);
        let mounts = mounts.map(SessionOp::Mount).map(Operation::Run);
        let operations: Vec<Operation> =
            down.into_iter().chain(stacked.into_iter().map(Operation::from)).chain(fills).chain(mounts).collect();
        if operations.is_empty() {
            return operations;
        }
        let disks =
            self.decided.disks.iter().filter(|disk| disk.verdict == DiskVerdict::Keep && is_now(disk.device.as_str()));
        let unlock = |disk: &DiskPlan| {
            let others = self.others.get(&disk.device).cloned().unwrap_or_default();
            Operation::Run(SessionOp::UnlockDisk(UnlockDisk { device: disk.device.clone(), others }))
        };
        let partly_kept = self.decided.disks.iter().filter(|disk| is_now(disk.device.as_str()));
        let parts = partly_kept.filter_map(|disk| self.decided.partly_kept.iter().find(|kept| kept.name == disk.name));
        let parts = parts.flat_map(|kept| &kept.preserved).map(|part| {
            let unlock = UnlockDisk { device: part.device.clone(), others: Vec::new() };
            Operation::Run(SessionOp::UnlockDisk(unlock))
        });
        disks.map(unlock).chain(parts).chain(operations).collect()
    }

    /// Returns the physical volumes that are not on arrays or containers of the plan. All other physical volumes are
    /// deactivated together with their array or container.
    fn on_existing_devices(&self, devices: Vec<DevicePath>) -> impl Iterator<Item = DevicePath> {
        let is_array = |device: &DevicePath| {
            self.decided
                .arrays
                .iter()
                .any(|array| matches!(array, ArrayFate::Kept { device: named, .. } if named == device))
        };
        devices.into_iter().filter(move |device| !is_array(device) && !is_mapping(self.decided, device))
    }

    fn when_filled(&self, placed: &PlacedFilesystem) -> RestoreTime {
        if is_merged(placed) { RestoreTime::BeforeTheImage } else { RestoreTime::AfterTheImage }
    }

    /// Returns the time at which a path is mounted, relative to the writing of the image. A preserved filesystem into
    /// which the image is not merged is mounted after the image was written. Mount points below such a filesystem are
    /// also mounted after the image was written, because mounting the filesystem would hide an earlier mount.
    fn when_mounted(&self, path: &str) -> RestoreTime {
        let late = self.hiding_paths();
        let is_late = late.iter().any(|kept| path == kept || path.starts_with(&format!("{kept}/")));
        if is_late { RestoreTime::AfterTheImage } else { RestoreTime::BeforeTheImage }
    }
}

/// Returns the devices that these operations use but do not assemble themselves.
pub(crate) fn bottom_devices(operations: &[RestoreOp]) -> BTreeSet<DevicePath> {
    let (mut together, mut taken) = (AssembledMembers::default(), BTreeSet::<DevicePath>::new());
    for operation in operations {
        let devices = match operation {
            RestoreOp::AssembleArray(array) => {
                together.add_array(array);
                array.members.clone()
            }
            RestoreOp::ActivateGroup(group) => {
                together.add_group(group);
                group.devices.clone()
            }
            RestoreOp::OpenContainer(open) => {
                together.add_container(&open.container);
                vec![open.container.device.clone()]
            }
            RestoreOp::Mount(mount) => mount.devices().collect(),
            RestoreOp::CreateVolume(volume) => volume.physical.clone(),
        };
        taken.extend(devices);
    }
    together.find_bottoms(taken)
}

fn is_merged((wanted, is): &PlacedFilesystem) -> bool {
    is.is_restored() && wanted.reinstall == OnReinstall::Merge
}

pub(crate) fn mount_path(filesystem: &FilesystemSpec) -> Option<&str> {
    let path = filesystem.path.as_deref().filter(|path| path.starts_with('/'))?;
    (!matches!(filesystem.format, FilesystemFormat::Swap | FilesystemFormat::None)).then_some(path)
}

/// Returns the mount options of the layout, with two exceptions. A new filesystem is mounted without `ro`, because the
/// image is written to it. A preserved filesystem with `ro` is mounted with an additional option, so that its journal
/// is not replayed.
fn mount_options(filesystem: &FilesystemSpec, is: &FilesystemFate) -> Vec<String> {
    if !filesystem.is_read_only() {
        return filesystem.mountoptions.clone();
    }
    match is {
        FilesystemFate::Kept { .. } => {
            let more = no_replay_option(filesystem.format).filter(|option| !option.is_empty()).map(str::to_owned);
            filesystem.mountoptions.iter().cloned().chain(more).collect()
        }
        FilesystemFate::Filled(_) => filesystem.mountoptions.clone(),
        FilesystemFate::Made(_)
        | FilesystemFate::InImage { .. }
        | FilesystemFate::Tmpfs
        | FilesystemFate::Unformatted { .. } => {
            filesystem.mount_options().filter(|option| *option != "ro").map(str::to_owned).collect()
        }
    }
}

/// Returns the mount option that, in addition to `ro`, prevents a journal replay; empty if `ro` is sufficient. Returns
/// `None` if the format cannot be mounted from a disk.
pub(crate) fn no_replay_option(format: FilesystemFormat) -> Option<&'static str> {
    match format {
        FilesystemFormat::Ext3 | FilesystemFormat::Ext4 => Some("noload"),
        FilesystemFormat::Xfs => Some("norecovery"),
        FilesystemFormat::Btrfs => Some("rescue=nologreplay"),
        FilesystemFormat::Vfat => Some(""),
        FilesystemFormat::Swap | FilesystemFormat::Tmpfs | FilesystemFormat::None => None,
    }
}
