//! RAID levels, types of logical volumes, formats of filesystems, and types of partitions.

use serde::Serialize;
use std::fmt;

/// RAID levels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RaidLevel {
    /// RAID 0: striped over all members. The loss of one member loses all data.
    #[serde(rename = "0")]
    Raid0,
    /// RAID 1: mirrored. Default level of metal-stack.
    #[default]
    #[serde(rename = "1")]
    Raid1,
    /// RAID 5: survives the loss of one member.
    #[serde(rename = "5")]
    Raid5,
    /// RAID 6: survives the loss of two members.
    #[serde(rename = "6")]
    Raid6,
    /// RAID 10: striped over pairs of mirrors.
    #[serde(rename = "10")]
    Raid10,
}

impl RaidLevel {
    pub const ALL: [RaidLevel; 5] =
        [RaidLevel::Raid0, RaidLevel::Raid1, RaidLevel::Raid5, RaidLevel::Raid6, RaidLevel::Raid10];

    /// Returns the number of the level, as layouts and `mdadm --level` write it.
    pub fn number(self) -> &'static str {
        match self {
            RaidLevel::Raid0 => "0",
            RaidLevel::Raid1 => "1",
            RaidLevel::Raid5 => "5",
            RaidLevel::Raid6 => "6",
            RaidLevel::Raid10 => "10",
        }
    }
}

impl fmt::Display for RaidLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "raid{}", self.number())
    }
}

/// Types of logical volumes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LvmType {
    /// The data fill one physical volume of the group after the other.
    #[default]
    Linear,
    /// The data is striped over all physical volumes of the group.
    Striped,
    /// The data is stored in two copies, on two physical volumes.
    Raid1,
}

impl LvmType {
    pub const ALL: [LvmType; 3] = [LvmType::Linear, LvmType::Raid1, LvmType::Striped];

    pub fn name(self) -> &'static str {
        match self {
            LvmType::Linear => "linear",
            LvmType::Striped => "striped",
            LvmType::Raid1 => "raid1",
        }
    }
}

impl fmt::Display for LvmType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Filesystem type, swap, tmpfs or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FilesystemFormat {
    Vfat,
    Ext3,
    Ext4,
    Xfs,
    Btrfs,
    Swap,
    /// Filesystem in memory. `device` is `tmpfs`.
    Tmpfs,
    /// No filesystem is created.
    None,
}

impl FilesystemFormat {
    /// All formats. The formats of metal-api come first, in the order of metal-api.
    pub const ALL: [FilesystemFormat; 8] = [
        FilesystemFormat::Ext3,
        FilesystemFormat::Ext4,
        FilesystemFormat::None,
        FilesystemFormat::Swap,
        FilesystemFormat::Tmpfs,
        FilesystemFormat::Vfat,
        FilesystemFormat::Xfs,
        FilesystemFormat::Btrfs,
    ];

    pub fn name(self) -> &'static str {
        match self {
            FilesystemFormat::Vfat => "vfat",
            FilesystemFormat::Ext3 => "ext3",
            FilesystemFormat::Ext4 => "ext4",
            FilesystemFormat::Xfs => "xfs",
            FilesystemFormat::Btrfs => "btrfs",
            FilesystemFormat::Swap => "swap",
            FilesystemFormat::Tmpfs => "tmpfs",
            FilesystemFormat::None => "none",
        }
    }

    /// Returns whether a filesystem of this type can be enlarged while it is mounted.
    pub fn can_grow(self) -> bool {
        match self {
            FilesystemFormat::Ext3 | FilesystemFormat::Ext4 | FilesystemFormat::Xfs | FilesystemFormat::Btrfs => true,
            FilesystemFormat::Vfat | FilesystemFormat::Swap | FilesystemFormat::Tmpfs | FilesystemFormat::None => false,
        }
    }
}

impl fmt::Display for FilesystemFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Partition types, identified by their four-digit codes in `sgdisk`, as in metal-api.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PartitionType {
    /// EFI system partition.
    #[serde(rename = "ef00")]
    Boot,
    /// Linux filesystem.
    #[serde(rename = "8300")]
    Linux,
    /// Member of a RAID array.
    #[serde(rename = "fd00")]
    LinuxRaid,
    /// LVM physical volume.
    #[serde(rename = "8e00")]
    LinuxLvm,
}

impl PartitionType {
    pub const ALL: [PartitionType; 4] =
        [PartitionType::Linux, PartitionType::LinuxLvm, PartitionType::Boot, PartitionType::LinuxRaid];

    pub fn code(self) -> &'static str {
        match self {
            PartitionType::Boot => "ef00",
            PartitionType::Linux => "8300",
            PartitionType::LinuxRaid => "fd00",
            PartitionType::LinuxLvm => "8e00",
        }
    }

    /// Returns the GUID of this type in a GPT (UEFI specification 5.3.3; Discoverable Partitions Specification).
    pub fn guid(self) -> uuid::Uuid {
        uuid::Uuid::from_u128(match self {
            PartitionType::Boot => 0xC12A7328_F81F_11D2_BA4B_00A0C93EC93B,
            PartitionType::Linux => 0x0FC63DAF_8483_4772_8E79_3D69D8477DE4,
            PartitionType::LinuxRaid => 0xA19D880F_05FC_4D3B_A006_743F0F84911E,
            PartitionType::LinuxLvm => 0xE6D6D379_F507_44C2_A23C_238F2A3DF928,
        })
    }
}
