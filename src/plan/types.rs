//! What will be done: the plan as data. Everything is decided here; the executor only obeys.

mod booting;
mod created;
mod finishing;
mod firmware;
mod handed;
mod identity;
mod injected;
mod luks;
mod member;
mod operation;
mod persistent;
mod received;
mod request;
mod stage;
mod summary;
mod zero_proof;

pub use crate::allocation::BootOrder;
pub use booting::BootEntries;
pub use created::CreateSystem;
pub use finishing::{
    BootDisk, BootFilesystem, Esp, FinishedArray, Finishing, RootFilesystem, RootVolume, Seed, WantedNetwork,
};
pub use firmware::{FirmwarePlan, PlannedVariable, RemoveVariables, VariableOrigin, VariableRemoval};
pub use handed::{Assigned, Closing, MachineFiles};
pub use identity::DiskIdentity;
pub use injected::InjectedFile;
pub use luks::{Container, CrypttabEntry, OpenContainer};
pub use member::Member;
pub use operation::{ActivateGroup, AssembleArray, OfRun, OnDevice, Operation, Restore};
pub use persistent::{
    Filling, Persistent, PersistentVerdict, PersistentVolume, PreparePersistent, Prepared, SparseVolume,
    WritePersistent, array_part_path, mapping_path, partition_bytes,
};
pub use received::{FromDevice, Receive, Received};
pub use request::{Claim, Memory, Mode, Request, Subject, Waiver};
pub use stage::{Leaves, Stage, StageName};
pub use summary::{Found, Summary, Torn};
pub use zero_proof::ZeroProof;

use super::{Extents, Verdicts};
use crate::device::{DevicePath, KernelName, LayoutPath};
use crate::inventory::{EraseMethod, OpaqueObject};
use crate::layout::{Format, LvmType, RaidLevel, Size};
use crate::marker::Marker;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The whole run: each disk's verdict, then the stages in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    pub mode: Mode,
    pub subject: Subject,
    pub layout: String,
    pub disks: Vec<DiskPlan>,
    /// `steps` in JSON, as an operator reads them.
    #[serde(rename = "steps")]
    pub stages: Vec<Stage>,
    /// Index in `stages` of the first one that destroys something; `stages.len()` when none does.
    pub point_of_no_return: usize,
    /// Lines of `/etc/fstab`, in mount order.
    pub fstab: Vec<FstabEntry>,
    /// UUID of the filesystem with `path: /`.
    pub root_uuid: String,
    /// The installation that is on the disks already: then nothing is destroyed, and it is booted.
    pub already: Option<Marker>,
    /// What a person must not overlook: a degraded array, a replaced disk.
    pub warnings: Vec<String>,
    /// What loses members, and is on disks that stay as well.
    pub torn: Vec<Torn>,
    /// Objects whose content was not seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub opaque: Vec<OpaqueObject>,
    pub summary: Summary,
    /// Bytes of what is made or kept, at least, by its device path; what nobody can tell before is not there.
    pub sizes: BTreeMap<DevicePath, u64>,
    /// What each stage may write.
    pub extents: Vec<Extents>,
    /// Volumes of Kubernetes, in the order of the allocation's list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<PersistentVolume>,
    /// Boot variables of the firmware; none of a BIOS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<FirmwarePlan>,
    /// What is approved of it; none of a plan that destroys nothing.
    #[serde(skip)]
    pub verdicts: Option<Verdicts>,
}

impl Plan {
    /// What a failure of this stage leaves behind. Before the point of no return, and in a plan without one, no disk has changed.
    pub fn leaves(&self, stage: usize) -> Leaves {
        match self.stages[stage].name.leaves() {
            Leaves::HalfMade | Leaves::Changed if stage < self.point_of_no_return => Leaves::Untouched,
            leaves => leaves,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Wipe,
    Keep,
    /// To be kept, but there is nothing on it, as on a disk that was replaced: made anew.
    Make,
    /// Not named by the layout: never written, in any mode.
    #[default]
    NotOurs,
    /// Not named by the layout, but by a volume of Kubernetes: written for that alone, and only while it is blank.
    Volumes,
}

impl Verdict {
    pub const ALL: [Verdict; 5] = [Verdict::Wipe, Verdict::Keep, Verdict::Make, Verdict::NotOurs, Verdict::Volumes];
}

/// One disk of the machine and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiskPlan {
    pub name: KernelName,
    pub device: DevicePath,
    pub size_bytes: u64,
    pub model: String,
    pub serial: String,
    pub verdict: Verdict,
    /// The name that the layout has for it, where that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed_as: Option<LayoutPath>,
    pub found: Found,
    /// What is on it now, for a person.
    pub now: String,
    /// What runs on it now, for a person: a tree, one line each, children indented below what they lie on.
    pub running: Vec<String>,
}

/// What comes back on kept disks, tried while nothing is wiped yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rehearsal {
    /// Disks, partitions and what mount options name: each has a snapshot in memory, which is used in its place.
    pub over: Vec<DevicePath>,
    /// Arrays, groups and mounts in their order. Each filesystem is mounted alone.
    pub operations: Vec<Restore>,
}

/// Something that a reinstall keeps, and what identifies it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kept {
    pub object: KeptObject,
    /// By name: `guid`, `partition 1`, `members`, `label`.
    pub identity: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptObject {
    /// By kernel name, which does not change while the agent runs.
    Disk(KernelName),
    /// `device` is only for people: kernel names of arrays change while the agent runs.
    Array {
        uuid: Uuid,
        #[serde(with = "crate::empty")]
        device: Option<DevicePath>,
    },
    /// By LVM's UUID; `name` is only for people. What this plan adds to it is no part of what is kept.
    Group {
        uuid: String,
        name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        added: Vec<String>,
    },
    /// By what it lies on. The device of the plan and where it is mounted are only for people.
    Filesystem {
        device: DevicePath,
        #[serde(with = "crate::empty")]
        path: Option<String>,
        on: LiesOn,
    },
}

/// A block device by what does not change while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LiesOn {
    /// A disk or partition, by its path.
    Device(DevicePath),
    Array(Uuid),
    /// The open mapping of a container, by its path, which has the container's UUID in it.
    Mapping(DevicePath),
    /// A logical volume, by LVM's UUID of its group.
    Volume {
        group: String,
        name: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    pub start: u64,
    pub length: u64,
}

/// Something that holds a disk, and how it is taken down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// swapoff(2).
    Swap { device: DevicePath },
    /// `mdadm --stop`.
    Array { device: DevicePath },
    /// `dmsetup remove`: dm-crypt, anything of the device mapper.
    Mapping { device: DevicePath },
    /// The same for a logical volume, `GROUP/VOLUME`.
    Volume { device: DevicePath, name: String },
    /// `/sys/block/NAME/bcache/stop`.
    Bcache { device: DevicePath },
}

/// One disk to be made empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WipeDisk {
    pub device: DevicePath,
    /// Compared on the descriptor that is written.
    pub identity: DiskIdentity,
    /// Tried in this order until one succeeds; then `zero` is made sure of.
    pub methods: Vec<EraseMethod>,
    /// Must one of `methods` succeed?
    pub strict: bool,
    /// For all of it.
    pub budget_seconds: u64,
    /// Zeroed before all else, one after the other, each durable before the next is begun: then the disk boots nothing.
    pub first: Vec<ByteRange>,
    /// Zeroed and read back as zero, whatever was done before.
    pub zero: Vec<ByteRange>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateArray {
    /// `/dev/md1`, `/dev/md/root`.
    pub device: DevicePath,
    pub level: RaidLevel,
    /// `1.2`, or what the layout asks for.
    pub metadata: String,
    pub uuid: Uuid,
    /// Members first, then the spares.
    pub devices: Vec<Member>,
    /// How many of `devices` are spares.
    pub spares: u32,
    /// The layout's, without the metadata.
    pub createoptions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateGroup {
    pub name: String,
    pub devices: Vec<DevicePath>,
    pub tags: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateVolume {
    pub name: String,
    pub group: String,
    /// `/dev/GROUP/NAME`.
    pub device: DevicePath,
    /// All physical volumes of the group.
    pub physical: Vec<DevicePath>,
    #[serde(rename = "size_mib")]
    pub size: Size,
    pub kind: LvmType,
}

/// A raw image on its disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BurnDisk {
    /// Of the image.
    pub name: String,
    pub device: DevicePath,
    /// Compared on the descriptor that is written.
    pub identity: DiskIdentity,
    /// Of the disk: before anything is written, the image must be for one of this size with these sectors.
    pub size_bytes: u64,
    pub sector_bytes: u32,
    /// Number of the partition that takes all that is left of the disk.
    pub grow: Option<u32>,
    /// What the layout mounts, and so must be in it.
    pub filesystems: Vec<ExpectedFilesystem>,
    /// UUIDs that must not be in it, in lower case, and the device that has each: it is on a disk that stays.
    pub taken: BTreeMap<String, DevicePath>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<AddedPartition>,
}

/// A partition at the end of a disk, behind all that a raw image has brought, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AddedPartition {
    pub name: String,
    pub guid: Uuid,
    /// A filesystem as its bytes. It holds what a machine is told in confidence.
    #[serde(skip)]
    pub content: Vec<u8>,
}

/// A filesystem that a raw image brings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpectedFilesystem {
    pub number: u32,
    /// `/dev/sda2`, where the kernel will show it.
    pub device: DevicePath,
    /// Mount point in the target.
    pub path: String,
    pub format: Format,
    /// Not compared where the layout says nothing.
    pub label: Option<String>,
}

/// A GPT, with every number decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartitionTable {
    pub device: DevicePath,
    /// Compared on the descriptor that is written.
    pub identity: DiskIdentity,
    pub guid: Uuid,
    pub sector_bytes: u32,
    pub partitions: Vec<NewPartition>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewPartition {
    pub number: u32,
    /// `/dev/sda1`, where the kernel will show it.
    pub device: DevicePath,
    /// First and last sector, both included, in units of `sector_bytes`.
    pub first_lba: u64,
    pub last_lba: u64,
    pub kind: Uuid,
    pub guid: Uuid,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MakeFilesystem {
    pub device: DevicePath,
    pub format: Format,
    pub label: Option<String>,
    /// As blkid and fstab write it: `1A2B-3C4D` for vfat, RFC 4122 for the others.
    pub uuid: String,
    pub createoptions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TryArray {
    /// With a name and a UUID of its own, so that nobody takes it for the real one.
    pub make: CreateArray,
    /// One for each of its devices.
    pub member_bytes: Vec<u64>,
    /// Where a device's size cannot be said before it is made: what is tried one after the other when `member_bytes` is refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub or_member_bytes: Vec<Vec<u64>>,
    pub sector_bytes: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TryFilesystem {
    /// With a UUID of its own: two filesystems with one are not mounted, or taken for one.
    pub make: MakeFilesystem,
    pub size_bytes: u64,
    /// Where its size cannot be said before it is made: what is tried one after the other when `size_bytes` is refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub or_size_bytes: Vec<u64>,
    pub sector_bytes: u32,
    /// The options that it is mounted with; `None` when it is not mounted.
    pub mount: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MountFilesystem {
    /// `tmpfs` for a tmpfs, as mount(2) wants it.
    pub device: DevicePath,
    /// Mount point in the target: `/`, `/boot/efi`.
    pub path: String,
    pub format: Format,
    pub options: Vec<String>,
    /// The other devices of a kept btrfs on several: disks and partitions, also of disks that the layout does not name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<DevicePath>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FstabEntry {
    /// `UUID=…` or `tmpfs`.
    pub source: String,
    /// Mount point, `none` for swap.
    pub path: String,
    pub format: Format,
    pub options: Vec<String>,
    /// fsck order: 1 for root, 2 for the others, 0 for no check.
    pub pass: u8,
}
