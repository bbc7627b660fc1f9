//! Boot loaders on reconstructed disks.

use crate::crash_states::ReplayedDisk;
use crate::host_tools::{Context, Result, limit_command};
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
    let argv = ["mtype", "-i", &place, &format!("::{path}")];
    let output = limit_command(&argv).output().context("mtype (package mtools)")?;
    Ok(if output.status.success() { output.stdout } else { Vec::new() })
}

/// Tests that a UEFI boot loader is recognized only if it is complete and belongs to the root filesystem.
pub(super) fn test_uefi_loaders() {
    use model::inventory::DeviceSignature;

    let folder = crate::write_log::test_folder("crash-loader");
    let mut disk = crate::crash_states::test_disk(&folder, "vda", &[]);
    disk.path = folder.join("esp.raw");
    let file = std::fs::File::create(&disk.path).expect("a file");
    file.set_len(4 << 20).expect("a size");
    let signed = |kind: &str, uuid: &str| DiskPartition {
        start_bytes: 1 << 20,
        signatures: vec![DeviceSignature { kind: kind.into(), uuid: uuid.into(), ..DeviceSignature::default() }],
        ..DiskPartition::default()
    };
    let (esp, root, other) = (signed("vfat", ""), signed("ext4", "aaaa-1"), signed("ext4", "bbbb-2"));
    let image = format!("{}@@1M", disk.path.display());
    let (menu, loader) = (folder.join("grub.cfg"), folder.join("loader"));
    std::fs::write(&menu, "search --fs-uuid --set=root aaaa-1\n").expect("written");
    std::fs::write(&loader, "MZ").expect("written");
    let run = |argv: &[&str]| {
        crate::host_tools::run_tool(argv, std::process::Stdio::null()).expect("mtools");
    };
    run(&["mformat", "-i", &image, "-T", "6144", "::"]);
    run(&["mmd", "-i", &image, "::/EFI", "::/EFI/BOOT"]);
    run(&["mcopy", "-i", &image, &menu.to_string_lossy(), &format!("::{UEFI_MENU}")]);
    let boots = |root: &DiskPartition| boots_filesystem(&disk, &[&esp, root], root, true).expect("read");
    assert!(!boots(&root), "the loader is missing");
    run(&["mcopy", "-i", &image, &loader.to_string_lossy(), &format!("::{UEFI_LOADER}")]);
    assert!(boots(&root) && !boots(&other), "the menu is that of one filesystem");
    std::fs::remove_dir_all(&folder).expect("removed");
}
