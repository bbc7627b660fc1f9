//! Checks whether LVM can add a volume to a preserved group, as far as the inventory shows this. All other conditions
//! are checked by the rehearsal.
//!
//! | the group | a new volume is |
//! |---|---|
//! | has read-only metadata | refused |
//! | has reached its maximum number of volumes | refused |
//! | has less free space on allocatable physical volumes than the volume needs | refused |
//! | allocates contiguously, and has no free area of that size | refused |
//! | has none of these properties | tried in the rehearsal, on snapshots |

use common::format;
use model::inventory::{GroupAllocation, LvmVolumeGroup};

/// Returns why a volume of this size cannot be added together with volumes of the sizes `added`. Returns `None` if no
/// obstacle is known.
pub(crate) fn find_obstacle(group: &LvmVolumeGroup, size_bytes: u64, added: &[u64]) -> Option<String> {
    let name = &group.name;
    let Some(allocation) = &group.allocation else {
        return find_obstacle_by_size(group, size_bytes, added);
    };
    if allocation.read_only {
        return Some(format!(
            "is new in vg:{name}, whose metadata is read-only: restore the metadata with the status WRITE in the installed system \
             (vgcfgbackup, vgcfgrestore)"
        ));
    }
    let volumes = allocation.volumes.saturating_add(added.len() as u64);
    if allocation.max_volumes > 0 && volumes >= allocation.max_volumes {
        let most = allocation.max_volumes;
        return Some(format!(
            "is new in vg:{name}, which has {volumes} volumes and a limit of {most}: raise the limit in the installed system \
             (vgchange --maxlogicalvolumes)"
        ));
    }
    check_free_space(name, size_bytes, free_bytes(allocation, true), free_bytes(allocation, false), added)
        .or_else(|| check_contiguous(name, size_bytes, allocation))
}

/// Checks only the amount of free space, for inventories without the details that [`find_obstacle`] uses.
fn find_obstacle_by_size(group: &LvmVolumeGroup, size_bytes: u64, added: &[u64]) -> Option<String> {
    let name = &group.name;
    match group.free_bytes {
        Some(free) => check_free_space(name, size_bytes, free, 0, added),
        None => Some(format!("is new in vg:{name}, whose free space is unknown; read the inventory again")),
    }
}

fn free_bytes(allocation: &GroupAllocation, is_allocatable: bool) -> u64 {
    let free = allocation.free.iter().filter(|free| free.is_allocatable == is_allocatable);
    free.fold(0, |sum, free| sum.saturating_add(free.bytes))
}

fn check_free_space(name: &str, size_bytes: u64, free: u64, excluded: u64, added: &[u64]) -> Option<String> {
    let left = added.iter().fold(free, |left, bytes| left.saturating_sub(*bytes));
    if size_bytes <= left {
        return None;
    }
    let (needed, left) = (format::format_bytes(size_bytes), format::format_bytes(left));
    let excluded = match excluded {
        0 => String::new(),
        bytes => format!(
            "; {bytes} more are free on physical volumes that LVM may not allocate: allow their allocation in the installed system (pvchange --allocatable y)",
            bytes = format::format_bytes(bytes)
        ),
    };
    Some(format!("needs {needed} in vg:{name}, which has {left} free{excluded}"))
}

fn check_contiguous(name: &str, size_bytes: u64, allocation: &GroupAllocation) -> Option<String> {
    let allocatable = allocation.free.iter().filter(|free| free.is_allocatable);
    let largest = allocatable.map(|free| free.largest_bytes).max().unwrap_or_default();
    (allocation.policy == "contiguous" && size_bytes > largest).then(|| {
        let (needed, largest) = (format::format_bytes(size_bytes), format::format_bytes(largest));
        format!(
            "needs {needed} of contiguous space in vg:{name}, whose allocation policy is contiguous, but at most {largest} are contiguous: \
             change the allocation policy in the installed system (vgchange --alloc normal)"
        )
    })
}
