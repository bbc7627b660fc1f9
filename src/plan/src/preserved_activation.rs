//! Activation of preserved objects. Objects into which files of the image are merged are activated before the image is
//! written; all other objects are activated afterwards.

use super::assembly_graph::AssembledMembers;
use super::filesystem_fate::{FilesystemFate, PlacedFilesystem, new_filesystem};
use super::guard_ranges::foreign_partitions;
use super::luks::is_mapping;
use super::plan_decisions::{ArrayFate, GroupFate, LuksDecision, LuksFate, PlanDecisions};
use super::{DiskPlan, DiskVerdict};
use model::device_name::{DevicePath, LayoutPath};
use model::inventory::{DeviceSignature, Inventory};
use model::layout::{FilesystemFormat, FilesystemSpec, OnReinstall, UnderlyingObjects, VolumeGroupSpec};
use model::storage_graph::LayoutMatch;
use operations::{
    ActivateGroup, ActivationRehearsal, AssembleArray, CreateVolume, DeviceOp, MountFilesystem, OpenContainer,
    Operation, RestoreOp, SessionOp, StopInspectedDevices, UnlockDisk,
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
    /// Objects that are activated before the image is written, because they are below merged filesystems: paths of
    /// disks, arrays and open containers, and names of groups.
    early: BTreeSet<String>,
    /// Paths of the arrays and preserved partitions below groups in which some volumes are renewed. These
    /// devices are activated before the volumes are removed.
    renewed: BTreeSet<String>,
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
        let renewed = paths_below_renewals(meant, decided);
        RestorePlan { inventory: meant.inventory, decided, filesystems, early, renewed, others }
    }

    /// Returns the operations that remove volumes from preserved groups, and the activation of the devices below these
    /// groups.
    pub(crate) fn before_the_volumes(&self) -> Vec<Operation> {
        let parts = self.decided.partly_kept.iter().flat_map(|disk| &disk.preserved).map(|part| &part.device);
        let parts: Vec<DevicePath> = parts.filter(|part| self.renewed.contains(part.as_str())).cloned().collect();
        let unlocks = parts.iter().map(|part| UnlockDisk { device: part.clone(), others: Vec::new() });
        let unlocks = unlocks.map(SessionOp::UnlockDisk).map(Operation::Run);
        let down = (!parts.is_empty()).then(|| {
            Operation::Device(DeviceOp::StopInspectedDevices(StopInspectedDevices { devices: parts.clone() }))
        });
        let arrays = self.restore_stacked(|what| self.renewed.contains(what)).map(Operation::from);
        let removals = self.decided.renewals.iter().cloned().map(DeviceOp::RemoveVolumes).map(Operation::Device);
        unlocks.chain(down).chain(arrays).chain(removals).collect()
    }

    pub(crate) fn before_the_image(&self) -> Vec<Operation> {
        self.restore_operations(RestoreTime::BeforeTheImage)
    }

    pub(crate) fn after_the_image(&self) -> Vec<Operation> {
        self.restore_operations(RestoreTime::AfterTheImage)
    }

    /// Returns the rehearsal. On the disks that are present, it activates all preserved objects, and creates all
    /// volumes that are added to preserved groups. It mounts filesystems with the options of the layout, because the
    /// installed system must be able to use these options. Filesystems that the plan creates are not mounted.
    pub(crate) fn build_rehearsal(&self) -> Option<ActivationRehearsal> {
        let mounted = self.filesystems.iter().filter(|(_, is)| is.is_preserved());
        let mounts = mounted.filter_map(|placed| {
            let options = placed.0.mountoptions.clone();
            self.build_mount(placed).map(|mount| MountFilesystem { options, ..mount })
        });
        let renewals = self.decided.renewals.iter().cloned().map(RestoreOp::RemoveVolumes);
        let created = self.renewed_volumes().chain(self.added_volumes()).map(RestoreOp::CreateVolume);
        let stacked = self.restore_stacked(|_| true).chain(renewals).chain(created);
        let operations: Vec<RestoreOp> = stacked.chain(mounts.map(RestoreOp::Mount)).collect();
        let over = bottom_devices(&operations).into_iter().collect();
        (!operations.is_empty()).then_some(ActivationRehearsal { over, operations })
    }

    /// Returns the mount of a filesystem during the installation. A tmpfs has only a line in fstab; it is not mounted,
    /// because it would hide files of the image. Locked filesystems are also not mounted.
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

    /// Returns the disks and partitions that are members of this preserved btrfs, except the member that the plan
    /// passes to mount. Returns an empty list for all other formats.
    fn other_parts(&self, (wanted, is): &PlacedFilesystem) -> Vec<DevicePath> {
        let FilesystemFate::Preserved { device: own, uuid: Some(uuid) } = is else { return Vec::new() };
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
            ArrayFate::Preserved { device, uuid, members } if is(device.as_str()) => {
                let (device, uuid, members) = (device.clone(), *uuid, members.clone());
                Some(RestoreOp::AssembleArray(AssembleArray { device, uuid, members }))
            }
            ArrayFate::Preserved { .. } | ArrayFate::Created(_) => None,
        });
        let groups = self.decided.groups.iter().filter_map(move |group| match group {
            GroupFate::Preserved { name, devices, volumes } if is(name) && !volumes.is_empty() => {
                let (name, devices, volumes) = (name.clone(), devices.clone(), volumes.clone());
                Some(RestoreOp::ActivateGroup(ActivateGroup { name, devices, volumes }))
            }
            GroupFate::Preserved { .. } | GroupFate::Created(_) => None,
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
        let is_active = |fate: &GroupFate| matches!(fate, GroupFate::Preserved { name, volumes, .. } if *name == group && !volumes.is_empty());
        self.decided.persistent.extended.contains(group) || self.decided.groups.iter().any(is_active)
    }

    /// Returns the volumes that are created in preserved groups after volumes were removed from them.
    fn renewed_volumes(&self) -> impl Iterator<Item = CreateVolume> {
        let is_renewed = |volume: &&CreateVolume| self.decided.renewals.iter().any(|group| group.group == volume.group);
        self.decided.volumes.iter().filter(is_renewed).cloned()
    }

    /// Returns the Kubernetes volumes that are added to preserved groups.
    fn added_volumes(&self) -> impl Iterator<Item = CreateVolume> {
        let extended = &self.decided.persistent.extended;
        let created = self.decided.persistent.prepares.iter().filter_map(|prepare| prepare.create.as_ref());
        created.filter(|create| extended.contains(&create.group)).cloned()
    }

    /// Returns the mount points of preserved filesystems that will hide files of the image.
    pub(crate) fn hiding_paths(&self) -> Vec<String> {
        self.preserved_paths(|placed| !is_merged(placed))
    }

    /// Returns the mount points of preserved filesystems to which files of the image are added.
    pub(crate) fn merged_paths(&self) -> Vec<String> {
        self.preserved_paths(is_merged)
    }

    /// Returns the mount points of new filesystems that are mounted before the image is written. `/` is not included.
    pub(crate) fn new_paths(&self) -> Vec<String> {
        let made = self.filesystems.iter().filter(|(_, is)| is.created_filesystem().is_some());
        let made = made.filter_map(|placed| self.build_mount(placed)).map(|mount| mount.path);
        made.filter(|path| path != "/" && self.when_mounted(path) == RestoreTime::BeforeTheImage).collect()
    }

    fn preserved_paths(&self, is: impl Fn(&PlacedFilesystem) -> bool) -> Vec<String> {
        let preserved = self.filesystems.iter().filter(|placed| placed.1.is_on_preserved_device() && is(placed));
        preserved.filter_map(|(wanted, _)| mount_path(wanted)).map(str::to_owned).collect()
    }

    fn restore_operations(&self, when: RestoreTime) -> Vec<Operation> {
        let is_now = |what: &str| {
            self.early.contains(what) == (when == RestoreTime::BeforeTheImage) && !self.renewed.contains(what)
        };
        let stacked: Vec<RestoreOp> = self.restore_stacked(is_now).collect();
        // Arrays and groups on these devices are stopped first: they were assembled for inspection, so they may be
        // read-only or have other names. This includes preserved groups to which volumes are added, even if none of
        // their volumes is activated.
        let extended = self.decided.groups.iter().filter_map(|group| match group {
            GroupFate::Preserved { name, devices, volumes } if is_now(name) && volumes.is_empty() => {
                self.decided.persistent.extended.contains(name).then_some(devices)
            }
            GroupFate::Preserved { .. } | GroupFate::Created(_) => None,
        });
        let extended: Vec<DevicePath> = extended.flatten().cloned().collect();
        let mut devices: Vec<DevicePath> = bottom_devices(&stacked).into_iter().collect();
        // Physical volumes on an array are omitted, because they are deactivated together with the array.
        devices.extend(self.on_existing_devices(extended));
        // Physical volumes of groups in which volumes were removed and created again are omitted, because the new
        // volumes of these groups are already in use.
        let renewed = || self.decided.renewals.iter().flat_map(|group| &group.physical);
        devices.retain(|device| renewed().all(|physical| physical != device));
        let down = (!devices.is_empty())
            .then_some(Operation::Device(DeviceOp::StopInspectedDevices(StopInspectedDevices { devices })));
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
        let parts = partly_kept
            .filter_map(|disk| self.decided.partly_kept.iter().find(|preserved| preserved.name == disk.name));
        let parts = parts.flat_map(|preserved| &preserved.preserved);
        let parts = parts.filter(|part| !self.renewed.contains(part.device.as_str())).map(|part| {
            let unlock = UnlockDisk { device: part.device.clone(), others: Vec::new() };
            Operation::Run(SessionOp::UnlockDisk(unlock))
        });
        disks.map(unlock).chain(parts).chain(operations).collect()
    }

    /// Returns the physical volumes that are neither arrays nor mappings of containers of the plan. Arrays and
    /// mappings are deactivated by their own operations, together with the physical volumes on them.
    fn on_existing_devices(&self, devices: Vec<DevicePath>) -> impl Iterator<Item = DevicePath> {
        let is_array = |device: &DevicePath| {
            self.decided
                .arrays
                .iter()
                .any(|array| matches!(array, ArrayFate::Preserved { device: named, .. } if named == device))
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
        let is_late = late.iter().any(|preserved| path == preserved || path.starts_with(&format!("{preserved}/")));
        if is_late { RestoreTime::AfterTheImage } else { RestoreTime::BeforeTheImage }
    }
}

/// Returns the paths of the arrays and partitions below the groups from which volumes are removed.
fn paths_below_renewals(meant: &LayoutMatch, decided: &PlanDecisions) -> BTreeSet<String> {
    let layout = meant.graph.layout;
    let is_renewed = |group: &&VolumeGroupSpec| decided.renewals.iter().any(|renewal| renewal.group == group.name);
    let devices = layout.volumegroups.iter().filter(is_renewed).flat_map(|group| &group.devices);
    let devices: Vec<&LayoutPath> = devices.collect();
    let below = meant.graph.reach_below(devices.iter().filter_map(|device| meant.graph.find_device(device)));
    let arrays = meant.graph.objects_below(devices).arrays.into_iter();
    let arrays = arrays.map(|index| layout.raid[index].arrayname.to_string());
    let parts = layout.disks.iter().enumerate().flat_map(|(index, listed)| {
        let numbers = listed.partitions.iter().map(|part| part.number);
        let is_below = |number: &u32| {
            let node = meant.graph.find_device(&listed.device.partition_path(*number));
            node.is_some_and(|node| below.contains(&node))
        };
        let found = meant.matched_disk(index);
        numbers.filter(is_below).filter_map(move |number| Some(found?.device.partition_path(number).to_string()))
    });
    arrays.chain(parts).collect()
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
            RestoreOp::RemoveVolumes(remove) => remove.physical.clone(),
            RestoreOp::CreateVolume(volume) => volume.physical.clone(),
        };
        taken.extend(devices);
    }
    together.find_bottoms(taken)
}

fn is_merged((wanted, is): &PlacedFilesystem) -> bool {
    is.is_on_preserved_device() && wanted.reinstall == OnReinstall::Merge
}

pub(crate) fn mount_path(filesystem: &FilesystemSpec) -> Option<&str> {
    let path = filesystem.path.as_deref().filter(|path| path.starts_with('/'))?;
    (!matches!(filesystem.format, FilesystemFormat::Swap | FilesystemFormat::None)).then_some(path)
}

/// Returns the mount options of the layout, with two changes. For a new filesystem, `ro` is removed, because the
/// image is written to it. For a preserved filesystem with `ro`, an option is added that prevents a replay of the
/// journal.
fn mount_options(filesystem: &FilesystemSpec, is: &FilesystemFate) -> Vec<String> {
    if !filesystem.is_read_only() {
        return filesystem.mountoptions.clone();
    }
    match is {
        FilesystemFate::Preserved { .. } => {
            let more = no_replay_option(filesystem.format).filter(|option| !option.is_empty()).map(str::to_owned);
            filesystem.mountoptions.iter().cloned().chain(more).collect()
        }
        FilesystemFate::Filled(_) => filesystem.mountoptions.clone(),
        FilesystemFate::Created(_)
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
