//! What the executor does, one thing after the other. Each operation carries all that it needs: the executor looks nothing up.
//!
//! There is no catch-all arm where operations are told apart: a new one does not compile until every place has an answer.

use super::Extents;
use super::{
    BurnDisk, ByteRange, Closing, CreateArray, CreateGroup, CreateVolume, DiskIdentity, FstabEntry, Holder, Kept,
    MachineFiles, MakeFilesystem, MountFilesystem, PartitionTable, Rehearsal, TryArray, TryFilesystem, WipeDisk,
};
use crate::allocation::Image;
use crate::marker::{MarkedDisk, Marker};
use serde::Serialize;
use uuid::Uuid;

/// One thing that the executor does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Operation {
    Device(OnDevice),
    Run(OfRun),
}

/// About devices alone: it needs nothing that an earlier operation has left in the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDevice {
    /// Take down something that runs on disks to be wiped, or that was only assembled to look at it.
    Release(Holder),
    /// Nothing holds these disks or their partitions any more: read again and proven.
    AssertFree {
        disks: Vec<String>,
    },
    WipeDisk(WipeDisk),
    WriteTable(PartitionTable),
    CreateArray(CreateArray),
    CreateGroup(CreateGroup),
    CreateVolume(CreateVolume),
    /// Take down every array and mapping that lies on these devices: what was only assembled to look inside.
    TakeDown {
        devices: Vec<String>,
    },
    AssembleArray(AssembleArray),
    ActivateGroup(ActivateGroup),
    /// Make an array of devices in memory: what mdadm or the kernel refuses is known before anything is destroyed.
    TryArray(TryArray),
    /// Make a filesystem in memory, and mount it there, for the same reason.
    TryFilesystem(TryFilesystem),
    MakeFilesystem(MakeFilesystem),
    /// Take down a group of this run, so that its arrays can be stopped.
    DeactivateGroup {
        name: String,
        devices: Vec<String>,
    },
    /// Stop an array, so that its superblocks say that it is clean.
    StopArray {
        device: String,
    },
}

/// Assemble a kept array under the layout's name, writable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AssembleArray {
    pub device: String,
    pub uuid: Uuid,
    pub members: Vec<String>,
}

/// Activate these volumes of a kept group, writable. Others of the group stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActivateGroup {
    pub name: String,
    pub devices: Vec<String>,
    pub volumes: Vec<String>,
}

/// One thing of what is kept comes back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Restore {
    AssembleArray(AssembleArray),
    ActivateGroup(ActivateGroup),
    Mount(MountFilesystem),
}

impl From<Restore> for Operation {
    fn from(restore: Restore) -> Operation {
        match restore {
            Restore::AssembleArray(array) => Operation::Device(OnDevice::AssembleArray(array)),
            Restore::ActivateGroup(group) => Operation::Device(OnDevice::ActivateGroup(group)),
            Restore::Mount(mount) => Operation::Run(OfRun::Mount(mount)),
        }
    }
}

/// About the run as a whole: the image, the mounted target, locks, the control plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OfRun {
    /// The image's server answers, its size and digest are known.
    ReachImage {
        name: String,
        /// Without secrets, for people.
        url: String,
        /// All places, with their secrets.
        #[serde(skip)]
        image: Image,
        /// The disk that takes a raw image; what is not for it is refused here.
        #[serde(skip)]
        onto: Option<BurnDisk>,
    },
    /// It is still the disk that the plan was made for: device names move.
    IdentifyDisk(DiskIdentity),
    /// Set the disk read-only at the block layer until the image is on.
    LockDisk {
        device: String,
        /// What nobody may write while the plan runs: read now, and again by `ProveKept`.
        untouched: Vec<ByteRange>,
    },
    /// Make a kept disk writable again: nothing destructive comes after this.
    UnlockDisk {
        device: String,
        /// Numbers of the partitions that stay read-only: they are not the layout's.
        others: Vec<u32>,
    },
    /// Bring everything back that is kept, over snapshots whose changes live in memory, and take it down again.
    Rehearse(Rehearsal),
    /// Tell the control plane that a reinstall is about to destroy, and hear that it still should.
    TellPointOfNoReturn {
        /// Ids; no order for an install.
        allocation: String,
        #[serde(with = "crate::empty")]
        order: Option<String>,
        /// By their names in the layout.
        disks: Vec<MarkedDisk>,
        /// The plan's.
        #[serde(skip)]
        extents: Vec<Extents>,
    },
    Mount(MountFilesystem),
    /// Mount what is booted as it is: the kernel is told not to write, whatever the options say.
    MountReadOnly(MountFilesystem),
    /// Write a raw image onto a disk, fit its partition table to it, and find in it what the layout expects.
    BurnDisk(BurnDisk),
    /// Make a mounted filesystem as large as its partition.
    GrowFilesystem(MountFilesystem),
    /// Stream the image below the mounted root.
    BurnImage {
        name: String,
        /// Mount points of kept filesystems that will cover what the image brings there.
        hidden: Vec<String>,
        /// Mount points of kept filesystems that the image's files are added to.
        merged: Vec<String>,
        /// Mount points of filesystems that this plan makes, but the root.
        fresh: Vec<String>,
        /// The machine's: the kernel begins to write early where there is much of it.
        memory_bytes: u64,
    },
    /// `/etc/metal/install.yaml`, `userdata` and `disk.json`.
    WriteMachineFiles {
        #[serde(skip)]
        files: Box<MachineFiles>,
    },
    /// `/install-go` or `/install.sh` in a chroot, with the nodes of these devices and of their partitions.
    RunInstaller {
        devices: Vec<String>,
    },
    /// The same where the image has one; and `/etc/metal/boot-info.yaml` from its boot loader's files where it has none.
    AdaptImage {
        devices: Vec<String>,
    },
    /// `/etc/fstab`, in mount order.
    WriteFstab(Vec<FstabEntry>),
    /// Add lines to the image's own.
    ExtendFstab(Vec<FstabEntry>),
    /// Read `/etc/metal/boot-info.yaml` and hand kernel and initrd to `kexec_file_load`.
    LoadKernel,
    /// Read again what identifies everything that is kept: it must be as it was.
    ProveKept(Vec<Kept>),
    /// `/etc/metal/drophammer.json`, last of all: who has it is whole.
    WriteMarker(Marker),
    /// Unmount everything, strictly.
    Unmount,
    /// Make the disks write their caches out.
    FlushDisks {
        disks: Vec<String>,
    },
    Report(Closing),
    Kexec,
}
