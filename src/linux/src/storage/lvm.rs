//! Creates LVM volume groups and logical volumes according to the plan.
//!
//! Each command is restricted to the group's own devices, so that a group with the same name on other disks is
//! invisible to the command.

use super::{busy_device_users, signature_wipe, teardown};
use crate::process::ToolCommand;
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use model::layout::{LvmType, RequestedSize};
use operations::{CreateGroup, CreateVolume};
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

#[cfg(test)]
mod tests;
mod volume_removal;

pub use volume_removal::remove_volumes;

/// Tools used by this module; all must be in `PATH`.
pub(crate) const TOOLS: &[&str] = &["lvm", "dmsetup"];

const LVM_TIMEOUT: Duration = Duration::from_secs(120);

/// LVM configuration (lvm.conf(5)). The ramdisk runs neither LVM's daemons nor udev, which would create device nodes
/// and list devices. Metadata backups are not stored. LVM's detection of array and multipath members is disabled:
/// `--devices` already selects the devices, and the detection would make LVM ignore a disk with an old md superblock at
/// its end. Freed extents are not discarded, even if LVM was built with another default.
const CONFIG: &str = "\
    devices { obtain_device_list_from_udev=0 external_device_info_source=\"none\" use_devicesfile=0 hints=\"none\" \
    filter=[\"a|.*|\"] global_filter=[\"a|.*|\"] md_component_detection=0 multipath_component_detection=0 \
    fw_raid_component_detection=0 issue_discards=0 } \
    activation { udev_sync=0 udev_rules=0 monitoring=0 } \
    backup { backup=0 archive=0 } \
    global { use_lvmpolld=0 use_lvmlockd=0 event_activation=0 notify_dbus=0 system_id_source=\"none\" }";

/// Creates a volume group on these devices. Their old contents are lost.
///
/// # Errors
/// Returns an error if a device is in use (the error lists the users), LVM fails, or the result differs from the plan.
pub fn create_group(group: &CreateGroup) -> Result<()> {
    let CreateGroup { name, devices, tags } = group;
    let what = || format!("create volume group {name} from {devices}", devices = devices.join(" "));
    // Removes the signatures about which LVM would ask, and the signatures at the end of a device, for which LVM does
    // not check.
    devices.iter().try_for_each(signature_wipe::wipe_signatures).context(Phase::Storage, what)?;
    run_lvm("vgcreate", devices, build_group_args(group)).context(Phase::Storage, what)?;
    let found = read_report("vgs", devices, name, &["vg_name", "pv_count", "vg_tags"]).context(Phase::Storage, what)?;
    // The planned tags are sorted for the comparison, because LVM prints tags in sorted order.
    let tags: BTreeSet<&str> = tags.iter().map(String::as_str).collect();
    let tags = tags.into_iter().collect::<Vec<_>>().join(",");
    compare_fields(name, &[name.clone(), devices.len().to_string(), tags], &found)
}

/// Creates and activates a logical volume, and zeroes both its ends, because a new volume exposes old contents of its
/// disks.
///
/// # Errors
/// Returns an error if LVM fails, for example because the group lacks the space, or the result differs from the plan.
pub fn create_volume(volume: &CreateVolume) -> Result<()> {
    let what = || format!("create {} volume {}", volume.kind, volume.device);
    run_lvm("lvcreate", &volume.physical, build_volume_args(volume)).context(Phase::Storage, what)?;
    if volume.kind == LvmType::Raid1 {
        freeze_volume(&volume.device)?;
    }
    let path = format!("{}/{}", volume.group, volume.name);
    let fields = ["segtype", "stripes", "lv_size", "vg_extent_size"];
    let found = read_report("lvs", &volume.physical, &path, &fields).context(Phase::Storage, what)?;
    compare_volume(volume, &found)?;
    signature_wipe::wipe_signatures(&volume.device)
}

/// Activates only these volumes of a preserved group, for writing. Activating a volume that the layout does not contain
/// could write to the volume (superblocks, a pending merge), or fail on this machine. Physical volumes of the group may
/// be missing if the activated logical volumes do not need them.
///
/// # Errors
/// Returns an error if a volume is in use (the error lists the users), or LVM fails.
pub fn activate_volumes(name: &str, volumes: &[String], devices: &[DevicePath]) -> Result<()> {
    let args = ["--activate", "y", "--activationmode", "degraded"].map(str::to_owned);
    let paths = volumes.iter().map(|volume| format!("{name}/{volume}"));
    let activated = run_lvm("lvchange", devices, args.into_iter().chain(paths));
    activated.map(drop).context(Phase::Storage, || {
        format!("activate logical volumes {volumes} of volume group {name}", volumes = volumes.join(", "))
    })
}

/// Deactivates all volumes of a group.
///
/// # Errors
/// Returns an error if a volume is in use (the error lists the users), or LVM fails.
pub fn deactivate_group(name: &str, devices: &[DevicePath]) -> Result<()> {
    run_lvm("vgchange", devices, ["--activate", "n", name]).map(drop).map_err(|error| {
        let volumes = fs::read_dir(format!("/dev/{name}")).into_iter().flatten().flatten();
        let users: Vec<_> = volumes
            .flat_map(|volume| busy_device_users::list_device_users(&volume.path().to_string_lossy().as_ref().into()))
            .collect();
        let what = format!("deactivate volume group {name}{users}", users = busy_device_users::format_users(&users));
        Error::with_source(Phase::Storage, what, error)
    })
}

/// Returns the UUIDs of the group and of the volume, as printed by LVM.
///
/// # Errors
/// Returns an error if LVM fails, or the volume does not exist.
pub(crate) fn read_uuids(volume: &CreateVolume) -> Result<(String, String)> {
    let path = format!("{}/{}", volume.group, volume.name);
    let found = read_report("lvs", &volume.physical, &path, &["vg_uuid", "lv_uuid"])?;
    match found.as_slice() {
        [group, volume] => Ok((group.clone(), volume.clone())),
        _ => Err(Error::new(Phase::Storage, format!("lvm does not report the UUID of {path}"))),
    }
}

fn build_group_args(group: &CreateGroup) -> Vec<String> {
    let tags = group.tags.iter().flat_map(|tag| ["--addtag".to_owned(), tag.clone()]);
    tags.chain([group.name.clone()]).chain(group.devices.iter().map(DevicePath::to_string)).collect()
}

fn build_volume_args(volume: &CreateVolume) -> Vec<String> {
    let physical = volume.physical.len().to_string();
    let kind = match volume.kind {
        LvmType::Linear => vec!["--type", "linear"],
        LvmType::Striped => vec!["--type", "striped", "--stripes", &physical],
        LvmType::Raid1 => vec!["--type", "raid1", "--mirrors", "1"],
    };
    let size = match volume.size {
        RequestedSize::Rest => ["--extents".to_owned(), "100%FREE".to_owned()],
        RequestedSize::Mib(mib) => ["--size".to_owned(), format!("{mib}m")],
    };
    let wipe = ["--wipesignatures", "y", "--zero", "y"];
    let words = kind.into_iter().chain(size.each_ref().map(String::as_str)).chain(wipe).chain([
        "--name",
        &volume.name,
        &volume.group,
    ]);
    words.map(str::to_owned).collect()
}

/// Runs an LVM command that is restricted to these devices. With the option `--yes`, LVM does not ask questions.
fn run_lvm(command: &str, devices: &[DevicePath], args: impl IntoIterator<Item = impl AsRef<str>>) -> Result<String> {
    let args: Vec<String> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
    let seen = devices.iter().flat_map(|device| ["--devices", device.as_str()]);
    let run = ToolCommand::new("lvm").args([command, "--yes", "--config", CONFIG]).args(seen).args(args);
    // Without this variable, libdevmapper would wait for udev, regardless of LVM's configuration.
    let run = run.env("DM_DISABLE_UDEV", "1").deadline(LVM_TIMEOUT).run();
    Ok(run.context(Phase::Storage, || format!("lvm {command}"))?.stdout)
}

/// Returns these fields of one group or volume, with sizes in bytes. LVM prints one line for each segment; identical
/// lines are returned only once.
fn read_report(command: &str, devices: &[DevicePath], name: &str, fields: &[&str]) -> Result<Vec<String>> {
    let options = fields.join(",");
    let args = ["--noheadings", "--nosuffix", "--units", "b", "--separator", "|", "-o", &options, name];
    let output = run_lvm(command, devices, args)?;
    let lines: BTreeSet<&str> = output.lines().map(str::trim).collect();
    Ok(lines.into_iter().flat_map(|line| line.split('|')).map(str::to_owned).collect())
}

fn compare_fields(what: &str, planned: &[String], found: &[String]) -> Result<()> {
    if planned == found {
        return Ok(());
    }
    let (planned, found) = (planned.join(" "), found.join(" "));
    let message = format!("{what} was created, but differs from the plan: planned {planned}, found {found}");
    Err(Error::new(Phase::Storage, message))
}

/// Compares a volume with the plan. `found` contains segment type, stripes, size and extent size. A size that LVM has
/// rounded up is accepted, because each stripe must consist of whole extents.
fn compare_volume(volume: &CreateVolume, found: &[String]) -> Result<()> {
    let number = |index: usize| found.get(index).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    let (size, extent) = (number(2), number(3).max(1));
    let (stripes, unit) = match volume.kind {
        LvmType::Linear => (1, extent),
        LvmType::Striped => (volume.physical.len() as u64, extent * volume.physical.len() as u64),
        // For a raid1 volume, LVM reports the number of copies as the number of stripes.
        LvmType::Raid1 => (2, extent),
    };
    let planned = match volume.size {
        RequestedSize::Rest => size,
        RequestedSize::Mib(mib) => (mib.get() << 20).next_multiple_of(unit),
    };
    let planned = [volume.kind.name().to_owned(), stripes.to_string(), planned.to_string(), extent.to_string()];
    compare_fields(volume.device.as_str(), &planned, found)
}

/// Suspends synchronization of these volumes. Volumes without copies reject the device-mapper message; such a rejection
/// is ignored.
pub(crate) fn suspend_synchronization(name: &str, volumes: &[String]) {
    for volume in volumes {
        if let Err(error) = freeze_volume(&format!("/dev/{name}/{volume}").into()) {
            tracing::debug!("{error}");
        }
    }
}

/// Suspends synchronization of the copies while the image is written. Synchronization resumes with the next activation
/// of the volume. `lvcreate --nosync` is not used, because with this option the copies would never be synchronized.
fn freeze_volume(device: &DevicePath) -> Result<()> {
    let name = teardown::mapping_name(device)?;
    let message = ToolCommand::new("dmsetup").args(["message", &name, "0", "frozen"]).env("DM_DISABLE_UDEV", "1").run();
    message.map(drop).context(Phase::Storage, || format!("suspend the synchronization of {device}"))
}
