//! The plan as data. All decisions are made here; the executor only carries them out.

mod array_slot;
mod boot_entries;
mod bootable;
mod create_system;
mod disk_identity;
mod firmware;
mod injected_file;
mod k8s_volumes;
mod luks;
mod migration;
mod operation;
mod operation_args;
mod request;
mod stage;
mod summary;
mod zero_proof;

pub use array_slot::ArraySlot;
pub use boot_entries::BootEntries;
pub use bootable::{
    BootDisk, BootFilesystem, Esp, FinishInputs, FinishedArray, RequestedNetwork, RootFilesystem, RootVolume,
    SeedFilesystem,
};
pub use create_system::CreateSystem;
pub use disk_identity::DiskIdentity;
pub use firmware::{FirmwarePlan, PlannedVariable, RemoveVariables, VariableOrigin, VariableRemoval};
pub use injected_file::InjectedFile;
pub use k8s_volumes::{
    ManifestVolume, PersistentVerdict, PersistentVolume, PreparePersistent, SparseVolume, VolumeFilling, VolumePath,
    WritePersistent, array_partition_link, logical_volume_link, spanning_partition_bytes,
};
pub use luks::{CrypttabEntry, LuksContainer, OpenContainer};
pub use migration::{ReceiveMigration, ReceivedDevice, SourceDevice};
pub use model::allocation::BootOrder;
pub use operation::{ActivateGroup, AssembleArray, DeviceOp, Operation, RestoreOp, SessionOp};
pub use operation_args::{FinalReport, MachineFiles, PlanAssignment};
pub use request::{InstallClaim, InstallMode, MarkerWaiver, PlanRequest, PlanSubject, RecordSource};
pub use stage::{FailureState, PlanStage, StageName};
pub use summary::{DiskContent, PlanSummary, TornObject};
pub use zero_proof::ZeroProof;

use super::{ApprovalSummary, StageExtents};
use model::device::{DevicePath, KernelName, LayoutPath};
use model::install_marker::InstallMarker;
use model::inventory::{EraseMethod, OpaqueObject};
use model::layout::{FilesystemFormat, LvmType, RaidLevel, RequestedSize};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// A plan: the verdict on each disk, and the stages of the run in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    pub mode: InstallMode,
    pub subject: PlanSubject,
    pub layout: String,
    pub disks: Vec<DiskPlan>,
    /// Stages in order. The JSON field is `steps`, the word that operators read.
    #[serde(rename = "steps")]
    pub stages: Vec<PlanStage>,
    /// Index in `stages` of the first destructive stage; `stages.len()` if no stage is destructive.
    pub point_of_no_return: usize,
    /// Lines of `/etc/fstab`, in mount order.
    pub fstab: Vec<FstabEntry>,
    /// UUID of the filesystem with `path: /`.
    pub root_uuid: String,
    /// Marker of the installation that is already on the disks. If set, nothing is destroyed and that system is booted.
    pub already: Option<InstallMarker>,
    /// Conditions that an operator must not overlook: a degraded array, a replaced disk.
    pub warnings: Vec<String>,
    /// Objects that lose members and also have members on disks that are preserved.
    pub torn: Vec<TornObject>,
    /// Objects whose content could not be inspected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub opaque: Vec<OpaqueObject>,
    pub summary: PlanSummary,
    /// Minimum size in bytes of each created or preserved device; devices whose size cannot be predicted are absent.
    pub sizes: BTreeMap<DevicePath, u64>,
    /// Extents that each stage may write.
    pub extents: Vec<StageExtents>,
    /// Kubernetes volumes, in the order of the allocation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<PersistentVolume>,
    /// Boot variables of the UEFI firmware; `None` on a BIOS machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<FirmwarePlan>,
    /// Verdicts that an operator approves; `None` for a plan that destroys nothing.
    #[serde(skip)]
    pub verdicts: Option<ApprovalSummary>,
}

impl Plan {
    /// Returns the state that a failure of this stage leaves behind. Before the point of no return, and in a plan without one, no disk has
    /// changed.
    pub fn state_after_failure(&self, stage: usize) -> FailureState {
        match self.stages[stage].name.failure_state() {
            FailureState::HalfMade | FailureState::Changed if stage < self.point_of_no_return => {
                FailureState::Untouched
            }
            leaves => leaves,
        }
    }
}

/// Fate of a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskVerdict {
    Wipe,
    Keep,
    /// The layout preserves the disk, but it is blank, as after a replacement: it is recreated.
    Make,
    /// The layout does not list the disk: it is never written, in any mode.
    #[default]
    NotOurs,
    /// The layout does not list the disk, but a Kubernetes volume does: only the volume is written, and only while the disk is blank.
    Volumes,
}

impl DiskVerdict {
    pub const ALL: [DiskVerdict; 5] =
        [DiskVerdict::Wipe, DiskVerdict::Keep, DiskVerdict::Make, DiskVerdict::NotOurs, DiskVerdict::Volumes];
}

/// A disk of the machine and its verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiskPlan {
    pub name: KernelName,
    pub device: DevicePath,
    pub size_bytes: u64,
    pub model: String,
    pub serial: String,
    pub verdict: DiskVerdict,
    /// Name of the disk in the layout, if it differs from `device`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed_as: Option<LayoutPath>,
    pub found: DiskContent,
    /// Current content, as text for the operator.
    pub now: String,
    /// Objects in use on the disk, as text for the operator: a tree, one object per line, indented below the object that it lies on.
    pub running: Vec<String>,
}

/// Trial activation of all preserved objects before anything is wiped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rehearsal {
    /// Disks, partitions and devices of mount options, each of which is replaced by a snapshot in memory.
    pub over: Vec<DevicePath>,
    /// Arrays, groups and mounts in order. Each filesystem is mounted separately.
    pub operations: Vec<RestoreOp>,
}

/// An object that a reinstall preserves, and its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PreservedObject {
    pub object: ObjectLocator,
    /// Identity by property: `guid`, `partition 1`, `members`, `label`.
    pub identity: BTreeMap<String, String>,
}

/// A preserved object, identified by a property that is stable while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectLocator {
    /// A disk by its kernel name, which is stable while the agent runs.
    Disk(KernelName),
    /// An array by UUID. `device` is informative only: kernel names of arrays change while the agent runs.
    Array {
        uuid: Uuid,
        #[serde(with = "common::serde_empty")]
        device: Option<DevicePath>,
    },
    /// A volume group by the UUID of LVM; `name` is informative only. Volumes in `added` are created by this plan and are not compared.
    Group {
        uuid: String,
        name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        added: Vec<String>,
    },
    /// A filesystem by its underlying device. `device` and `path` are informative only.
    Filesystem {
        device: DevicePath,
        #[serde(with = "common::serde_empty")]
        path: Option<String>,
        on: StableDevice,
    },
}

/// A block device, identified by a property that is stable while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StableDevice {
    /// A disk or partition, by path.
    Device(DevicePath),
    Array(Uuid),
    /// The open mapping of a LUKS container, by path, which contains the UUID of the container.
    Mapping(DevicePath),
    /// A logical volume, by the LVM UUID of its group and its name.
    Volume {
        group: String,
        name: String,
    },
}

/// A range of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    pub start: u64,
    pub length: u64,
}

/// A holder of a disk, and how it is released.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// Released with swapoff(2).
    Swap { device: DevicePath },
    /// Released with `mdadm --stop`.
    Array { device: DevicePath },
    /// Released with `dmsetup remove`: dm-crypt and other device-mapper targets.
    Mapping { device: DevicePath },
    /// A logical volume `GROUP/VOLUME`, also released with `dmsetup remove`.
    Volume { device: DevicePath, name: String },
    /// Released through `/sys/block/NAME/bcache/stop`.
    Bcache { device: DevicePath },
}

/// A disk that will be wiped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WipeDisk {
    pub device: DevicePath,
    /// Expected identity of the disk, verified on the open file descriptor before the first write.
    pub identity: DiskIdentity,
    /// Erase methods, tried in order until one succeeds. `zero` is ensured afterwards in any case.
    pub methods: Vec<EraseMethod>,
    /// Whether one of `methods` must succeed.
    pub strict: bool,
    /// Time limit for the whole disk, in seconds.
    pub budget_seconds: u64,
    /// Ranges that are zeroed first, one after the other, each durable before the next one starts. Afterwards the disk is not bootable.
    pub first: Vec<ByteRange>,
    /// Ranges that are zeroed and read back as zero, whatever `methods` did.
    pub zero: Vec<ByteRange>,
}

/// An array to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateArray {
    /// `/dev/md1`, `/dev/md/root`.
    pub device: DevicePath,
    pub level: RaidLevel,
    /// Version of the superblock: `1.2`, unless the layout specifies another.
    pub metadata: String,
    pub uuid: Uuid,
    /// Members, followed by the spares.
    pub devices: Vec<ArraySlot>,
    /// Number of spares among `devices`.
    pub spares: u32,
    /// Options from the layout, without the metadata version.
    pub createoptions: Vec<String>,
}

/// A volume group to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateGroup {
    pub name: String,
    pub devices: Vec<DevicePath>,
    pub tags: Vec<String>,
}

/// A logical volume to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateVolume {
    pub name: String,
    pub group: String,
    /// `/dev/GROUP/NAME`.
    pub device: DevicePath,
    /// All physical volumes of the group.
    pub physical: Vec<DevicePath>,
    #[serde(rename = "size_mib")]
    pub size: RequestedSize,
    pub kind: LvmType,
}

/// A raw image and the disk that it is written to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BurnDisk {
    /// Name of the image.
    pub name: String,
    pub device: DevicePath,
    /// Expected identity of the disk, verified on the open file descriptor before the first write.
    pub identity: DiskIdentity,
    /// Size of the disk. Before the first write, the image is checked against this size and sector size.
    pub size_bytes: u64,
    pub sector_bytes: u32,
    /// Number of the partition that grows to the end of the disk.
    pub grow: Option<u32>,
    /// Filesystems that the layout mounts, which the image must therefore contain.
    pub filesystems: Vec<ExpectedFilesystem>,
    /// UUIDs, in lower case, that the image must not contain, each with the device on a preserved disk that already has it.
    pub taken: BTreeMap<String, DevicePath>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<AddedPartition>,
}

/// A partition at the end of a disk, after those of a raw image, with its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AddedPartition {
    pub name: String,
    pub guid: Uuid,
    /// Image of the filesystem. It may contain confidential data of the machine.
    #[serde(skip)]
    pub content: Vec<u8>,
}

/// A filesystem that a raw image must contain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpectedFilesystem {
    pub number: u32,
    /// Device name that the kernel will assign, such as `/dev/sda2`.
    pub device: DevicePath,
    /// Mount point in the target.
    pub path: String,
    pub format: FilesystemFormat,
    /// Expected label; not compared if the layout specifies none.
    pub label: Option<String>,
}

/// A GPT with all sector numbers decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartitionTable {
    pub device: DevicePath,
    /// Expected identity of the disk, verified on the open file descriptor before the first write.
    pub identity: DiskIdentity,
    pub guid: Uuid,
    pub sector_bytes: u32,
    pub partitions: Vec<NewPartition>,
}

/// A partition to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewPartition {
    pub number: u32,
    /// Device name that the kernel will assign, such as `/dev/sda1`.
    pub device: DevicePath,
    /// First and last sector, both included, in units of `sector_bytes`.
    pub first_lba: u64,
    pub last_lba: u64,
    pub kind: Uuid,
    pub guid: Uuid,
    pub name: String,
}

/// A filesystem to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MakeFilesystem {
    pub device: DevicePath,
    pub format: FilesystemFormat,
    pub label: Option<String>,
    /// UUID in the notation of blkid and fstab: `1A2B-3C4D` for vfat, RFC 4122 for the others.
    pub uuid: String,
    pub createoptions: Vec<String>,
}

/// A trial of an array in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TryArray {
    /// The array to create, with a distinct name and UUID so that it cannot be mistaken for the real one.
    pub make: CreateArray,
    /// Size in bytes of each of its devices.
    pub member_bytes: Vec<u64>,
    /// Alternative sizes, tried in turn if `member_bytes` is refused; for devices whose size is unknown before they are created.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub or_member_bytes: Vec<Vec<u64>>,
    pub sector_bytes: u32,
}

/// A trial of a filesystem in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TryFilesystem {
    /// The filesystem to create, with a distinct UUID: two filesystems with the same UUID are not mounted, or are confused.
    pub make: MakeFilesystem,
    pub size_bytes: u64,
    /// Alternative sizes, tried in turn if `size_bytes` is refused; for a filesystem whose size is unknown before it is created.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub or_size_bytes: Vec<u64>,
    pub sector_bytes: u32,
    /// Mount options; `None` if the filesystem is not mounted.
    pub mount: Option<Vec<String>>,
}

/// A filesystem to mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MountFilesystem {
    /// Device; `tmpfs` for a tmpfs, the source that mount(2) requires.
    pub device: DevicePath,
    /// Mount point in the target: `/`, `/boot/efi`.
    pub path: String,
    pub format: FilesystemFormat,
    pub options: Vec<String>,
    /// Other devices of a preserved multi-device btrfs: disks and partitions, including those on disks that the layout does not list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<DevicePath>,
}

/// A line of fstab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FstabEntry {
    /// `UUID=…` or `tmpfs`.
    pub source: String,
    /// Mount point, `none` for swap.
    pub path: String,
    pub format: FilesystemFormat,
    pub options: Vec<String>,
    /// fsck order: 1 for root, 2 for the others, 0 for no check.
    pub pass: u8,
}
