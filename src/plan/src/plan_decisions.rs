//! Decisions of a plan, as data.
use super::filesystem_fate::FilesystemFate;
use super::{DiskPlan, TornObject};
use crate::PersistentVolume;
use common::diagnostic::Diagnostic;
use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::install_marker::{AttemptSecret, PendingCreation, RecordedVolume};
use model::inventory::{self};
use operations::{
    ClearRanges, CreateArray, CreateGroup, CreateK8sVolume, CreateVolume, DiskHolder, DiskIdentity, LuksContainer,
    ManifestVolume, PartitionTable, ReceivedDevice, RemoveVolumes, SparseVolume, TableEdit, TryArray, TryFilesystem,
    WipeDisk, ZeroProof,
};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// All decisions of a plan. The module `stages` arranges them in the order of execution.
#[derive(Default)]
pub(crate) struct PlanDecisions {
    /// Secret in the install marker of this attempt; `None` in plans that do not write a marker.
    pub secret: Option<AttemptSecret>,
    pub disks: Vec<DiskPlan>,
    pub identities: Vec<DiskIdentity>,
    pub releases: Vec<DiskHolder>,
    pub wipes: Vec<WipeDisk>,
    pub tables: Vec<PartitionTable>,
    /// Partly kept disks: some of their partitions are preserved.
    pub partly_kept: Vec<PartlyKeptDisk>,
    pub clears: Vec<ClearRanges>,
    pub edits: Vec<TableEdit>,
    /// The disk to which a raw image is written.
    pub image_disk: Option<inventory::InventoryDisk>,
    /// Fates of the arrays, in the order of `Layout::raid`.
    pub arrays: Vec<ArrayFate>,
    /// Devices of which all samples are zero, and which are read completely to prove that they are blank.
    pub zero_proofs: Vec<ZeroProof>,
    /// Trials of the arrays for which the layout specifies create options.
    pub array_trials: Vec<TryArray>,
    /// Fates of the volume groups, in the order of `Layout::volumegroups`.
    pub groups: Vec<GroupFate>,
    pub volumes: Vec<CreateVolume>,
    /// Removals of volumes from preserved groups. The volumes are created again.
    pub renewals: Vec<RemoveVolumes>,
    /// Fates of the filesystems, in the order of `Layout::filesystems`.
    pub filesystems: Vec<FilesystemFate>,
    /// Containers of encrypted filesystems and groups.
    pub luks: Vec<LuksDecision>,
    /// Filesystems that are created on preserved devices. Each entry consists of the device in the layout and the
    /// record for the control plane.
    pub new_filesystems: Vec<(LayoutPath, PendingCreation)>,
    /// Devices of the layout that contain preserved arrays, groups, filesystems or LUKS containers that match the
    /// layout, even if they cannot be used at present.
    pub matching: Vec<LayoutPath>,
    /// Filesystems whose content is received from another machine.
    pub received: Vec<ReceivedDevice>,
    /// Devices of received filesystems that are larger than on the source machine; their filesystems are grown.
    pub grown_devices: Vec<DevicePath>,
    /// Decisions on the Kubernetes volumes of the machine.
    pub persistent: VolumeDecisions,
    /// Disks that the layout does not list, each with the UUID of the Kubernetes volume that is prepared on the disk.
    pub prepared_disks: Vec<(KernelName, Uuid)>,
    /// Conditions that an operator must not overlook.
    pub warnings: Vec<String>,
    pub dismantled: Vec<TornObject>,
    /// Size in bytes by device path, including devices that will be created.
    pub sizes: BTreeMap<DevicePath, u64>,
    pub problems: Vec<Diagnostic>,
}

/// A disk that is wiped except for some of its partitions, which are preserved.
pub(crate) struct PartlyKeptDisk {
    pub name: KernelName,
    pub preserved: Vec<inventory::DiskPartition>,
}

/// Decision whether an array is created or preserved.
pub(crate) enum ArrayFate {
    Created(CreateArray),
    Preserved { device: DevicePath, uuid: Uuid, members: Vec<DevicePath> },
}

/// Decision whether a volume group is created or preserved.
pub(crate) enum GroupFate {
    Created(CreateGroup),
    /// A preserved volume group. `volumes` contains the preserved logical volumes that the layout lists.
    Preserved {
        name: String,
        devices: Vec<DevicePath>,
        volumes: Vec<String>,
    },
}

/// A LUKS container of the layout. It contains a filesystem, or a physical volume of a volume group.
pub(crate) struct LuksDecision {
    pub container: LuksContainer,
    pub fate: LuksFate,
    /// Name of the volume group; `None` for a filesystem.
    pub group: Option<String>,
    /// Mount point of the new system that requires the container; `None` if no mount point requires it.
    pub path: Option<String>,
    pub nofail: bool,
    pub noauto: bool,
    pub read_only: bool,
    /// True if the container is preserved and was sealed to the TPM of another machine.
    pub sealed_to_other_tpm: bool,
}

/// Decision whether a LUKS container is created or preserved. Also states whether a preserved container was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LuksFate {
    Created,
    /// The container is preserved and was opened: its content is preserved as well.
    Opened,
    /// The container is preserved and was not opened: its content is unknown.
    Locked,
}

/// Decisions on all Kubernetes volumes.
#[derive(Default)]
pub(crate) struct VolumeDecisions {
    /// Volumes in the order in which the control plane lists them.
    pub planned: Vec<PersistentVolume>,
    pub prepared: Vec<ManifestVolume>,
    pub prepares: Vec<CreateK8sVolume>,
    pub sparse: Vec<SparseVolume>,
    pub trials: Vec<TryFilesystem>,
    /// Unlisted disks that are written because a volume is created on them.
    pub written: Vec<KernelName>,
    /// Volumes that are recorded in the install marker.
    pub records: Vec<RecordedVolume>,
    /// Preserved groups to which a volume is added.
    pub extended: BTreeSet<String>,
}
