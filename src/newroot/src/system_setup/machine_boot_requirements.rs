//! Collects the boot requirements of the machine from the plan.
use super::distribution::Distribution;
use super::metal_os_installer_settings::{OsInstallerSettings, task};
use model::architecture::Architecture;
use model::device_name::DevicePath;
use model::inventory::FirmwareType;
use model::layout::{FilesystemFormat, LvmType, RaidLevel};
use operations::{BootDisk, FinishInputs};
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
    /// Whether the root filesystem is on this array.
    pub is_beneath_root: bool,
}

/// Volume group with the root filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RootGroup {
    pub name: String,
    /// Whether the root filesystem's volume has `lvmtype: raid1`.
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
    /// Filesystem mounted at `/boot`; `None` if `/boot` is part of the root filesystem.
    pub boot: Option<FilesystemByUuid>,
    /// All arrays of the layout.
    pub arrays: Vec<BootArray>,
    /// Volume group beneath the root filesystem.
    pub group: Option<RootGroup>,
    /// EFI system partitions. Members of the same array are adjacent.
    pub esps: Vec<BootEsp>,
    /// All disks beneath the filesystem that contains `/boot`, which is either a separate filesystem or the root
    /// filesystem.
    pub disks: Vec<BootDisk>,
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
    let FinishInputs { root, boot, arrays, esps, boot_disks, files, architecture, firmware, .. } = finishing;
    BootRequirements {
        architecture: *architecture,
        firmware: *firmware,
        root: FilesystemByUuid { uuid: root_uuid.to_owned(), format: root.format.unwrap_or(FilesystemFormat::Ext4) },
        boot: boot.as_ref().map(|boot| FilesystemByUuid { uuid: boot.uuid.clone(), format: boot.format }),
        arrays: arrays
            .iter()
            .map(|array| BootArray {
                device: array.device.clone(),
                uuid: array.uuid,
                level: array.level,
                metadata: array.metadata.clone(),
                is_beneath_root: root.arrays.contains(&array.uuid),
            })
            .collect(),
        group: root
            .volume
            .as_ref()
            .map(|volume| RootGroup { name: volume.group.clone(), is_mirrored: volume.kind == LvmType::Raid1 }),
        esps: esps
            .iter()
            .map(|esp| BootEsp {
                device: esp.array.clone().unwrap_or_else(|| esp.device.clone()),
                path: esp.path.clone(),
            })
            .collect(),
        disks: boot_disks.clone(),
        consoles: files.assigned.consoles.clone(),
        arguments: files.assigned.allocation.kernel_arguments.clone(),
        system: distribution.id.clone(),
        bootloader_id: overrides.bootloader_id.clone().unwrap_or_else(|| distribution.id.clone()),
        keeps_loader: !overrides.is_task_enabled(task::BOOT_LOADER),
        mdadm_conf: distribution.family.mdadm_conf.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_setup::testing::tree;
    use model::layout::RaidLevel;
    use operations::{FinishedArray, RootFilesystem, RootVolume};
    use uuid::Uuid;

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
        let volume = RootVolume { group: "vg".into(), name: "root".into(), kind: LvmType::Raid1 };
        let finishing = FinishInputs {
            root: RootFilesystem {
                uuid: "planned".into(),
                format: Some(FilesystemFormat::Xfs),
                arrays: vec![Uuid::from_u128(2)],
                volume: Some(volume),
            },
            arrays: vec![array("efi", 1), array("root", 2)],
            esps: vec![esp("/dev/sda1", Some("/dev/md/efi")), esp("/dev/sdb1", None)],
            ..FinishInputs::default()
        };
        let (_dir, root) = tree(&[("etc/os-release", "ID=ubuntu\n")]);
        let wants = collect_boot_requirements(
            &finishing,
            &Distribution::detect(&root),
            &OsInstallerSettings::default(),
            "brought",
        );
        assert_eq!((wants.bootloader_id.as_str(), wants.keeps_loader), ("ubuntu", false));
        assert_eq!(wants.root, FilesystemByUuid { uuid: "brought".into(), format: FilesystemFormat::Xfs });
        assert_eq!(wants.arrays.iter().map(|array| array.is_beneath_root).collect::<Vec<_>>(), [false, true]);
        assert_eq!(wants.group, Some(RootGroup { name: "vg".into(), is_mirrored: true }));
        assert_eq!(wants.esps.iter().map(|esp| esp.device.as_str()).collect::<Vec<_>>(), ["/dev/md/efi", "/dev/sdb1"]);
        assert_eq!((wants.system.as_str(), wants.mdadm_conf.as_str()), ("ubuntu", "/etc/mdadm/mdadm.conf"));
    }
}
