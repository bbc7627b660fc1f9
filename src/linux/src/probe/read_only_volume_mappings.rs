//! Read-only mappings of logical volumes that LVM cannot activate without writing to the disks. A mapping shows a copy
//! of a raid1, the origin of a snapshot, or a linear volume in a group that is exported or belongs to another host. The
//! mappings are derived from LVM's metadata, and nothing in the group is activated.

use super::lvm_raid1_copies::{self, DeviceRange};
use super::sysfs::ProbeRoots;
use super::volume_groups::{join_uuids, read_report};
use model::inventory::{HAS_SNAPSHOT, LvmLogicalVolume, LvmVolumeGroup};

/// Mapping that shows the current content of a logical volume.
#[derive(Debug)]
pub(crate) struct VolumeMapping {
    /// Name of the volume.
    pub name: String,
    /// UUIDs of the group and the volume, in the format that device-mapper UUIDs contain.
    pub uuid: String,
    /// Ranges of devices that the mapping concatenates, in order.
    pub pieces: Vec<DeviceRange>,
}

/// Returns the mappings of a group. Volumes without a complete and current copy are omitted.
///
/// # Errors
/// Returns an error if lvm fails.
pub(crate) fn find_volume_mappings(group: &LvmVolumeGroup) -> Result<Vec<VolumeMapping>, String> {
    let wanted: Vec<&LvmLogicalVolume> = group.volumes.iter().filter(|volume| needs_mapping(group, volume)).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let report = read_report()?;
    let row = report.report.iter().find(|row| row.vg.first().is_some_and(|found| found.vg_uuid == group.uuid));
    let row = row.ok_or("the volume group no longer exists")?;
    let mapping = |volume: &&LvmLogicalVolume| {
        let pieces = match volume.kind.as_str() {
            "raid1" => {
                let mut legs = lvm_raid1_copies::find_copies(row, &volume.name);
                let best = *lvm_raid1_copies::find_complete_copies(
                    &legs,
                    &lvm_raid1_copies::read_superblocks(&ProbeRoots::default(), &legs),
                )
                .first()?;
                legs.swap_remove(best).data?
            }
            _ => lvm_raid1_copies::find_linear_ranges(row, &volume.name)?,
        };
        Some(VolumeMapping { name: volume.name.clone(), uuid: join_uuids(&group.uuid, &volume.uuid), pieces })
    };
    Ok(wanted.iter().filter_map(mapping).collect())
}

/// Returns whether an inactive volume must be made readable by a mapping, because LVM cannot activate it without
/// writing. The extents of a snapshot's origin contain the current content, and can be mapped. While a merge is
/// pending, part of this content is in the snapshot, so the origin is not mapped.
pub(crate) fn needs_mapping(group: &LvmVolumeGroup, volume: &LvmLogicalVolume) -> bool {
    let is_origin = volume.entangled.as_deref() == Some(HAS_SNAPSHOT);
    let is_closed = group.closed.is_some() && volume.entangled.is_none();
    let is_shown = match volume.kind.as_str() {
        "raid1" => true,
        "linear" => is_origin || is_closed,
        _ => false,
    };
    is_shown && volume.running.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_that_cannot_be_activated_safely_are_mapped() {
        let cases = [
            // Columns: type, entangled, closed group, mapped.
            ("linear", None, false, false),
            ("linear", Some(HAS_SNAPSHOT), false, true),
            ("linear", None, true, true),
            ("linear", Some(HAS_SNAPSHOT), true, true),
            (
                "linear",
                Some("is part of a snapshot merge, and LVM would continue the merge if the volume was activated"),
                false,
                false,
            ),
            (
                "linear",
                Some("is part of a snapshot merge, and LVM would continue the merge if the volume was activated"),
                true,
                false,
            ),
            (
                "linear",
                Some("is being moved, and LVM would continue the move if the volume was activated"),
                true,
                false,
            ),
            ("raid1", None, false, true),
            ("raid1", None, true, true),
            ("striped", None, true, false),
            ("snapshot", None, true, false),
            ("thin", None, true, false),
            ("cache", None, false, false),
            ("raid5", None, true, false),
        ];
        for (kind, entangled, is_closed, expected) in cases {
            let closed = is_closed.then(|| "it is exported".to_owned());
            let group = LvmVolumeGroup { closed, ..LvmVolumeGroup::default() };
            let entangled = entangled.map(str::to_owned);
            let volume = LvmLogicalVolume { kind: kind.to_owned(), entangled, ..LvmLogicalVolume::default() };
            assert_eq!(needs_mapping(&group, &volume), expected, "{kind} {:?} {is_closed}", volume.entangled);
            let active = LvmLogicalVolume { running: Some("dm-0".into()), ..volume };
            assert!(!needs_mapping(&group, &active), "{kind}");
        }
    }
}
