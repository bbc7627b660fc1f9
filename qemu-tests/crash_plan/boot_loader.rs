//! Boot loaders on reconstructed disks.

use crate::crash_states::ReplayedDisk;
use crate::host::{Context, Result, limit_command};
use model::inventory::DiskPartition;
use std::os::unix::fs::FileExt;

/// Size in bytes of the boot code that a BIOS runs. It is at the start of the first sector, and the partition table
/// follows it (UEFI specification 5.2.1).
const BOOT_CODE_BYTES: u64 = 440;
/// Boot loader that UEFI firmware starts if it has no boot entry, and the file in which this boot loader finds the UUID
/// of the filesystem with its menu.
const UEFI_LOADER: &str = "/EFI/BOOT/BOOTX64.EFI";
const UEFI_MENU: &str = "/EFI/BOOT/grub.cfg";

/// Returns whether the disk has a boot loader that starts the system in the filesystem `root`. With a BIOS, the boot
/// loader is in the first sector; with UEFI, it is in an EFI system partition, and names the UUID of the filesystem.
///
/// # Errors
/// Fails if the disk cannot be read.
pub fn boots_filesystem(
    disk: &ReplayedDisk,
    parts: &[&DiskPartition],
    root: &DiskPartition,
    is_uefi: bool,
) -> Result<bool> {
    if !is_uefi {
        return has_boot_code(disk);
    }
    let [signature] = &root.signatures[..] else { return Ok(false) };
    for part in parts.iter().filter(|part| part.signatures.iter().any(|found| found.kind == "vfat")) {
        let menu = read_vfat_file(disk, part, UEFI_MENU)?;
        let is_menu_of_root = !signature.uuid.is_empty() && String::from_utf8_lossy(&menu).contains(&signature.uuid);
        if is_menu_of_root && !read_vfat_file(disk, part, UEFI_LOADER)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn has_boot_code(disk: &ReplayedDisk) -> Result<bool> {
    let mut code = vec![0; BOOT_CODE_BYTES as usize];
    disk.file.read_exact_at(&mut code, 0).context(disk.path.display())?;
    Ok(code.iter().any(|byte| *byte != 0))
}

/// Returns the contents of a file; empty if the filesystem is damaged or does not contain the file.
fn read_vfat_file(disk: &ReplayedDisk, part: &DiskPartition, path: &str) -> Result<Vec<u8>> {
    let place = format!("{}@@{}", disk.path.display(), part.start_bytes);
    let output = limit_command(&["mtype", "-i", &place, &format!("::{path}")]);
    let output = { output }.output().context("mtype (package mtools)")?;
    Ok(if output.status.success() { output.stdout } else { Vec::new() })
}
