//! Creates md arrays with mdadm, according to the plan. The initial synchronization of the arrays is deferred to the
//! installed system.

use super::{block_device, busy_device_users, signature_wipe};
use crate::process::{CommandError, ToolCommand};
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use model::inventory::format_array_uuid as text;
use model::layout::RaidLevel;
use operations::{ArraySlot, CreateArray};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;
use uuid::Uuid;

#[cfg(test)]
mod tests;

/// Tools used by this module; all must be in `PATH`.
pub(crate) const TOOLS: &[&str] = &["mdadm"];

/// Time limit for mdadm. mdadm waits up to 25 × 0.2 s for a busy array, and takes some time to clear the bitmap of a
/// large array.
const MDADM_TIMEOUT: Duration = Duration::from_secs(120);

/// Creates an array, verifies it, and zeroes both its ends, because a new array exposes old contents of its members.
/// Members may be missing if the RAID level tolerates missing members.
///
/// # Errors
/// Returns an error if a member is in use (the error lists the users), mdadm fails, or the result differs from the
/// plan.
pub fn create_array(array: &CreateArray) -> Result<()> {
    let device = &array.device;
    let what = || format!("create {} {device} of {}", array.level, array.mdadm_arguments());
    // Old superblocks of another metadata version are at another offset, so mdadm would not overwrite them.
    array.present_devices().try_for_each(signature_wipe::wipe_signatures).context(Phase::Storage, what)?;
    run_mdadm(build_argv(array)).context(Phase::Storage, what)?;
    freeze_synchronization(device)?;
    let found = ArrayDetail::read(device).context(Phase::Storage, || format!("read back {device}"))?;
    verify_planned(&found, array)?;
    signature_wipe::wipe_signatures(device)
}

/// Creates an array on scratch devices, verifies the array, and stops it. The array is not synchronized.
///
/// # Errors
/// Returns an error if mdadm or the kernel fails, or the result differs from the plan.
pub(crate) fn try_create_array(array: &CreateArray) -> Result<()> {
    let mut array = array.clone();
    array.createoptions.push("--assume-clean".to_owned());
    let what = || format!("create {} of {}", array.level, array.mdadm_arguments());
    run_mdadm(build_argv(&array)).context(Phase::Storage, what)?;
    let found = ArrayDetail::read(&array.device);
    stop_array(&array.device)?;
    verify_planned(&found.context(Phase::Storage, what)?, &array)
}

fn verify_planned(found: &ArrayDetail, array: &CreateArray) -> Result<()> {
    match found.list_differences(array).join("; ") {
        same if same.is_empty() => Ok(()),
        differences => {
            let what = format!("{array} was created, but differs from the plan: {differences}", array = array.device);
            Err(Error::new(Phase::Storage, what))
        }
    }
}

/// Assembles a preserved array from these members as `device`, for writing. Members may be missing if the RAID level
/// tolerates missing members. If mdadm refuses to start the array, the start is not forced.
///
/// # Errors
/// Returns an error if mdadm fails, for example because a member is in use.
pub fn assemble_array(device: &DevicePath, uuid: Uuid, members: &[DevicePath]) -> Result<()> {
    let what = || format!("assemble {device} ({}) of {}", text(uuid), members.join(" "));
    let args = ["--assemble", device.as_str(), "--run", &format!("--uuid={}", text(uuid))].map(str::to_owned);
    run_mdadm(args.into_iter().chain(members.iter().map(DevicePath::to_string)).collect())
        .context(Phase::Storage, what)?;
    freeze_synchronization(device)?;
    let found = ArrayDetail::read(device).context(Phase::Storage, || format!("read back {device}"))?;
    if found.uuid != Some(uuid) {
        let is = found.uuid.map_or("none".to_owned(), text);
        return Err(Error::new(
            Phase::Storage,
            format!("{device} has the UUID {is} instead of {expected}", expected = text(uuid)),
        ));
    }
    Ok(())
}

/// Stops an array; the kernel marks its superblocks clean.
///
/// # Errors
/// Returns an error if the array does not exist, or is in use (the error lists the users).
pub fn stop_array(device: &DevicePath) -> Result<()> {
    let sysfs = block_device::sysfs_path(device).context(Phase::Storage, || format!("stop {device}"))?;
    run_mdadm(vec!["--stop".to_owned(), device.to_string()]).map_err(|error| {
        let users = busy_device_users::format_users(&busy_device_users::list_device_users(device));
        Error::with_source(Phase::Storage, format!("stop {device}{users}"), error)
    })?;
    remove_array_links(sysfs.file_name().unwrap_or_default())
}

/// Removes the links to a stopped array in /dev/md. mdadm does not remove the link of an array whose superblocks do not
/// contain a name.
fn remove_array_links(array: &OsStr) -> Result<()> {
    for link in fs::read_dir("/dev/md").into_iter().flatten().flatten().map(|entry| entry.path()) {
        if fs::read_link(&link).is_ok_and(|to| to.file_name() == Some(array)) {
            fs::remove_file(&link).context(Phase::Storage, || format!("remove {}", link.display()))?;
        }
    }
    Ok(())
}

/// Returns the arguments for mdadm. The options of the layout precede the devices, because some options apply only to
/// the devices that follow them.
fn build_argv(array: &CreateArray) -> Vec<String> {
    let active = array.devices.len().saturating_sub(array.spares as usize);
    // With `--run`, mdadm does not ask questions. With the home host "any", every host treats the array as local.
    let mut args = ["--create", array.device.as_str(), "--run", "--homehost=any"].map(str::to_owned).to_vec();
    args.push(format!("--metadata={}", array.metadata));
    args.push(format!("--level={}", array.level.number()));
    args.push(format!("--raid-devices={active}"));
    // Without `--force`, mdadm would create a degraded RAID 5 and rebuild its last member, which is faster. A power
    // failure during the rebuild would leave the array both dirty and degraded, and the kernel refuses to start such an
    // array (raid5_run in drivers/md/raid5.c).
    if array.level == RaidLevel::Raid5 {
        args.push("--force".to_owned());
    }
    if array.spares > 0 {
        args.push(format!("--spare-devices={}", array.spares));
    }
    args.push(format!("--uuid={}", text(array.uuid)));
    // The name is omitted for superblocks of version 0.90, which have no field for it.
    if array.metadata != "0.90" {
        args.push(format!("--name={}", array_name(&array.device)));
    }
    args.extend(array.createoptions.iter().cloned().chain(array.devices.iter().map(ArraySlot::to_string)));
    args
}

/// Returns the array's name: `root` for `/dev/md/root`, `1` for `/dev/md1`. udev's rules derive the path of the array
/// from this name.
fn array_name(device: &DevicePath) -> &str {
    let last = device.as_str().rsplit('/').next().unwrap_or(device.as_str());
    match last.strip_prefix("md") {
        Some(number) if *device == format!("/dev/{last}") && number.parse::<u32>().is_ok() => number,
        _ => last,
    }
}

fn run_mdadm(args: Vec<String>) -> Result<String, CommandError> {
    // Without this variable, mdadm would wait for udev to create the array's device node and link.
    let output = ToolCommand::new("mdadm").args(args).env("MDADM_NO_UDEV", "1").deadline(MDADM_TIMEOUT).run()?;
    Ok(output.stdout)
}

/// Suspends synchronization while the image is written. During this time, data is written to all members.
/// Synchronization starts when the array is assembled the next time.
fn freeze_synchronization(device: &DevicePath) -> Result<()> {
    let file = block_device::sysfs_path(device)?.join("md/sync_action");
    // fs::write() is not used, because it would try to create a missing file in sysfs.
    match File::options().write(true).open(&file).and_then(|mut file| file.write_all(b"frozen")) {
        // Arrays of a level without redundancy lack this file, because they are not synchronized.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.context(Phase::Storage, || format!("suspend the synchronization of {device}")),
    }
}

/// Running array, according to `mdadm --detail --export`.
#[derive(Debug, Default, PartialEq, Eq)]
struct ArrayDetail {
    level: String,
    raid_devices: String,
    metadata: String,
    uuid: Option<Uuid>,
    /// Devices of the array: its members and its spares.
    devices: BTreeSet<DevicePath>,
}

impl ArrayDetail {
    fn read(device: &DevicePath) -> Result<ArrayDetail, CommandError> {
        Ok(ArrayDetail::parse(&run_mdadm(vec!["--detail".to_owned(), "--export".to_owned(), device.to_string()])?))
    }

    /// Parses the output of `mdadm --detail --export`. Only the first value of a key is used. The fields read here are
    /// printed before names, so that a newline in a name cannot inject their values.
    fn parse(export: &str) -> ArrayDetail {
        let mut found = ArrayDetail::default();
        let mut known = BTreeSet::new();
        for (key, value) in export.lines().filter_map(|line| line.split_once('=')) {
            if !known.insert(key) {
                continue;
            }
            let value = value.to_owned();
            match key {
                "MD_LEVEL" => found.level = value,
                "MD_DEVICES" => found.raid_devices = value,
                "MD_METADATA" => found.metadata = value,
                "MD_UUID" => found.uuid = Uuid::try_parse(&value.replace(':', "")).ok(),
                _ if key.starts_with("MD_DEVICE_") && key.ends_with("_DEV") => drop(found.devices.insert(value.into())),
                _ => {}
            }
        }
        found
    }

    /// Returns each difference between the array and the plan. The number of active members is compared, but not the
    /// set of spares, because a new RAID 5 starts with its last member as a spare.
    fn list_differences(&self, array: &CreateArray) -> Vec<String> {
        let list = |devices: BTreeSet<PathBuf>| {
            devices.iter().map(|device| device.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        let active = array.devices.len().saturating_sub(array.spares as usize);
        let sides = [
            ("level", array.level.to_string(), self.level.clone()),
            ("members", active.to_string(), self.raid_devices.clone()),
            ("metadata", array.metadata.clone(), self.metadata.clone()),
            ("UUID", text(array.uuid), self.uuid.map(text).unwrap_or_default()),
            ("devices", list(resolve_links(array.present_devices())), list(resolve_links(self.devices.iter()))),
        ];
        let differ = sides.into_iter().filter(|(_, planned, found)| planned != found);
        differ.map(|(what, planned, found)| format!("{what}: planned {planned}, found {found}")).collect()
    }
}

/// Resolves links such as `/dev/md/inner`, which leads to `/dev/md126`.
fn resolve_links<'a>(devices: impl Iterator<Item = &'a DevicePath>) -> BTreeSet<PathBuf> {
    devices.map(|device| fs::canonicalize(device).unwrap_or_else(|_| device.as_str().into())).collect()
}
