//! Boot parameters of an image without an installer. They are taken from the image's Boot Loader Specification entries
//! or, if there are none, from the first entry of GRUB's menu.

use super::BootInfo;
use super::boot_info::{PATH, write_boot_info};
use crate::NewRoot;
use crate::system_setup::PreservedEsps;
use crate::system_setup::bls_entry::{self, BlsEntry};
use crate::system_setup::file_search;
use crate::system_setup::grub_config_reader::{MOUNT_POINTS, read_grub_variables};
use crate::system_setup::shell_reader::{ShellReader, ShellSyntax, ShellVariables};
use common::error::{Context, Error, Phase, Result};
use common::format::natural_sort_key;
use model::kernel_command_line::parameter_name;

const ENTRIES: [&str; 3] = ["/boot/loader/entries", "/efi/loader/entries", "/boot/efi/loader/entries"];
const GRUB: [&str; 2] = ["/boot/grub/grub.cfg", "/boot/grub2/grub.cfg"];

/// Unified kernel images, which firmware and systemd-boot start without a configuration file. kexec does not support
/// them.
const UNIFIED: [&str; 3] = ["/boot/EFI/Linux/*.efi", "/efi/EFI/Linux/*.efi", "/boot/efi/EFI/Linux/*.efi"];

/// Parameters that specify the root filesystem. If only `roothash` is set, the initramfs derives the root device from
/// it.
const ROOT_PARAMETERS: [&str; 2] = ["root", "roothash"];

/// Source from which the boot parameters were obtained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootSource {
    /// The file boot-info.yaml, which existed already.
    BootInfo,
    /// The boot parameters were taken from this file, and boot-info.yaml was written.
    Config(String),
    /// The boot loader of the image, because only this boot loader can determine all boot parameters.
    Firmware {
        /// Boot parameters that could be determined.
        known: BootInfo,
        reason: String,
    },
}

/// Writes boot-info.yaml, as an installer would, unless the file already exists. `has_loader` is true if the firmware
/// can start the system through a boot loader from the image. If the image does not specify all boot parameters, writes
/// nothing and returns [`BootSource::Firmware`]: only the image's own boot loader can then boot the system. Files on
/// `preserved` EFI system partitions are not files of the image, and are not read.
///
/// # Errors
/// Fails if the file cannot be written. Without a boot loader, also fails if the image contains no supported boot
/// loader configuration, or if the configuration refers to missing files.
pub fn write_missing_boot_info(root: &NewRoot, has_loader: bool, preserved: &PreservedEsps) -> Result<BootSource> {
    if root.open_file(PATH).is_ok() {
        return Ok(BootSource::BootInfo);
    }
    let (source, boot) = match find_boot_config(root, has_loader, preserved) {
        Err(error) if has_loader => {
            let known = BootInfo {
                kernel: find_unified_image(root, preserved),
                initrd: String::new(),
                cmdline: String::new(),
                bootloader_id: read_os_id(root),
            };
            return Ok(BootSource::Firmware { known, reason: error.to_string() });
        }
        found => found?,
    };
    if matches!(source, BootSource::Config(_)) {
        write_boot_info(&boot, root)?;
    }
    Ok(source)
}

fn find_unified_image(root: &NewRoot, preserved: &PreservedEsps) -> String {
    let found = UNIFIED.iter().flat_map(|pattern| file_search::find_matching(root, pattern));
    found.into_iter().find(|path| !preserved.contains(path)).unwrap_or_default()
}

fn find_boot_config(root: &NewRoot, has_loader: bool, preserved: &PreservedEsps) -> Result<(BootSource, BootInfo)> {
    let image = InstalledImageFiles { root, has_loader, preserved };
    for directory in ENTRIES.into_iter().filter(|directory| !preserved.contains(directory)) {
        // Entries are sorted by name only, and the last entry is usually the entry of the newest kernel. The sort order
        // of the specification would also require the contents of the entries.
        let names = root.list_names(directory).unwrap_or_default();
        let newest =
            names.iter().filter_map(|name| name.strip_suffix(".conf")).max_by_key(|&name| natural_sort_key(name));
        if let Some(name) = newest {
            return image.read_boot_config(format!("{directory}/{name}.conf"), bls_entry::parse_entry);
        }
    }
    for path in GRUB {
        if root.open_file(path).is_ok() {
            return image.read_boot_config(path.to_owned(), parse_grub_menu);
        }
    }
    let looked = [&ENTRIES[..], &GRUB].concat().join(", ");
    let what = format!(
        "the image does not specify a kernel to boot: it contains neither {PATH} nor an installer that writes this file, nor any of {looked}"
    );
    Err(Error::new(Phase::Boot, what))
}

/// Files of an image, and whether the image has a boot loader.
struct InstalledImageFiles<'a> {
    root: &'a NewRoot,
    has_loader: bool,
    preserved: &'a PreservedEsps,
}

impl InstalledImageFiles<'_> {
    fn read_boot_config(
        &self,
        from: String,
        parse: fn(&str, &ShellVariables) -> Option<BlsEntry>,
    ) -> Result<(BootSource, BootInfo)> {
        let root = self.root;
        let text = root.read_text(&from).context(Phase::Boot, || format!("read the image's {from}"))?;
        let no_kernel = || Error::new(Phase::Boot, format!("the image's {from} does not specify a kernel"));
        let entry = parse(&text, &read_grub_variables(root, self.preserved)).ok_or_else(no_kernel)?;
        let reason = describe_missing_values(&entry, &from, self.has_loader);
        let BlsEntry { kernel, initrd, words, .. } = entry;
        let (cmdline, bootloader_id) = (words.join(" "), read_os_id(root));
        if let Some(reason) = reason {
            let kernel = self.locate_file(&from, &kernel).unwrap_or(kernel);
            let known = BootInfo { kernel, initrd, cmdline, bootloader_id };
            return Ok((BootSource::Firmware { known: known.clone(), reason }, known));
        }
        let initrd = if initrd.is_empty() { String::new() } else { self.locate_file(&from, &initrd)? };
        let boot = BootInfo { kernel: self.locate_file(&from, &kernel)?, initrd, cmdline, bootloader_id };
        Ok((BootSource::Config(from), boot))
    }

    /// Returns the path of a file in the target. The path in the configuration `from` is relative to a filesystem with
    /// an unknown mount point.
    fn locate_file(&self, from: &str, path: &str) -> Result<String> {
        let mut paths = MOUNT_POINTS.iter().map(|mount_point| format!("{mount_point}{path}"));
        let is_of_image = |path: &String| !self.preserved.contains(path) && self.root.open_file(path).is_ok();
        paths.find(is_of_image).ok_or_else(|| {
            Error::new(
                Phase::Boot,
                format!(
                    "the image's {from} refers to {path}, which does not exist on the mounted filesystems of the \
                     layout"
                ),
            )
        })
    }
}

/// Returns the reason why only the image's own boot loader can boot the system; `None` if there is no such reason.
/// There are three possible reasons. First, a path, the root filesystem, or Ignition's arguments for the first boot may
/// depend on variables that are not set in the image. Second, the entry may contain an unquoted semicolon. Third, the
/// entry may not specify the root filesystem although the image has a boot loader; the system then depends on values
/// that this boot loader sets, such as the EFI variables of systemd-boot.
fn describe_missing_values(entry: &BlsEntry, from: &str, has_loader: bool) -> Option<String> {
    let has_root = entry.words.iter().any(|word| ROOT_PARAMETERS.contains(&parameter_name(word)));
    let needs_loader =
        entry.has_unknown_path || !has_root || entry.unset.iter().any(|name| name.starts_with("ignition_"));
    if needs_loader && !entry.unset.is_empty() {
        let names: Vec<String> = entry.unset.iter().map(|name| format!("${name}")).collect();
        return Some(format!("the image's {from} uses {variables}, which is not set", variables = names.join(", ")));
    }
    if entry.has_separator {
        return Some(format!(
            "the image's {from} contains an unquoted semicolon, which boot loaders interpret differently"
        ));
    }
    (has_loader && !has_root).then(|| format!("the image's {from} does not specify the root filesystem (root=)"))
}

/// Returns `ID` from os-release, which distributions use as the name of their boot entry; `image` if the file or its
/// `ID` is missing.
fn read_os_id(root: &NewRoot) -> String {
    let text = root.read_text("/etc/os-release").unwrap_or_default();
    let id = text.lines().find_map(|line| line.strip_prefix("ID="));
    id.map(|id| id.trim_matches(['"', '\'']).to_owned())
        .filter(|id| !id.is_empty())
        .unwrap_or_else(|| "image".to_owned())
}

/// Returns the first entry of a grub.cfg: its first `linux` command and the `initrd` command after it.
fn parse_grub_menu(text: &str, variables: &ShellVariables) -> Option<BlsEntry> {
    let is =
        |word: &str, command: &str| word.strip_prefix(command).is_some_and(|rest| matches!(rest, "" | "16" | "efi"));
    let mut entry: Option<BlsEntry> = None;
    let mut reader = ShellReader::new(text, ShellSyntax::Grub);
    while let Some(words) = reader.read_command(variables) {
        let unset = std::mem::take(&mut reader.unset);
        let Some((command, arguments)) = words.split_first() else { continue };
        let command = command.text.as_str();
        match &mut entry {
            None if is(command, "linux") => {
                let mut found = BlsEntry::default();
                found.set_linux(arguments);
                found.add_unset(unset);
                entry = Some(found);
            }
            Some(found) if is(command, "initrd") => {
                found.set_initrd(arguments);
                found.add_unset(unset);
                break;
            }
            Some(_) if command.starts_with('}') || is(command, "linux") => break,
            _ => {}
        }
    }
    entry.filter(|entry| !entry.kernel.is_empty())
}

#[cfg(test)]
mod tests;
