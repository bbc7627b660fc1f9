//! Space of logical volumes on the physical volumes of a simulated group.

use super::*;
use model::inventory::{FreeSpace, GroupAllocation, VolumeRange};
use model::layout::LvmType;

const EXTENT: u64 = 4 * MIB;

pub(super) fn occupied_bytes(kind: &str, size_bytes: u64) -> u64 {
    if kind == "raid1" { 2 * (size_bytes + EXTENT) } else { size_bytes }
}

/// Returns ranges that no volume of the group occupies. If the group is too small, returns an empty list instead of
/// failing, because the plans of some tests assume larger physical volumes than the simulated ones.
pub(super) fn allocate_ranges(group: &LvmVolumeGroup, kind: LvmType, size_bytes: u64) -> Vec<VolumeRange> {
    let physical: Vec<&LvmPhysicalVolume> = group.physical.iter().collect();
    let mut taken: Vec<VolumeRange> = used_ranges(group).cloned().collect();
    let before = taken.len();
    let is_done = match kind {
        LvmType::Linear => take(&mut taken, &physical, size_bytes),
        LvmType::Striped => {
            let share = (size_bytes / physical.len() as u64).next_multiple_of(EXTENT);
            physical.iter().all(|one| take(&mut taken, &[*one], share))
        }
        LvmType::Raid1 => {
            let legs = physical.iter().filter(|one| take(&mut taken, &[**one], size_bytes + EXTENT));
            legs.take(2).count() == 2
        }
    };
    if is_done { taken.split_off(before) } else { Vec::new() }
}

fn used_ranges(group: &LvmVolumeGroup) -> impl Iterator<Item = &VolumeRange> {
    let hidden = group.hidden.iter().flat_map(|volume| &volume.ranges);
    group.volumes.iter().flat_map(|volume| &volume.ranges).chain(hidden)
}

/// Recomputes the free space of the group's physical volumes. Does nothing if the group's `allocation` is
/// `None`.
pub(super) fn update_allocation(group: &mut LvmVolumeGroup) {
    let free = group.physical.iter().map(|physical| {
        let used = used_ranges(group).filter(|range| range.physical == physical.uuid).map(|range| range.size_bytes);
        let bytes = physical.size_bytes - used.sum::<u64>();
        FreeSpace { physical: physical.uuid.clone(), is_allocatable: true, bytes, largest_bytes: bytes }
    });
    let free = free.collect();
    group.allocation = group.allocation.take().map(|allocation| GroupAllocation { free, ..allocation });
}

/// Adds a thin pool with an inactive thin volume to a group. Returns whether the group has the space.
#[cfg(test)]
pub(crate) fn add_thin_pool(group: &mut LvmVolumeGroup) -> bool {
    let before = group.hidden.len();
    for (name, mib) in [("pool_tdata", 40), ("pool_tmeta", 4), ("lvol0_pmspare", 4)] {
        let ranges = allocate_ranges(group, LvmType::Linear, mib * MIB);
        let (name, uuid) = (name.to_owned(), format!("uuid of {name}"));
        group.hidden.push(model::inventory::LvmHiddenVolume { name, uuid, size_bytes: mib * MIB, ranges });
    }
    if group.hidden.iter().any(|volume| volume.ranges.is_empty()) {
        group.hidden.truncate(before);
        return false;
    }
    for (name, kind, mib) in [("pool", "thin-pool", 40), ("vm", "thin", 400)] {
        let (name, uuid, kind) = (name.to_owned(), format!("uuid of {name}"), kind.to_owned());
        group.volumes.push(LvmLogicalVolume { name, uuid, kind, size_bytes: mib * MIB, ..LvmLogicalVolume::default() });
    }
    group.free_bytes = group.free_bytes.map(|free| free - 48 * MIB);
    group.allocation = Some(GroupAllocation { policy: "normal".to_owned(), ..GroupAllocation::default() });
    // LVM reports sizes in whole extents.
    for physical in &mut group.physical {
        physical.size_bytes = MIB + (physical.size_bytes - MIB) / EXTENT * EXTENT;
    }
    update_allocation(group);
    true
}

/// Takes free extents of these physical volumes, one after the other.
fn take(taken: &mut Vec<VolumeRange>, physical: &[&LvmPhysicalVolume], bytes: u64) -> bool {
    let (mut left, before) = (bytes, taken.len());
    for one in physical {
        let end = MIB + (one.size_bytes.saturating_sub(MIB)) / EXTENT * EXTENT;
        let mut start = MIB;
        while start + EXTENT <= end && left > 0 {
            let is_met = |range: &&VolumeRange| {
                range.physical == one.uuid
                    && range.start_bytes < start + EXTENT
                    && start < range.start_bytes + range.size_bytes
            };
            if let Some(met) = taken.iter().find(is_met) {
                start = met.start_bytes + met.size_bytes;
                continue;
            }
            let used: Vec<&VolumeRange> =
                taken.iter().filter(|range| range.physical == one.uuid && range.start_bytes > start).collect();
            let free_end = used.iter().map(|range| range.start_bytes).min().unwrap_or(end).min(end);
            let size_bytes = left.min(free_end - start);
            taken.push(VolumeRange { physical: one.uuid.clone(), start_bytes: start, size_bytes });
            (start, left) = (start + size_bytes, left - size_bytes);
        }
    }
    if left > 0 {
        taken.truncate(before);
    }
    left == 0
}

impl Machine {
    pub(super) fn remove_volumes(&mut self, remove: &RemoveVolumes) {
        let physical: Vec<DevicePath> = remove.physical.iter().map(|device| self.current_path(device)).collect();
        let group = self.0.groups.iter().find(|group| group.name == remove.group).unwrap();
        assert_eq!(group.uuid, remove.uuid);
        assert!(group.physical.iter().all(|one| one.device.as_ref().is_some_and(|device| physical.contains(device))));
        assert_eq!(group.physical.len(), physical.len(), "{remove:?}");
        let expected: Vec<(&str, u64)> =
            remove.removed.iter().chain(&remove.preserved).map(|is| (is.name.as_str(), is.size_bytes)).collect();
        assert_eq!(expected.len(), group.volumes.len(), "{remove:?} of {group:?}");
        assert!(
            group.volumes.iter().all(|volume| expected.contains(&(volume.name.as_str(), volume.size_bytes))),
            "{remove:?}"
        );
        let is_removed = |volume: &&LvmLogicalVolume| remove.removed.iter().any(|removed| removed.name == volume.name);
        let removed: Vec<LvmLogicalVolume> = group.volumes.iter().filter(is_removed).cloned().collect();
        for name in removed.iter().filter_map(|volume| volume.running.clone()) {
            let device = self.0.stacked.iter().find(|stacked| stacked.name == name).unwrap().device.clone();
            self.release(&DiskHolder::Mapping { device });
        }
        let group = self.0.groups.iter_mut().find(|group| group.name == remove.group).unwrap();
        group.volumes.retain(|volume| removed.iter().all(|removed| removed.name != volume.name));
        let freed: u64 = removed.iter().map(|volume| occupied_bytes(&volume.kind, volume.size_bytes)).sum();
        group.free_bytes = group.free_bytes.map(|free| free + freed);
        update_allocation(group);
    }
}
