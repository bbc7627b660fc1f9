//! Installation of a boot loader from the image, selected for the machine's firmware.

mod efi_stub;
mod grub_bios;
mod grub_bios_gap;
mod grub_common;
mod grub_uefi;
mod systemd_boot;
mod uki;

pub(crate) use grub_bios::{find_modules as grub_for_bios, reinstall_grub_bios as renew_grub_bios};
pub(crate) use grub_uefi::describe_skipped_images as skipped_grub_images;
pub(crate) use uki::describe_missing_tools as uki_in_vain;

use super::machine_boot_requirements::BootRequirements;

use super::esp_files::{self, EspContent, EspFile};
use super::image_architecture::require_architecture;
use super::loader_context::LoaderContext;
use crate::NewRoot;
use common::error::{Error, Phase, Result};
use model::install_report::BootEntryRequest;
use model::inventory::FirmwareType;

/// Boot loader, or boot without a boot loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BootLoader {
    GrubUefi,
    GrubBios,
    SystemdBoot,
    Uki,
    /// No boot loader: the firmware starts the kernel itself.
    Stub,
}

/// Files that are written to each ESP, and the path of the file that the firmware starts.
struct EspInstallation {
    files: Vec<EspFile>,
    /// Path, relative to the root of the ESP, of the file that the firmware starts.
    loader: String,
    /// Kernel command line for the boot entry if the firmware starts the kernel directly; otherwise empty.
    arguments: String,
}

/// Function that returns whether the target contains a boot loader.
type IsAvailable = fn(&NewRoot, &BootRequirements) -> bool;

/// Selects the boot loader.
///
/// # Errors
/// Returns an error in two cases: the machine boots in BIOS mode and the target does not contain GRUB for BIOS, or the
/// machine boots in UEFI mode and the layout does not contain an ESP.
pub(crate) fn choose_loader(root: &NewRoot, wants: &BootRequirements) -> Result<BootLoader> {
    let uefi: [(BootLoader, IsAvailable); 4] = [
        (BootLoader::Uki, |root, wants| uki::is_configured(root, wants.architecture)),
        (BootLoader::GrubUefi, grub_uefi::is_available),
        (BootLoader::SystemdBoot, |root, wants| systemd_boot::is_available(root, wants.architecture)),
        (BootLoader::Uki, |root, wants| uki::is_available(root, wants.architecture)),
    ];
    match wants.firmware {
        FirmwareType::Uefi if wants.esps.is_empty() => Err(Error::new(
            Phase::Target,
            "this machine boots in UEFI mode, but the layout does not contain an EFI system partition",
        )),
        FirmwareType::Uefi => {
            let found = uefi.into_iter().find(|(_, is_in)| is_in(root, wants));
            Ok(found.map_or(BootLoader::Stub, |(loader, _)| loader))
        }
        FirmwareType::Bios if grub_bios::find_modules(root).is_some() => Ok(BootLoader::GrubBios),
        FirmwareType::Bios => {
            let looked = grub_bios::MODULES.join(", ");
            let what = format!(
                "this machine boots in BIOS mode, but the image does not contain GRUB for BIOS; paths searched: {looked}"
            );
            Err(Error::new(Phase::Target, what))
        }
    }
}

/// Installs the boot loader and returns the boot entries required in the firmware: one for each ESP.
///
/// # Errors
/// Returns an error if a tool of the target fails, a program is for another architecture, or a file cannot be written.
pub(crate) fn install_loader(loader: BootLoader, start: &LoaderContext) -> Result<Vec<BootEntryRequest>> {
    let on_esps = match loader {
        BootLoader::GrubBios => {
            grub_bios::install_grub_bios(start)?;
            return Ok(Vec::new());
        }
        BootLoader::GrubUefi => grub_uefi::install_grub_uefi(start)?,
        BootLoader::SystemdBoot => systemd_boot::install_systemd_boot(start)?,
        BootLoader::Uki => uki::install_uki(start)?,
        BootLoader::Stub => efi_stub::install_efi_stub(start)?,
    };
    let copied = on_esps.files.iter().filter_map(|file| match &file.content {
        EspContent::Of(path) => Some(path.as_str()),
        EspContent::Text(_) => None,
    });
    require_architecture(start.root, start.wants.architecture, &copied.collect::<Vec<_>>())?;
    esp_files::fill_esps(start.root, &start.wants.esps, &on_esps.files)?;
    if loader == BootLoader::Uki {
        uki::remove_built_image(start.root)?;
    }
    let loader = on_esps.loader.replace('/', "\\");
    let entry = |esp| {
        let (loader, arguments) = (loader.clone(), on_esps.arguments.clone());
        BootEntryRequest { esp, loader, required: !arguments.is_empty(), arguments }
    };
    Ok((0..start.wants.esps.len()).map(entry).collect())
}

/// Returns kernel and initramfs as files to write to each ESP, with their paths on the ESP. If the ESP is mounted at
/// `/boot`, kernel and initramfs are already on it: their current paths are returned, and nothing is copied.
fn kernel_files(start: &LoaderContext, directory: &str) -> [(EspFile, String); 2] {
    let on_boot = start.wants.esps.iter().any(|esp| esp.path.as_deref() == Some("/boot"));
    [&start.kernel.image, &start.kernel.initrd].map(|path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        let to = match path.strip_prefix("/boot") {
            Some(rest) if on_boot => rest.to_owned(),
            _ => format!("{directory}/{name}"),
        };
        (EspFile::from_file(to.clone(), path.clone()), to)
    })
}

#[cfg(test)]
mod tests;
