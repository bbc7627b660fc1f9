//! Boot without a boot loader: the firmware starts the kernel directly (Documentation/admin-guide/efi-stub.rst of
//! Linux).

use super::super::kernel_command_line;
use super::super::loader_context::LoaderContext;
use super::{EspInstallation, kernel_files};
use common::error::{Context, Error, Phase, Result};
use std::io::Read;

pub(crate) fn install_efi_stub(start: &LoaderContext) -> Result<EspInstallation> {
    let image = &start.kernel.image;
    let mut magic = [0; 2];
    let read = start.root.open_file(image).and_then(|mut file| file.read_exact(&mut magic));
    read.context(Phase::Target, || format!("read the image's {image}"))?;
    if magic != *b"MZ" {
        let what = format!(
            "the image does not contain a boot loader for UEFI, and the firmware cannot start the kernel {image} directly, because this kernel does not have an EFI stub"
        );
        return Err(Error::new(Phase::Target, what));
    }
    (start.say)(
        "the image does not contain a boot loader: the firmware starts the kernel directly, through a boot entry. If \
         the firmware loses the entry or cannot store it, the machine does not boot from disk; install GRUB or \
         systemd-boot in the image",
    );
    kernel_command_line::persist_for_kernel_install(start.root, start.line)?;
    let [(kernel, loader), (initrd, initrd_path)] = kernel_files(start, &format!("/EFI/{}", start.wants.system));
    let arguments = format!("initrd={} {}", initrd_path.replace('/', "\\"), start.line);
    Ok(EspInstallation { files: vec![kernel, initrd], loader, arguments })
}
