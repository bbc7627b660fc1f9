//! The layout as the program uses it: canonical names, units in the names, nothing optional that has a default.
//!
//! Serialised, it is metal-api's wire format (`v1.FilesystemLayoutResponse`). Reading goes through
//! [`super::read_yaml`] and [`super::read_json`], which know the other spellings in use.

use super::encrypted::Encrypted;
use super::size::Size;
use crate::device::LayoutPath;
use crate::marker::Promise;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What the disks of a machine should become.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Layout {
    /// What allocations name the layout by.
    pub id: String,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What is made on disks, partitions, arrays and volumes, and where it is mounted. One has the path `/`.
    pub filesystems: Vec<Filesystem>,
    /// Every disk that drophammer may write to.
    pub disks: Vec<Disk>,
    /// Arrays of mdadm.
    pub raid: Vec<Raid>,
    /// Volume groups of LVM.
    pub volumegroups: Vec<VolumeGroup>,
    /// Logical volumes of LVM.
    pub logicalvolumes: Vec<LogicalVolume>,
    /// Which sizes and images the layout is chosen for when an allocation names none.
    pub constraints: Constraints,
    /// Whether boot variables that earlier systems left in the firmware are removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cleanfirmware: bool,
}

/// Which sizes and images the layout is chosen for when an allocation names none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Constraints {
    /// Exact ids of machine sizes.
    pub sizes: Vec<String>,
    /// OS to version constraint, as written in the layout (`>= 10`, `*`).
    pub images: BTreeMap<String, String>,
}

/// One filesystem, swap area or tmpfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Filesystem {
    /// Mount point; without one the filesystem is made and not mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Device path as the layout spells it; `tmpfs` for a tmpfs.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub device: LayoutPath,
    /// What is made on the device.
    pub format: Format,
    /// Name of the filesystem, as `LABEL=` finds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Options of mount, one each.
    pub mountoptions: Vec<String>,
    /// Arguments for mkfs, one word each.
    pub createoptions: Vec<String>,
    /// What becomes of the image's files that belong below a filesystem that a reinstall keeps.
    #[serde(skip_serializing_if = "OnReinstall::is_keep")]
    pub reinstall: OnReinstall,
    /// Does the last partition of a raw image, and this filesystem on it, take all that is left of the disk?
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub grow: bool,
    /// Does it lie in a LUKS2 container?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<Encrypted>,
}

impl Filesystem {
    /// Each of the mount options, also where several are written as one.
    pub fn options(&self) -> impl Iterator<Item = &str> {
        self.mountoptions.iter().flat_map(|option| option.split(',')).map(str::trim)
    }

    /// cloud-init looks for its seed in a filesystem that is called so.
    pub fn is_for_seed(&self) -> bool {
        self.format == Format::Vfat && self.label.as_deref().is_some_and(is_for_seed)
    }

    /// Do its mount options say `ro`? The last word counts.
    pub fn is_read_only(&self) -> bool {
        self.options().filter(|option| ["ro", "rw"].contains(option)).last() == Some("ro")
    }
}

/// Of a vfat; cloud-init takes both spellings (its NoCloud data source).
pub fn is_for_seed(label: &str) -> bool {
    label.eq_ignore_ascii_case("CIDATA")
}

/// What becomes of the image's files that belong below a filesystem that a reinstall keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnReinstall {
    /// They lie hidden beneath it: it is mounted when the image is on.
    #[default]
    Keep,
    /// They are added to it and win over files of the same name; nothing else on it is touched.
    Merge,
}

impl OnReinstall {
    pub const ALL: [OnReinstall; 2] = [OnReinstall::Keep, OnReinstall::Merge];

    pub fn name(self) -> &'static str {
        match self {
            OnReinstall::Keep => "keep",
            OnReinstall::Merge => "merge",
        }
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_keep(&self) -> bool {
        *self == OnReinstall::Keep
    }
}

/// One disk of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Disk {
    /// Kernel name or `/dev/disk/by-*` path; with `hints` any name, which the rest of the layout uses for it.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub device: LayoutPath,
    /// How to find the disk, whatever the kernel calls it today: hint to expression, as Ironic's root device hints.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hints: BTreeMap<String, String>,
    /// None: the disk is used as a whole, or only erased.
    pub partitions: Vec<Partition>,
    /// May a reinstall erase this disk? A fresh install erases every listed disk.
    pub wipeonreinstall: bool,
    /// Is the image a raw disk image that is written onto this disk as it is? It brings partitions and filesystems of its own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub image: bool,
}

impl Disk {
    /// What the layout promises for the data of the disk.
    pub fn promise(&self) -> Promise {
        if self.wipeonreinstall { Promise::Wiped } else { Promise::Kept }
    }

    /// The number of the partition that the layout calls `device`, where a raw image may bring any.
    pub fn image_partition(&self, device: &LayoutPath) -> Option<u32> {
        (1..=MAX_PARTITION_NUMBER).find(|number| self.image && self.device.partition(*number) == *device)
    }
}

/// Entries in a GPT as everybody makes it (UEFI specification 5.3.1: at least 16 KiB of 128-byte entries).
pub const MAX_PARTITION_NUMBER: u32 = 128;

/// One partition of a GPT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Partition {
    /// Place in the partition table; partitions lie on the disk in the order of their numbers, which may have gaps.
    pub number: u32,
    /// Name in the partition table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// MiB; 0 is all that is left of the disk.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub size: Size,
    /// Type in the partition table; `8300` where nothing is said.
    #[serde(rename = "gpttype", skip_serializing_if = "Option::is_none")]
    pub kind: Option<PartitionKind>,
}

/// One array of mdadm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Raid {
    /// `/dev/md0`, or `/dev/md/NAME`.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub arrayname: LayoutPath,
    /// Members and spares: disks, partitions or other arrays.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub devices: Vec<LayoutPath>,
    /// Level, as text.
    pub level: RaidLevel,
    /// Arguments for mdadm --create, one word each.
    pub createoptions: Vec<String>,
    /// How many of `devices` are spares: the last ones.
    pub spares: u32,
}

/// One volume group of LVM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct VolumeGroup {
    /// Its volumes are `/dev/NAME/…`.
    pub name: String,
    /// What becomes physical volumes: disks, partitions or arrays.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub devices: Vec<LayoutPath>,
    /// Tags of the group, for those who look for it.
    pub tags: Vec<String>,
    /// Does each of its physical volumes lie in a LUKS2 container of its own?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<Encrypted>,
}

/// One logical volume of LVM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct LogicalVolume {
    /// The rest of the layout calls it `/dev/GROUP/NAME`.
    pub name: String,
    /// The group it is in.
    pub volumegroup: String,
    /// MiB; 0 is all that is left of the group.
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub size: Size,
    /// How its data lie on the physical volumes.
    pub lvmtype: LvmType,
}

/// Levels of arrays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RaidLevel {
    /// Striped over all members; one lost is all lost.
    #[serde(rename = "0")]
    Raid0,
    /// Mirrored; what metal-stack takes where none is given.
    #[default]
    #[serde(rename = "1")]
    Raid1,
    /// One member may be lost.
    #[serde(rename = "5")]
    Raid5,
    /// Two members may be lost.
    #[serde(rename = "6")]
    Raid6,
    /// Striped over pairs of mirrors.
    #[serde(rename = "10")]
    Raid10,
}

impl RaidLevel {
    pub const ALL: [RaidLevel; 5] =
        [RaidLevel::Raid0, RaidLevel::Raid1, RaidLevel::Raid5, RaidLevel::Raid6, RaidLevel::Raid10];

    /// As the layout and `mdadm --level` write it.
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
    /// One physical volume after the other.
    #[default]
    Linear,
    /// Over all physical volumes of the group.
    Striped,
    /// Two copies, on two physical volumes.
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

/// What is made on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Format {
    Vfat,
    Ext3,
    Ext4,
    Xfs,
    Btrfs,
    Swap,
    /// In memory; `device` is `tmpfs`.
    Tmpfs,
    /// The device is left without a filesystem.
    None,
}

impl Format {
    /// metal-api's first, in its order.
    pub const ALL: [Format; 8] = [
        Format::Ext3,
        Format::Ext4,
        Format::None,
        Format::Swap,
        Format::Tmpfs,
        Format::Vfat,
        Format::Xfs,
        Format::Btrfs,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Format::Vfat => "vfat",
            Format::Ext3 => "ext3",
            Format::Ext4 => "ext4",
            Format::Xfs => "xfs",
            Format::Btrfs => "btrfs",
            Format::Swap => "swap",
            Format::Tmpfs => "tmpfs",
            Format::None => "none",
        }
    }

    /// Can it be made larger while it is mounted?
    pub fn grows(self) -> bool {
        match self {
            Format::Ext3 | Format::Ext4 | Format::Xfs | Format::Btrfs => true,
            Format::Vfat | Format::Swap | Format::Tmpfs | Format::None => false,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Partition types by their four-digit `sgdisk` code, as metal-api writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PartitionKind {
    /// EFI system partition.
    #[serde(rename = "ef00")]
    Boot,
    /// Linux filesystem.
    #[serde(rename = "8300")]
    Linux,
    /// Member of an array.
    #[serde(rename = "fd00")]
    LinuxRaid,
    /// Physical volume of LVM.
    #[serde(rename = "8e00")]
    LinuxLvm,
}

impl PartitionKind {
    pub const ALL: [PartitionKind; 4] =
        [PartitionKind::Linux, PartitionKind::LinuxLvm, PartitionKind::Boot, PartitionKind::LinuxRaid];

    pub fn code(self) -> &'static str {
        match self {
            PartitionKind::Boot => "ef00",
            PartitionKind::Linux => "8300",
            PartitionKind::LinuxRaid => "fd00",
            PartitionKind::LinuxLvm => "8e00",
        }
    }

    /// The type GUID in the partition entry (UEFI specification 5.3.3; Discoverable Partitions).
    pub fn guid(self) -> uuid::Uuid {
        uuid::Uuid::from_u128(match self {
            PartitionKind::Boot => 0xC12A7328_F81F_11D2_BA4B_00A0C93EC93B,
            PartitionKind::Linux => 0x0FC63DAF_8483_4772_8E79_3D69D8477DE4,
            PartitionKind::LinuxRaid => 0xA19D880F_05FC_4D3B_A006_743F0F84911E,
            PartitionKind::LinuxLvm => 0xE6D6D379_F507_44C2_A23C_238F2A3DF928,
        })
    }
}
