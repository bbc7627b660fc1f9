//! Takes down what holds a disk, and proves that nothing holds it any more.

use super::{busy, kernel, raid, wipe};
use crate::command::Command;
use crate::error::{Context, Error, Phase, Result};
use crate::plan::Holder;
use nix::errno::Errno;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// What this file runs; all of it must be in `PATH`.
pub const TOOLS: &[&str] = &["dmsetup"];

/// Takes one holder down; whatever lies on it must be down already.
///
/// # Errors
/// It is not there, or stays in use (and by whom).
pub fn release(holder: &Holder) -> Result<()> {
    match holder {
        Holder::Swap { device } => swap_off(device),
        Holder::Array { device } => raid::stop(device),
        Holder::Mapping { device } | Holder::Volume { device, .. } => remove_mapping(device),
        Holder::Bcache { device } => stop_bcache(device, &kernel::sysfs(device)?),
    }
}

/// Takes down every array and mapping on a device or its partitions, the topmost first. They were assembled only to
/// look inside.
///
/// # Errors
/// One of them stays in use (and by whom).
pub fn release_above(device: &str) -> Result<()> {
    for sysfs in busy::with_partitions(device) {
        for holder in fs::read_dir(sysfs.join("holders")).into_iter().flatten().flatten() {
            let name = holder.file_name().to_string_lossy().into_owned();
            let device = format!("/dev/{name}");
            release_above(&device)?;
            match name {
                // It is gone already, with another device that it lay on.
                _ if !Path::new("/sys/block").join(&name).exists() => {}
                name if name.starts_with("md") => raid::stop(&device)?,
                name if name.starts_with("dm-") => remove_mapping(&device)?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// Proves that nothing runs on these disks or their partitions any more.
///
/// # Errors
/// All that is left, by name.
pub fn assert_free(disks: &[String]) -> Result<()> {
    let mut left = Vec::new();
    for disk in disks {
        let holders = busy::device_holders(disk);
        // sysfs does not name every holder: of a mounted btrfs on several devices it names only the first.
        match wipe::open_exclusive(disk) {
            _ if !holders.is_empty() => left.push(format!("{disk}: {}", holders.join(", "))),
            Err(error) => left.push(error.to_string()),
            Ok(_) => {}
        }
    }
    if left.is_empty() {
        return Ok(());
    }
    Err(Error::new(Phase::Storage, format!("still in use after all was taken down: {}", left.join("; "))))
}

/// What device mapper calls it: `vg00-root`.
///
/// # Errors
/// It is not there, or no device of the device mapper.
pub(super) fn mapping_name(device: &str) -> Result<String> {
    let name = fs::read_to_string(kernel::sysfs(device)?.join("dm/name"));
    Ok(name.context(Phase::Storage, || format!("{device} is not of the device mapper"))?.trim().to_owned())
}

fn swap_off(device: &str) -> Result<()> {
    let what = || format!("stop swapping to {device}");
    let path = CString::new(device).context(Phase::Storage, what)?;
    // SAFETY: swapoff(2) reads one string, which lives until it returns.
    Errno::result(unsafe { nix::libc::swapoff(path.as_ptr()) }).map(drop).context(Phase::Storage, what)
}

/// Not `lvm vgchange`: this also works for half a group, and for two groups of one name.
pub(super) fn remove_mapping(device: &str) -> Result<()> {
    let name = mapping_name(device)?;
    // `--retry` gives somebody who only has a look 5 s to let go.
    let remove = Command::new("dmsetup").args(["remove", "--retry", "--noudevsync", &name]);
    remove.env("DM_DISABLE_UDEV", "1").run().map_err(|error| {
        let users = busy::in_words(&busy::device_users(device));
        Error::with_source(Phase::Storage, format!("remove {device} ({name}){users}"), error)
    })?;
    // LVM's link is not dmsetup's business, and vgcreate refuses a name that it finds in /dev.
    if let Some(link) = volume_link(&name)
        && fs::symlink_metadata(&link).is_ok_and(|metadata| metadata.is_symlink())
    {
        fs::remove_file(&link).context(Phase::Storage, || format!("remove {}", link.display()))?;
        // The last one takes the directory along; it is not empty before.
        let _ = link.parent().map(fs::remove_dir);
    }
    Ok(())
}

/// `/dev/GROUP/VOLUME` of the mapping `GROUP-VOLUME`, in which dashes of the names themselves are doubled.
fn volume_link(mapping: &str) -> Option<PathBuf> {
    let escaped = mapping.replace("--", "\0");
    let (group, volume) = escaped.split_once('-')?;
    let name = |text: &str| text.replace('\0', "-");
    Some(Path::new("/dev").join(name(group)).join(name(volume)))
}

/// Admin-guide/bcache.rst: `stop` of the device lets the backing disk go, `stop` of the set lets the caching disks go.
fn stop_bcache(device: &str, sysfs: &Path) -> Result<()> {
    let what = || format!("stop {device}");
    let set = fs::canonicalize(sysfs.join("bcache/cache"));
    fs::write(sysfs.join("bcache/stop"), "1").context(Phase::Storage, what)?;
    if let Ok(set) = set {
        fs::write(set.join("stop"), "1").context(Phase::Storage, what)?;
    }
    // Both return before they are done.
    let gone = || if sysfs.exists() { Err(Errno::EBUSY) } else { Ok(()) };
    kernel::patiently(Errno::EBUSY, gone).map_err(|error| {
        let users = busy::in_words(&busy::device_users(device));
        Error::with_source(Phase::Storage, format!("{device} was told to stop and is still there{users}"), error)
    })
}
