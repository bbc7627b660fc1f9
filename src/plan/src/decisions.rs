//! Decisions of a plan, as data.
use super::filesystem_fate::FilesystemFate;
use super::{DiskPlan, TornObject};
use crate::PersistentVolume;
use common::diagnostic::Diagnostic;
use model::device::{DevicePath, KernelName, LayoutPath};
use model::install_marker::{AttemptSecret, PendingCreation, RecordedVolume};
use model::inventory::{self};
use operations::{
    CreateArray, CreateGroup, CreateVolume, DiskIdentity, Holder, LuksContainer, ManifestVolume, PartitionTable,
    PreparePersistent, ReceivedDevice, SparseVolume, TryArray, TryFilesystem, WipeDisk, ZeroProof,
};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// All decisions, which `stages` arranges in order.
#[derive(Default)]
pub(crate) struct PlanDecisions {
    /// Secret in the install marker of this attempt; `None` in plans that write no marker.
    pub secret: Option<AttemptSecret>,
    pub disks: Vec<DiskPlan>,
    pub identities: Vec<DiskIdentity>,
    pub releases: Vec<Holder>,
    pub wipes: Vec<WipeDisk>,
    pub tables: Vec<PartitionTable>,
    /// The disk that a raw image is written to.
    pub image_disk: Option<inventory::InventoryDisk>,
    /// Fates of the arrays, in the order of `Layout::raid`.
    pub arrays: Vec<ArrayFate>,
    /// Devices that appear blank in samples, and must be proven to be blank.
    pub zero_proofs: Vec<ZeroProof>,
    /// Trials of the arrays that are created with options of the layout.
    pub array_trials: Vec<TryArray>,
    /// Fates of the volume groups, in the order of `Layout::volumegroups`.
    pub groups: Vec<GroupFate>,
    pub volumes: Vec<CreateVolume>,
    /// Fates of the filesystems, in the order of `Layout::filesystems`.
    pub filesystems: Vec<FilesystemFate>,
    /// Containers of encrypted filesystems and groups.
    pub luks: Vec<LuksDecision>,
    /// Filesystems that are created on preserved devices: the device in the layout, and the record for the control plane.
    pub filling: Vec<(LayoutPath, PendingCreation)>,
    /// Filesystems that another machine sends.
    pub received: Vec<ReceivedDevice>,
    /// Devices of received filesystems that are larger than on the source machine; their filesystems are grown.
    pub larger: Vec<DevicePath>,
    /// Decisions on Kubernetes volumes.
    pub persistent: VolumeDecisions,
    /// Disks that the layout does not list, and the volumes that are prepared on them.
    pub beginning: Vec<(KernelName, Uuid)>,
    /// Conditions that an operator must not overlook.
    pub warnings: Vec<String>,
    pub torn: Vec<TornObject>,
    /// Size in bytes by device path, including devices that will be created.
    pub sizes: BTreeMap<DevicePath, u64>,
    pub problems: Vec<Diagnostic>,
}

/// Fate of an array.
pub(crate) enum ArrayFate {
    Made(CreateArray),
    Kept { device: DevicePath, uuid: Uuid, members: Vec<DevicePath> },
}

/// Fate of a volume group.
pub(crate) enum GroupFate {
    Made(CreateGroup),
    /// A preserved group. `volumes` are the volumes that the layout lists.
    Kept {
        name: String,
        devices: Vec<DevicePath>,
        volumes: Vec<String>,
    },
}

/// A container of the layout, around a filesystem or a physical volume of a group.
pub(crate) struct LuksDecision {
    pub container: LuksContainer,
    pub fate: LuksFate,
    /// Name of the volume group; `None` for a filesystem.
    pub group: Option<String>,
    /// Mount point that requires the container, if any.
    pub path: Option<String>,
    pub nofail: bool,
    pub noauto: bool,
    pub read_only: bool,
    /// Whether the container is preserved and was sealed to the TPM of another machine.
    pub strange_tpm: bool,
}

/// Fate of a LUKS container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LuksFate {
    Made,
    /// Preserved and opened: its content is preserved as well.
    Opened,
    /// Preserved and not opened: its content is unknown.
    Locked,
}

/// Decisions on all Kubernetes volumes.
#[derive(Default)]
pub(crate) struct VolumeDecisions {
    /// Volumes in the order of the list.
    pub planned: Vec<PersistentVolume>,
    pub prepared: Vec<ManifestVolume>,
    pub prepares: Vec<PreparePersistent>,
    pub sparse: Vec<SparseVolume>,
    pub trials: Vec<TryFilesystem>,
    /// Disks that the layout does not list and that are written for a volume.
    pub written: Vec<KernelName>,
    /// Volumes that the marker records.
    pub records: Vec<RecordedVolume>,
    /// Preserved groups to which a volume is added.
    pub extended: BTreeSet<String>,
}
