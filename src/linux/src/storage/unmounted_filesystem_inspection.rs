//! Inspection of unmounted filesystems, to read their used space and install markers. The filesystems are mounted
//! read-only in a private directory, and their journals are not replayed.

use super::{btrfs_scan, mount};
use crate::probe;
use common::error::{Context, Phase, Result};
use model::device_name::DevicePath;
use model::inventory::{InspectionFailure, InspectionTarget, Inventory};
use model::storage_graph::{self, StackUnit};
use std::path::{Path, PathBuf};
use std::{fs, io};
use sys_mount::{Mount, MountFlags};

const BTRFS: &str = "btrfs";

/// Returns the kernel driver for mounting a filesystem of this format, and the mount options that prevent writing.
/// Returns `None` for a format that is neither ext2 nor supported by layouts. A filesystem of such a format cannot
/// contain an install marker, and is not mounted, so that no driver parses its untrusted content. The options are safe
/// in any state of the filesystem: journals are not replayed, and an ext4 filesystem configured to panic on errors does
/// not panic. Several copies of an XFS with the same UUID can be mounted.
pub fn safe_mount_options(kind: &str) -> Option<(&'static str, &'static str)> {
    match kind {
        "ext2" | "ext3" | "ext4" => Some(("ext4", "noload,errors=continue")),
        "xfs" => Some(("xfs", "norecovery,nouuid")),
        BTRFS => Some((BTRFS, "rescue=nologreplay")),
        "vfat" => Some(("vfat", "errors=continue")),
        _ => None,
    }
}

/// Inspects unmounted filesystems. Adds their contents to the inventory; if a filesystem cannot be mounted, adds the
/// reason instead. A filesystem that cannot be inspected is not an error: the returned list contains a note on it. The
/// caller must keep the disks locked during the call.
///
/// # Errors
/// Returns an error if the mount point cannot be created, or a filesystem stays mounted.
pub fn inspect_filesystems(inventory: &mut Inventory) -> Result<Vec<String>> {
    let candidates = find_candidates(inventory);
    let mut notes = Vec::new();
    if candidates.is_empty() {
        return Ok(notes);
    }
    let point = TemporaryMountPoint::create()
        .context(Phase::Storage, || "create a mount point to inspect filesystems".to_owned())?;
    let has_btrfs = candidates.iter().any(|(_, kind)| kind == BTRFS);
    for (device, kind) in candidates {
        // The kernel mounts a btrfs filesystem with several devices only if it has scanned all of them.
        if kind == BTRFS {
            btrfs_scan::scan_only(find_btrfs_members(inventory, &device));
        }
        match mount_read_only(&device, &kind, &point.0) {
            Ok(()) => {
                let found = probe::read_filesystem(&device, &point.0);
                mount::unmount_strictly(&point.0)?;
                match found {
                    Ok(filesystem) => inventory.filesystems.push(filesystem),
                    Err(error) => notes.push(format!("{device}: cannot inspect {kind}: {error}")),
                }
            }
            Err(error) => {
                notes.push(format!("{device}: cannot mount {kind} for inspection: {error}"));
                inventory
                    .failed
                    .push(InspectionFailure { tried: InspectionTarget::Filesystem(device), why: error.to_string() });
            }
        }
    }
    // Devices that were assembled for inspection must not stay on the kernel's list, because they will be stopped.
    if has_btrfs {
        let is_assembled = |device: &DevicePath| {
            inventory.stacked.iter().any(|stacked| stacked.assembled && stacked.device == *device)
        };
        let devices = storage_graph::all_units(inventory).filter(|(_, unit)| btrfs_uuid(*unit).is_some());
        btrfs_scan::scan_only(devices.map(|(device, _)| device).filter(|device| !is_assembled(device)));
    }
    inventory.limit_markers();
    Ok(notes)
}

/// Returns the devices of the btrfs filesystem to which this device belongs, including the device itself.
fn find_btrfs_members<'a>(inventory: &'a Inventory, device: &DevicePath) -> impl Iterator<Item = &'a DevicePath> {
    let mut units = storage_graph::all_units(inventory);
    let uuid = units.find(|(found, _)| *found == device).and_then(|(_, unit)| btrfs_uuid(unit));
    let units = storage_graph::all_units(inventory);
    units.filter(move |(_, unit)| uuid.is_some() && btrfs_uuid(*unit) == uuid).map(|(device, _)| device)
}

fn btrfs_uuid(unit: StackUnit<'_>) -> Option<&str> {
    match unit.signatures() {
        [signature] if signature.kind == BTRFS => Some(&signature.uuid),
        _ => None,
    }
}

/// Returns the device and format of each unused filesystem. Devices with several signatures are omitted, because it is
/// unknown which signature is valid.
fn find_candidates(inventory: &Inventory) -> Vec<(DevicePath, String)> {
    let candidate = |(device, unit): (&DevicePath, StackUnit)| match (unit.signatures(), unit.uses()) {
        ([signature], []) if safe_mount_options(&signature.kind).is_some() => {
            Some((device.clone(), signature.kind.clone()))
        }
        _ => None,
    };
    storage_graph::all_units(inventory).filter_map(candidate).collect()
}

fn mount_read_only(device: &DevicePath, kind: &str, point: &Path) -> io::Result<()> {
    let (fstype, data) = safe_mount_options(kind).ok_or(io::ErrorKind::Unsupported)?;
    let flags = MountFlags::RDONLY | MountFlags::NOATIME | mount::INERT;
    Mount::builder().fstype(fstype).flags(flags).data(data).mount(device, point).map(drop)
}

/// Empty directory that only root can access, and that is removed when this value is dropped.
struct TemporaryMountPoint(PathBuf);

impl TemporaryMountPoint {
    fn create() -> io::Result<TemporaryMountPoint> {
        let parent = if Path::new("/run").is_dir() { PathBuf::from("/run") } else { std::env::temp_dir() };
        Ok(TemporaryMountPoint(nix::unistd::mkdtemp(&parent.join("drophammer-look-XXXXXX"))?))
    }
}

impl Drop for TemporaryMountPoint {
    fn drop(&mut self) {
        // A busy mount point cannot be removed. The failed unmount was already reported.
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests;
