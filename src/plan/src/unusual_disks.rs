//! Disks that must not be wiped by name alone, or cannot be used at all.
//!
//! | a disk that would be wiped | |
//! |---|---|
//! | has sectors of another size than 512 or 4096 bytes (520, 528: disks of storage systems) | refused |
//! | is a host-managed zoned disk, whose zones are only written sequentially | refused |
//! | contains a filesystem of a cluster (GFS2, OCFS2, VMFS, GPFS, Lustre), or a disk of Oracle ASM | refused, unless the layout selects it by serial number or WWN, or the operator discards its data |

use super::DiskVerdict;
use super::decider::PlanDecider;
use super::unrecorded_disks::is_identified;
use model::inventory::{DeviceSignature, InventoryDisk};

/// Sizes of sectors that partition tables, filesystems and firmware support, in bytes.
const SECTOR_BYTES: [u32; 2] = [512, 4096];
/// Zone model of a disk that only accepts sequential writes in its zones.
const HOST_MANAGED: &str = "host-managed";
/// Signatures of libblkid by which other machines may use the disk too, with the name of the content.
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
/// Types of GPT partitions that clusters use, with the name of the content.
const SHARED_PARTITIONS: [(&str, &str); 2] =
    [("aa31e02a-400f-11db-9590-000c2911d1b8", "VMFS"), ("37affc90-ef7d-4e96-91c3-2d7ae055b174", "GPFS")];

impl PlanDecider<'_> {
    /// Refuses to wipe disks that are unsupported, or that other machines may use.
    pub(crate) fn refuse_unusual_disks(&mut self) {
        let layout = self.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            let Some(found) = self.found.get(&index).copied() else { continue };
            if !matches!(self.verdict(&found.name), DiskVerdict::Wipe | DiskVerdict::Make) {
                continue;
            }
            let place = format!("disks[{index}].device");
            if let Some(why) = explain_unsupported(found) {
                self.refuse(place.clone(), format!("{} cannot be used: {why}", found.device));
            }
            let Some(content) = find_shared_content(found).filter(|_| !is_identified(listed, found)) else { continue };
            let said = format!("{} contains {content}, which other machines may use too", found.device);
            if self.is_discarded(&found.name) {
                self.warn(format!("{said}; its data will be discarded, as requested by the operator"));
            } else {
                let message = format!(
                    "{said}: it is wiped only if the layout selects it by the hint serial or wwn, or by /dev/disk/by-id"
                );
                self.refuse(place, message);
            }
        }
    }
}

fn explain_unsupported(disk: &InventoryDisk) -> Option<String> {
    // 0: the inventory does not contain the size.
    if disk.sector_bytes != 0 && !SECTOR_BYTES.contains(&disk.sector_bytes) {
        return Some(format!(
            "it has sectors of {} bytes; format it with sectors of 512 or 4096 bytes (sg_format --format --size=512)",
            disk.sector_bytes
        ));
    }
    (disk.zoned == HOST_MANAGED).then(|| {
        "it is a host-managed zoned disk, whose zones can only be written sequentially; partition tables and filesystems are not supported on it".to_owned()
    })
}

fn find_shared_content(disk: &InventoryDisk) -> Option<&'static str> {
    let partitions = || disk.table.iter().flat_map(|table| &table.partitions);
    let signatures = disk.signatures.iter().chain(partitions().flat_map(|part| &part.signatures));
    let by_signature = |found: &DeviceSignature| SHARED_SIGNATURES.iter().find(|(kind, _)| *kind == found.kind);
    let by_type = |kind: &str| SHARED_PARTITIONS.iter().find(|(guid, _)| guid.eq_ignore_ascii_case(kind));
    let found = signatures.filter_map(by_signature).chain(partitions().filter_map(|part| by_type(&part.kind)));
    found.map(|(_, name)| *name).next()
}
