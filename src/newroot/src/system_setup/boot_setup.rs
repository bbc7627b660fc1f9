//! Makes the target bootable: kernel, initramfs, command line and boot loader, in this order.

use super::boot_kernel::BootKernel;
use super::boot_loader::BootLoader;
use super::{array_config, boot_kernel, boot_loader, image_architecture, initramfs, kernel_command_line};
use crate::NewRoot;
use crate::chroot::TargetRunner;
use crate::system_setup::loader_context::LoaderContext;
use crate::system_setup::machine_boot_requirements::BootRequirements;
use common::error::Result;
use model::install_report::{BootEntryRequest, BootInfo};

/// Boot information and firmware boot entries of a target that was made bootable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootSetup {
    pub info: BootInfo,
    pub entries: Vec<BootEntryRequest>,
}

/// Kernel and boot loader found in the target.
#[derive(Debug)]
pub(crate) struct BootComponents {
    kernel: BootKernel,
    loader: Option<BootLoader>,
}

/// Checks that the target contains everything that is required to boot. Called before the target is modified.
///
/// # Errors
/// Returns an error if there is no kernel, no init or no boot loader for this firmware, with the paths searched, or if
/// the target is for another architecture.
pub(crate) fn find_boot_components(
    root: &NewRoot,
    wants: &BootRequirements,
    say: &dyn Fn(&str),
) -> Result<BootComponents> {
    boot_kernel::require_init(root)?;
    image_architecture::require_architecture(root, wants.architecture, &[])?;
    let loader = (!wants.keeps_loader).then(|| boot_loader::choose_loader(root, wants)).transpose()?;
    if loader.is_some_and(|loader| loader != BootLoader::GrubBios) {
        boot_loader::uki_in_vain(root, wants.architecture).iter().for_each(|why| say(why));
    }
    if loader.is_some() {
        boot_loader::skipped_grub_images(root, wants).iter().for_each(|why| say(why));
    }
    let kernel = boot_kernel::find_kernel(root, &wants.preserved_esps, say)?;
    image_architecture::require_architecture(root, wants.architecture, &[&kernel.image])?;
    Ok(BootComponents { kernel, loader })
}

/// Makes the target bootable on this machine. Tools of the target are run only if it is not sufficient to copy files
/// and write small files.
///
/// # Errors
/// Returns an error if a tool of the target fails or exceeds its deadline, or a file cannot be written.
pub(crate) fn make_bootable(
    root: &NewRoot,
    wants: &BootRequirements,
    BootComponents { kernel, loader }: BootComponents,
    run: &dyn TargetRunner,
    say: &dyn Fn(&str),
) -> Result<BootSetup> {
    array_config::write_array_config(root, wants)?;
    let is_dracut = initramfs::ensure_initramfs(root, wants, &kernel, run, say)?;
    let line = kernel_command_line::build_command_line(root, wants, &kernel, is_dracut, say)?;
    let (whole, own) = (line.to_full_line(), line.to_line_without_root());
    let start = LoaderContext { root, wants, run, say, kernel: &kernel, line: &whole, own: &own };
    let entries = loader.map(|loader| boot_loader::install_loader(loader, &start)).transpose()?.unwrap_or_default();
    let bootloader_id = wants.bootloader_id.clone();
    let info = BootInfo { kernel: kernel.image, initrd: kernel.initrd, cmdline: whole, bootloader_id };
    Ok(BootSetup { info, entries })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::system_setup::machine_boot_requirements::FilesystemByUuid;
    use crate::system_setup::preserved_esps::PreservedEsps;
    use model::architecture::Architecture;
    use model::inventory::FirmwareType;
    use model::layout::FilesystemFormat;

    /// Requirements of a machine with one disk.
    pub(crate) fn wants() -> BootRequirements {
        BootRequirements {
            architecture: Architecture::Amd64,
            firmware: FirmwareType::Uefi,
            root: FilesystemByUuid { uuid: "r-uuid".into(), format: FilesystemFormat::Ext4 },
            usr_format: None,
            boot: None,
            arrays: Vec::new(),
            groups: Vec::new(),
            esps: Vec::new(),
            preserved_esps: PreservedEsps::default(),
            disks: Vec::new(),
            initramfs_disks: Vec::new(),
            consoles: ["tty0", "ttyS0,115200n8"].map(str::to_owned).to_vec(),
            arguments: vec!["last=1".into()],
            system: "debian".into(),
            bootloader_id: "debian".into(),
            keeps_loader: false,
            mdadm_conf: "/etc/mdadm/mdadm.conf".into(),
        }
    }
}
