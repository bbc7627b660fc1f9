//! Reasons why groups and volumes cannot be activated, or only together with other volumes.

use super::{LvmReportGroup, LvmReportVolume};
use model::inventory::{HAS_SNAPSHOT, SHARED_GROUP};

/// Returns why the group cannot be activated in the ramdisk; `None` if it can be activated. The ramdisk has no system
/// ID (lvmsystemid(7)) and no lock manager (lvmlockd(8)).
pub(super) fn find_closed_reason(group: &LvmReportGroup) -> Option<String> {
    let lock = if group.vg_lock_type.is_empty() { &group.vg_clustered } else { &group.vg_lock_type };
    if !lock.is_empty() && lock != "none" {
        return Some(format!(
            "{SHARED_GROUP} (lock type {lock}), but the ramdisk does not run a lock manager: make the group local in \
             the installed system with `vgchange --lock-type none`"
        ));
    }
    match (group.vg_exported.is_empty(), group.vg_systemid.as_str()) {
        (false, _) => Some("the volume group is exported: run `vgimport` in the installed system".to_owned()),
        (true, "") => None,
        (true, owner) => Some(format!(
            "the volume group belongs to the host with the system ID \"{owner}\": remove the system ID with `vgchange --systemid \"\"`"
        )),
    }
}

/// Returns why the volume cannot be activated alone; `None` if it can be activated alone. An origin is activated
/// together with its snapshots, except for thin snapshots, which are independent of their origin. Activating a volume
/// with a pending merge starts the merge; until the merge is complete, the origin's extents do not contain the current
/// content. Activating a volume that is being moved continues the move. Such volumes differ from linear volumes only in
/// the attributes that this function reads.
pub(super) fn find_entanglement(volume: &LvmReportVolume) -> Option<&'static str> {
    let has_role = |wanted: &str| volume.lv_role.split(',').any(|role| role == wanted);
    match () {
        () if volume.lv_attr.starts_with(['O', 'S']) => {
            Some("is part of a snapshot merge, and LVM would continue the merge if the volume was activated")
        }
        () if !volume.lv_allocation_locked.is_empty() => {
            Some("is being moved, and LVM would continue the move if the volume was activated")
        }
        () if has_role("origin") && (has_role("thickorigin") || !has_role("thinorigin")) => Some(HAS_SNAPSHOT),
        () => None,
    }
}
