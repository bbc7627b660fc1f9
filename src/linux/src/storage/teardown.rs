//! Stops the holders of disks, and verifies that no holder is left.

use super::{block_device, busy_device_users, mdadm, signature_wipe};
use crate::process::ToolCommand;
use common::error::{Context, Error, Phase, Result};
use model::device_name::{DevicePath, KernelName};
use model::storage_graph::layer_graph::traversal;
use nix::errno::Errno;
use operations::DiskHolder;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// Tools used by this module; all must be in `PATH`.
pub(crate) const TOOLS: &[&str] = &["dmsetup"];

/// Stops one holder. All holders on top of it must already have been stopped.
///
/// # Errors
/// Returns an error if the holder does not exist, or is in use (the error lists the users).
pub fn release_holder(holder: &DiskHolder) -> Result<()> {
    match holder {
        DiskHolder::Swap { device } => disable_swap(device),
        DiskHolder::Array { device } => mdadm::stop_array(device),
        DiskHolder::Mapping { device } | DiskHolder::Volume { device, .. } => remove_mapping(device),
        DiskHolder::Bcache { device } => stop_bcache(device, &block_device::sysfs_path(device)?),
    }
}

/// Stops all arrays and mappings on a device or its partitions, topmost first. Used for objects that drophammer itself
/// assembled for an inspection or a rehearsal.
///
/// # Errors
/// Returns an error if one of the devices stays in use (the error lists the users).
pub fn release_above(device: &DevicePath) -> Result<()> {
    release_above_except(device, &[])
}

/// Stops arrays and mappings like [`release_above`], but does not stop the devices in `running`.
///
/// # Errors
/// The same errors as for [`release_above`].
pub(super) fn release_above_except(device: &DevicePath, running: &[KernelName]) -> Result<()> {
    let holders = traversal::order_farthest_first(device.clone(), list_holders);
    for holder in holders.iter().filter(|holder| *holder != device) {
        let name = holder.kernel_name();
        match name {
            _ if running.contains(&name) => {}
            // The holder was already removed together with another underlying device.
            _ if !Path::new("/sys/block").join(name.as_str()).exists() => {}
            name if name.starts_with("md") => mdadm::stop_array(holder)?,
            name if name.starts_with("dm-") => remove_mapping(holder)?,
            _ => {}
        }
    }
    Ok(())
}

/// Returns the holders of a device and of its partitions according to sysfs.
fn list_holders(device: &DevicePath) -> Vec<DevicePath> {
    let of = |sysfs: PathBuf| fs::read_dir(sysfs.join("holders")).into_iter().flatten().flatten();
    let holders = busy_device_users::sysfs_with_partitions(device).into_iter().flat_map(of);
    holders.map(|holder| KernelName::from(holder.file_name().to_string_lossy().as_ref()).device_path()).collect()
}

/// Verifies that these disks and their partitions are unused.
///
/// # Errors
/// Returns an error if a disk or partition is in use; the error lists the users.
pub fn verify_unused(disks: &[DevicePath]) -> Result<()> {
    let mut left = Vec::new();
    for disk in disks {
        let holders = busy_device_users::list_device_holders(disk);
        // Each disk is also opened exclusively, because sysfs does not list all holders: for a mounted btrfs on several
        // devices, sysfs lists only the first device.
        match signature_wipe::open_exclusive(disk) {
            _ if !holders.is_empty() => left.push(format!("{disk}: {}", holders.join(", "))),
            Err(error) => left.push(error.to_string()),
            Ok(_) => {}
        }
    }
    if left.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        Phase::Storage,
        format!("disks are still in use, although all known holders were stopped: {users}", users = left.join("; ")),
    ))
}

/// Returns the device-mapper name of a device, such as `vg00-root`.
///
/// # Errors
/// Returns an error if the device does not exist, or is not a device-mapper device.
pub(super) fn mapping_name(device: &DevicePath) -> Result<String> {
    let name = fs::read_to_string(block_device::sysfs_path(device)?.join("dm/name"));
    Ok(name.context(Phase::Storage, || format!("{device} is not a device-mapper device"))?.trim().to_owned())
}

fn disable_swap(device: &DevicePath) -> Result<()> {
    let what = || format!("disable swap on {device}");
    let path = CString::new(device.as_str()).context(Phase::Storage, what)?;
    // SAFETY: swapoff(2) reads one string, which lives until it returns.
    Errno::result(unsafe { nix::libc::swapoff(path.as_ptr()) }).map(drop).context(Phase::Storage, what)
}

/// Removes a mapping with dmsetup. Unlike `lvm vgchange`, dmsetup works for volumes of incomplete groups, and also if
/// two groups have the same name.
pub(super) fn remove_mapping(device: &DevicePath) -> Result<()> {
    let name = mapping_name(device)?;
    // With `--retry`, dmsetup retries for 5 s while a short-lived process uses the device.
    let remove = ToolCommand::new("dmsetup").args(["remove", "--retry", "--noudevsync", &name]);
    remove.env("DM_DISABLE_UDEV", "1").run().map_err(|error| {
        let users = busy_device_users::format_users(&busy_device_users::list_device_users(device));
        Error::with_source(Phase::Storage, format!("remove {device} ({name}){users}"), error)
    })?;
    // LVM's link in /dev is removed here, because dmsetup does not remove it, and vgcreate refuses a group name that
    // exists in /dev.
    if let Some(link) = volume_link_path(&name)
        && fs::symlink_metadata(&link).is_ok_and(|metadata| metadata.is_symlink())
    {
        fs::remove_file(&link).context(Phase::Storage, || format!("remove {}", link.display()))?;
        // Removing the directory fails, as intended, while it contains other links.
        let _ = link.parent().map(fs::remove_dir);
    }
    Ok(())
}

/// Returns `/dev/GROUP/VOLUME` for the mapping `GROUP-VOLUME`, in which dashes of the names are doubled.
fn volume_link_path(mapping: &str) -> Option<PathBuf> {
    let escaped = mapping.replace("--", "\0");
    let (group, volume) = escaped.split_once('-')?;
    let name = |text: &str| text.replace('\0', "-");
    Some(Path::new("/dev").join(name(group)).join(name(volume)))
}

/// Stops a bcache device and its cache set, and waits until the device is gone. Writing to the device's `stop` file in
/// sysfs releases the backing disk; writing to the `stop` file of the cache set releases the caching disks
/// (admin-guide/bcache.rst).
fn stop_bcache(device: &DevicePath, sysfs: &Path) -> Result<()> {
    let what = || format!("stop {device}");
    let set = fs::canonicalize(sysfs.join("bcache/cache"));
    fs::write(sysfs.join("bcache/stop"), "1").context(Phase::Storage, what)?;
    if let Ok(set) = set {
        fs::write(set.join("stop"), "1").context(Phase::Storage, what)?;
    }
    // The end of the device is awaited, because both writes return before the devices are released.
    let gone = || if sysfs.exists() { Err(Errno::EBUSY) } else { Ok(()) };
    block_device::retry_while_busy(Errno::EBUSY, gone).map_err(|error| {
        let users = busy_device_users::format_users(&busy_device_users::list_device_users(device));
        Error::with_source(Phase::Storage, format!("{device} was stopped but is still present{users}"), error)
    })
}
