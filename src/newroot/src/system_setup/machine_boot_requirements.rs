//! Collects the boot requirements of the machine from the plan.
use super::distribution::Distribution;
use super::metal_os_installer_settings::{OsInstallerSettings, task};
use super::preserved_esps::PreservedEsps;
use model::architecture::Architecture;
use model::device_name::DevicePath;
use model::inventory::FirmwareType;
use model::layout::{FilesystemFormat, LvmType, RaidLevel};
use operations::{BootDisk, FinishInputs, SystemVolume};
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
    /// Path of the array, such as `/dev/md/root`.
    pub device: DevicePath,
    pub uuid: Uuid,
    pub level: RaidLevel,
    /// Metadata version of the array, such as `1.2`.
    pub metadata: String,
    /// Whether `/` or a separate `/usr` is on this array, so that the initramfs must start the array.
    pub is_beneath_system: bool,
}

/// Volume group that contains `/` or a separate `/usr`, so that the initramfs must activate the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SystemGroup {
    pub name: String,
    /// Whether the volume of `/` or `/usr` has `lvmtype: raid1`.
    pub is_mirrored: bool,
}

/// EFI system partition (ESP). ESPs may be mirrored by an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BootEsp {
    /// Device to mount: the partition, or the array of which it is a member.
    pub device: DevicePath,
    /// Mount point in the target; `None` if the ESP is not mounted. ESPs that are members of one array have the same
    /// mount point.
    pub path: Option<String>,
}

/// Boot requirements of the machine that are known before the image is unpacked.
#[derive(Debug, Clone)]
pub(crate) struct BootRequirements {
    pub architecture: Architecture,
    pub firmware: FirmwareType,
    pub root: FilesystemByUuid,
    /// Format of the filesystem at `/usr`; `None` if `/usr` is part of the root filesystem.
    pub usr_format: Option<FilesystemFormat>,
    /// Filesystem mounted at `/boot`; `None` if `/boot` is part of the root filesystem.
    pub boot: Option<FilesystemByUuid>,
    /// All arrays of the layout.
    pub arrays: Vec<BootArray>,
    /// Volume groups beneath `/` and `/usr`.
    pub groups: Vec<SystemGroup>,
    /// EFI system partitions. Members of the same array are adjacent.
    pub esps: Vec<BootEsp>,
    pub preserved_esps: PreservedEsps,
    /// All disks beneath the filesystem that contains `/boot`, which is either a separate filesystem or the root
    /// filesystem. Firmware and boot loader read these disks without drivers of the initramfs.
    pub disks: Vec<BootDisk>,
    /// All disks beneath `/` and `/usr`, whose drivers the initramfs must contain.
    pub initramfs_disks: Vec<DevicePath>,
    /// Kernel consoles such as `ttyS0,115200n8`; the last console becomes `/dev/console`.
    pub consoles: Vec<String>,
    /// Kernel arguments of the allocation, which are appended to the command line.
    pub arguments: Vec<String>,
    /// Name of the distribution, from `ID` of os-release.
    pub system: String,
    /// Boot loader ID in boot-info.yaml.
    pub bootloader_id: String,
    /// True if no boot loader is installed because the settings of the image disable this task.
    pub keeps_loader: bool,
    /// Path of mdadm's configuration in the target.
    pub mdadm_conf: String,
}

pub(crate) fn collect_boot_requirements(
    finishing: &FinishInputs,
    distribution: &Distribution,
    overrides: &OsInstallerSettings,
    root_uuid: &str,
) -> BootRequirements {
    let FinishInputs { root, usr, boot, arrays, esps, boot_disks, files, architecture, firmware, .. } = finishing;
    let system = || [root].into_iter().chain(usr);
    BootRequirements {
        architecture: *architecture,
        firmware: *firmware,
        root: FilesystemByUuid { uuid: root_uuid.to_owned(), format: root.format.unwrap_or(FilesystemFormat::Ext4) },
        usr_format: usr.as_ref().and_then(|usr| usr.format),
        boot: boot.as_ref().map(|boot| FilesystemByUuid { uuid: boot.uuid.clone(), format: boot.format }),
        arrays: arrays
            .iter()
            .map(|array| BootArray {
                device: array.device.clone(),
                uuid: array.uuid,
                level: array.level,
                metadata: array.metadata.clone(),
                is_beneath_system: system().any(|filesystem| filesystem.arrays.contains(&array.uuid)),
            })
            .collect(),
        groups: collect_groups(system().filter_map(|filesystem| filesystem.volume.as_ref())),
        esps: esps
            .iter()
            .map(|esp| BootEsp {
                device: esp.array.clone().unwrap_or_else(|| esp.device.clone()),
                path: esp.path.clone(),
            })
            .collect(),
        preserved_esps: PreservedEsps::from_esps(esps),
        disks: boot_disks.clone(),
        initramfs_disks: system().flat_map(|filesystem| filesystem.disks.iter().cloned()).collect(),
        consoles: files.assigned.consoles.clone(),
        arguments: files.assigned.allocation.kernel_arguments.clone(),
        system: distribution.id.clone(),
        bootloader_id: overrides.bootloader_id.clone().unwrap_or_else(|| distribution.id.clone()),
        keeps_loader: !overrides.is_task_enabled(task::BOOT_LOADER),
        mdadm_conf: distribution.family.mdadm_conf.to_owned(),
    }
}

/// Returns the groups of these volumes, without duplicates.
fn collect_groups<'a>(volumes: impl Iterator<Item = &'a SystemVolume>) -> Vec<SystemGroup> {
    let mut groups: Vec<SystemGroup> = Vec::new();
    for volume in volumes {
        let is_mirrored = volume.kind == LvmType::Raid1;
        match groups.iter_mut().find(|group| group.name == volume.group) {
            Some(group) => group.is_mirrored |= is_mirrored,
            None => groups.push(SystemGroup { name: volume.group.clone(), is_mirrored }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_setup::testing::tree;
    use model::layout::RaidLevel;
    use operations::{FinishedArray, SystemFilesystem};
    use uuid::Uuid;

    fn volume(group: &str, kind: LvmType) -> SystemVolume {
        SystemVolume { group: group.into(), name: "volume".into(), kind }
    }

    /// Collects the requirements of a machine with Ubuntu.
    fn collect(finishing: &FinishInputs) -> BootRequirements {
        let (_dir, root) = tree(&[("etc/os-release", "ID=ubuntu\n")]);
        collect_boot_requirements(finishing, &Distribution::detect(&root), &OsInstallerSettings::default(), "brought")
    }

    #[test]
    fn boot_requirements_mark_arrays_below_the_root() {
        let array = |name: &str, number| FinishedArray {
            device: format!("/dev/md/{name}").into(),
            uuid: Uuid::from_u128(number),
            level: RaidLevel::Raid1,
            metadata: "1.0".into(),
        };
        let esp = |device: &str, array: Option<&str>| operations::Esp {
            device: device.into(),
            array: array.map(Into::into),
            ..operations::Esp::default()
        };
        let finishing = FinishInputs {
            root: SystemFilesystem {
                uuid: "planned".into(),
                format: Some(FilesystemFormat::Xfs),
                arrays: vec![Uuid::from_u128(2)],
                volume: Some(volume("vg", LvmType::Raid1)),
                ..SystemFilesystem::default()
            },
            arrays: vec![array("efi", 1), array("root", 2)],
            esps: vec![esp("/dev/sda1", Some("/dev/md/efi")), esp("/dev/sdb1", None)],
            ..FinishInputs::default()
        };
        let wants = collect(&finishing);
        assert_eq!((wants.bootloader_id.as_str(), wants.keeps_loader), ("ubuntu", false));
        assert_eq!(wants.root, FilesystemByUuid { uuid: "brought".into(), format: FilesystemFormat::Xfs });
        assert_eq!(wants.arrays.iter().map(|array| array.is_beneath_system).collect::<Vec<_>>(), [false, true]);
        assert_eq!(wants.groups, [SystemGroup { name: "vg".into(), is_mirrored: true }]);
        assert_eq!(wants.esps.iter().map(|esp| esp.device.as_str()).collect::<Vec<_>>(), ["/dev/md/efi", "/dev/sdb1"]);
        assert_eq!((wants.system.as_str(), wants.mdadm_conf.as_str()), ("ubuntu", "/etc/mdadm/mdadm.conf"));
    }

    /// The firmware and the boot loader read `/boot`; the initramfs does not.
    #[test]
    fn initramfs_requires_the_storage_of_root_and_usr_but_not_of_boot() {
        let system = |disk: &str, group: &str, kind| SystemFilesystem {
            disks: vec![disk.into()],
            volume: Some(volume(group, kind)),
            ..SystemFilesystem::default()
        };
        let array = |number| FinishedArray {
            device: "/dev/md/x".into(),
            uuid: Uuid::from_u128(number),
            level: RaidLevel::Raid1,
            metadata: "1.2".into(),
        };
        let mut usr = system("/dev/nvme1n1", "usr", LvmType::Raid1);
        (usr.format, usr.arrays) = (Some(FilesystemFormat::Xfs), vec![Uuid::from_u128(2)]);
        let finishing = FinishInputs {
            root: system("/dev/nvme0n1", "vg", LvmType::Linear),
            usr: Some(usr),
            arrays: vec![array(1), array(2)],
            boot_disks: vec![BootDisk { device: "/dev/sda".into(), gap: None, partly_kept: false }],
            ..FinishInputs::default()
        };
        let wants = collect(&finishing);
        assert_eq!(wants.initramfs_disks, ["/dev/nvme0n1", "/dev/nvme1n1"].map(DevicePath::from));
        assert_eq!(wants.disks.iter().map(|disk| disk.device.as_str()).collect::<Vec<_>>(), ["/dev/sda"]);
        assert_eq!(wants.usr_format, Some(FilesystemFormat::Xfs));
        assert_eq!(wants.arrays.iter().map(|array| array.is_beneath_system).collect::<Vec<_>>(), [false, true]);
        let groups = [("vg", false), ("usr", true)];
        assert_eq!(wants.groups, groups.map(|(name, is_mirrored)| SystemGroup { name: name.into(), is_mirrored }));
        // Both filesystems are in one group, and one of them is mirrored.
        let mut one = finishing.clone();
        one.root.volume = Some(volume("usr", LvmType::Linear));
        assert_eq!(collect(&one).groups, [SystemGroup { name: "usr".into(), is_mirrored: true }]);
    }
}
