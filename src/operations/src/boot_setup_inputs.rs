//! Properties of a machine that are needed to make the files of the image bootable on this machine.

use crate::{ByteRange, FstabEntry, MachineFiles};
use model::allocation::FinisherChoice;
use model::device_name::DevicePath;
use model::inventory::FirmwareType;
use model::layout::{FilesystemFormat, LvmType, RaidLevel};
use netconfig::NetworkConfig;
use serde::Serialize;
use std::collections::BTreeMap;
use uuid::Uuid;

/// A disk from which a BIOS boots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootDisk {
    pub device: DevicePath,
    /// Gap between the partition table and the first partition, for a boot loader. `None` if this plan does not write
    /// the partition table of the disk, or if a BIOS cannot boot from disks with the sector size of this disk.
    pub gap: Option<ByteRange>,
}

/// All data required to make the image bootable on this machine, and to allow the owner of the machine to log in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FinishInputs {
    pub way: FinisherChoice,
    /// Devices that programs of the image may access; the partitions of these devices are included.
    pub devices: Vec<DevicePath>,
    pub firmware: FirmwareType,
    pub root: RootFilesystem,
    /// The filesystem mounted at `/boot`; `None` if `/boot` is on the root filesystem.
    pub boot: Option<BootFilesystem>,
    /// Arrays of the layout, created or preserved.
    pub arrays: Vec<FinishedArray>,
    /// Names of the volume groups of the layout.
    pub groups: Vec<String>,
    /// EFI system partitions, in which an EFI firmware finds a boot loader.
    pub esps: Vec<Esp>,
    /// Disks that contain `/boot` (or `/`, if `/boot` is not separate). A BIOS finds the boot loader on these disks.
    pub boot_disks: Vec<BootDisk>,
    pub fstab: Vec<FstabEntry>,
    /// Mount points, except `/`, of the mounted filesystems that are not preserved and store extended attributes.
    #[serde(skip)]
    pub new_mounts: Vec<String>,
    /// Filesystem for the cloud-init seed; if `None`, the seed is written to the root filesystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<SeedFilesystem>,
    pub network: RequestedNetwork,
    /// Environment of the image's installer: the parameters of the OS definition, and properties of the machine in
    /// variables with the names that OS definitions use.
    #[serde(skip)]
    pub environment: BTreeMap<String, String>,
    /// The allocation with its passwords and keys, and other data for files of the installed system.
    #[serde(skip)]
    pub files: Box<MachineFiles>,
}

/// The filesystem for the cloud-init seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SeedFilesystem {
    pub device: DevicePath,
    /// Mount point of the filesystem in the target; `None` if it is not mounted.
    #[serde(with = "common::serde_empty")]
    pub path: Option<String>,
}

/// Requested network configuration of the installed system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestedNetwork {
    /// No network configuration was requested.
    #[default]
    Unsaid,
    /// Configuration from `network` of the allocation.
    Described(NetworkConfig),
    /// Configuration derived from metal-stack's `networks`, which are intended for a routing daemon that announces the
    /// addresses.
    Announced(NetworkConfig),
}

/// The root filesystem.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RootFilesystem {
    /// UUID; empty if the filesystem is part of a raw image.
    pub uuid: String,
    pub format: Option<FilesystemFormat>,
    /// UUIDs of the arrays below the filesystem.
    pub arrays: Vec<Uuid>,
    /// The logical volume that contains the filesystem; `None` if the filesystem is not on a logical volume.
    pub volume: Option<RootVolume>,
}

/// A filesystem from which a boot loader reads the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootFilesystem {
    pub uuid: String,
    pub format: FilesystemFormat,
}

/// The logical volume that contains the root filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RootVolume {
    pub group: String,
    pub name: String,
    pub kind: LvmType,
}

/// An array of the layout, with the properties by which the installed system identifies the array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FinishedArray {
    pub device: DevicePath,
    pub uuid: Uuid,
    pub level: RaidLevel,
    pub metadata: String,
}

/// An EFI system partition, which has the type ef00 and a vfat filesystem. The partition may be a member of a mirror,
/// if the firmware can read a member like a plain partition.
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
    #[serde(with = "common::serde_empty")]
    pub path: Option<String>,
    /// The mirror that contains the partition. Writes to the mirror reach all of its members.
    #[serde(with = "common::serde_empty")]
    pub array: Option<DevicePath>,
}
