//! Types of a layout. The names of the fields are canonical, and sizes are in MiB. A field with a default is not an
//! `Option`: the parser inserts the default.
//!
//! The types are serialized in metal-api's wire format (`v1.FilesystemLayoutResponse`). [`super::read_yaml`] and
//! [`super::read_json`] parse this format and all other spellings that are in use.

mod formats;
mod group_preservation;

pub use formats::{FilesystemFormat, LvmType, PartitionType, RaidLevel};
pub use group_preservation::GroupPreservation;

use super::encryption::EncryptionSpec;
use super::size::RequestedSize;
use crate::device_name::LayoutPath;
use crate::install_marker::WipePolicy;
use serde::Serialize;
use std::collections::BTreeMap;

/// Partitions, arrays, volumes and filesystems of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Layout {
    /// Id of the layout, as in allocations.
    pub id: String,
    /// Display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Description for display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Filesystems, swap areas and tmpfs, with their mount points. One of them has the path `/`.
    pub filesystems: Vec<FilesystemSpec>,
    /// Disks that drophammer may write to.
    pub disks: Vec<DiskSpec>,
    /// RAID arrays (mdadm).
    pub raid: Vec<ArraySpec>,
    /// LVM volume groups.
    pub volumegroups: Vec<VolumeGroupSpec>,
    /// LVM logical volumes.
    pub logicalvolumes: Vec<LogicalVolumeSpec>,
    /// Machine sizes and images for which the layout is selected if an allocation does not name a layout.
    pub constraints: LayoutConstraints,
    /// True if an installation removes the boot variables that earlier systems have left in the firmware.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cleanfirmware: bool,
}

/// Machine sizes and images for which the layout is selected if an allocation does not name a layout.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields, rename = "Constraints"))]
pub struct LayoutConstraints {
    /// Exact ids of machine sizes.
    pub sizes: Vec<String>,
    /// Version constraints by operating system, as written in the layout (`>= 10`, `*`).
    pub images: BTreeMap<String, String>,
}

/// Filesystem, swap area or tmpfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields, rename = "Filesystem"))]
pub struct FilesystemSpec {
    /// Mount point. A filesystem without a mount point is created but not mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Device path as written in the layout; `tmpfs` for a tmpfs.
    pub device: LayoutPath,
    /// Type of the filesystem.
    pub format: FilesystemFormat,
    /// Label of the filesystem, as in `LABEL=` of fstab.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Options for mount, usually one per item.
    pub mountoptions: Vec<String>,
    /// Arguments for mkfs, one word per item.
    pub createoptions: Vec<String>,
    /// Handling of the image's files below the mount point when a reinstall preserves this filesystem: they are
    /// hidden, or added to the filesystem.
    #[serde(skip_serializing_if = "OnReinstall::is_keep")]
    pub reinstall: OnReinstall,
    /// True if this filesystem and its partition are enlarged to the end of the disk. The partition must be the last
    /// partition of a raw image.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub grow: bool,
    /// LUKS2 encryption of the filesystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<EncryptionSpec>,
    /// True if a reinstall preserves the filesystem on a disk that it otherwise wipes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub preserve: bool,
}

impl FilesystemSpec {
    /// Returns each mount option as a separate string, even if one item of the list contains several options.
    pub fn mount_options(&self) -> impl Iterator<Item = &str> {
        self.mountoptions.iter().flat_map(|option| option.split(',')).map(str::trim)
    }

    /// Returns whether cloud-init searches this filesystem for its seed.
    pub fn is_for_seed(&self) -> bool {
        self.format == FilesystemFormat::Vfat && self.label.as_deref().is_some_and(is_seed_label)
    }

    /// Returns whether the filesystem is mounted read-only. If the mount options contain both `ro` and `rw`, the last
    /// one applies.
    pub fn is_read_only(&self) -> bool {
        self.mount_options().filter(|option| ["ro", "rw"].contains(option)).last() == Some("ro")
    }
}

/// Returns whether cloud-init recognizes a vfat filesystem with this label as a seed (NoCloud data source). cloud-init
/// accepts the label in upper and lower case.
pub fn is_seed_label(label: &str) -> bool {
    label.eq_ignore_ascii_case("CIDATA")
}

/// Handling of the image's files below the mount point when a reinstall preserves the filesystem: they are hidden,
/// or added to the filesystem.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnReinstall {
    /// The files are hidden, because the filesystem is mounted after the image was unpacked.
    #[default]
    Keep,
    /// The files are added to the filesystem, and replace files of the same name. Other files are not changed.
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

/// Disk of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields, rename = "Disk"))]
pub struct DiskSpec {
    /// Kernel name, or path in `/dev/disk/by-*`. If `hints` are specified, any name is allowed. The other parts of the
    /// layout refer to the disk by this name.
    pub device: LayoutPath,
    /// Root device hints of Ironic, as pairs of hint and expression. They select the disk independently of its kernel
    /// name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hints: BTreeMap<String, String>,
    /// Partitions. Empty if the disk is used as a whole, or is only erased.
    pub partitions: Vec<PartitionSpec>,
    /// True if a reinstall may erase this disk. A first installation erases all listed disks.
    pub wipeonreinstall: bool,
    /// True if a raw disk image is written to this disk. The image contains its own partitions and filesystems.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub image: bool,
}

impl DiskSpec {
    /// Returns whether a reinstall wipes or preserves the data of the disk.
    pub fn wipe_policy(&self) -> WipePolicy {
        if self.wipeonreinstall { WipePolicy::Wiped } else { WipePolicy::Kept }
    }

    /// Returns the number of the raw image's partition that has the path `device`. Returns `None` if no raw image is
    /// written to this disk, or if the path is not that of a partition of this disk.
    pub fn image_partition_number(&self, device: &LayoutPath) -> Option<u32> {
        (1..=MAX_PARTITION_NUMBER).find(|number| self.image && self.device.partition_path(*number) == *device)
    }
}

/// Number of entries in a GPT of the usual size (UEFI specification 5.3.1: at least 16 KiB of 128-byte entries).
pub const MAX_PARTITION_NUMBER: u32 = 128;

/// Partition of a GPT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields, rename = "Partition"))]
pub struct PartitionSpec {
    /// Number in the partition table. Partitions are placed on the disk in the order of their numbers. Gaps between the
    /// numbers are allowed.
    pub number: u32,
    /// Name in the partition table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Size in MiB. A partition of size 0 takes the remaining space of the disk.
    pub size: RequestedSize,
    /// Type in the partition table; defaults to `8300`.
    #[serde(rename = "gpttype", skip_serializing_if = "Option::is_none")]
    pub kind: Option<PartitionType>,
    /// True if a reinstall preserves the partition, and everything on it, on a disk that it otherwise wipes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub preserve: bool,
}

/// RAID array (mdadm).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields, rename = "Raid"))]
pub struct ArraySpec {
    /// Path of the array: `/dev/md0` or `/dev/md/NAME`.
    pub arrayname: LayoutPath,
    /// Members and spares: disks, partitions or other arrays.
    pub devices: Vec<LayoutPath>,
    /// RAID level, serialized as text.
    pub level: RaidLevel,
    /// Arguments for mdadm --create, one word per item.
    pub createoptions: Vec<String>,
    /// Number of spares. The spares are the last items of `devices`.
    pub spares: u32,
    /// True if a reinstall preserves the array, its members and everything on it, on disks that it otherwise wipes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub preserve: bool,
}

/// LVM volume group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields, rename = "VolumeGroup"))]
pub struct VolumeGroupSpec {
    /// Name of the group. The paths of its volumes are `/dev/NAME/…`.
    pub name: String,
    /// Physical volumes: disks, partitions or arrays.
    pub devices: Vec<LayoutPath>,
    /// LVM tags of the group.
    pub tags: Vec<String>,
    /// LUKS2 encryption of the physical volumes. Each physical volume is in a separate container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<EncryptionSpec>,
    /// Volumes of the group that a reinstall preserves on disks that it otherwise wipes.
    #[serde(skip_serializing_if = "GroupPreservation::is_none")]
    pub preserve: GroupPreservation,
}

/// LVM logical volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields, rename = "LogicalVolume"))]
pub struct LogicalVolumeSpec {
    /// Name of the volume. Its path is `/dev/GROUP/NAME`.
    pub name: String,
    /// Name of the volume group that contains the volume.
    pub volumegroup: String,
    /// Size in MiB. A volume of size 0 takes the remaining space of the group.
    pub size: RequestedSize,
    /// Distribution of the volume's data over the physical volumes.
    pub lvmtype: LvmType,
    /// True if a reinstall preserves the volume, and the filesystem on it, on disks that it otherwise wipes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub preserve: bool,
}
