//! Search for the boot loader on the EFI system partition of an image. Candidates, in this order: the program that the
//! distribution lists for shim's fallback program, the program at the firmware's fallback path, and programs with
//! well-known names.

use crate::NewRoot;
use common::bounded_read::read_prefix;
use common::error::{Context, Error, Phase, Result};

/// Path of the program that the firmware starts without a boot entry (UEFI specification, 3.5.1.1).
const FALLBACK: [&str; 2] = ["BOOT", "BOOTX64.EFI"];

/// File in which a distribution lists its boot loader for shim's fallback program, in UTF-16. Example:
/// `shimx64.efi,debian,,a comment`.
const LIST: &str = "BOOTX64.CSV";

/// Maximum number of bytes that are read from the file that lists the boot loader. The file normally has a single line.
const LIST_BYTES: u64 = 4096;

/// Well-known boot loaders. shim comes first, because it verifies signatures.
const LOADERS: [&str; 3] = ["shimx64.efi", "grubx64.efi", "systemd-bootx64.efi"];

/// Returns the path of the boot loader, with backslashes as in boot entries.
///
/// # Errors
/// Fails if the partition contains no boot loader or cannot be read.
pub fn find_loader(esp: &NewRoot) -> Result<String> {
    let why = || "search the EFI system partition for a boot loader".to_owned();
    let Some(efi) = find_ignoring_case(esp, "/", "EFI").context(Phase::Boot, why)? else {
        return Err(no_loader_error());
    };
    let folders = esp.list_names(&format!("/{efi}")).context(Phase::Boot, why)?;
    let folder = |name: &str| folders.iter().find(|folder| folder.eq_ignore_ascii_case(name));
    let vendors: Vec<&String> = folders.iter().filter(|name| !name.eq_ignore_ascii_case(FALLBACK[0])).collect();
    // Entries of the EFI directory that are not directories are skipped.
    let within = |folder: &str, file: &str| find_ignoring_case(esp, &format!("/{efi}/{folder}"), file).ok().flatten();
    let path = |folder: &str, file: &str| format!("\\{efi}\\{folder}\\{file}");
    let listed = vendors.iter().find_map(|vendor| {
        let list = within(vendor, LIST)?;
        let wanted = read_loader_list(esp, &format!("/{efi}/{vendor}/{list}"))?;
        within(vendor, &wanted).map(|file| path(vendor, &file))
    });
    let fallback = || folder(FALLBACK[0]).and_then(|boot| within(boot, FALLBACK[1]).map(|file| path(boot, &file)));
    let known = || {
        let all = LOADERS.iter().flat_map(|loader| vendors.iter().map(move |vendor| (vendor, loader)));
        all.into_iter().find_map(|(vendor, loader)| within(vendor, loader).map(|file| path(vendor, &file)))
    };
    listed.or_else(fallback).or_else(known).ok_or_else(no_loader_error)
}

fn no_loader_error() -> Error {
    let looked = LOADERS.map(|loader| format!("\\EFI\\…\\{loader}")).join(", ");
    let what = format!(
        "the image's EFI system partition contains no boot loader for this machine: neither \\EFI\\{path} nor any of {looked}",
        path = FALLBACK.join("\\")
    );
    Error::new(Phase::Boot, what)
}

/// Returns the name as spelled in the directory. The firmware ignores case, but some filesystems do not.
fn find_ignoring_case(esp: &NewRoot, directory: &str, name: &str) -> std::io::Result<Option<String>> {
    let there = esp.list_names(directory)?;
    Ok(there
        .iter()
        .find(|one| *one == name)
        .or_else(|| there.iter().find(|one| one.eq_ignore_ascii_case(name)))
        .cloned())
}

/// Returns the first program in the file that lists boot loaders.
fn read_loader_list(esp: &NewRoot, list: &str) -> Option<String> {
    let bytes = read_prefix(esp.open_file(list).ok()?, LIST_BYTES).ok()?;
    let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    let text = String::from_utf16_lossy(&units);
    let name = text.trim_start_matches('\u{feff}').split(',').next()?.trim();
    // A name with a path separator is rejected, because it could lead out of the directory.
    (!name.is_empty() && !name.contains(['/', '\\', '\n'])).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn utf16(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    fn found(files: &[(&str, Vec<u8>)]) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
            fs::write(path, content).unwrap();
        }
        find_loader(&NewRoot::open(dir.path()).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn boot_csv_precedes_fallback_path_and_loader_names() {
        let list = |text: &str| ("EFI/debian/BOOTX64.CSV", utf16(text));
        let file = |path: &'static str| (path, b"MZ".to_vec());
        let (shim, grub) = (file("EFI/debian/shimx64.efi"), file("EFI/debian/grubx64.efi"));
        let fallback = file("EFI/BOOT/BOOTX64.EFI");
        let says = "\u{feff}shimx64.efi,debian,,This is the boot entry for debian\n";
        for (files, expected) in [
            (vec![list(says), shim.clone(), grub.clone(), fallback.clone()], r"\EFI\debian\shimx64.efi"),
            // Some distributions write the list in this form.
            (vec![list("SHIMX64.EFI,x"), shim.clone()], r"\EFI\debian\shimx64.efi"),
            // The listed program does not exist, or the file is not a list.
            (vec![list(says), fallback.clone()], r"\EFI\BOOT\BOOTX64.EFI"),
            (vec![list(""), shim.clone(), fallback.clone()], r"\EFI\BOOT\BOOTX64.EFI"),
            (vec![list("..\\..\\x.efi,x"), file("x.efi"), fallback.clone()], r"\EFI\BOOT\BOOTX64.EFI"),
            (vec![("EFI/debian/BOOTX64.CSV", vec![0xff; 9]), fallback.clone()], r"\EFI\BOOT\BOOTX64.EFI"),
            (vec![shim.clone(), fallback.clone()], r"\EFI\BOOT\BOOTX64.EFI"),
            (vec![file("efi/boot/bootx64.efi")], r"\efi\boot\bootx64.efi"),
            (vec![grub.clone(), shim.clone()], r"\EFI\debian\shimx64.efi"),
            (vec![grub.clone(), file("EFI/readme")], r"\EFI\debian\grubx64.efi"),
        ] {
            assert_eq!(found(&files).unwrap(), expected);
        }
    }

    #[test]
    fn esp_without_a_loader_is_an_error() {
        for files in [vec![], vec![("EFI/debian/fonts", vec![])], vec![("EFI", vec![])], vec![("vmlinuz", vec![])]] {
            let error = found(&files).unwrap_err();
            assert!(error.contains("boot loader"), "{error}");
        }
    }
}
