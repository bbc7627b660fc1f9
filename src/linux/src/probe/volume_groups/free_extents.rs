//! Allocation limits and free space of a volume group.

use super::{LvmReportGroup, LvmReportRow, parse_number};
use model::inventory::{FreeSpace, GroupAllocation};
use serde::Deserialize;

/// Range of extents on a physical volume. The range is allocated to one logical volume, or is free.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::probe) struct PhysicalSegment {
    pv_uuid: String,
    pvseg_size: String,
    segtype: String,
}

/// Returns the limits and the free space that apply to a new volume; `None` if the report does not contain them.
pub(super) fn build_allocation(row: &LvmReportRow, group: &LvmReportGroup) -> Option<GroupAllocation> {
    let extent_bytes: u64 = parse_number(&group.vg_extent_size);
    let free = row.pv.iter().map(|physical| {
        let own = row.pvseg.iter().filter(|segment| segment.pv_uuid == physical.pv_uuid && segment.segtype == "free");
        let areas: Vec<u64> =
            own.map(|segment| parse_number::<u64>(&segment.pvseg_size).saturating_mul(extent_bytes)).collect();
        FreeSpace {
            physical: physical.pv_uuid.clone(),
            is_allocatable: !physical.pv_allocatable.is_empty(),
            bytes: areas.iter().fold(0, |sum, area| sum.saturating_add(*area)),
            largest_bytes: areas.iter().copied().max().unwrap_or_default(),
        }
    });
    (!group.vg_allocation_policy.is_empty()).then(|| GroupAllocation {
        policy: group.vg_allocation_policy.clone(),
        max_volumes: parse_number(&group.max_lv),
        volumes: parse_number(&group.lv_count),
        read_only: group.vg_permissions == "read-only",
        free: free.collect(),
    })
}
