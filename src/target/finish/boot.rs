//! Bootability of the target: kernel, initramfs, command line and boot loader, in this order.

use super::kernel::Kernel;
use super::loader::Loader;
use super::{arrays, command_line, initramfs, kernel, loader};
use crate::device::DevicePath;
use crate::error::Result;
use crate::facts::{BootInfo, EntryWanted};
use crate::inventory::Firmware;
use crate::layout::{Format, RaidLevel};
use crate::plan::BootDisk;
use crate::target::Root;
use crate::target::chroot::InTree;
use uuid::Uuid;

/// Filesystem, identified by its UUID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filesystem {
    pub uuid: String,
    pub format: Format,
}

/// Array of the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// Path such as `/dev/md/root`.
    pub device: DevicePath,
    pub uuid: Uuid,
    pub level: RaidLevel,
    /// Metadata version such as `1.2`.
    pub metadata: String,
    /// Whether the root filesystem lies on it.
    pub is_beneath_root: bool,
}

/// Volume group with the root filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    /// Whether the volume has `lvmtype: raid1`.
    pub is_mirrored: bool,
}

/// EFI system partition, or the array of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Esp {
    /// Mounted device: a partition, or an array.
    pub device: DevicePath,
    /// Mount point in the target, if mounted. The members of an array share it.
    pub path: Option<String>,
}

/// Boot requirements of the machine that are known before the image is unpacked.
#[derive(Debug, Clone)]
pub struct BootWants {
    pub firmware: Firmware,
    pub root: Filesystem,
    /// Filesystem mounted at `/boot`, if separate.
    pub boot: Option<Filesystem>,
    /// All arrays of the layout.
    pub arrays: Vec<Array>,
    /// Volume group beneath the root filesystem.
    pub group: Option<Group>,
    /// EFI system partitions; members of one array are adjacent.
    pub esps: Vec<Esp>,
    /// All disks beneath `/boot`, or else beneath the root filesystem.
    pub disks: Vec<BootDisk>,
    /// Kernel consoles such as `ttyS0,115200n8`; the last one becomes `/dev/console`.
    pub consoles: Vec<String>,
    /// Kernel arguments of the allocation, which come last.
    pub arguments: Vec<String>,
    /// `ID` of os-release.
    pub system: String,
    /// Boot loader ID in boot-info.yaml.
    pub bootloader_id: String,
    /// Whether the boot loader is left to the image.
    pub keeps_loader: bool,
    /// Path of mdadm's configuration in the target.
    pub mdadm_conf: String,
}

/// Result of making the target bootable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booting {
    pub info: BootInfo,
    pub entries: Vec<EntryWanted>,
}

/// Context of boot loader installation.
pub(super) struct Start<'a> {
    pub root: &'a Root,
    pub wants: &'a BootWants,
    pub run: &'a dyn InTree,
    pub say: &'a dyn Fn(&str),
    pub kernel: &'a Kernel,
    /// Complete kernel command line.
    pub line: &'a str,
    /// Kernel command line without the root filesystem, which a boot loader's own tools add.
    pub own: &'a str,
}

/// Kernel and boot loader found in the target.
#[derive(Debug)]
pub struct Bootable {
    kernel: Kernel,
    loader: Option<Loader>,
}

/// Checks that the target contains everything required, before it is modified.
///
/// # Errors
/// There is no kernel, no init or no boot loader for this firmware; the error lists the paths searched.
pub fn look(root: &Root, wants: &BootWants, say: &dyn Fn(&str)) -> Result<Bootable> {
    kernel::require_init(root)?;
    let loader = (!wants.keeps_loader).then(|| loader::choose(root, wants)).transpose()?;
    if loader.is_some_and(|loader| loader != Loader::GrubBios) {
        loader::uki_in_vain(root).iter().for_each(|why| say(why));
    }
    Ok(Bootable { kernel: kernel::find(root, say)?, loader })
}

/// Makes the target bootable on this machine, with tools of the target only where copies and small files are not
/// sufficient.
///
/// # Errors
/// A tool of the target fails or exceeds its deadline, or a file cannot be written.
pub fn boot(
    root: &Root,
    wants: &BootWants,
    Bootable { kernel, loader }: Bootable,
    run: &dyn InTree,
    say: &dyn Fn(&str),
) -> Result<Booting> {
    arrays::write(root, wants)?;
    let is_dracut = initramfs::ensure(root, wants, &kernel, run, say)?;
    let line = command_line::make(root, wants, &kernel, is_dracut)?;
    let (whole, own) = (line.whole(), line.own());
    let start = Start { root, wants, run, say, kernel: &kernel, line: &whole, own: &own };
    let entries = loader.map(|loader| loader::install(loader, &start)).transpose()?.unwrap_or_default();
    let bootloader_id = wants.bootloader_id.clone();
    let info = BootInfo { kernel: kernel.image, initrd: kernel.initrd, cmdline: whole, bootloader_id };
    Ok(Booting { info, entries })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Requirements of a machine with one disk.
    pub fn wants() -> BootWants {
        BootWants {
            firmware: Firmware::Uefi,
            root: Filesystem { uuid: "r-uuid".into(), format: Format::Ext4 },
            boot: None,
            arrays: Vec::new(),
            group: None,
            esps: Vec::new(),
            disks: Vec::new(),
            consoles: ["tty0", "ttyS0,115200n8"].map(str::to_owned).to_vec(),
            arguments: vec!["last=1".into()],
            system: "debian".into(),
            bootloader_id: "debian".into(),
            keeps_loader: false,
            mdadm_conf: "/etc/mdadm/mdadm.conf".into(),
        }
    }
}
