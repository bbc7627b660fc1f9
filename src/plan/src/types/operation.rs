//! Operations, which the executor carries out one after the other. Each operation contains all of its inputs, so that the executor needs no
//! lookups.
//!
//! Matches on operations have no catch-all arm: a new operation does not compile until every match handles it.

use super::{
    BootEntries, BurnDisk, ByteRange, CreateArray, CreateGroup, CreateSystem, CreateVolume, CrypttabEntry,
    DiskIdentity, FinalReport, FinishInputs, FstabEntry, Holder, InjectedFile, LuksContainer, MachineFiles,
    MakeFilesystem, MountFilesystem, OpenContainer, PartitionTable, PreparePersistent, PreservedObject,
    ReceiveMigration, Rehearsal, RemoveVariables, TryArray, TryFilesystem, WipeDisk, WritePersistent, ZeroProof,
};
use crate::{ImageNeeds, StageExtents};
use model::allocation::AllocatedImage;
use model::device::DevicePath;
use model::install_marker::{InstallMarker, RecordedDisk};
use model::os_definition::SelectedDefinition;
use serde::Serialize;
use uuid::Uuid;

/// A single operation of the executor.
#[allow(
    clippy::large_enum_variant,
    reason = "a plan has a few dozen operations, and one of them holds the install marker"
)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Operation {
    Device(DeviceOp),
    Run(SessionOp),
}

/// An operation on devices alone. It uses no state that earlier operations left in the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceOp {
    /// Releases a holder of disks that will be wiped, or one that was only assembled for inspection.
    Release(Holder),
    /// Checks again for holders of these disks and of their partitions; fails if there are any.
    AssertFree {
        disks: Vec<DevicePath>,
    },
    /// Reads these devices completely, which samples showed to be blank, and fails if a byte is not zero.
    ProveZeros(Vec<ZeroProof>),
    WipeDisk(WipeDisk),
    WriteTable(PartitionTable),
    CreateArray(CreateArray),
    CreateGroup(CreateGroup),
    CreateVolume(CreateVolume),
    /// Creates a LUKS2 container and opens it.
    CreateContainer(LuksContainer),
    OpenContainer(OpenContainer),
    /// Closes the mapping, so that no key remains in the kernel.
    CloseContainer {
        mapping: DevicePath,
    },
    /// Stops every array and mapping on these devices, which were assembled only for inspection.
    TakeDown {
        devices: Vec<DevicePath>,
    },
    AssembleArray(AssembleArray),
    ActivateGroup(ActivateGroup),
    /// Creates the array from devices in memory, so that mdadm or the kernel refuses it before anything is destroyed.
    TryArray(TryArray),
    /// Creates a filesystem in memory and mounts it, for the same reason.
    TryFilesystem(TryFilesystem),
    MakeFilesystem(MakeFilesystem),
    /// Creates a Kubernetes volume: on a blank disk, in the free space of a preserved group, or on a device that this plan creates.
    PreparePersistent(Box<PreparePersistent>),
    /// Deactivates a volume group that this plan created or activated, so that the arrays below it can be stopped.
    DeactivateGroup {
        name: String,
        devices: Vec<DevicePath>,
    },
    /// Stops an array, so that its superblocks are marked clean.
    StopArray {
        device: DevicePath,
    },
}

/// Assembles a preserved array under its name in the layout, writable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AssembleArray {
    pub device: DevicePath,
    pub uuid: Uuid,
    pub members: Vec<DevicePath>,
}

/// Activates these volumes of a preserved group, writable. Other volumes of the group are not affected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActivateGroup {
    pub name: String,
    pub devices: Vec<DevicePath>,
    pub volumes: Vec<String>,
}

/// Activates or extends a preserved object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoreOp {
    AssembleArray(AssembleArray),
    ActivateGroup(ActivateGroup),
    OpenContainer(OpenContainer),
    Mount(MountFilesystem),
    /// Adds a volume to a preserved group. Used only in the rehearsal.
    CreateVolume(CreateVolume),
}

impl From<RestoreOp> for Operation {
    fn from(restore: RestoreOp) -> Operation {
        match restore {
            RestoreOp::AssembleArray(array) => Operation::Device(DeviceOp::AssembleArray(array)),
            RestoreOp::ActivateGroup(group) => Operation::Device(DeviceOp::ActivateGroup(group)),
            RestoreOp::OpenContainer(open) => Operation::Device(DeviceOp::OpenContainer(open)),
            RestoreOp::Mount(mount) => Operation::Run(SessionOp::Mount(mount)),
            RestoreOp::CreateVolume(volume) => Operation::Device(DeviceOp::CreateVolume(volume)),
        }
    }
}

/// An operation on state of the session: the image, the mounted target, locks, the control plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionOp {
    /// Requests the size and digest of the image from its server.
    ReachImage {
        name: String,
        /// URL without secrets, for display.
        url: String,
        /// All locations of the image, with their secrets.
        #[serde(skip)]
        image: Box<AllocatedImage>,
        /// The disk that a raw image is written to. An image that does not fit it is refused by this operation.
        #[serde(skip)]
        onto: Option<BurnDisk>,
        /// Requirements for a root tree. An image whose manifest does not meet them is refused by this operation.
        #[serde(skip)]
        needs: Option<ImageNeeds>,
    },
    /// Runs the `verify` program of the OS definition, which accepts or rejects the parameters. It is sandboxed, without disks and network.
    VerifyDefinition {
        /// Name of the OS definition, with its variant.
        os: String,
        /// Names of the parameters that are set. Their values may be secret.
        parameters: Vec<String>,
        #[serde(skip)]
        chosen: Box<SelectedDefinition>,
    },
    /// Checks that the ramdisk contains the programs that the `create` program of the OS definition needs.
    FindPrograms {
        /// Name of the OS definition, with its variant.
        os: String,
        programs: Vec<String>,
    },
    /// Checks that the device is still the disk that the plan was made for, because device names can change. Keeps it open.
    IdentifyDisk(DiskIdentity),
    /// Checks that the program that opens these containers, and the key of each, are available.
    CheckContainers(Vec<LuksContainer>),
    /// Sets the disk read-only at the block layer, until `UnlockDisk` or `FlushDisks`.
    LockDisk {
        device: DevicePath,
        /// Ranges that must not be written while the plan runs. They are read now, and compared by `ProveKept`.
        untouched: Vec<ByteRange>,
    },
    /// Makes a preserved disk writable again. No destructive operation follows.
    UnlockDisk {
        device: DevicePath,
        /// Numbers of the partitions that stay read-only because the layout does not list them.
        others: Vec<u32>,
    },
    /// Activates all preserved objects, and deactivates them again. Snapshots keep all changes in memory.
    Rehearse(Rehearsal),
    /// Informs the control plane that this plan will now destroy data, and asks whether to continue.
    TellPointOfNoReturn {
        /// Id of the allocation.
        allocation: String,
        #[serde(with = "common::serde_empty")]
        order: Option<String>,
        /// Disks by their names in the layout.
        disks: Vec<RecordedDisk>,
        /// Extents of the plan.
        #[serde(skip)]
        extents: Vec<StageExtents>,
        /// Hash of the approval that was compared with the plan.
        #[serde(skip_serializing_if = "Option::is_none")]
        approved: Option<String>,
        /// `sha256:HEX` of the secret in the marker of this attempt.
        #[serde(skip)]
        secret_digest: Option<String>,
    },
    /// Asks the control plane whether the migration was cancelled. If it does not respond, the final report repeats the question.
    MoveStands {
        order: String,
    },
    Mount(MountFilesystem),
    /// Mounts an installed system that is booted unchanged. The mount is read-only, whatever its options are.
    MountReadOnly(MountFilesystem),
    /// Writes a raw image to a disk, fits its partition table to the disk, and checks for the filesystems that the layout expects.
    BurnDisk(BurnDisk),
    /// Fills devices with data that another machine sends.
    Receive(ReceiveMigration),
    /// Runs the `create` program of the OS definition instead of writing a raw image; otherwise like `BurnDisk`.
    CreateSystem(Box<CreateSystem>),
    /// Grows a mounted filesystem to the size of its partition.
    GrowFilesystem(MountFilesystem),
    /// Streams the image to the mounted root.
    BurnImage {
        name: String,
        /// Mount points of preserved filesystems that will hide files of the image.
        hidden: Vec<String>,
        /// Mount points of preserved filesystems to which files of the image are added.
        merged: Vec<String>,
        /// Mount points of filesystems that this plan creates, except the root.
        fresh: Vec<String>,
        /// Memory of the machine in bytes, from which the kernel's writeback threshold is derived.
        memory_bytes: u64,
    },
    /// Writes `/etc/metal/install.yaml`, `userdata` and `disk.json`.
    WriteMachineFiles {
        #[serde(skip)]
        files: Box<MachineFiles>,
    },
    /// Adds files to the mounted filesystem, or deletes them.
    InjectFiles(Vec<InjectedFile>),
    /// Makes the files of the image bootable: with the installer of the image in a chroot, or without one.
    Finish(Box<FinishInputs>),
    /// Like `Finish`, for a raw image, which was built for any machine: without an installer it keeps its boot loader, and
    /// `/etc/metal/boot-info.yaml` is derived from the configuration of that boot loader.
    AdaptImage(Box<FinishInputs>),
    /// Makes a system from another machine bootable on this one, without other changes.
    AdaptMoved(Box<FinishInputs>),
    /// Writes files of the target for Kubernetes volumes: sparse files, units, and `/etc/metal/volumes.yaml`.
    WritePersistent(WritePersistent),
    /// Writes `/etc/fstab`, in mount order.
    WriteFstab(Vec<FstabEntry>),
    /// Appends lines to the fstab of the image.
    ExtendFstab(Vec<FstabEntry>),
    /// Writes `/etc/crypttab` and the key files.
    WriteCrypttab(Vec<CrypttabEntry>),
    /// Looks for a boot loader on the mounted EFI system partition.
    FindLoader,
    /// Removes boot variables of earlier systems from the firmware.
    RemoveVariables(RemoveVariables),
    /// Registers boot entries with the firmware, through efivarfs.
    WriteBootEntries(BootEntries),
    /// Reads `/etc/metal/boot-info.yaml` and loads kernel and initrd with `kexec_file_load`.
    LoadKernel,
    /// Reads the identities of preserved objects and the protected ranges again. All must be unchanged.
    ProveKept(Vec<PreservedObject>),
    /// Writes `/etc/metal/drophammer.json`. It is the last file, so a system that contains it is complete.
    WriteMarker(#[serde(serialize_with = "serialize_without_secret")] InstallMarker),
    /// Unmounts everything, and fails if anything stays mounted.
    Unmount,
    /// Flushes the write caches of the disks, and makes every locked disk writable again.
    FlushDisks {
        disks: Vec<DevicePath>,
    },
    Report(FinalReport),
    Kexec,
}

/// Serializes a marker for readers of the plan, without the secret of its attempt.
fn serialize_without_secret<S: serde::Serializer>(marker: &InstallMarker, serializer: S) -> Result<S::Ok, S::Error> {
    InstallMarker { secret: None, ..marker.clone() }.serialize(serializer)
}
