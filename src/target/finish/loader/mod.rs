//! Installation of the image's boot loader for the firmware.

mod grub;
mod grub_bios;
mod grub_gap;
mod grub_uefi;
mod stub;
mod systemd_boot;
mod uki;

pub use grub_bios::{modules as grub_for_bios, renew as renew_grub_bios};
pub use uki::wanted_in_vain as uki_in_vain;

use super::boot::{BootWants, Start};
use super::esp::{self, OnEsp};
use crate::error::{Error, Phase, Result};
use crate::facts::EntryWanted;
use crate::inventory::Firmware;
use crate::target::Root;

/// Fallback path of firmware without entries (UEFI specification, 3.5.1.1).
const FALLBACK: &str = "/EFI/BOOT/BOOTX64.EFI";

/// Program that starts the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loader {
    GrubUefi,
    GrubBios,
    SystemdBoot,
    Uki,
    /// The firmware starts the kernel itself.
    Stub,
}

/// Files for each ESP, and the one that the firmware starts.
struct OnEsps {
    files: Vec<OnEsp>,
    /// Path from the root of the ESP.
    loader: String,
    /// Kernel command line if the kernel starts without a boot loader; else empty.
    arguments: String,
}

/// Selects the boot loader.
///
/// # Errors
/// The target contains none for this firmware, or there is no ESP for it.
pub fn choose(root: &Root, wants: &BootWants) -> Result<Loader> {
    let uefi = [
        (Loader::Uki, uki::is_configured as fn(&Root) -> bool),
        (Loader::GrubUefi, grub_uefi::is_in),
        (Loader::SystemdBoot, systemd_boot::is_in),
        (Loader::Uki, uki::is_in),
    ];
    match wants.firmware {
        Firmware::Uefi if wants.esps.is_empty() => Err(Error::new(
            Phase::Target,
            "this machine boots by UEFI, but the layout does not contain an EFI system partition",
        )),
        Firmware::Uefi => {
            Ok(uefi.into_iter().find(|(_, is_in)| is_in(root)).map_or(Loader::Stub, |(loader, _)| loader))
        }
        Firmware::Bios if grub_bios::modules(root).is_some() => Ok(Loader::GrubBios),
        Firmware::Bios => {
            let looked = grub_bios::MODULES.join(", ");
            let what =
                format!("this machine boots by BIOS, but the image does not contain GRUB for BIOS: searched {looked}");
            Err(Error::new(Phase::Target, what))
        }
    }
}

/// Installs the boot loader and returns the boot entries required in the firmware: one for each ESP.
///
/// # Errors
/// A tool of the target fails, or a file cannot be written.
pub fn install(loader: Loader, start: &Start) -> Result<Vec<EntryWanted>> {
    let on_esps = match loader {
        Loader::GrubBios => {
            grub_bios::install(start)?;
            return Ok(Vec::new());
        }
        Loader::GrubUefi => grub_uefi::install(start)?,
        Loader::SystemdBoot => systemd_boot::install(start)?,
        Loader::Uki => uki::install(start)?,
        Loader::Stub => stub::install(start)?,
    };
    esp::fill(start.root, &start.wants.esps, &on_esps.files)?;
    if loader == Loader::Uki {
        uki::tidy(start.root)?;
    }
    let loader = on_esps.loader.replace('/', "\\");
    let entry = |esp| EntryWanted { esp, loader: loader.clone(), arguments: on_esps.arguments.clone() };
    Ok((0..start.wants.esps.len()).map(entry).collect())
}

/// Returns kernel and initramfs as files for each ESP, and their paths there. If the ESP is `/boot`, they are already
/// there.
fn kernel_files(start: &Start, directory: &str) -> [(OnEsp, String); 2] {
    let on_boot = start.wants.esps.iter().any(|esp| esp.path.as_deref() == Some("/boot"));
    [&start.kernel.image, &start.kernel.initrd].map(|path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        let to = match path.strip_prefix("/boot") {
            Some(rest) if on_boot => rest.to_owned(),
            _ => format!("{directory}/{name}"),
        };
        (OnEsp::copy(to.clone(), path.clone()), to)
    })
}

#[cfg(test)]
mod tests;
