//! Makes a system that came from another machine boot on this one, and leaves alone whatever makes it that system: its host keys, users,
//! passwords, names, ids and seeds. No installer of the image runs.

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

/// With this list LVM looks at no other device (lvmdevices(8)).
const LVM_DEVICES: &str = "/etc/lvm/devices/system.devices";

/// What was found and made for the boot of a moved system.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Adapted {
    /// What the system boots by what was made here. Without it, what its installer has written down holds.
    pub info: Option<BootInfo>,
    /// The newest kernel of the system and its initramfs, where it has one.
    pub newest: Option<(String, String)>,
    /// What the firmware should start, where that was made here.
    pub entries: Vec<EntryWanted>,
}

/// What has come with a moved system, by which it may boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Came {
    /// A boot loader is on its EFI system partition.
    pub loader: bool,
    /// It says which kernel is booted, and how (`/etc/metal/boot-info.yaml`).
    pub info: bool,
}

/// # Errors
/// A file cannot be read or written, a tool of the system fails, or it cannot boot on this hardware.
pub fn moved(root: &Root, finishing: &Finishing, root_uuid: &str, came: Came, say: Say) -> Result<Adapted> {
    let carried = finishing.files.assigned.allocation.moving.as_ref().and_then(|moving| moving.carried.as_ref());
    let none = Carried::default();
    adapt_files(root, carried.unwrap_or(&none), finishing, say)?;
    let chroot = Chroot::open(root, &finishing.devices, say)?;
    let adapted = adapt_boot(root, finishing, root_uuid, came, &chroot, say);
    // The error of a program says more than that of a mount which it left busy.
    let left = chroot.finish();
    adapted.and_then(|adapted| left.map(|()| adapted))
}

fn adapt_files(root: &Root, carried: &Carried, finishing: &Finishing, say: Say) -> Result<()> {
    names::in_fstab(root, carried, say)?;
    names::in_mdadm_conf(root, &finishing.arrays, say)?;
    if !finishing.groups.is_empty() && root.has(LVM_DEVICES) {
        root.remove(LVM_DEVICES)?;
        say(&format!("{LVM_DEVICES} is gone: it names disks of the other machine, and LVM would look at no others"));
    }
    macs::replace(root, &carried.nics, &finishing.files.nics, say)?;
    if has_selinux(root) {
        root.write(RELABEL, 0o644, b"")?;
        say("SELinux labels all files at the first boot, which takes a while and boots once more");
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
        // What has finished an image is often taken out of it.
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
        // Its installer had put it onto the other machine's disks.
        loader::renew_grub_bios(&start)?;
        return Ok(Adapted { newest, ..Adapted::default() });
    }
    let entries = boot_loader(&start, came.loader, is_new)?;
    let BootWants { bootloader_id, .. } = wants;
    let info = BootInfo { kernel: kernel.image, initrd: kernel.initrd, cmdline: whole, bootloader_id };
    Ok(Adapted { info: Some(info), newest, entries })
}

/// Size and time of change: has somebody made it again?
fn stamp(root: &Root, kernel: &Kernel) -> Option<(u64, std::time::SystemTime)> {
    let metadata = root.open_file(&kernel.initrd).and_then(|file| file.metadata()).ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}

/// | the firmware | | |
/// |---|---|---|
/// | BIOS | GRUB is put onto the disks, which have none; its menu stays |
/// | UEFI, GRUB came with the ESP | stays: it finds its menu by the filesystem's UUID |
/// | UEFI, another loader came, and the initramfs is the old one | stays |
/// | UEFI, none came, or it has an older initramfs beside it | is made as for an installation |
fn boot_loader(start: &Start, has_loader: bool, is_new_initramfs: bool) -> Result<Vec<EntryWanted>> {
    let chosen = loader::choose(start.root, start.wants)?;
    match chosen {
        Loader::GrubBios => loader::renew_grub_bios(start).map(|()| Vec::new()),
        Loader::GrubUefi if has_loader => Ok(Vec::new()),
        Loader::SystemdBoot | Loader::Uki if has_loader && !is_new_initramfs => Ok(Vec::new()),
        Loader::GrubUefi | Loader::SystemdBoot | Loader::Uki | Loader::Stub => loader::install(chosen, start),
    }
}

/// The system boots as its own installer has made it.
fn by_its_own(kernel: Option<Kernel>, finishing: &Finishing, has_loader: bool, say: Say) -> Adapted {
    match finishing.firmware {
        Firmware::Bios => say(
            "WARNING: the system has no GRUB that could be put onto these disks, and what finished it does not run again: \
             it is started from here once. Put a boot loader onto its disks before it is started by its BIOS",
        ),
        Firmware::Uefi if !has_loader => say(
            "WARNING: no boot loader has come on an EFI system partition: the system is started from here once. Install one in it before it is started by its firmware",
        ),
        Firmware::Uefi => {}
    }
    let newest = kernel.map(|kernel| (kernel.image, kernel.initrd));
    Adapted { newest, ..Adapted::default() }
}

#[cfg(test)]
mod tests;
