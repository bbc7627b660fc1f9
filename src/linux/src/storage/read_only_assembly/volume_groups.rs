//! Makes the logical volumes of a group readable without writing to its disks.

use crate::probe::{self, DeviceRange, LVM_READ_CONFIG, READ_ONLY_MAPPING_UUID_PREFIX, VolumeMapping};
use crate::process::ToolCommand;
use crate::storage::block_device;
use model::inventory::{InspectionFailure, InspectionTarget, Inventory, LvmLogicalVolume, LvmVolumeGroup};

/// Types of logical volumes whose activation writes nothing. Other types write when they are activated: dm-raid writes
/// superblocks, a mirror writes its log, and a thin pool writes its transaction. The disk's read-only flag does not
/// prevent these writes, because it applies to programs and not to the kernel (bio_check_ro in block/blk-core.c since
/// 4.18).
const WRITE_FREE_TYPES: [&str; 2] = ["linear", "striped"];

/// LVM selection of volumes whose activation does not write. It excludes origins of snapshots, because a pending merge
/// would write to them, and volumes that are being moved, because the move would continue. The excluded volumes differ
/// from other linear volumes in one letter of lv_attr (lvs(8)). The first letter of an origin is not `-`. The third
/// letter of a volume that is being moved is a capital letter.
const PLAIN: &str = "lv_attr=~^-.[a-z]";

/// Makes the group's volumes readable: activates volumes whose activation writes nothing, and creates read-only
/// mappings for other volumes if LVM's metadata describes the location of their content. Returns the failed attempts.
/// The caller must check whether a volume is readable, because it may be readable even if the command for this volume
/// failed.
pub(super) fn activate_read_only(group: &LvmVolumeGroup) -> Vec<InspectionFailure> {
    let mut failed = Vec::new();
    if let Err(why) = require_lvm_name("volume group", &group.name) {
        return group.volumes.iter().map(|volume| record_failure(volume, &why)).collect();
    }
    if let Err(why) = activate_harmless_volumes(group) {
        failed.extend(harmless_volumes(group).map(|volume| record_failure(volume, &why)));
    }
    let wanted = || group.volumes.iter().filter(|volume| probe::needs_mapping(group, volume));
    match probe::find_volume_mappings(group) {
        Err(why) => failed.extend(wanted().map(|volume| record_failure(volume, &why))),
        Ok(mappings) => failed.extend(wanted().filter_map(|volume| {
            let mapping = mappings.iter().find(|mapping| mapping.name == volume.name);
            let mapping = mapping
                .ok_or_else(|| "LVM's metadata does not contain a complete and current copy of the volume".to_owned());
            mapping
                .and_then(|mapping| create_read_only_mapping(group, mapping))
                .err()
                .map(|why| record_failure(volume, &why))
        })),
    }
    failed
}

/// Returns whether the failed attempt concerns a volume that is now readable.
pub(super) fn is_failure_resolved(inventory: &Inventory, failed: &InspectionFailure) -> bool {
    let mut volumes = inventory.groups.iter().flat_map(|group| &group.volumes);
    volumes.any(|volume| volume.running.is_some() && failed.tried == InspectionTarget::Volume(volume.uuid.clone()))
}

/// Logs which volumes of a group are readable, and returns a note with the reason for each object that is not readable.
pub(super) fn report_volumes(group: &LvmVolumeGroup, failed: &[InspectionFailure]) -> Vec<String> {
    let shown = group.volumes.iter().filter(|volume| volume.running.is_some());
    let shown: Vec<&str> = shown.map(|volume| volume.name.as_str()).collect();
    if !shown.is_empty() {
        tracing::info!(
            "volume group {group}: assembled read-only for inspection: {objects}",
            group = group.name,
            objects = shown.join(", ")
        );
    }
    let (groups, failed) = (vec![group.clone()], failed.to_vec());
    let alone = Inventory { groups, failed, explored: true, ..Inventory::default() };
    let hidden = alone.find_opaque_objects().into_iter();
    hidden
        .map(|object| {
            format!(
                "volume group {group}: cannot assemble {object}: {reason}",
                group = group.name,
                reason = object.reason
            )
        })
        .collect()
}

fn record_failure(volume: &LvmLogicalVolume, why: &str) -> InspectionFailure {
    InspectionFailure { tried: InspectionTarget::Volume(volume.uuid.clone()), why: why.to_owned() }
}

fn harmless_volumes(group: &LvmVolumeGroup) -> impl Iterator<Item = &LvmLogicalVolume> {
    let idle = group.volumes.iter().filter(|volume| volume.running.is_none() && volume.entangled.is_none());
    idle.filter(|volume| WRITE_FREE_TYPES.contains(&volume.kind.as_str()))
}

/// Activates volumes by their UUIDs, because two groups may have the same name. Does nothing for a closed group
/// (exported, shared, or owned by another host), because LVM would refuse the activation.
fn activate_harmless_volumes(group: &LvmVolumeGroup) -> Result<(), String> {
    let harmless: Vec<String> = harmless_volumes(group).map(|volume| format!("lv_uuid={}", volume.uuid)).collect();
    if harmless.is_empty() || group.closed.is_some() {
        return Ok(());
    }
    let config = format!("{LVM_READ_CONFIG} activation{{read_only_volume_list=[\"{}\"]}}", group.name);
    let select = format!("vg_uuid={} && {PLAIN} && ({})", group.uuid, harmless.join(" || "));
    let lvm = ToolCommand::new("lvm").args(["lvchange", "--yes", "--config", &config, "--activate", "y"]);
    let lvm = lvm.args(["--ignoremonitoring", "--select", &select]);
    lvm.env("DM_DISABLE_UDEV", "1").deadline(super::TOOL_TIMEOUT).run().map(drop).map_err(|error| error.to_string())
}

/// Checks the characters of a name (lvm(8), "VALID NAMES"). Untrusted metadata may contain any name, and arguments of
/// LVM and of the device mapper contain separators.
fn require_lvm_name(what: &str, name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+_.-".contains(&byte);
    match !name.is_empty() && !name.starts_with('-') && name.bytes().all(fits) {
        true => Ok(()),
        false => Err(format!("the name of the {what}, {name:?}, contains characters that LVM does not allow")),
    }
}

/// Creates a read-only mapping that makes the content of a volume readable.
fn create_read_only_mapping(group: &LvmVolumeGroup, mapping: &VolumeMapping) -> Result<(), String> {
    require_lvm_name("volume", &mapping.name)?;
    let name = format!("{}-{}", group.name.replace('-', "--"), mapping.name.replace('-', "--"));
    let concise =
        format!("{name},{READ_ONLY_MAPPING_UUID_PREFIX}{},,ro,{}", mapping.uuid, format_table(&mapping.pieces));
    let create = ToolCommand::new("dmsetup").args(["create", "--readonly", "--noudevsync", "--concise", &concise]);
    create.env("DM_DISABLE_UDEV", "1").run().map(drop).map_err(|error| error.to_string())
}

/// Formats a device-mapper table, with one line for each piece and commas between them (dmsetup(8), "CONCISE
/// FORMAT").
pub(super) fn format_table(pieces: &[DeviceRange]) -> String {
    let mut start = 0;
    let line = |piece: &DeviceRange| {
        let sectors = |bytes: u64| bytes / block_device::SYSFS_SECTOR_BYTES;
        let (length, offset) = (sectors(piece.size_bytes), sectors(piece.start_bytes));
        let line = format!("{start} {length} linear {device} {offset}", device = piece.device);
        start += length;
        line
    };
    pieces.iter().map(line).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, volume: &str) -> LvmVolumeGroup {
        let volume = LvmLogicalVolume {
            name: volume.to_owned(),
            uuid: "v-1".to_owned(),
            kind: "linear".to_owned(),
            ..LvmLogicalVolume::default()
        };
        LvmVolumeGroup { name: name.to_owned(), volumes: vec![volume], ..LvmVolumeGroup::default() }
    }

    #[test]
    fn name_with_separators_is_not_passed_to_tools() {
        for name in ["x\"] } log{file=\"/dev/sda\"} a{b=[\"", "a,b", "a;b", "a\nb", "-a", "", "a b", "a\u{9b}"] {
            let failed = activate_read_only(&group(name, "data"));
            assert_eq!(failed.len(), 1, "{name:?}");
            assert!(failed[0].why.contains("that LVM does not allow"), "{}", failed[0].why);
            let mapping = VolumeMapping { name: name.to_owned(), uuid: "u".to_owned(), pieces: Vec::new() };
            assert!(
                create_read_only_mapping(&group("good", "data"), &mapping)
                    .unwrap_err()
                    .contains("that LVM does not allow")
            );
        }
        for name in ["vg0", "a-b", "ubuntu--vg", "x+y_z.1"] {
            require_lvm_name("volume", name).unwrap();
        }
    }
}
