//! Disks that other machines may use, which are not wiped if the layout selects them only by name, and disks of
//! unsupported types, which are never used.
//!
//! | a disk that would be wiped | result |
//! |---|---|
//! | has a sector size other than 512 or 4096 bytes (disks from storage arrays: 520 or 528) | refused |
//! | is a host-managed zoned disk, which accepts only sequential writes in its zones | refused |
//! | contains a cluster filesystem (GFS2, OCFS2, VMFS, GPFS, Lustre), an Oracle ASM disk or a shared LVM volume group, directly or in a device on top of it | refused, unless the layout selects it by serial number or WWN, or the operator discards its data |

use super::planner_state::PlannerState;
use super::unrecorded_disks::is_identified;
use common::error_code::ErrorCode;
use model::device_name::KernelName;
use model::inventory::InventoryDisk;
use model::storage_graph::{StackUnit, all_units};
use std::collections::BTreeMap;

/// Sizes of sectors that partition tables, filesystems and firmware support, in bytes.
const SECTOR_BYTES: [u32; 2] = [512, 4096];
/// Zone model of a disk that accepts only sequential writes in its zones.
const HOST_MANAGED: &str = "host-managed";
/// Signature types of libblkid that indicate use by other machines. Each type is paired with the name of the content
/// that it indicates.
const SHARED_SIGNATURES: [(&str, &str); 9] = [
    ("gfs", "GFS"),
    ("gfs2", "GFS2"),
    ("ocfs", "OCFS"),
    ("ocfs2", "OCFS2"),
    ("VMFS", "VMFS"),
    ("VMFS_volume_member", "VMFS"),
    ("gpfs", "GPFS"),
    ("lustre", "Lustre"),
    ("oracleasm", "Oracle ASM"),
];
/// GUIDs of GPT partition types that clusters use. Each type is paired with the name of the content that it indicates.
const SHARED_PARTITIONS: [(&str, &str); 2] =
    [("aa31e02a-400f-11db-9590-000c2911d1b8", "VMFS"), ("37affc90-ef7d-4e96-91c3-2d7ae055b174", "GPFS")];
const SHARED_GROUP: &str = "a shared LVM volume group";

impl PlannerState<'_> {
    /// Refuses to wipe disks that are not supported, or that other machines may use.
    pub(crate) fn refuse_unusual_disks(&mut self) {
        let layout = self.layout;
        let shared = self.find_shared_contents();
        for (index, listed) in layout.disks.iter().enumerate() {
            let Some(found) = self.found.get(&index).copied() else { continue };
            if !self.verdict(&found.name).is_written() {
                continue;
            }
            let place = format!("disks[{index}].device");
            if let Some(why) = explain_unsupported(found) {
                self.refuse(
                    ErrorCode::DiskUnusable,
                    place.clone(),
                    format!("{disk} cannot be used: {why}", disk = found.device),
                );
            }
            let Some(content) = shared.get(&found.name).filter(|_| !is_identified(listed, found)) else { continue };
            let said =
                format!("{disk} contains {content}, and other machines may use the same data", disk = found.device);
            if self.is_discarded(&found.name) {
                self.warn(format!("{said}; its data will be discarded, as requested by the operator"));
            } else {
                let message = format!(
                    "{said}: the disk is wiped only if the layout selects it by the hint serial or wwn, or by /dev/disk/by-id. If no other machine uses \
                     the disk, and there is no layout, remove its signatures with wipefs"
                );
                self.refuse(ErrorCode::DiskUnusable, place, message);
            }
        }
    }

    /// Returns the contents that other machines may use, by the disks that contain them.
    fn find_shared_contents(&self) -> BTreeMap<KernelName, &'static str> {
        let units = all_units(self.inventory).filter_map(|(device, unit)| Some((device, find_shared_content(unit)?)));
        let groups = self.inventory.groups.iter().filter(|group| group.is_shared());
        let groups = groups.flat_map(|group| group.present_devices().map(|device| (device, SHARED_GROUP)));
        let disks = |(device, content)| self.disks_below(device).into_iter().map(move |disk| (disk, content));
        groups.chain(units).flat_map(disks).collect()
    }
}

/// Returns why a disk cannot be used at all; `None` if it can be used.
pub(crate) fn explain_unsupported(disk: &InventoryDisk) -> Option<String> {
    // A sector size of 0 means that the inventory does not contain the sector size.
    if disk.sector_bytes != 0 && !SECTOR_BYTES.contains(&disk.sector_bytes) {
        return Some(format!(
            "the disk has sectors of {} bytes; format it with sectors of 512 or 4096 bytes (sg_format --format \
                --size=512)",
            disk.sector_bytes
        ));
    }
    (disk.zoned == HOST_MANAGED).then(|| {
        "the disk is a host-managed zoned disk, whose zones can only be written sequentially; partition tables and \
            filesystems are not supported on it"
            .to_owned()
    })
}

/// Returns the name of the content that other machines may use; `None` if the disk, partition or stacked device has no
/// such content. Partitions of a disk are examined separately.
fn find_shared_content(unit: StackUnit) -> Option<&'static str> {
    let is_shared = |kind: &str| SHARED_SIGNATURES.iter().find(|(shared, _)| *shared == kind);
    let by_signature = unit.signatures().iter().find_map(|found| is_shared(&found.kind));
    let by_type = match unit {
        StackUnit::Partition(part) => SHARED_PARTITIONS.iter().find(|(guid, _)| guid.eq_ignore_ascii_case(&part.kind)),
        _ => None,
    };
    by_signature.or(by_type).map(|(_, name)| *name)
}
