//! What the executor does, one thing after the other. Each operation carries all that it needs: the executor looks nothing up.
//!
//! There is no catch-all arm where operations are told apart: a new one does not compile until every place has an answer.

use super::{
    BootEntries, BurnDisk, ByteRange, Closing, Container, CreateArray, CreateGroup, CreateSystem, CreateVolume,
    CrypttabEntry, DiskIdentity, Finishing, FstabEntry, Holder, InjectedFile, Kept, MachineFiles, MakeFilesystem,
    MountFilesystem, OpenContainer, PartitionTable, PreparePersistent, Receive, Rehearsal, RemoveVariables, TryArray,
    TryFilesystem, WipeDisk, WritePersistent, ZeroProof,
};
use crate::allocation::Image;
use crate::definition::Chosen;
use crate::device::DevicePath;
use crate::marker::{MarkedDisk, Marker};
use crate::plan::{Extents, Needs};
use serde::Serialize;
use uuid::Uuid;

/// One thing that the executor does.
#[allow(
    clippy::large_enum_variant,
    reason = "a plan has a few dozen operations, and one of them holds the install marker"
)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Operation {
    Device(OnDevice),
    Run(OfRun),
}

/// Works on devices alone: it needs nothing that an earlier operation has left in the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDevice {
    /// Take down something that runs on disks to be wiped, or that was only assembled to look at it.
    Release(Holder),
    /// Look again at who holds these disks and their partitions, and fail if anybody does.
    AssertFree {
        disks: Vec<DevicePath>,
    },
    /// Read all of these devices, which were taken for blank by samples, and fail if there is anything but zeros.
    ProveZeros(Vec<ZeroProof>),
    WipeDisk(WipeDisk),
    WriteTable(PartitionTable),
    CreateArray(CreateArray),
    CreateGroup(CreateGroup),
    CreateVolume(CreateVolume),
    /// Make a LUKS2 container, and open it.
    CreateContainer(Container),
    OpenContainer(OpenContainer),
    /// Nothing of the key stays in the kernel.
    CloseContainer {
        mapping: DevicePath,
    },
    /// Take down every array and mapping on these devices. They were assembled only to look inside.
    TakeDown {
        devices: Vec<DevicePath>,
    },
    AssembleArray(AssembleArray),
    ActivateGroup(ActivateGroup),
    /// Make the array of devices in memory, so that a refusal of mdadm or the kernel comes before anything is
    /// destroyed.
    TryArray(TryArray),
    /// Make a filesystem in memory, and mount it there, for the same reason.
    TryFilesystem(TryFilesystem),
    MakeFilesystem(MakeFilesystem),
    /// Make a volume of Kubernetes: on a blank disk, in the free space of a kept group, or on what this plan has made.
    PreparePersistent(Box<PreparePersistent>),
    /// Deactivate a volume group that this plan made or activated, so that the arrays under it can be stopped.
    DeactivateGroup {
        name: String,
        devices: Vec<DevicePath>,
    },
    /// Stop an array, so that its superblocks say that it is clean.
    StopArray {
        device: DevicePath,
    },
}

/// Assemble a kept array under the layout's name, writable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AssembleArray {
    pub device: DevicePath,
    pub uuid: Uuid,
    pub members: Vec<DevicePath>,
}

/// Activate these volumes of a kept group, writable. Others of the group stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActivateGroup {
    pub name: String,
    pub devices: Vec<DevicePath>,
    pub volumes: Vec<String>,
}

/// Brings back one kept thing, or extends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Restore {
    AssembleArray(AssembleArray),
    ActivateGroup(ActivateGroup),
    OpenContainer(OpenContainer),
    Mount(MountFilesystem),
    /// Add a volume to a kept group. Only the rehearsal does it this way.
    CreateVolume(CreateVolume),
}

impl From<Restore> for Operation {
    fn from(restore: Restore) -> Operation {
        match restore {
            Restore::AssembleArray(array) => Operation::Device(OnDevice::AssembleArray(array)),
            Restore::ActivateGroup(group) => Operation::Device(OnDevice::ActivateGroup(group)),
            Restore::OpenContainer(open) => Operation::Device(OnDevice::OpenContainer(open)),
            Restore::Mount(mount) => Operation::Run(OfRun::Mount(mount)),
            Restore::CreateVolume(volume) => Operation::Device(OnDevice::CreateVolume(volume)),
        }
    }
}

/// Works on what the session carries: the image, the mounted target, locks, the control plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OfRun {
    /// Ask the image's server for the size and the digest of the image.
    ReachImage {
        name: String,
        /// Without secrets, for people.
        url: String,
        /// All places, with their secrets.
        #[serde(skip)]
        image: Box<Image>,
        /// The disk that takes a raw image. An image that is not made for it is refused here.
        #[serde(skip)]
        onto: Option<BurnDisk>,
        /// What a tree has to have. One that has it not, by its manifest, is refused here.
        #[serde(skip)]
        needs: Option<Needs>,
    },
    /// Ask the `verify` of the image's OS definition whether it can be installed so. It runs in a sandbox, without disks and network.
    VerifyDefinition {
        /// With its variant.
        os: String,
        /// Names of those that are set. Their values may be secrets.
        parameters: Vec<String>,
        #[serde(skip)]
        chosen: Box<Chosen>,
    },
    /// Look in the ramdisk for what the `create` of the OS definition needs.
    FindPrograms {
        /// With its variant.
        os: String,
        programs: Vec<String>,
    },
    /// Check that the device is still the disk that the plan was made for, because device names move. Keep it open.
    IdentifyDisk(DiskIdentity),
    /// Look for the program that opens these, and for the key of each.
    CheckContainers(Vec<Container>),
    /// Set the disk read-only at the block layer, until `UnlockDisk` or `FlushDisks`.
    LockDisk {
        device: DevicePath,
        /// What nobody may write while the plan runs. It is read now, and compared by `ProveKept`.
        untouched: Vec<ByteRange>,
    },
    /// Make a kept disk writable again: nothing destructive comes after this.
    UnlockDisk {
        device: DevicePath,
        /// Numbers of the partitions that stay read-only, because the layout does not list them.
        others: Vec<u32>,
    },
    /// Bring back everything that is kept, and take it down again. Snapshots keep all changes in memory.
    Rehearse(Rehearsal),
    /// Tell the control plane that this plan is about to destroy data, and ask whether it still should.
    TellPointOfNoReturn {
        /// Ids. An install has no order.
        allocation: String,
        #[serde(with = "crate::empty")]
        order: Option<String>,
        /// By their names in the layout.
        disks: Vec<MarkedDisk>,
        /// The plan's.
        #[serde(skip)]
        extents: Vec<Extents>,
        /// Hash of the approval that the plan was compared with.
        #[serde(skip_serializing_if = "Option::is_none")]
        approved: Option<String>,
        /// `sha256:HEX` of the secret in the marker of this attempt.
        #[serde(skip)]
        secret_digest: Option<String>,
    },
    /// Ask the control plane whether that move has been taken back. Where it does not answer, the final report asks it.
    MoveStands {
        order: String,
    },
    Mount(MountFilesystem),
    /// Mount an installed system that is booted unchanged. The kernel is told not to write, whatever the options say.
    MountReadOnly(MountFilesystem),
    /// Write a raw image onto a disk, fit its partition table to it, and find in it what the layout expects.
    BurnDisk(BurnDisk),
    /// Fill devices with what another machine sends.
    Receive(Receive),
    /// Run the `create` of the OS definition in place of writing a raw image; the rest is the same.
    CreateSystem(Box<CreateSystem>),
    /// Make a mounted filesystem as large as its partition.
    GrowFilesystem(MountFilesystem),
    /// Stream the image below the mounted root.
    BurnImage {
        name: String,
        /// Mount points of kept filesystems that will cover what the image brings there.
        hidden: Vec<String>,
        /// Mount points of kept filesystems that the image's files are added to.
        merged: Vec<String>,
        /// Mount points of filesystems that this plan makes, without the root.
        fresh: Vec<String>,
        /// Memory of the machine. By it the kernel is told how early to begin writing.
        memory_bytes: u64,
    },
    /// `/etc/metal/install.yaml`, `userdata` and `disk.json`.
    WriteMachineFiles {
        #[serde(skip)]
        files: Box<MachineFiles>,
    },
    /// Put files into the mounted filesystem, or take them away.
    InjectFiles(Vec<InjectedFile>),
    /// Make a machine that boots of the image's files: by the image's installer in a chroot, or without one.
    Finish(Box<Finishing>),
    /// The same for a raw image, which was made for any machine: without an installer it keeps its boot loader, and
    /// `/etc/metal/boot-info.yaml` is made from the files of that.
    AdaptImage(Box<Finishing>),
    /// Make a system that came from another machine boot on this one, and change nothing else of it.
    AdaptMoved(Box<Finishing>),
    /// Files of the target for volumes of Kubernetes: those of sparse ones, units, and `/etc/metal/volumes.yaml`.
    WritePersistent(WritePersistent),
    /// `/etc/fstab`, in mount order.
    WriteFstab(Vec<FstabEntry>),
    /// Add lines to the image's own.
    ExtendFstab(Vec<FstabEntry>),
    /// Lines of `/etc/crypttab`, and the files with the keys.
    WriteCrypttab(Vec<CrypttabEntry>),
    /// Look on the mounted EFI system partition for what a firmware starts.
    FindLoader,
    /// Remove boot variables of earlier systems from the firmware.
    RemoveVariables(RemoveVariables),
    /// Tell the firmware what it can boot, through efivarfs.
    WriteBootEntries(BootEntries),
    /// Read `/etc/metal/boot-info.yaml` and hand kernel and initrd to `kexec_file_load`.
    LoadKernel,
    /// Read again what identifies everything that is kept, and what nobody may write. All must be as it was.
    ProveKept(Vec<Kept>),
    /// `/etc/metal/drophammer.json`. It is the last file, so a system that has it is whole.
    WriteMarker(#[serde(serialize_with = "without_secret")] Marker),
    /// Unmount everything, strictly.
    Unmount,
    /// Make the disks write their caches out, and make every locked disk writable again.
    FlushDisks {
        disks: Vec<DevicePath>,
    },
    Report(Closing),
    Kexec,
}

/// Serializes a marker for readers of the plan, without the secret of its attempt.
fn without_secret<S: serde::Serializer>(marker: &Marker, serializer: S) -> Result<S::Ok, S::Error> {
    Marker { secret: None, ..marker.clone() }.serialize(serializer)
}
