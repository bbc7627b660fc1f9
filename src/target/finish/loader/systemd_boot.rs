//! systemd-boot: boot loader, entry, kernel and initramfs on each ESP, in the layout of kernel-install(8).

use super::super::boot::Start;
use super::super::esp::OnEsp;
use super::super::places::first;
use super::super::{bls, command_line};
use super::{FALLBACK, OnEsps, kernel_files};
use crate::error::Result;
use crate::target::Root;

const IMAGES: [&str; 2] =
    ["/usr/lib/systemd/boot/efi/systemd-bootx64.efi.signed", "/usr/lib/systemd/boot/efi/systemd-bootx64.efi"];

const LOADER: &str = "/EFI/systemd/systemd-bootx64.efi";

pub fn is_in(root: &Root) -> bool {
    first(root, &IMAGES).is_some()
}

/// Returns the boot loader with its settings.
pub fn files(root: &Root) -> Option<[OnEsp; 3]> {
    let image = first(root, &IMAGES)?;
    let settings = OnEsp::text("/loader/loader.conf", "# written by drophammer\ntimeout 2\n");
    Some([settings, OnEsp::copy(FALLBACK, &image), OnEsp::copy(LOADER, image)])
}

pub fn install(start: &Start) -> Result<OnEsps> {
    let token = &start.wants.system;
    let version = &start.kernel.version;
    keep(start)?;
    let [(kernel, kernel_path), (initrd, initrd_path)] = kernel_files(start, &format!("/{token}/{version}"));
    let entry = bls::write(&format!("{token} {version}"), version, &kernel_path, &initrd_path, start.line);
    let mut files = vec![kernel, initrd, OnEsp::text(format!("/loader/entries/{token}-{version}.conf"), entry)];
    files.extend(self::files(start.root).into_iter().flatten());
    Ok(OnEsps { files, loader: LOADER.to_owned(), arguments: String::new() })
}

/// Configures kernel-install(8) to add later kernels in the same way, with the same arguments.
pub fn keep(start: &Start) -> Result<()> {
    start.root.write("/etc/kernel/entry-token", 0o644, format!("{}\n", start.wants.system).as_bytes())?;
    command_line::keep_for_kernel_install(start.root, start.line)
}
