//! Inputs of the operations that make an image bootable on the machine.

use crate::{ByteRange, FstabEntry, MachineFiles};
use model::allocation::FinisherChoice;
use model::architecture::Architecture;
use model::device_name::DevicePath;
use model::inventory::FirmwareType;
use model::layout::{FilesystemFormat, LvmType, RaidLevel};
use netconfig::NetworkConfig;
use serde::Serialize;
use std::collections::BTreeMap;
use uuid::Uuid;

/// A disk from which BIOS firmware boots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootDisk {
    pub device: DevicePath,
    /// Gap between the partition table and the first partition, into which a boot loader can be written. `None` if this
    /// plan does not write the partition table, or if a BIOS cannot boot from disks with this sector size.
    pub gap: Option<ByteRange>,
    /// True if partitions of the disk are preserved. Programs of the image must then not access the disk.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partly_kept: bool,
}

/// All data required to make the image bootable on this machine, and to let the machine's owner log in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FinishInputs {
    pub way: FinisherChoice,
    /// Devices that programs of the image may access, together with all partitions of these devices.
    pub devices: Vec<DevicePath>,
    /// Architecture of the machine.
    pub architecture: Architecture,
    pub firmware: FirmwareType,
    pub root: SystemFilesystem,
    /// Filesystem that is mounted at `/usr`; `None` if `/usr` is a directory of the root filesystem. The initramfs
    /// mounts it together with the root filesystem, because the init program is in `/usr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usr: Option<SystemFilesystem>,
    /// Filesystem that is mounted at `/boot`; `None` if `/boot` is a directory of the root filesystem.
    pub boot: Option<BootFilesystem>,
    /// Arrays of the layout, both created and preserved.
    pub arrays: Vec<FinishedArray>,
    /// Names of the volume groups of the layout.
    pub groups: Vec<String>,
    /// EFI system partitions, in which EFI firmware looks for a boot loader.
    pub esps: Vec<Esp>,
    /// Disks that contain `/boot`, or `/` if `/boot` is not a separate filesystem. BIOS firmware finds the boot loader
    /// on these disks.
    pub boot_disks: Vec<BootDisk>,
    pub fstab: Vec<FstabEntry>,
    /// Mount points, except `/`, of mounted filesystems that are not preserved and that store extended attributes.
    #[serde(skip)]
    pub new_mounts: Vec<String>,
    /// Filesystem to which the cloud-init seed is written; `None` if the seed is written to the root filesystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<SeedFilesystem>,
    pub network: RequestedNetwork,
    /// Environment of the image's installer: the parameters of the OS definition, and properties of the machine. The
    /// variables have the names that OS definitions use.
    #[serde(skip)]
    pub environment: BTreeMap<String, String>,
    /// The allocation, including passwords and keys, and other data for files of the installed system.
    #[serde(skip)]
    pub files: Box<MachineFiles>,
}

/// Filesystem to which the cloud-init seed is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SeedFilesystem {
    pub device: DevicePath,
    /// Mount point of the filesystem in the target; `None` if it is not mounted.
    #[serde(with = "common::empty_string_as_none")]
    pub path: Option<String>,
}

/// Requested network configuration of the installed system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestedNetwork {
    /// The allocation contains no network configuration.
    #[default]
    Unsaid,
    /// Configuration from the field `network` of the allocation.
    Described(NetworkConfig),
    /// Configuration that was derived from metal-stack's field `networks`. This field is meant for a routing daemon,
    /// which announces the addresses.
    Announced(NetworkConfig),
}

/// A filesystem that the initramfs mounts: `/`, or a separate `/usr`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SystemFilesystem {
    /// UUID of the filesystem; empty if the filesystem is part of a raw image.
    pub uuid: String,
    pub format: Option<FilesystemFormat>,
    /// Disks that contain the filesystem. The initramfs requires the drivers of these disks.
    pub disks: Vec<DevicePath>,
    /// UUIDs of the arrays that contain the filesystem.
    pub arrays: Vec<Uuid>,
    /// The logical volume that contains the filesystem; `None` if the filesystem is not on a logical volume.
    pub volume: Option<SystemVolume>,
}

/// A filesystem from which a boot loader reads the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootFilesystem {
    pub uuid: String,
    pub format: FilesystemFormat,
}

/// The logical volume that contains a filesystem that the initramfs mounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SystemVolume {
    pub group: String,
    pub name: String,
    pub kind: LvmType,
}

/// An array of the layout, with the properties that identify the array in the installed system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FinishedArray {
    pub device: DevicePath,
    pub uuid: Uuid,
    pub level: RaidLevel,
    pub metadata: String,
}

/// An EFI system partition: a partition of type ef00 with a vfat filesystem. It may be a member of a mirror if the
/// firmware can read this member like a plain partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Esp {
    /// Device path of the partition, such as `/dev/sda1`.
    pub device: DevicePath,
    /// Disk that contains the partition, such as `/dev/sda`.
    pub disk: DevicePath,
    pub number: u32,
    /// Unique partition GUID (PARTUUID).
    pub guid: Uuid,
    pub first_lba: u64,
    pub sectors: u64,
    pub sector_bytes: u32,
    /// Mount point in the target: the mount point of the partition, or of the mirror that contains the partition.
    #[serde(with = "common::empty_string_as_none")]
    pub path: Option<String>,
    /// True if the filesystem is preserved. It may contain files of other systems.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub preserved: bool,
    /// Mirror that contains the partition. Each write to the mirror reaches all of its members.
    #[serde(with = "common::empty_string_as_none")]
    pub array: Option<DevicePath>,
}
