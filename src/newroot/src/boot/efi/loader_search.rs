//! Search for the boot loader on the EFI system partition of an image. Candidates, in this order: the program that the
//! distribution lists for shim's fallback program, the program at the firmware's fallback path, and programs with
//! well-known names.

use crate::NewRoot;
use common::bounded_read::read_prefix;
use common::error::{Context, Error, Phase, Result};
use model::architecture::Architecture;

/// Folder of the program that the firmware starts without a boot entry (UEFI specification, 3.5.1.1).
const FALLBACK: &str = "BOOT";

/// Maximum number of bytes that are read from the file that lists the boot loader. The file normally has a single line.
const LIST_BYTES: u64 = 4096;

/// Names of boot loaders for an architecture.
struct LoaderNames {
    /// Program that the firmware starts without a boot entry: `BOOTX64.EFI`.
    fallback: String,
    /// File in which a distribution lists its boot loader for shim's fallback program, in UTF-16. Example:
    /// `shimx64.efi,debian,,a comment`.
    list: String,
    /// Well-known boot loaders. shim comes first, because it verifies signatures.
    known: [String; 3],
}

impl LoaderNames {
    fn for_architecture(architecture: Architecture) -> LoaderNames {
        let suffix = architecture.efi_suffix();
        LoaderNames {
            fallback: format!("BOOT{}.EFI", suffix.to_uppercase()),
            list: format!("BOOT{}.CSV", suffix.to_uppercase()),
            known: ["shim", "grub", "systemd-boot"].map(|name| format!("{name}{suffix}.efi")),
        }
    }
}

/// Boot loader on an EFI system partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLoader {
    /// Path with backslashes, as in boot entries.
    pub path: String,
    /// Whether the partition contains a program at the fallback path, which the firmware starts without a boot entry.
    pub has_fallback: bool,
}

/// Returns the boot loader for this architecture.
///
/// # Errors
/// Fails if the partition contains no boot loader or cannot be read.
pub fn find_loader(esp: &NewRoot, architecture: Architecture) -> Result<FoundLoader> {
    let names = LoaderNames::for_architecture(architecture);
    let why = || "search the EFI system partition for a boot loader".to_owned();
    let Some(efi) = find_ignoring_case(esp, "/", "EFI").context(Phase::Boot, why)? else {
        return Err(no_loader_error(&names, architecture));
    };
    let folders = esp.list_names(&format!("/{efi}")).context(Phase::Boot, why)?;
    let folder = |name: &str| folders.iter().find(|folder| folder.eq_ignore_ascii_case(name));
    let vendors: Vec<&String> = folders.iter().filter(|name| !name.eq_ignore_ascii_case(FALLBACK)).collect();
    // Entries of the EFI directory that are not directories are skipped.
    let within = |folder: &str, file: &str| find_ignoring_case(esp, &format!("/{efi}/{folder}"), file).ok().flatten();
    let path = |folder: &str, file: &str| format!("\\{efi}\\{folder}\\{file}");
    let listed = vendors.iter().find_map(|vendor| {
        let list = within(vendor, &names.list)?;
        let wanted = read_loader_list(esp, &format!("/{efi}/{vendor}/{list}"))?;
        within(vendor, &wanted).map(|file| path(vendor, &file))
    });
    let fallback = folder(FALLBACK).and_then(|boot| within(boot, &names.fallback).map(|file| path(boot, &file)));
    let has_fallback = fallback.is_some();
    let known = || {
        let all = names.known.iter().flat_map(|loader| vendors.iter().map(move |vendor| (vendor, loader)));
        all.into_iter().find_map(|(vendor, loader)| within(vendor, loader).map(|file| path(vendor, &file)))
    };
    let found = listed.or(fallback).or_else(known).ok_or_else(|| no_loader_error(&names, architecture))?;
    Ok(FoundLoader { path: found, has_fallback })
}

fn no_loader_error(names: &LoaderNames, architecture: Architecture) -> Error {
    let looked = names.known.each_ref().map(|loader| format!("\\EFI\\…\\{loader}")).join(", ");
    let what = format!(
        "the image's EFI system partition contains no boot loader for this machine, which is {architecture}: neither \\EFI\\{FALLBACK}\\{fallback} nor any of {looked}",
        fallback = names.fallback
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
        found_for(Architecture::Amd64, files)
    }

    fn found_for(architecture: Architecture, files: &[(&str, Vec<u8>)]) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
            fs::write(path, content).unwrap();
        }
        let found = find_loader(&NewRoot::open(dir.path()).unwrap(), architecture);
        found.map(|found| found.path).map_err(|error| error.to_string())
    }

    #[test]
    fn loader_at_the_fallback_path_is_reported() {
        for (files, has_fallback) in [
            (&["EFI/debian/grubx64.efi"][..], false),
            (&["EFI/debian/grubx64.efi", "EFI/BOOT/fbx64.efi"], false),
            (&["EFI/debian/grubx64.efi", "EFI/boot/bootx64.efi"], true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for path in files {
                let path = dir.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "MZ").unwrap();
            }
            let found = find_loader(&NewRoot::open(dir.path()).unwrap(), Architecture::Amd64).unwrap();
            assert_eq!(found.has_fallback, has_fallback, "{files:?}");
        }
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
    fn loaders_of_other_architectures_are_ignored() {
        let file = |path: &'static str| (path, b"MZ".to_vec());
        let (amd64, arm64) = (file("EFI/BOOT/BOOTX64.EFI"), file("EFI/BOOT/BOOTAA64.EFI"));
        let list = ("EFI/debian/BOOTAA64.CSV", utf16("shimaa64.efi,debian,,"));
        for (files, expected) in [
            (vec![amd64.clone(), arm64.clone()], r"\EFI\BOOT\BOOTAA64.EFI"),
            (vec![amd64.clone(), file("EFI/debian/grubaa64.efi")], r"\EFI\debian\grubaa64.efi"),
            (vec![list, file("EFI/debian/shimaa64.efi"), arm64], r"\EFI\debian\shimaa64.efi"),
        ] {
            assert_eq!(found_for(Architecture::Arm64, &files).unwrap(), expected);
        }
        let error = found_for(Architecture::Arm64, &[amd64]).unwrap_err();
        assert!(error.contains("which is arm64: neither \\EFI\\BOOT\\BOOTAA64.EFI"), "{error}");
    }

    #[test]
    fn esp_without_a_loader_is_an_error() {
        for files in [vec![], vec![("EFI/debian/fonts", vec![])], vec![("EFI", vec![])], vec![("vmlinuz", vec![])]] {
            let error = found(&files).unwrap_err();
            assert!(error.contains("boot loader"), "{error}");
        }
    }
}
