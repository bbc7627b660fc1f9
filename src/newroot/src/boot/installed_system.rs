//! Boot of the installed system after a reinstall that failed before any disk was written. Loading the kernel of this
//! system does not change the disks either: all filesystems are mounted read-only, and journals are not replayed.

use super::boot_info::read_boot_info;
use super::{BootInfo, fstab_device_lookup, kexec};
use crate::NewRoot;
use crate::fstab::{self, FstabLine};
use common::error::{Context, Error, Phase, Result};
use linux::storage::mount::{INERT, MountStack};
use linux::storage::unmounted_filesystem_inspection;
use model::device_name::DevicePath;
use model::install_marker::{self, InstallMarker};
use model::inventory::{FilesystemContents, Inventory};
use std::io::ErrorKind;
use sys_mount::MountFlags;

/// Mount point of the old system while its kernel is loaded.
pub(crate) const OLD: &str = "/run/drophammer/old";

/// Installed system that will be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledSystem {
    /// Device of the filesystem that contains `/`.
    pub device: DevicePath,
    pub marker: InstallMarker,
    pub boot: BootInfo,
}

/// Loads the kernel of the system that was installed for this allocation. The install marker of the system must contain
/// one of the ids in `machines`. The caller then boots the kernel with [`kexec::boot_loaded_kernel`]. The inventory
/// must have been read after arrays and volumes were assembled.
///
/// # Errors
/// Fails if there is no such installation or its boot files cannot be read. In this case, nothing is loaded, and
/// nothing remains mounted.
pub fn load_installed_kernel(inventory: &Inventory, machines: &[String], allocation: &str) -> Result<InstalledSystem> {
    let root = find_root(inventory, machines, allocation)?;
    let marker = root.marker.clone().unwrap_or_default();
    let mut mounts = MountStack::new(OLD);
    mount_read_only(&mut mounts, &root.device, "/", inventory)?;
    let tree = NewRoot::open(mounts.root())?;
    let boot = read_boot_info(&tree)?;
    let fstab = match tree.read_text("/etc/fstab") {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        fstab => fstab.context(Phase::Boot, || "read the installed system's /etc/fstab")?,
    };
    for line in find_boot_mounts(&fstab, &boot) {
        let device = fstab_device_lookup::find_device(&line.source, inventory);
        let what = || format!("mount point {path} in the installed system's fstab", path = line.path);
        let device = device.map_err(|why| Error::new(Phase::Boot, format!("{}: {why}", what())))?;
        mount_read_only(&mut mounts, &device, &line.path, inventory).context(Phase::Boot, what)?;
    }
    kexec::load_from_root(&tree, &boot)?;
    drop(tree);
    if let Err(error) = mounts.unmount_all() {
        kexec::unload_kernel();
        return Err(error);
    }
    Ok(InstalledSystem { device: root.device.clone(), marker, boot })
}

/// Returns the filesystem with the marker of this machine and allocation. The system of another tenant is never booted.
fn find_root<'a>(inventory: &'a Inventory, machines: &[String], allocation: &str) -> Result<&'a FilesystemContents> {
    let is_ours = |marker: &InstallMarker| machines.contains(&marker.machine) && marker.allocation == allocation;
    let found = inventory.filesystems.iter().filter(|filesystem| filesystem.marker.as_ref().is_some_and(is_ours));
    let found: Vec<&FilesystemContents> = found.collect();
    let message = match found.as_slice() {
        [root] => return Ok(root),
        [] => format!(
            "no filesystem contains an install marker ({path}) of this machine and allocation",
            path = install_marker::PATH
        ),
        several => {
            let devices: Vec<&str> = several.iter().map(|filesystem| filesystem.device.as_str()).collect();
            format!(
                "more than one filesystem contains an install marker of this allocation: {devices}",
                devices = devices.join(", ")
            )
        }
    };
    Err(Error::new(Phase::Boot, message))
}

/// Returns the fstab lines of `/boot` and of other mount points that contain the boot files, parents first. These
/// filesystems must be mounted, because the directories below the mount points may contain an older kernel.
fn find_boot_mounts(fstab: &str, boot: &BootInfo) -> Vec<FstabLine> {
    let leads_to = |line: &FstabLine, path: &str| path.starts_with(&format!("{}/", line.path.trim_end_matches('/')));
    let is_needed = |line: &FstabLine| {
        let leads = leads_to(line, &boot.kernel) || leads_to(line, &boot.initrd);
        line.path == "/boot" || (leads && line.path.starts_with('/') && line.path != "/")
    };
    let mut lines: Vec<FstabLine> = fstab::parse_fstab(fstab).into_iter().filter(is_needed).collect();
    lines.sort_by_key(|line| line.path.len());
    lines
}

fn mount_read_only(mounts: &mut MountStack, device: &DevicePath, path: &str, inventory: &Inventory) -> Result<()> {
    let kinds = fstab_device_lookup::filesystem_types(device, inventory);
    let how =
        if let [kind] = kinds.as_slice() { unmounted_filesystem_inspection::safe_mount_options(kind) } else { None };
    let (fstype, options) = how.ok_or_else(|| {
        let is = if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(" and ") };
        Error::new(Phase::Boot, format!("{device}: expected a filesystem, but libblkid detects {is}"))
    })?;
    mounts.mount_at(device.as_str(), path, fstype, MountFlags::RDONLY | INERT, options)
}

#[cfg(test)]
mod tests;
