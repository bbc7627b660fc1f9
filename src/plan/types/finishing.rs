//! What is known of a machine for making the image's files boot on it.

use super::{ByteRange, FstabEntry, MachineFiles};
use crate::allocation::Finish;
use crate::device::DevicePath;
use crate::inventory::Firmware;
use crate::layout::{Format, LvmType, RaidLevel};
use crate::network::Network;
use serde::Serialize;
use std::collections::BTreeMap;
use uuid::Uuid;

/// A disk from which a BIOS boots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootDisk {
    pub device: DevicePath,
    /// Between the partition table that it gets and its first partition, where a boot loader has room. None on a disk without such a
    /// table, and on one with sectors that no BIOS boots from.
    pub gap: Option<ByteRange>,
}

/// All that is needed to make the image boot on this machine, and its owner able to log in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Finishing {
    pub way: Finish,
    /// Programs of the image get the nodes of these devices and of their partitions.
    pub devices: Vec<DevicePath>,
    pub firmware: Firmware,
    pub root: RootFilesystem,
    /// Mounted at `/boot`, where that is a filesystem of its own.
    pub boot: Option<BootFilesystem>,
    /// All of the layout, made or kept.
    pub arrays: Vec<FinishedArray>,
    /// Names of all volume groups of the layout.
    pub groups: Vec<String>,
    /// Where an EFI firmware finds a boot loader.
    pub esps: Vec<Esp>,
    /// The disks below `/boot`, or below `/`: where a BIOS finds a boot loader.
    pub boot_disks: Vec<BootDisk>,
    pub fstab: Vec<FstabEntry>,
    /// Where cloud-init's seed comes to lie; without it, in the tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
    pub network: WantedNetwork,
    /// What the image's installer is told of its OS definition, and of the machine in that one's words.
    #[serde(skip)]
    pub environment: BTreeMap<String, String>,
    /// The allocation with its passwords and keys, and what else the installed system is told.
    #[serde(skip)]
    pub files: Box<MachineFiles>,
}

/// A filesystem for cloud-init's seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Seed {
    pub device: DevicePath,
    /// Where it is mounted in the target, if it is.
    #[serde(with = "crate::empty")]
    pub path: Option<String>,
}

/// What the network of the installed system is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WantedNetwork {
    /// Nobody has said anything.
    #[default]
    Unsaid,
    /// By `network` of the allocation.
    Described(Network),
    /// By metal-stack's `networks`, which a routing daemon would announce.
    Announced(Network),
}

/// The filesystem with `/`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RootFilesystem {
    /// Empty when a raw image brings it.
    pub uuid: String,
    pub format: Option<Format>,
    /// The arrays below it.
    pub arrays: Vec<Uuid>,
    /// If it lies on one.
    pub volume: Option<RootVolume>,
}

/// A filesystem from which a boot loader reads the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootFilesystem {
    pub uuid: String,
    pub format: Format,
}

/// The logical volume with `/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RootVolume {
    pub group: String,
    pub name: String,
    pub kind: LvmType,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FinishedArray {
    pub device: DevicePath,
    pub uuid: Uuid,
    pub level: RaidLevel,
    pub metadata: String,
}

/// An EFI system partition: of type ef00 with a vfat filesystem, or a member of a mirror that the firmware reads as one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Esp {
    /// `/dev/sda1`.
    pub device: DevicePath,
    /// `/dev/sda`.
    pub disk: DevicePath,
    pub number: u32,
    /// PARTUUID.
    pub guid: Uuid,
    pub first_lba: u64,
    pub sectors: u64,
    pub sector_bytes: u32,
    /// Where it is mounted in the target, itself or the mirror that it is a member of.
    #[serde(with = "crate::empty")]
    pub path: Option<String>,
    /// The mirror, which writes to all its members at once.
    #[serde(with = "crate::empty")]
    pub array: Option<DevicePath>,
}
