//! LVM volume groups as described by the metadata on their physical volumes, read by a single `lvm fullreport`. Volumes
//! need not be active, and this module does not activate any.

mod activation_obstacles;
mod free_extents;
mod volume_ranges;

use super::lvm_raid1_copies;
use super::sysfs::{ProbeRoots, format_device_number, list_names, read_attribute, read_link_name};
use crate::process::ToolCommand;
use activation_obstacles::{find_closed_reason, find_entanglement};
use free_extents::{PhysicalSegment, build_allocation};
use model::device_name::{DevicePath, KernelName};
use model::inventory::{
    Inventory, LvmLogicalVolume, LvmPhysicalVolume, LvmVolumeGroup, StackedDeviceKind, UnassignedDevices, VolumeHealth,
};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Type of a physical volume in libblkid.
pub(crate) const MEMBER: &str = "LVM2_member";

/// LVM configuration for read-only commands: LVM then writes nothing, contacts no daemon, and filters out no devices
/// (lvm.conf(5)).
pub(crate) const READ_CONFIG: &str = "devices{use_devicesfile=0 hints=\"none\" scan_lvs=1 filter=[\"a|.*|\"] global_filter=[\"a|.*|\"] \
    obtain_device_list_from_udev=0} global{metadata_read_only=1} backup{backup=0 archive=0} activation{monitoring=0}";

/// Prefix of the device-mapper UUIDs that drophammer assigns to read-only mappings of volumes.
pub(crate) const READ_ONLY_MAPPING_UUID_PREFIX: &str = "drophammer-";

/// Time limit for lvm. It is generous, because failing disks respond slowly.
const LVM_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum size of lvm's report in bytes. A truncated report cannot be used. A linear volume takes about 0.5 KiB of the
/// report, and a raid1 volume with its copies about 2.5 KiB.
const REPORT_BYTES: usize = 64 << 20;

/// Returns all groups, and the physical volumes that lvm cannot assign to a group. If there are no physical volumes,
/// lvm is not run.
pub(super) fn read_groups(roots: &ProbeRoots, inventory: &Inventory) -> (Vec<LvmVolumeGroup>, Vec<UnassignedDevices>) {
    let inside = inventory.partitions_inside_volumes();
    let devices: Vec<&DevicePath> =
        inventory.devices_with_signature(&[MEMBER]).into_iter().filter(|device| !inside.contains(device)).collect();
    if devices.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let (groups, unknown) = match read_report() {
        Ok(report) => {
            let unknown = find_unlisted_volumes(&devices, inventory, &report, &|path| read_device_number(roots, path));
            let whole = |row: &LvmReportRow, name: &str| {
                let legs = lvm_raid1_copies::find_copies(row, name);
                let superblocks = lvm_raid1_copies::read_superblocks(roots, &legs);
                (lvm_raid1_copies::count_complete_copies(&legs, &superblocks), legs.len())
            };
            (
                build_groups(
                    report,
                    &index_active_volumes(&roots.sys),
                    &|path| resolve_device_path(roots, inventory, path),
                    &whole,
                ),
                unknown,
            )
        }
        Err(reason) => {
            let devices = devices.into_iter().cloned().collect();
            (Vec::new(), Some(UnassignedDevices { devices, reason }))
        }
    };
    if let Some(UnassignedDevices { devices, reason }) = &unknown {
        tracing::warn!("cannot assign physical volumes {} to a volume group: {reason}", devices.join(", "));
    }
    (groups, unknown.into_iter().collect())
}

/// Returns physical volumes that lvm does not list although it reports no error. lvm omits devices that it considers
/// copies of another physical volume or components of other objects. Devices that are in fact members of arrays or
/// mappings are not returned.
fn find_unlisted_volumes(
    devices: &[&DevicePath],
    inventory: &Inventory,
    report: &LvmReport,
    number: &impl Fn(&str) -> Option<u64>,
) -> Option<UnassignedDevices> {
    let physical = report.report.iter().flat_map(|row| &row.pv);
    let listed: BTreeSet<u64> = physical.filter_map(|physical| number(&physical.pv_name)).collect();
    let is_listed = |device: &DevicePath| {
        number(inventory.resolve_kernel_name(device).device_path().as_str())
            .is_some_and(|number| listed.contains(&number))
    };
    let is_part = |device: &DevicePath| {
        let name = inventory.resolve_kernel_name(device);
        let mut others = inventory.stacked.iter().filter(|stacked| stacked.kind != StackedDeviceKind::Volume);
        let mut members = inventory.arrays.iter().flat_map(|array| &array.members);
        others.any(|stacked| stacked.below.contains(&name)) || members.any(|member| member.device == *device)
    };
    let left = devices.iter().filter(|device| !is_listed(device) && !is_part(device));
    let devices: Vec<DevicePath> = left.map(|device| (*device).clone()).collect();
    let reason = "lvm does not list the device as a physical volume; run `lvm pvs --all -v` for details".to_owned();
    (!devices.is_empty()).then_some(UnassignedDevices { devices, reason })
}

/// Returns the device number of a path.
fn read_device_number(roots: &ProbeRoots, path: &str) -> Option<u64> {
    let node = std::fs::metadata(roots.dev.join(path.strip_prefix("/dev/")?)).ok()?;
    Some(node.rdev())
}

/// Report of lvm, with one row for each group, and one row without a group for unassigned physical volumes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LvmReport {
    pub report: Vec<LvmReportRow>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LvmReportRow {
    pub vg: Vec<LvmReportGroup>,
    pub pv: Vec<LvmReportPhysical>,
    pub lv: Vec<LvmReportVolume>,
    pub seg: Vec<LvmReportSegment>,
    pub pvseg: Vec<PhysicalSegment>,
}

#[derive(Debug, Deserialize)]
pub(super) struct LvmReportGroup {
    pub vg_uuid: String,
    vg_name: String,
    pub vg_extent_size: String,
    vg_tags: String,
    #[serde(default)]
    vg_free: String,
    /// Text that is not empty if the group was exported by vgexport(8).
    #[serde(default)]
    vg_exported: String,
    #[serde(default)]
    vg_systemid: String,
    /// Permissions of the group: `writeable` or `read-only`.
    #[serde(default)]
    vg_permissions: String,
    /// Lock type of the group; not empty if lvmlockd(8) or clvmd manages the group.
    #[serde(default)]
    vg_lock_type: String,
    #[serde(default)]
    vg_clustered: String,
    #[serde(default)]
    vg_allocation_policy: String,
    #[serde(default)]
    max_lv: String,
    #[serde(default)]
    lv_count: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct LvmReportPhysical {
    pv_uuid: String,
    pub pv_name: String,
    pv_size: String,
    /// Offset of the first extent of the physical volume.
    #[serde(default)]
    pub pe_start: String,
    /// `allocatable` if volumes can be allocated on the physical volume; otherwise empty.
    #[serde(default)]
    pv_allocatable: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct LvmReportVolume {
    pub lv_uuid: String,
    pub lv_name: String,
    lv_size: String,
    /// Attributes of the volume (lv_attr). The first letter is the type of the volume: `O` for an origin whose snapshot
    /// will be merged into it, `S` for such a snapshot (lvs(8)).
    #[serde(default)]
    lv_attr: String,
    #[serde(default)]
    origin: String,
    /// Health of the volume; `partial` if a physical volume is missing.
    #[serde(default)]
    lv_health_status: String,
    /// Roles of the volume, such as `public,origin,thickorigin`.
    #[serde(default)]
    lv_role: String,
    /// Text that is not empty while pvmove(8) is moving the volume.
    #[serde(default)]
    lv_allocation_locked: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct LvmReportSegment {
    pub lv_uuid: String,
    pub segtype: String,
    stripes: String,
    #[serde(default)]
    pub seg_start_pe: String,
    #[serde(default)]
    pub seg_size_pe: String,
    /// List of the devices of the segment, each with its first extent, such as `/dev/sda1(3)`. For a raid volume, the
    /// list contains its hidden volumes instead: `safe_rimage_0(0),safe_rimage_1(0)`.
    #[serde(default)]
    pub devices: String,
}

pub(super) const GROUP_FIELDS: &str = "vg_uuid,vg_name,vg_extent_size,vg_tags,vg_free,vg_exported,vg_systemid,vg_permissions,\
    vg_lock_type,vg_clustered,vg_allocation_policy,max_lv,lv_count";

pub(super) fn read_report() -> Result<LvmReport, String> {
    // Locks are not used, because nothing is written. `--foreign` includes groups of other hosts (system ID). `--all`
    // includes hidden volumes, such as the copies of a raid1 volume.
    let lvm = ToolCommand::new("lvm").args(["fullreport", "--all", "--config", READ_CONFIG, "--nolocking"]);
    let lvm = lvm.args(["--foreign", "--reportformat", "json", "--units", "b", "--nosuffix"]);
    let fields = [
        ["--configreport", "vg", "-o", GROUP_FIELDS],
        ["--configreport", "pv", "-o", "pv_uuid,pv_name,pv_size,pe_start,pv_allocatable"],
        [
            "--configreport",
            "lv",
            "-o",
            "lv_uuid,lv_name,lv_size,lv_attr,origin,lv_health_status,lv_role,lv_allocation_locked",
        ],
        ["--configreport", "seg", "-o", "lv_uuid,segtype,stripes,seg_start_pe,seg_size_pe,devices"],
        ["--configreport", "pvseg", "-o", "pv_uuid,pvseg_size,segtype"],
    ];
    run_report(lvm.args(fields.concat()).env("DM_DISABLE_UDEV", "1").deadline(LVM_TIMEOUT))
}

fn run_report(lvm: ToolCommand) -> Result<LvmReport, String> {
    let output = lvm.require_complete_output(REPORT_BYTES).run().map_err(|error| error.to_string())?;
    serde_json::from_str(&output.stdout).map_err(|error| format!("cannot parse the report of lvm: {error}"))
}

/// Converts lvm's report. `active` returns the kernel name of an active volume for its UUIDs. `path` converts a device
/// path printed by lvm to the path in the inventory. `whole` returns how many copies of a raid1 volume are complete,
/// and how many exist.
fn build_groups(
    report: LvmReport,
    active: &impl Fn(&str, &str) -> Option<KernelName>,
    path: &impl Fn(&str) -> Option<DevicePath>,
    whole: &impl Fn(&LvmReportRow, &str) -> (usize, usize),
) -> Vec<LvmVolumeGroup> {
    let mut groups: Vec<LvmVolumeGroup> = Vec::new();
    for row in report.report {
        let Some(group) = row.vg.first() else { continue };
        let volume = |volume: &LvmReportVolume| {
            // An extended volume may have several segments; the one with the most stripes determines the type.
            let segments = row.seg.iter().filter(|segment| segment.lv_uuid == volume.lv_uuid);
            let widest = segments.max_by_key(|segment| parse_number::<u32>(&segment.stripes));
            let kind = widest.map(|segment| segment.segtype.as_str()).unwrap_or_default();
            // For a snapshot, lvm reports the segment type of the space that holds its changes, not `snapshot`.
            let snapshot = !volume.origin.is_empty() && ["linear", "striped"].contains(&kind);
            LvmLogicalVolume {
                running: active(&group.vg_uuid, &volume.lv_uuid),
                health: determine_health(&row, volume, kind, whole),
                entangled: find_entanglement(volume).map(str::to_owned),
                ranges: volume_ranges::find_volume_ranges(&row, &volume.lv_name, kind),
                name: volume.lv_name.clone(),
                uuid: volume.lv_uuid.clone(),
                size_bytes: parse_number(&volume.lv_size),
                kind: if snapshot { "snapshot" } else { kind }.to_owned(),
                stripes: widest.map(|segment| parse_number(&segment.stripes)).unwrap_or_default(),
            }
        };
        // Hidden volumes are skipped: lvm prints their names in brackets.
        let volumes = row.lv.iter().filter(|volume| !volume.lv_name.starts_with('[')).map(volume).collect();
        let physical = row.pv.iter().map(|physical| LvmPhysicalVolume {
            device: path(&physical.pv_name),
            uuid: physical.pv_uuid.clone(),
            size_bytes: parse_number(&physical.pv_size),
        });
        groups.push(LvmVolumeGroup {
            name: group.vg_name.clone(),
            uuid: group.vg_uuid.clone(),
            extent_bytes: parse_number(&group.vg_extent_size),
            free_bytes: group.vg_free.parse().ok(),
            tags: group.vg_tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
            physical: physical.collect(),
            hidden: volume_ranges::find_hidden_volumes(&row),
            volumes,
            closed: find_closed_reason(group),
            allocation: build_allocation(&row, group),
        });
    }
    groups.sort_by(|a, b| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
    groups
}

/// Returns the health of a volume. For a raid1 volume, the superblocks of its copies determine the health; for volumes
/// of other types, the report of lvm determines the health.
fn determine_health(
    row: &LvmReportRow,
    volume: &LvmReportVolume,
    kind: &str,
    whole: &impl Fn(&LvmReportRow, &str) -> (usize, usize),
) -> VolumeHealth {
    let spare = match kind {
        "raid1" => {
            return match whole(row, &volume.lv_name) {
                (0, _) => VolumeHealth::Lost,
                (whole, all) if whole < all => VolumeHealth::Degraded,
                _ => VolumeHealth::Whole,
            };
        }
        "raid6" => 2,
        // Each level except 0 works if one image is missing. With two images missing, a raid10 works for some pairs of
        // images, but not for all.
        kind if kind.starts_with("raid") && !kind.starts_with("raid0") => 1,
        _ => 0,
    };
    if volume.lv_health_status.is_empty() {
        return VolumeHealth::Whole;
    }
    let prefix = format!("[{}_rimage_", volume.lv_name);
    let images = row.lv.iter().filter(|image| image.lv_name.starts_with(&prefix));
    let missing = images.filter(|image| image.lv_health_status == "partial").count();
    let lost = volume.lv_health_status == "partial" && missing.max(1) > spare;
    if lost { VolumeHealth::Lost } else { VolumeHealth::Degraded }
}

/// Parses a number, which lvm prints as a string.
pub(super) fn parse_number<T: std::str::FromStr + Default>(text: &str) -> T {
    text.parse().unwrap_or_default()
}

/// Concatenates the UUIDs of the group and the volume without dashes. LVM uses this format in device-mapper UUIDs.
pub(super) fn join_uuids(group: &str, volume: &str) -> String {
    format!("{group}{volume}").replace('-', "")
}

/// Returns a function that finds the device-mapper device of a volume by its device-mapper UUID. This UUID consists of
/// the prefix `LVM-` or [`READ_ONLY_MAPPING_UUID_PREFIX`], and the UUIDs of group and volume. UUIDs are used because
/// two groups may have the same name.
fn index_active_volumes(sys: &Path) -> impl Fn(&str, &str) -> Option<KernelName> + use<> {
    let block = sys.join("block");
    let devices = list_names(&block).unwrap_or_default().into_iter().filter(|name| name.starts_with("dm-"));
    let known: Vec<(String, String)> =
        devices.map(|name| (read_attribute(&block.join(&name).join("dm/uuid")), name)).collect();
    move |group, volume| {
        let uuid = join_uuids(group, volume);
        let is = |known: &str| {
            known.strip_prefix("LVM-").or(known.strip_prefix(READ_ONLY_MAPPING_UUID_PREFIX)) == Some(&uuid)
        };
        known.iter().find(|(known, _)| is(known)).map(|(_, name)| name.as_str().into())
    }
}

/// Converts a device path printed by lvm to the path of the same device in the inventory, because lvm may print any
/// path of a device. Returns `None` for a missing device (`[unknown]`).
fn resolve_device_path(roots: &ProbeRoots, inventory: &Inventory, path: &str) -> Option<DevicePath> {
    let node = path.strip_prefix("/dev/")?;
    let number =
        std::fs::metadata(roots.dev.join(node)).map(|node| format_device_number(node.rdev())).unwrap_or_default();
    let name = read_link_name(&roots.sys.join("dev/block").join(number));
    let stacked = inventory.stacked.iter().find(|stacked| stacked.name == name.as_str());
    Some(stacked.map_or_else(|| path.into(), |stacked| stacked.device.clone()))
}

#[cfg(test)]
mod tests;
