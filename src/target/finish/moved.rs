//! Adaptation of a migrated system to this machine. Its identity is preserved: host keys, users, passwords, names, IDs
//! and seeds. No installer of the image runs.

mod macs;
mod names;

use super::boot::{BootWants, Start};
use super::distribution::Distribution;
use super::kernel::{self, Kernel};
use super::loader::{self, Loader};
use super::overrides::Overrides;
use super::{RELABEL, Say, Who, command_line, has_selinux, initramfs, wants};
use crate::carried::Carried;
use crate::error::Result;
use crate::facts::{BootInfo, EntryWanted};
use crate::inventory::Firmware;
use crate::plan::Finishing;
use crate::target::Root;
use crate::target::chroot::{Chroot, InTree};

/// List that restricts LVM to these devices (lvmdevices(8)).
const LVM_DEVICES: &str = "/etc/lvm/devices/system.devices";

/// Boot configuration of a migrated system.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Adapted {
    /// Boot information created here. Otherwise that of the system's installer is valid.
    pub info: Option<BootInfo>,
    /// Newest kernel of the system and its initramfs, if any.
    pub newest: Option<(String, String)>,
    /// Boot entries for the firmware that were created here.
    pub entries: Vec<EntryWanted>,
}

/// Boot components migrated with a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Came {
    /// Whether its EFI system partition contains a boot loader.
    pub loader: bool,
    /// Whether it contains boot information (`/etc/metal/boot-info.yaml`).
    pub info: bool,
}

/// Adapts a migrated system.
///
/// # Errors
/// A file cannot be read or written, a tool of the system fails, or it cannot boot on this hardware.
pub fn moved(root: &Root, finishing: &Finishing, root_uuid: &str, came: Came, say: Say) -> Result<Adapted> {
    let carried = finishing.files.assigned.allocation.moving.as_ref().and_then(|moving| moving.carried.as_ref());
    let none = Carried::default();
    adapt_files(root, carried.unwrap_or(&none), finishing, say)?;
    let chroot = Chroot::open(root, &finishing.devices, say)?;
    let adapted = adapt_boot(root, finishing, root_uuid, came, &chroot, say);
    // A program's error is more informative than that of a mount it left busy.
    let left = chroot.finish();
    adapted.and_then(|adapted| left.map(|()| adapted))
}

fn adapt_files(root: &Root, carried: &Carried, finishing: &Finishing, say: Say) -> Result<()> {
    names::in_fstab(root, carried, say)?;
    names::in_mdadm_conf(root, &finishing.arrays, say)?;
    if !finishing.groups.is_empty() && root.has(LVM_DEVICES) {
        root.remove(LVM_DEVICES)?;
        say(&format!("removed {LVM_DEVICES}: it restricted LVM to disks of the previous machine"));
    }
    macs::replace(root, &carried.nics, &finishing.files.nics, say)?;
    if has_selinux(root) {
        root.write(RELABEL, 0o644, b"")?;
        say("SELinux relabels all files at the first boot, which takes a while and reboots once");
    }
    Ok(())
}

fn adapt_boot(
    root: &Root,
    finishing: &Finishing,
    root_uuid: &str,
    came: Came,
    run: &dyn InTree,
    say: Say,
) -> Result<Adapted> {
    let overrides = Overrides::of(root)?;
    let distribution = Distribution::named(root, overrides.system.as_deref());
    let wants = wants::of(finishing, &distribution, &overrides, root_uuid);
    let is_ours = matches!(Who::of(root, finishing.way), Ok(Who::Us)) && !wants.keeps_loader;
    let kernel = match kernel::find(root, say) {
        // The kernel is often removed from finished images.
        Err(error) if is_ours && !came.info => return Err(error),
        Err(_) => return Ok(by_its_own(None, finishing, came.loader, say)),
        Ok(kernel) => kernel,
    };
    let initrd_before = stamp(root, &kernel);
    let is_dracut = initramfs::ensure(root, &wants, &kernel, run, say)?;
    let is_new = stamp(root, &kernel) != initrd_before;
    let has_grub = finishing.firmware == Firmware::Bios && loader::grub_for_bios(root).is_some();
    if !is_ours && !has_grub {
        return Ok(by_its_own(Some(kernel), finishing, came.loader, say));
    }
    let line = command_line::make(root, &wants, &kernel, is_dracut)?;
    let (whole, own) = (line.whole(), line.own());
    let start = Start { root, wants: &wants, run, say, kernel: &kernel, line: &whole, own: &own };
    let newest = Some((kernel.image.clone(), kernel.initrd.clone()));
    if !is_ours {
        // Its installer installed it on the previous machine's disks.
        loader::renew_grub_bios(&start)?;
        return Ok(Adapted { newest, ..Adapted::default() });
    }
    let entries = boot_loader(&start, came.loader, is_new)?;
    let BootWants { bootloader_id, .. } = wants;
    let info = BootInfo { kernel: kernel.image, initrd: kernel.initrd, cmdline: whole, bootloader_id };
    Ok(Adapted { info: Some(info), newest, entries })
}

/// Returns size and modification time, to detect whether the initramfs was rebuilt.
fn stamp(root: &Root, kernel: &Kernel) -> Option<(u64, std::time::SystemTime)> {
    let metadata = root.open_file(&kernel.initrd).and_then(|file| file.metadata()).ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}

/// Installs a boot loader if necessary.
///
/// | firmware | action |
/// |---|---|
/// | BIOS | GRUB is installed on the disks; its menu is preserved |
/// | UEFI, GRUB was migrated with the ESP | preserved: it finds its menu by the filesystem's UUID |
/// | UEFI, another loader was migrated, and the initramfs is unchanged | preserved |
/// | UEFI, none was migrated, or its initramfs is outdated | installed as for an installation |
fn boot_loader(start: &Start, has_loader: bool, is_new_initramfs: bool) -> Result<Vec<EntryWanted>> {
    let chosen = loader::choose(start.root, start.wants)?;
    match chosen {
        Loader::GrubBios => loader::renew_grub_bios(start).map(|()| Vec::new()),
        Loader::GrubUefi if has_loader => Ok(Vec::new()),
        Loader::SystemdBoot | Loader::Uki if has_loader && !is_new_initramfs => Ok(Vec::new()),
        Loader::GrubUefi | Loader::SystemdBoot | Loader::Uki | Loader::Stub => loader::install(chosen, start),
    }
}

/// Returns a system that boots by its own boot loader, and logs a warning if that is missing.
fn by_its_own(kernel: Option<Kernel>, finishing: &Finishing, has_loader: bool, say: Say) -> Adapted {
    match finishing.firmware {
        Firmware::Bios => say(
            "WARNING: the system does not contain a GRUB for these disks, and its installer does not run again: it \
             is started from here only once. Install a boot loader on its disks before it is booted by BIOS",
        ),
        Firmware::Uefi if !has_loader => say(
            "WARNING: no boot loader was migrated on an EFI system partition: the system is started from here only once. Install one before it is booted by its firmware",
        ),
        Firmware::Uefi => {}
    }
    let newest = kernel.map(|kernel| (kernel.image, kernel.initrd));
    Adapted { newest, ..Adapted::default() }
}

#[cfg(test)]
mod tests;
