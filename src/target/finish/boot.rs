//! What makes the tree start: kernel, initramfs, command line and boot loader, in this order.

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

/// A filesystem by which others find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filesystem {
    pub uuid: String,
    pub format: Format,
}

/// An array of the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// `/dev/md/root`.
    pub device: DevicePath,
    pub uuid: Uuid,
    pub level: RaidLevel,
    /// `1.2`.
    pub metadata: String,
    /// The root filesystem lies on it.
    pub is_beneath_root: bool,
}

/// A group whose volume has the root filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    /// The volume is one of `lvmtype: raid1`.
    pub is_mirrored: bool,
}

/// An EFI system partition, or the array of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Esp {
    /// What is mounted: a partition, or an array of such.
    pub device: DevicePath,
    /// Where it is mounted in the tree, if it is. The members of one array have the same path.
    pub path: Option<String>,
}

/// What is known of the machine before there is a tree.
#[derive(Debug, Clone)]
pub struct BootWants {
    pub firmware: Firmware,
    pub root: Filesystem,
    /// Mounted at `/boot`, where that is a filesystem of its own.
    pub boot: Option<Filesystem>,
    /// All of the layout.
    pub arrays: Vec<Array>,
    /// Beneath the root filesystem.
    pub group: Option<Group>,
    /// Those that are members of one array follow each other.
    pub esps: Vec<Esp>,
    /// All beneath `/boot`, or else beneath the root filesystem.
    pub disks: Vec<BootDisk>,
    /// `ttyS0,115200n8`; the last one becomes `/dev/console`.
    pub consoles: Vec<String>,
    /// The allocation's, which come last.
    pub arguments: Vec<String>,
    /// `ID` of os-release.
    pub system: String,
    /// What boot-info.yaml calls its boot loader.
    pub bootloader_id: String,
    /// The tree's boot loader is the image's own business.
    pub keeps_loader: bool,
    /// Where the tree's mdadm looks for its arrays.
    pub mdadm_conf: String,
}

/// How the tree boots now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booting {
    pub info: BootInfo,
    pub entries: Vec<EntryWanted>,
}

/// What the boot loaders get.
pub(super) struct Start<'a> {
    pub root: &'a Root,
    pub wants: &'a BootWants,
    pub run: &'a dyn InTree,
    pub say: &'a dyn Fn(&str),
    pub kernel: &'a Kernel,
    /// The whole kernel command line.
    pub line: &'a str,
    /// Without what names the root filesystem: what a boot loader's own tool adds to it.
    pub own: &'a str,
}

/// What of the tree will boot.
#[derive(Debug)]
pub struct Bootable {
    kernel: Kernel,
    loader: Option<Loader>,
}

/// Looks for all that must be in the tree, before anything is made of it.
///
/// # Errors
/// There is no kernel, no init or no boot loader for this firmware: with the places that were looked at.
pub fn look(root: &Root, wants: &BootWants, say: &dyn Fn(&str)) -> Result<Bootable> {
    kernel::require_init(root)?;
    let loader = (!wants.keeps_loader).then(|| loader::choose(root, wants)).transpose()?;
    if loader.is_some_and(|loader| loader != Loader::GrubBios) {
        loader::uki_in_vain(root).iter().for_each(|why| say(why));
    }
    Ok(Bootable { kernel: kernel::find(root, say)?, loader })
}

/// Makes the tree boot on this machine: by its own tools where they are needed, and by copies and small files where these do.
///
/// # Errors
/// A tool of the tree fails or hangs, or something cannot be written.
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

    /// A machine with one disk.
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
