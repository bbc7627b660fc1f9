//! Looks into the filesystems that nobody has mounted: read-only, without replaying their journals, at a place that nobody
//! else sees, for as long as it takes to read how full they are and whose installation they are.

use super::mount;
use crate::device::DevicePath;
use crate::error::{Context, Phase, Result};
use crate::inventory::{Failed, Inventory, Tried};
use crate::survey;
use crate::topology::{self, Unit};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use sys_mount::{Mount, MountFlags};

/// The driver to mount with, and the options that keep it from writing. Only the formats of layouts are here, and ext2,
/// because a marker lies on one of them. The content may be a previous owner's, so no other driver may read it. The
/// options hold for filesystems in any state: one that needs a replay is not replayed, and an ext4 that is set to panic
/// at the first error does not panic. Two XFS with the same UUID are copies, and both are looked at.
pub fn how(kind: &str) -> Option<(&'static str, &'static str)> {
    match kind {
        "ext2" | "ext3" | "ext4" => Some(("ext4", "noload,errors=continue")),
        "xfs" => Some(("xfs", "norecovery,nouuid")),
        "btrfs" => Some(("btrfs", "rescue=nologreplay")),
        "vfat" => Some(("vfat", "errors=continue")),
        _ => None,
    }
}

/// Adds to the inventory what is in its filesystems, and which of them cannot be mounted. Returns what could not be looked
/// into and why, which is no error. The disks should refuse writes meanwhile.
///
/// # Errors
/// There is no place to mount at, or one stays mounted.
pub fn look(inventory: &mut Inventory) -> Result<Vec<String>> {
    let candidates = candidates(inventory);
    let mut notes = Vec::new();
    if candidates.is_empty() {
        return Ok(notes);
    }
    let point = Point::make().context(Phase::Storage, || "make a place to look into filesystems".to_owned())?;
    for (device, kind) in candidates {
        match mounted(&device, &kind, &point.0) {
            Ok(()) => {
                let found = survey::filesystem(&device, &point.0);
                mount::unmount(&point.0)?;
                match found {
                    Ok(filesystem) => inventory.filesystems.push(filesystem),
                    Err(error) => notes.push(format!("{kind} on {device} does not say what is in it: {error}")),
                }
            }
            Err(error) => {
                notes.push(format!("{kind} on {device} cannot be looked into: {error}"));
                inventory.failed.push(Failed { tried: Tried::Filesystem(device), why: error.to_string() });
            }
        }
    }
    inventory.limit_markers();
    Ok(notes)
}

/// Device and kind of each filesystem that nobody uses. A device with two signatures is left out: nobody can tell which
/// one is true.
fn candidates(inventory: &Inventory) -> Vec<(DevicePath, String)> {
    let candidate = |(device, unit): (&DevicePath, Unit)| match (unit.signatures(), unit.uses()) {
        ([signature], []) if how(&signature.kind).is_some() => Some((device.clone(), signature.kind.clone())),
        _ => None,
    };
    topology::units(inventory).filter_map(candidate).collect()
}

fn mounted(device: &DevicePath, kind: &str, point: &Path) -> io::Result<()> {
    let (fstype, data) = how(kind).ok_or(io::ErrorKind::Unsupported)?;
    let flags = MountFlags::RDONLY | MountFlags::NOATIME | mount::INERT;
    Mount::builder().fstype(fstype).flags(flags).data(data).mount(device, point).map(drop)
}

/// An empty directory that only root enters; gone when dropped.
struct Point(PathBuf);

impl Point {
    fn make() -> io::Result<Point> {
        let parent = if Path::new("/run").is_dir() { PathBuf::from("/run") } else { std::env::temp_dir() };
        Ok(Point(nix::unistd::mkdtemp(&parent.join("drophammer-look-XXXXXX"))?))
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        // While something is mounted there, it stays. The error has said so.
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests;
