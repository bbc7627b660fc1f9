//! Bootability of the target: kernel, initramfs, command line and boot loader, in this order.

use super::boot_kernel::BootKernel;
use super::boot_loader::BootLoader;
use super::{array_config, boot_kernel, boot_loader, command_line, initramfs};
use crate::NewRoot;
use crate::chroot::TargetRunner;
use common::error::Result;
use model::device::DevicePath;
use model::install_report::{BootEntryRequest, BootInfo};
use model::inventory::FirmwareType;
use model::layout::{FilesystemFormat, RaidLevel};
use operations::BootDisk;
use uuid::Uuid;

/// Filesystem, identified by its UUID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilesystemByUuid {
    pub uuid: String,
    pub format: FilesystemFormat,
}

/// Array of the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BootArray {
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
pub(crate) struct RootGroup {
    pub name: String,
    /// Whether the volume has `lvmtype: raid1`.
    pub is_mirrored: bool,
}

/// EFI system partition, or the array of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BootEsp {
    /// Mounted device: a partition, or an array.
    pub device: DevicePath,
    /// Mount point in the target, if mounted. The members of an array share it.
    pub path: Option<String>,
}

/// Boot requirements of the machine that are known before the image is unpacked.
#[derive(Debug, Clone)]
pub(crate) struct BootRequirements {
    pub firmware: FirmwareType,
    pub root: FilesystemByUuid,
    /// Filesystem mounted at `/boot`, if separate.
    pub boot: Option<FilesystemByUuid>,
    /// All arrays of the layout.
    pub arrays: Vec<BootArray>,
    /// Volume group beneath the root filesystem.
    pub group: Option<RootGroup>,
    /// EFI system partitions; members of one array are adjacent.
    pub esps: Vec<BootEsp>,
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
pub struct BootSetup {
    pub info: BootInfo,
    pub entries: Vec<BootEntryRequest>,
}

/// Context of boot loader installation.
pub(super) struct LoaderContext<'a> {
    pub root: &'a NewRoot,
    pub wants: &'a BootRequirements,
    pub run: &'a dyn TargetRunner,
    pub say: &'a dyn Fn(&str),
    pub kernel: &'a BootKernel,
    /// Complete kernel command line.
    pub line: &'a str,
    /// Kernel command line without the root filesystem, which a boot loader's own tools add.
    pub own: &'a str,
}

/// Kernel and boot loader found in the target.
#[derive(Debug)]
pub(crate) struct BootComponents {
    kernel: BootKernel,
    loader: Option<BootLoader>,
}

/// Checks that the target contains everything required, before it is modified.
///
/// # Errors
/// There is no kernel, no init or no boot loader for this firmware; the error lists the paths searched.
pub(crate) fn find_boot_components(
    root: &NewRoot,
    wants: &BootRequirements,
    say: &dyn Fn(&str),
) -> Result<BootComponents> {
    boot_kernel::require_init(root)?;
    let loader = (!wants.keeps_loader).then(|| boot_loader::choose_loader(root, wants)).transpose()?;
    if loader.is_some_and(|loader| loader != BootLoader::GrubBios) {
        boot_loader::uki_in_vain(root).iter().for_each(|why| say(why));
    }
    Ok(BootComponents { kernel: boot_kernel::find_kernel(root, say)?, loader })
}

/// Makes the target bootable on this machine, with tools of the target only where copies and small files are not
/// sufficient.
///
/// # Errors
/// A tool of the target fails or exceeds its deadline, or a file cannot be written.
pub(crate) fn make_bootable(
    root: &NewRoot,
    wants: &BootRequirements,
    BootComponents { kernel, loader }: BootComponents,
    run: &dyn TargetRunner,
    say: &dyn Fn(&str),
) -> Result<BootSetup> {
    array_config::write_array_config(root, wants)?;
    let is_dracut = initramfs::ensure_initramfs(root, wants, &kernel, run, say)?;
    let line = command_line::build_command_line(root, wants, &kernel, is_dracut)?;
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

    /// Requirements of a machine with one disk.
    pub(crate) fn wants() -> BootRequirements {
        BootRequirements {
            firmware: FirmwareType::Uefi,
            root: FilesystemByUuid { uuid: "r-uuid".into(), format: FilesystemFormat::Ext4 },
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
