//! LVM volume groups by what is written on their physical volumes: one `lvm fullreport`. Nothing has to be active for
//! that, and nothing is activated.

use super::{Health, Inventory, LogicalVolume, PhysicalVolume, Roots, VolumeGroup, attribute, link_name, names};
use crate::command::{self, Command};
use crate::inventory::number_text;
use serde::Deserialize;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// What libblkid calls a physical volume.
pub const MEMBER: &str = "LVM2_member";

/// For looking only: writes nothing anywhere, asks nobody, and leaves no device out that is there (lvm.conf(5)).
pub const LOOK: &str = "devices{use_devicesfile=0 hints=\"none\" scan_lvs=1 filter=[\"a|.*|\"] global_filter=[\"a|.*|\"] \
    obtain_device_list_from_udev=0} global{metadata_read_only=1} backup{backup=0 archive=0} activation{monitoring=0}";

/// A disk that is dying answers late.
const DEADLINE: Duration = Duration::from_secs(120);

/// All groups; of a machine without a physical volume nothing is asked. What lvm cannot read is named in the log.
pub(super) fn read(roots: &Roots, inventory: &Inventory) -> Vec<VolumeGroup> {
    let devices = inventory.devices_with(&[MEMBER]);
    if devices.is_empty() {
        return Vec::new();
    }
    if !command::missing(&["lvm"]).is_empty() {
        tracing::warn!("there is no lvm here: what the physical volumes {} belong to is not known", devices.join(", "));
        return Vec::new();
    }
    match report() {
        Ok(report) => groups(report, &active(&roots.sys), &|path| known_path(roots, inventory, path)),
        Err(error) => {
            tracing::warn!("volume groups on {} are not known: {error}", devices.join(", "));
            Vec::new()
        }
    }
}

/// One group a row of `report`; physical volumes of no group are a row without a group.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Report {
    report: Vec<Row>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Row {
    vg: Vec<Group>,
    pv: Vec<Physical>,
    lv: Vec<Volume>,
    seg: Vec<Segment>,
}

#[derive(Debug, Deserialize)]
struct Group {
    vg_uuid: String,
    vg_name: String,
    vg_extent_size: String,
    vg_tags: String,
}

#[derive(Debug, Deserialize)]
struct Physical {
    pv_uuid: String,
    pv_name: String,
    pv_size: String,
}

#[derive(Debug, Deserialize)]
struct Volume {
    lv_uuid: String,
    lv_name: String,
    lv_size: String,
    #[serde(default)]
    origin: String,
}

#[derive(Debug, Deserialize)]
struct Segment {
    lv_uuid: String,
    segtype: String,
    stripes: String,
}

fn report() -> Result<Report, String> {
    // Without locks, as it only looks; with the groups that a system ID makes another host's.
    let lvm = Command::new("lvm").args(["fullreport", "--config", LOOK, "--nolocking", "--foreign"]);
    let lvm = lvm.args(["--reportformat", "json", "--units", "b", "--nosuffix"]);
    let fields = [
        ["--configreport", "vg", "-o", "vg_uuid,vg_name,vg_extent_size,vg_tags"],
        ["--configreport", "pv", "-o", "pv_uuid,pv_name,pv_size"],
        ["--configreport", "lv", "-o", "lv_uuid,lv_name,lv_size,origin"],
        ["--configreport", "seg", "-o", "lv_uuid,segtype,stripes"],
        ["--configreport", "pvseg", "-o", "pv_uuid"],
    ];
    let output = lvm.args(fields.concat()).env("DM_DISABLE_UDEV", "1").deadline(DEADLINE).run();
    let output = output.map_err(|error| error.to_string())?;
    serde_json::from_str(&output.stdout).map_err(|error| format!("the report of lvm cannot be read: {error}"))
}

/// `active` gives the kernel name of an active volume by its UUID for the device mapper, `path` the path of this
/// inventory for the one that lvm prefers.
fn groups(
    report: Report,
    active: &impl Fn(&str, &str) -> Option<String>,
    path: &impl Fn(&str) -> String,
) -> Vec<VolumeGroup> {
    let mut groups: Vec<VolumeGroup> = Vec::new();
    for row in report.report {
        let Some(group) = row.vg.into_iter().next() else { continue };
        let volume = |volume: Volume| {
            // One that was extended may have several.
            let segments = row.seg.iter().filter(|segment| segment.lv_uuid == volume.lv_uuid);
            let widest = segments.max_by_key(|segment| number::<u32>(&segment.stripes));
            let kind = widest.map(|segment| segment.segtype.as_str()).unwrap_or_default();
            // lvm tells how a snapshot's own space is laid out, which is not what it is.
            let snapshot = !volume.origin.is_empty() && ["linear", "striped"].contains(&kind);
            LogicalVolume {
                running: active(&group.vg_uuid, &volume.lv_uuid),
                name: volume.lv_name,
                uuid: volume.lv_uuid,
                size_bytes: number(&volume.lv_size),
                kind: if snapshot { "snapshot" } else { kind }.to_owned(),
                stripes: widest.map(|segment| number(&segment.stripes)).unwrap_or_default(),
                health: Health::Whole,
            }
        };
        let volumes = row.lv.into_iter().map(volume).collect();
        let physical = row.pv.into_iter().map(|physical| PhysicalVolume {
            device: path(&physical.pv_name),
            uuid: physical.pv_uuid,
            size_bytes: number(&physical.pv_size),
        });
        groups.push(VolumeGroup {
            name: group.vg_name,
            uuid: group.vg_uuid,
            extent_bytes: number(&group.vg_extent_size),
            tags: group.vg_tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
            physical: physical.collect(),
            volumes,
        });
    }
    groups.sort_by(|a, b| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
    groups
}

/// lvm writes all numbers as text.
fn number<T: std::str::FromStr + Default>(text: &str) -> T {
    text.parse().unwrap_or_default()
}

/// Which device-mapper device a volume has, by the UUID that lvm gives it: `LVM-`, the group's and the volume's without
/// dashes. Unlike names, that tells two groups of one name apart.
fn active(sys: &Path) -> impl Fn(&str, &str) -> Option<String> + use<> {
    let block = sys.join("block");
    let devices = names(&block).unwrap_or_default().into_iter().filter(|name| name.starts_with("dm-"));
    let known: Vec<(String, String)> =
        devices.map(|name| (attribute(&block.join(&name).join("dm/uuid")), name)).collect();
    move |group, volume| {
        let uuid = format!("LVM-{group}{volume}").replace('-', "").replacen("LVM", "LVM-", 1);
        known.iter().find(|(known, _)| *known == uuid).map(|(_, name)| name.clone())
    }
}

/// lvm chooses among all paths of a device; the inventory has one. Empty for a device that is missing (`[unknown]`).
fn known_path(roots: &Roots, inventory: &Inventory, path: &str) -> String {
    let Some(node) = path.strip_prefix("/dev/") else { return String::new() };
    let number = std::fs::metadata(roots.dev.join(node)).map(|node| number_text(node.rdev())).unwrap_or_default();
    let name = link_name(&roots.sys.join("dev/block").join(number));
    let stacked = inventory.stacked.iter().find(|stacked| stacked.name == name);
    stacked.map_or_else(|| path.to_owned(), |stacked| stacked.device.clone())
}

#[cfg(test)]
mod tests;
