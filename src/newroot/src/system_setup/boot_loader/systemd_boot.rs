//! systemd-boot: boot loader, entry, kernel and initramfs on each ESP, in the layout of kernel-install(8).

use super::super::efi_names::{expand_names, fallback_path, find_first_for};
use super::super::esp_files::EspFile;
use super::super::loader_context::LoaderContext;
use super::super::{bls_entry, kernel_command_line};
use super::{EspInstallation, kernel_files};
use crate::NewRoot;
use common::error::Result;
use model::architecture::Architecture;

const IMAGES: [&str; 2] =
    ["/usr/lib/systemd/boot/efi/systemd-boot{efi}.efi.signed", "/usr/lib/systemd/boot/efi/systemd-boot{efi}.efi"];

const LOADER: &str = "/EFI/systemd/systemd-boot{efi}.efi";

pub(crate) fn is_available(root: &NewRoot, architecture: Architecture) -> bool {
    find_first_for(root, &IMAGES, architecture).is_some()
}

/// Returns the files that are written to each ESP: systemd-boot and its settings. Returns `None` if the target does not
/// contain systemd-boot.
pub(crate) fn loader_files(root: &NewRoot, architecture: Architecture) -> Option<[EspFile; 3]> {
    let image = find_first_for(root, &IMAGES, architecture)?;
    let settings = EspFile::from_text("/loader/loader.conf", "# written by drophammer\ntimeout 2\n");
    let loader = expand_names(LOADER, architecture);
    Some([settings, EspFile::from_file(fallback_path(architecture), &image), EspFile::from_file(loader, image)])
}

pub(crate) fn install_systemd_boot(start: &LoaderContext) -> Result<EspInstallation> {
    let (token, architecture) = (&start.wants.system, start.wants.architecture);
    let version = &start.kernel.version;
    configure_kernel_install(start)?;
    let [(kernel, kernel_path), (initrd, initrd_path)] = kernel_files(start, &format!("/{token}/{version}"));
    let entry = bls_entry::format_entry(&format!("{token} {version}"), version, &kernel_path, &initrd_path, start.line);
    let mut files = vec![kernel, initrd, EspFile::from_text(format!("/loader/entries/{token}-{version}.conf"), entry)];
    files.extend(self::loader_files(start.root, architecture).into_iter().flatten());
    Ok(EspInstallation { files, loader: expand_names(LOADER, architecture), arguments: String::new() })
}

/// Configures kernel-install(8) to add later kernels with the entry token and command line of the first kernel.
pub(crate) fn configure_kernel_install(start: &LoaderContext) -> Result<()> {
    start.root.write_file("/etc/kernel/entry-token", 0o644, format!("{}\n", start.wants.system).as_bytes())?;
    kernel_command_line::persist_for_kernel_install(start.root, start.line)
}
