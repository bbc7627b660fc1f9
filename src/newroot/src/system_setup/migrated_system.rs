//! Adaptation of a migrated system to this machine. The identity of the system is preserved: host keys, users,
//! passwords, names, IDs and seeds. The image's installer is not run.

mod device_names;
mod mac_addresses;

use super::boot_kernel::{self, BootKernel};
use super::boot_loader::{self, BootLoader};
use super::distribution::Distribution;
use super::loader_context::LoaderContext;
use super::machine_boot_requirements::BootRequirements;
use super::metal_os_installer_settings::OsInstallerSettings;
use super::{
    FinishingComponent, array_config, file_search, initramfs, kernel_command_line, machine_boot_requirements, selinux,
};
use crate::NewRoot;
use crate::chroot::{Chroot, TargetRunner};
use crate::system_setup::LogSink;
use common::error::Result;
use model::install_report::{BootEntryRequest, BootInfo};
use model::inventory::FirmwareType;
use model::machine_migration::MigratedMachine;
use operations::FinishInputs;

/// Boot configuration of a migrated system.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AdaptedBoot {
    /// Boot information that was created for this machine. `None` if the file written by the system's installer is
    /// still valid.
    pub info: Option<BootInfo>,
    /// Newest kernel of the system and its initramfs, if any.
    pub newest: Option<(String, String)>,
    /// Boot entries that must be created for boot loaders that were installed for this machine.
    pub entries: Vec<BootEntryRequest>,
}

/// Boot components that were migrated together with a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigratedBoot {
    /// Whether the migrated EFI system partition contains a boot loader.
    pub loader: bool,
    /// Whether the system contains boot information (`/etc/metal/boot-info.yaml`).
    pub info: bool,
}

/// Adapts device names, MAC addresses and the boot configuration of a migrated system to this machine.
///
/// # Errors
/// Returns an error if a file cannot be read or written, a tool of the system fails, or the system cannot boot on this
/// hardware.
pub fn adapt_migrated_system(
    root: &NewRoot,
    finishing: &FinishInputs,
    root_uuid: &str,
    came: MigratedBoot,
    say: LogSink,
) -> Result<AdaptedBoot> {
    let migrated_machine =
        finishing.files.assigned.allocation.moving.as_ref().and_then(|moving| moving.carried.as_ref());
    let none = MigratedMachine::default();
    adapt_files(root, migrated_machine.unwrap_or(&none), finishing, say)?;
    let chroot = Chroot::open(root, &finishing.devices, say)?;
    let adapted = adapt_boot(root, finishing, root_uuid, came, &chroot, say);
    // If both the program and the cleanup fail, the error of the program is returned, because the error of the cleanup
    // (a busy mount) is only a consequence.
    let left = chroot.close();
    adapted.and_then(|adapted| left.map(|()| adapted))
}

fn adapt_files(
    root: &NewRoot,
    migrated_machine: &MigratedMachine,
    finishing: &FinishInputs,
    say: LogSink,
) -> Result<()> {
    device_names::replace_in_fstab(root, migrated_machine, say)?;
    device_names::replace_in_mdadm_conf(root, &finishing.arrays, say)?;
    array_config::expose_groups(root, &finishing.groups, say)?;
    mac_addresses::replace_mac_addresses(root, &migrated_machine.nics, &finishing.files.nics, say)?;
    match selinux::find_policy(root) {
        Some(_) => selinux::request_relabeling(root, "adapted the files to this machine", say),
        None => Ok(()),
    }
}

fn adapt_boot(
    root: &NewRoot,
    finishing: &FinishInputs,
    root_uuid: &str,
    came: MigratedBoot,
    run: &dyn TargetRunner,
    say: LogSink,
) -> Result<AdaptedBoot> {
    let overrides = OsInstallerSettings::read_settings(root)?;
    let distribution = Distribution::detect_or_named(root, overrides.system.as_deref());
    let wants = machine_boot_requirements::collect_boot_requirements(finishing, &distribution, &overrides, root_uuid);
    let is_ours = matches!(FinishingComponent::choose(root, finishing.way), Ok(FinishingComponent::Builtin))
        && !wants.keeps_loader;
    let kernel = match boot_kernel::find_kernel(root, &wants.preserved_esps, say) {
        // The kernel of an image with its own installer may have an unusual path, at which it is not found. The boot
        // information that was migrated with the system is then sufficient.
        Err(error) if is_ours && !came.info => return Err(error),
        Err(_) => return Ok(boot_unchanged(None, finishing, came.loader, say)),
        Ok(kernel) => kernel,
    };
    let initrd_before = initramfs::read_stamp(root, &kernel.initrd);
    let is_dracut = initramfs::ensure_initramfs(root, &wants, &kernel, run, say)?;
    let is_new = initramfs::read_stamp(root, &kernel.initrd) != initrd_before;
    let has_grub = finishing.firmware == FirmwareType::Bios && boot_loader::grub_for_bios(root).is_some();
    if !is_ours && !has_grub {
        return Ok(boot_unchanged(Some(kernel), finishing, came.loader, say));
    }
    let line = kernel_command_line::build_command_line(root, &wants, &kernel, is_dracut, say)?;
    let (whole, own) = (line.to_full_line(), line.to_line_without_root());
    let start = LoaderContext { root, wants: &wants, run, say, kernel: &kernel, line: &whole, own: &own };
    let newest = Some((kernel.image.clone(), kernel.initrd.clone()));
    if !is_ours {
        // GRUB must be installed on the disks of this machine, because the image's installer has installed it only on
        // the disks of the previous machine.
        boot_loader::renew_grub_bios(&start)?;
        return Ok(AdaptedBoot { newest, ..AdaptedBoot::default() });
    }
    let entries = adapt_boot_loader(&start, came.loader, is_new)?;
    let BootRequirements { bootloader_id, .. } = wants;
    let info = BootInfo { kernel: kernel.image, initrd: kernel.initrd, cmdline: whole, bootloader_id };
    Ok(AdaptedBoot { info: Some(info), newest, entries })
}

/// Installs a boot loader if necessary.
///
/// | firmware | action |
/// |---|---|
/// | BIOS | GRUB is installed on the disks; its menu is preserved |
/// | UEFI, GRUB was migrated with the ESP | GRUB is preserved: it finds its menu by the filesystem's UUID |
/// | UEFI, another loader was migrated, and the initramfs is unchanged | the loader is preserved, although the system may also contain GRUB's packages |
/// | UEFI, all other cases | a loader is installed, as for a new installation |
fn adapt_boot_loader(start: &LoaderContext, has_loader: bool, is_new_initramfs: bool) -> Result<Vec<BootEntryRequest>> {
    let chosen = boot_loader::choose_loader(start.root, start.wants)?;
    match chosen {
        BootLoader::GrubBios => boot_loader::renew_grub_bios(start).map(|()| Vec::new()),
        BootLoader::GrubUefi if has_loader && (!is_new_initramfs || has_grub_on_esp(start)) => Ok(Vec::new()),
        BootLoader::SystemdBoot | BootLoader::Uki if has_loader && !is_new_initramfs => Ok(Vec::new()),
        BootLoader::GrubUefi | BootLoader::SystemdBoot | BootLoader::Uki | BootLoader::Stub => {
            boot_loader::install_loader(chosen, start)
        }
    }
}

/// Returns whether a mounted ESP contains GRUB. Any other boot loader would start the old copy of the initramfs on the
/// ESP.
fn has_grub_on_esp(start: &LoaderContext) -> bool {
    let mut paths = start.wants.esps.iter().filter_map(|esp| esp.path.as_deref());
    paths.any(|path| !file_search::find_matching(start.root, &format!("{path}/EFI/*/grub*.efi")).is_empty())
}

/// Returns the boot configuration of a system whose boot loader is not changed. Logs a warning if the system has no
/// boot loader for this machine.
fn boot_unchanged(kernel: Option<BootKernel>, finishing: &FinishInputs, has_loader: bool, say: LogSink) -> AdaptedBoot {
    match finishing.firmware {
        FirmwareType::Bios => say(
            "WARNING: no boot loader was installed on the disks of this machine: the system does not contain GRUB, and \
             its installer is not run again. drophammer starts the system with kexec, but only this time. Install a \
             boot loader on the disks before the next boot",
        ),
        FirmwareType::Uefi if !has_loader => {
            say("WARNING: no EFI system partition with a boot loader was migrated. drophammer starts the system \
             with kexec, but only this time. Install a boot loader before the next boot")
        }
        FirmwareType::Uefi => {}
    }
    let newest = kernel.map(|kernel| (kernel.image, kernel.initrd));
    AdaptedBoot { newest, ..AdaptedBoot::default() }
}

#[cfg(test)]
mod tests;
