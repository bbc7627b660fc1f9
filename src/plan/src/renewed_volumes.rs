//! Volumes that a reinstall renews (removes and creates again) in a group that it preserves together with other
//! volumes.
//!
//! | a volume of the group | in the layout | result |
//! |---|---|---|
//! | exists | preserved | neither changed nor moved; other size or type: the plan is refused |
//! | exists | not preserved | removed, and created again in the free space of the group |
//! | a part of a volume is visible, as after an interrupted `lvcreate --type raid1` | the volume is not preserved | removed |
//! | exists | not listed | preserved, but not activated |
//! | is missing | not preserved | created in the free space of the group |
//! | is a thin volume, a cached volume, or the origin of a snapshot | not preserved | the plan is refused |
//!
//! The plan is also refused if the group lacks a physical volume, cannot be changed, or is too small, if a thin pool of
//! the group is full or damaged, and if a volume is being moved or merged.

use super::DiskVerdict;
use super::partition_placement::MIB;
use super::planned_devices::UnderlyingDevices;
use super::planner_state::PlannerState;
use common::error_code::ErrorCode;
use model::device_name::DevicePath;
use model::inventory::{
    GroupAllocation, HAS_SNAPSHOT, LvmLogicalVolume, LvmVolumeGroup, VolumeHealth, VolumeRange, is_raid1_part,
};
use model::layout::preserved_objects::PreservedObjects;
use model::layout::{LogicalVolumeSpec, LvmType, VolumeGroupSpec};
use operations::{ByteRange, ExpectedVolume, PhysicalRange, RemoveVolumes};
use std::collections::BTreeSet;

/// Decision on the volumes of a preserved group.
#[derive(Default)]
pub(crate) struct VolumeRenewal<'a> {
    /// Names of the volumes that are created again.
    pub renewed: Vec<&'a str>,
    /// Free extents of each physical volume after the removal; `None` if no volume is renewed.
    pub free: Option<Vec<u64>>,
}

impl<'a> PlannerState<'a> {
    /// Registers the verdict on active volumes that will be removed from preserved groups. Their contents are
    /// destroyed, even though the devices below them are preserved.
    pub(crate) fn note_renewed_volumes(&mut self) {
        if !self.verdicts.values().any(|verdict| *verdict == DiskVerdict::PartlyKept) {
            return;
        }
        let preserved = PreservedObjects::from_graph(self.graph);
        for group in &self.layout.volumegroups {
            let renewed = preserved.renewed_volumes(group);
            let found = self.inventory.groups.iter().filter(|found| found.name == group.name);
            let volumes = found.filter(|found| self.is_on_preserved_partitions(found)).flat_map(|found| &found.volumes);
            let removed = volumes.filter(|volume| is_removed(volume, &renewed));
            let running: Vec<_> = removed.filter_map(|volume| volume.running.clone()).collect();
            self.combined.take();
            self.parts.extend(running.into_iter().map(|name| (name, DiskVerdict::Wipe)));
        }
    }

    fn is_on_preserved_partitions(&self, group: &LvmVolumeGroup) -> bool {
        group.present_devices().all(|device| self.verdicts_on(device) == BTreeSet::from([DiskVerdict::Keep]))
    }

    /// Decides which volumes of a preserved group are removed. Returns `None` if a problem was added.
    pub(crate) fn renew_volumes(
        &mut self,
        place: &str,
        group: &VolumeGroupSpec,
        below: &UnderlyingDevices,
        preserved_group: &'a LvmVolumeGroup,
    ) -> Option<VolumeRenewal<'a>> {
        let listed = PreservedObjects::from_graph(self.graph).renewed_volumes(group);
        if listed.is_empty() {
            return Some(VolumeRenewal::default());
        }
        let is_renewed = |volume: &&LvmLogicalVolume| is_removed(volume, &listed);
        let (removed, preserved): (Vec<&LvmLogicalVolume>, Vec<_>) =
            preserved_group.volumes.iter().partition(is_renewed);
        let missing = find_missing_physical(preserved_group, below).map(|why| (ErrorCode::IncompleteObject, why));
        let others = find_read_only_metadata(preserved_group).into_iter();
        let others = others.chain(preserved.iter().filter_map(|volume| find_unstable_volume(preserved_group, volume)));
        let others = others.chain(removed.iter().filter_map(|volume| find_volume_obstacle(preserved_group, volume)));
        let others = others.chain(find_uncertain_space(preserved_group, &removed, &listed));
        let problems: Vec<(ErrorCode, String)> =
            missing.into_iter().chain(others.map(|why| (ErrorCode::NotReinstallable, why))).collect();
        if !problems.is_empty() {
            problems.into_iter().for_each(|(code, why)| self.refuse(code, place, why));
            return None;
        }
        let visible = |volumes: &[&LvmLogicalVolume]| -> Vec<ExpectedVolume> {
            let expected = volumes.iter().map(|volume| ExpectedVolume {
                name: volume.name.clone(),
                uuid: volume.uuid.clone(),
                size_bytes: volume.size_bytes,
                ranges: locate_ranges(preserved_group, below, &volume.ranges),
            });
            expected.collect()
        };
        let hidden = preserved_group.hidden.iter().map(|volume| ExpectedVolume {
            name: volume.name.clone(),
            uuid: volume.uuid.clone(),
            size_bytes: volume.size_bytes,
            ranges: locate_ranges(preserved_group, below, &volume.ranges),
        });
        let free = free_extents(preserved_group, &removed);
        let before = free_extents(preserved_group, &[]);
        self.count_added_bytes(preserved_group, &listed, free.iter().sum::<u64>().saturating_sub(before.iter().sum()));
        self.decided.renewals.push(RemoveVolumes {
            group: preserved_group.name.clone(),
            uuid: preserved_group.uuid.clone(),
            physical: below.install_paths(),
            removed: visible(&removed),
            preserved: visible(&preserved),
            hidden: hidden.collect(),
        });
        Some(VolumeRenewal { renewed: listed.iter().map(|volume| volume.name.as_str()).collect(), free: Some(free) })
    }

    /// Registers the free space that the new volumes use in addition to the space of the removed volumes. Kubernetes
    /// volumes that are added to the group later cannot use this space.
    fn count_added_bytes(
        &mut self,
        preserved_group: &LvmVolumeGroup,
        listed: &[&LogicalVolumeSpec],
        freed_extents: u64,
    ) {
        let extent = preserved_group.extent_bytes.max(1);
        let needed = listed.iter().try_fold(0u64, |sum, volume| {
            let bytes = volume.size.as_mib()?.saturating_mul(MIB).next_multiple_of(extent);
            let copies = if volume.lvmtype == LvmType::Raid1 { 2 } else { 1 };
            Some(sum.saturating_add(bytes.saturating_mul(copies)))
        });
        // A volume that takes the remaining space leaves none for other volumes.
        let added = needed.map_or(u64::MAX, |needed| needed.saturating_sub(freed_extents.saturating_mul(extent)));
        if added > 0 {
            self.added.entry(preserved_group.name.clone()).or_default().push(added);
        }
    }
}

/// Returns whether `volume` is removed by a reinstall that renews the volumes in `renewed`: whether it is one of these
/// volumes, or a part of one.
pub(crate) fn is_removed(volume: &LvmLogicalVolume, renewed: &[&LogicalVolumeSpec]) -> bool {
    renewed.iter().any(|listed| listed.name == volume.name || is_raid1_part(&volume.name, &listed.name))
}

/// Returns why the group cannot be changed if it lacks a physical volume.
fn find_missing_physical(preserved_group: &LvmVolumeGroup, below: &UnderlyingDevices) -> Option<String> {
    let name = &preserved_group.name;
    let missing = preserved_group.physical.iter().filter(|physical| physical.device.is_none());
    let missing: Vec<&str> = missing.map(|physical| physical.uuid.as_str()).collect();
    if !missing.is_empty() || below.absent().next().is_some() {
        return Some(format!(
            "volumes of vg:{name} cannot be renewed: {count} of its {all} physical volumes are missing ({missing}); attach their disks, or set `preserve: true` on vg:{name}",
            count = missing.len().max(below.absent().count()),
            all = preserved_group.physical.len(),
            missing = missing.join(", ")
        ));
    }
    None
}

fn find_read_only_metadata(preserved_group: &LvmVolumeGroup) -> Option<String> {
    let name = &preserved_group.name;
    let is_read_only = preserved_group.allocation.as_ref().is_some_and(|allocation| allocation.read_only);
    is_read_only.then(|| {
        format!(
            "volumes of vg:{name} cannot be renewed: the metadata of the group is read-only; restore the metadata with the status WRITE in the installed system (vgcfgbackup, vgcfgrestore)"
        )
    })
}

/// Returns why volumes cannot be renewed next to this preserved volume. A move or merge changes the location of data.
/// The repair or extension of a thin pool needs the free space that new volumes would use; the state of a pool is known
/// only while the pool is active.
fn find_unstable_volume(preserved_group: &LvmVolumeGroup, volume: &LvmLogicalVolume) -> Option<String> {
    let (group, name) = (&preserved_group.name, &volume.name);
    let why = match volume.entangled.as_deref().filter(|how| *how != HAS_SNAPSHOT) {
        Some(how) => format!("the volume {group}/{name} {how}; complete the operation in the installed system"),
        None if volume.kind == "thin-pool" && volume.health == VolumeHealth::Degraded => format!(
            "the thin pool {group}/{name} is full or damaged; extend or repair it in the installed system (lvextend, lvconvert --repair)"
        ),
        None => return None,
    };
    Some(format!("volumes of vg:{group} cannot be renewed: {why}"))
}

/// Returns why this volume cannot be removed.
fn find_volume_obstacle(preserved_group: &LvmVolumeGroup, volume: &LvmLogicalVolume) -> Option<String> {
    let (group, name) = (&preserved_group.name, &volume.name);
    let of_kind = |kinds: &[&str]| {
        let others =
            preserved_group.volumes.iter().filter(|other| other.name != *name && kinds.contains(&other.kind.as_str()));
        let names: Vec<String> = others.map(|other| format!("{group}/{}", other.name)).collect();
        if names.is_empty() { "no such volume is visible".to_owned() } else { names.join(", ") }
    };
    let why = match (volume.kind.as_str(), volume.entangled.as_deref()) {
        ("linear" | "striped" | "raid1", None) => return None,
        (_, Some(HAS_SNAPSHOT)) => format!(
            "the volume has snapshots, which would be removed together with the volume: {}; remove the snapshots first",
            of_kind(&["snapshot", "thin"])
        ),
        (_, Some(how)) => format!("the volume {how}; complete the operation in the installed system"),
        ("thin-pool", None) => {
            format!("the volume is a thin pool with the volumes {}; preserve the pool", of_kind(&["thin"]))
        }
        ("thin", None) => {
            format!(
                "the volume is a thin volume in a pool ({}); layouts do not support thin volumes",
                of_kind(&["thin-pool"])
            )
        }
        ("snapshot", None) => "the volume is a snapshot; remove the snapshot in the installed system".to_owned(),
        (kind, None) => format!(
            "the volume has the type {kind}, which depends on hidden volumes; convert it to a linear volume in the \
            installed system (lvconvert --splitcache or --uncache for a cache)"
        ),
    };
    Some(format!("{group}/{name} cannot be removed: {why}"))
}

/// Returns why it is unknown whether the new volumes fit into the group.
fn find_uncertain_space(
    preserved_group: &LvmVolumeGroup,
    removed: &[&LvmLogicalVolume],
    listed: &[&LogicalVolumeSpec],
) -> Option<String> {
    let name = &preserved_group.name;
    if preserved_group.allocation.is_none() && preserved_group.free_bytes.is_none() {
        return Some(format!(
            "volumes of vg:{name} cannot be renewed: its free space is unknown; read the inventory again"
        ));
    }
    let spread = listed.iter().find(|volume| volume.lvmtype != LvmType::Linear);
    let is_unknown = preserved_group.physical.len() > 1
        && (preserved_group.allocation.is_none() || removed.iter().any(|volume| volume.ranges.is_empty()));
    if let Some(volume) = spread.filter(|_| is_unknown) {
        return Some(format!(
            "{name}/{volume} cannot be renewed as {kind}: the inventory does not contain the location of the removed volumes on the physical volumes; read the inventory again",
            volume = volume.name,
            kind = volume.lvmtype
        ));
    }
    let allocation = preserved_group.allocation.as_ref().filter(|allocation| allocation.policy == "contiguous")?;
    let allocatable = allocation.free.iter().filter(|free| free.is_allocatable);
    let areas = allocatable.map(|free| free.largest_bytes).chain(removed.iter().map(|volume| volume.size_bytes));
    let largest = areas.max().unwrap_or_default();
    let too_large =
        listed.iter().find(|volume| volume.size.as_mib().is_none_or(|mib| mib.saturating_mul(MIB) > largest));
    too_large.map(|volume| {
        format!(
            "{name}/{volume} cannot be renewed: vg:{name} allocates contiguously, and its largest free area after the removal has {largest} MiB; change the allocation policy in the installed system (vgchange --alloc normal)",
            volume = volume.name,
            largest = largest / MIB
        )
    })
}

/// Returns the free extents of each physical volume after these volumes were removed. An additional entry contains
/// the extents whose location is unknown; they are used only for linear volumes.
fn free_extents(preserved_group: &LvmVolumeGroup, removed: &[&LvmLogicalVolume]) -> Vec<u64> {
    let extent = preserved_group.extent_bytes.max(1);
    // Parts are omitted, because the space of a volume already includes that of its parts.
    let is_part = |volume: &LvmLogicalVolume| removed.iter().any(|whole| is_raid1_part(&volume.name, &whole.name));
    let removed: Vec<&LvmLogicalVolume> = removed.iter().copied().filter(|volume| !is_part(volume)).collect();
    let bytes_on = |uuid: &str| {
        let ranges = removed.iter().flat_map(|volume| &volume.ranges).filter(|range| range.physical == uuid);
        ranges.fold(0u64, |sum, range| sum.saturating_add(range.size_bytes))
    };
    let is_allocatable = |allocation: &GroupAllocation, uuid: &str| {
        allocation.free.iter().any(|free| free.physical == uuid && free.is_allocatable)
    };
    let free_on = |uuid: &str| match &preserved_group.allocation {
        None => bytes_on(uuid),
        Some(allocation) if !is_allocatable(allocation, uuid) => 0,
        Some(allocation) => {
            let free = allocation.free.iter().filter(|free| free.physical == uuid);
            free.fold(bytes_on(uuid), |sum, free| sum.saturating_add(free.bytes))
        }
    };
    let mut free: Vec<u64> = preserved_group.physical.iter().map(|physical| free_on(&physical.uuid) / extent).collect();
    let unplaced =
        removed.iter().filter(|volume| volume.ranges.is_empty()).map(|volume| occupied_bytes(preserved_group, volume));
    let total = if preserved_group.allocation.is_none() { preserved_group.free_bytes.unwrap_or_default() } else { 0 };
    let unplaced = unplaced.fold(total, u64::saturating_add) / extent;
    match free.as_mut_slice() {
        [one] => *one = one.saturating_add(unplaced),
        _ if unplaced > 0 => free.push(unplaced),
        _ => {}
    }
    free
}

/// Returns the space that a volume occupies in its group. Each copy of a raid1 volume has one extent of metadata.
fn occupied_bytes(preserved_group: &LvmVolumeGroup, volume: &LvmLogicalVolume) -> u64 {
    match volume.kind.as_str() {
        "raid1" => volume
            .size_bytes
            .saturating_add(preserved_group.extent_bytes)
            .saturating_mul(u64::from(volume.stripes.max(2))),
        _ => volume.size_bytes,
    }
}

/// Returns the ranges with the paths that the physical volumes have during the installation, which may differ from the
/// current paths. Returns an empty list if a physical volume is missing.
fn locate_ranges(
    preserved_group: &LvmVolumeGroup,
    below: &UnderlyingDevices,
    ranges: &[VolumeRange],
) -> Vec<PhysicalRange> {
    let path = |uuid: &str| -> Option<DevicePath> {
        let physical = preserved_group.physical.iter().find(|physical| physical.uuid == uuid)?;
        below.present().find(|device| physical.device.as_ref() == Some(&device.now)).map(|device| device.path.clone())
    };
    let locate = |found: &VolumeRange| {
        let range = ByteRange { start: found.start_bytes, length: found.size_bytes };
        Some(PhysicalRange { physical: path(&found.physical)?, range })
    };
    ranges.iter().map(locate).collect::<Option<_>>().unwrap_or_default()
}
