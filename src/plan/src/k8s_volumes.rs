//! Decides on Kubernetes volumes: each volume is created, kept, or added to a preserved object.
//!
//! Implements the table in docs/plan-volumes.md.
//!
//! | a volume | decision |
//! |---|---|
//! | has its UUID on a device that is not wiped | kept on that device, even if the list specifies another device |
//! | is on a blank disk that the layout does not list | created: nothing else is written to that disk |
//! | is on a device that this plan creates | created, except in a reinstall that wipes the disk: refused |
//! | needs free space of a preserved group, or a new file in a preserved filesystem | added |
//! | was prepared before, and its data were not found | refused: the data may be on a disk that is absent or unreadable ([`repeated_preparation_check`]) |
//! | is marked for deletion | kept if it exists, otherwise not created |
//! | meets none of these conditions | refused; the message contains the name of the volume |

mod block_devices;
mod devices_by_volume_uuid;
mod group_extension_check;
mod install_marker_records;
mod logical_volumes;
mod repeated_preparation_check;
mod sparse_file_space;
mod sparse_files;
mod terminating_volumes;

use super::partition_placement::MIB;
use super::planned_devices::{DeviceFate, DeviceSize, PlannedDevice};
use super::planner_state::PlannerState;
use super::{DiskVerdict, InstallMode, PersistentVerdict, PersistentVolume};
use common::error_code::ErrorCode;
use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::inventory::{DeviceSignature, Inventory, InventoryDisk};
use model::k8s_volume::{K8sVolume, VolumeContent, VolumeSource};
use model::layout::{FilesystemFormat, MIN_XFS_MIB};
use operations::{
    CreateK8sVolume, InitialVolumeContent, MakeFilesystem, ManifestVolume, SparseVolume, VolumePath,
    spanning_partition_bytes,
};
use std::collections::BTreeSet;

/// Minimum size of a volume, in bytes. A partition table and a partition fit into this size.
const MINIMUM_VOLUME_BYTES: u64 = 4 * MIB;

/// Decision on one Kubernetes volume.
struct VolumeDecision {
    device: DevicePath,
    disks: BTreeSet<KernelName>,
    verdict: PersistentVerdict,
    size: DeviceSize,
    sector_bytes: u32,
    prepare: Option<CreateK8sVolume>,
    persistent: VolumePath,
}

/// Reason why a volume is refused; `None` if the refusal of an object below the volume was already reported.
pub(crate) type VolumeRefusal = Option<String>;

impl<'a> PlannerState<'a> {
    pub(crate) fn decide_persistent(&mut self) {
        let allocation = &self.request.assigned.allocation;
        let (volumes, hostname) = match allocation.parse_volumes() {
            Ok(volumes) => (volumes, allocation.hostname.clone()),
            Err(problems) => {
                let coded = problems.into_iter().map(|problem| problem.with_default_code(ErrorCode::KubernetesVolume));
                return self.decided.problems.extend(coded);
            }
        };
        let mut order: Vec<usize> = (0..volumes.len()).collect();
        // Volumes with hints come last, so that they take only disks to which no other volume refers.
        order.sort_by_key(|&index| matches!(volumes[index].source, VolumeSource::Discover(_)));
        let mut decisions: Vec<(usize, VolumeDecision)> = Vec::new();
        for index in order {
            let volume = &volumes[index];
            let decided = match volume.belongs_to_host(&hostname) {
                true if volume.deleted => self.decide_deleted(volume),
                true => self.refuse_hidden(volume).and_then(|()| self.decide_volume(volume)),
                false => Err(Some(format!(
                    "belongs to the node {node}, but this machine is the node {hostname}",
                    node = volume.node
                ))),
            };
            match decided {
                Ok(decision) => decisions.push((index, decision)),
                Err(Some(why)) => self.refuse(
                    ErrorCode::KubernetesVolume,
                    problem_place(volume),
                    format!("volume {} {why}", volume.name),
                ),
                Err(None) => {}
            }
        }
        decisions.sort_by_key(|(index, _)| *index);
        for (index, decision) in decisions {
            self.record_decision(&volumes[index], decision);
        }
        self.record_volumes();
        self.refuse_full_carrier();
    }

    fn decide_volume(&mut self, volume: &K8sVolume) -> Result<VolumeDecision, VolumeRefusal> {
        let decision = match &volume.source {
            VolumeSource::Raw(path) => self.decide_raw(volume, Some(path)),
            VolumeSource::Discover(hints) => match self.discover_disk(volume, hints) {
                Ok(None) => self.decide_raw(volume, None),
                Ok(Some(disk)) => self.take_disk(volume, disk),
                Err(why) => Err(why),
            },
            VolumeSource::Logical { group, size_bytes } => self.decide_logical(volume, group, *size_bytes),
            VolumeSource::Sparse { size_bytes } => self.decide_sparse(volume, *size_bytes),
        }?;
        if decision.verdict == PersistentVerdict::Keep {
            return Ok(decision);
        }
        if let Some(why) = self.find_wiped(volume).map(describe_on_wiped) {
            return Err(Some(why));
        }
        self.refuse_second_copy(volume, &decision)?;
        match check_min_size(volume, &decision) {
            Some(why) => Err(Some(why)),
            None => Ok(decision),
        }
    }

    fn record_decision(&mut self, volume: &K8sVolume, decision: VolumeDecision) {
        let VolumeDecision { device, disks, verdict, size, sector_bytes, prepare, persistent } = decision;
        if verdict == PersistentVerdict::Leave {
            let (name, uid, kind) = (volume.name.clone(), volume.uid, volume.describe_kind());
            let left =
                PersistentVolume { name, uid, kind, device, disks: Vec::new(), verdict, path: None, size_bytes: None };
            return self.decided.persistent.planned.push(left);
        }
        let filling = prepare.as_ref().map(|prepare| &prepare.filling);
        let is_preserved = verdict == PersistentVerdict::Keep;
        let new = if is_preserved { None } else { filling.cloned().or_else(|| self.sparse_filling(volume)) };
        let trial = new.as_ref().and_then(|filling| {
            super::creation_trials::volume_trial(filling, size, sector_bytes, verdict == PersistentVerdict::Extend)
        });
        let is_part = matches!(new, Some(InitialVolumeContent::Partition { .. }));
        let size_bytes = match size {
            DeviceSize::Known(bytes) if is_part => Some(spanning_partition_bytes(bytes)),
            DeviceSize::Known(bytes) => Some(bytes),
            DeviceSize::AtMost(_) => None,
        };
        let decided = &mut self.decided.persistent;
        decided.trials.extend(trial);
        if let (VolumeSource::Sparse { .. }, DeviceSize::Known(size_bytes)) = (&volume.source, size) {
            let (name, uid, path) = (volume.name.clone(), volume.uid, volume.sparse_path());
            decided.sparse.push(SparseVolume { name, uid, path, size_bytes, make: new });
        }
        decided.planned.push(PersistentVolume {
            name: volume.name.clone(),
            uid: volume.uid,
            kind: volume.describe_kind(),
            device: device.clone(),
            disks: disks.into_iter().collect(),
            verdict,
            path: persistent.as_known().map(str::to_owned),
            size_bytes,
        });
        decided.prepares.extend(prepare);
        decided.prepared.push(ManifestVolume { volume: volume.clone(), device, is_part, persistent, size_bytes });
    }

    /// Returns the name of the listed volume that has the same UUID as the filesystem.
    fn volume_of_filesystem(&self, signatures: &[DeviceSignature]) -> Option<String> {
        let [one] = signatures else { return None };
        let volumes = self.request.assigned.allocation.parse_volumes().unwrap_or_default();
        let is_it = |volume: &K8sVolume| one.uuid.eq_ignore_ascii_case(&volume.uid.to_string());
        volumes.into_iter().find(is_it).map(|volume| volume.name)
    }

    /// Returns the filesystem or partition that is created for a volume on this device. Returns `Nothing` for a `Block`
    /// volume on LVM.
    fn volume_filling(&mut self, volume: &K8sVolume, device: &DevicePath, is_logical: bool) -> InitialVolumeContent {
        match &volume.content {
            VolumeContent::Filesystem { format, options } => InitialVolumeContent::Filesystem(MakeFilesystem {
                device: device.clone(),
                format: *format,
                label: None,
                uuid: volume.uid.to_string(),
                createoptions: options.clone(),
            }),
            VolumeContent::Block if is_logical => InitialVolumeContent::Nothing,
            VolumeContent::Block => InitialVolumeContent::Partition { guid: (self.ids)() },
        }
    }

    fn prepare_volume(&mut self, volume: &K8sVolume, device: &DevicePath, must_be_blank: bool) -> CreateK8sVolume {
        CreateK8sVolume {
            name: volume.name.clone(),
            uid: volume.uid,
            device: device.clone(),
            create: None,
            must_be_blank,
            filling: self.volume_filling(volume, device, false),
        }
    }

    /// Sets the verdict on an unlisted disk that is used for a Kubernetes volume. The identity of this disk is verified
    /// before the first write.
    fn reserve_disk(&mut self, disk: &InventoryDisk) {
        if self.set_verdict(&disk.name, DiskVerdict::Volumes).is_none() {
            self.decided.identities.push(operations::DiskIdentity::from_disk(disk));
        }
    }

    /// Returns whether the layout does not list the disk.
    fn is_unlisted(&self, disk: &InventoryDisk) -> bool {
        !self.found.values().any(|found| found.name == disk.name)
    }
}

/// Returns a preserved device with these signatures, in the form in which it can be compared with the devices that an
/// interrupted attempt has recorded.
fn as_preserved<'a>(device: &DevicePath, signatures: &'a [DeviceSignature], size_bytes: u64) -> PlannedDevice<'a> {
    PlannedDevice {
        path: device.clone(),
        now: device.clone(),
        fate: DeviceFate::Preserved,
        absent: None,
        blank: false,
        size_bytes: Some(size_bytes),
        most_bytes: size_bytes,
        sector_bytes: 512,
        stripe_bytes: 0,
        content: Ok(signatures),
    }
}

fn problem_place(volume: &K8sVolume) -> String {
    format!("volumes[{}]", volume.name)
}

/// Returns the path that the kernel or udev assigns to the volume in the installed system. The returned path is not
/// valid for `Block` volumes on arrays, which have other links.
fn udev_path(volume: &K8sVolume) -> VolumePath {
    VolumePath::Known(match volume.content {
        VolumeContent::Filesystem { .. } => format!("/dev/disk/by-uuid/{}", volume.uid),
        VolumeContent::Block => format!("/dev/disk/by-partuuid/{}", volume.uid),
    })
}

fn describe_on_wiped(device: &DevicePath) -> String {
    format!("is on {device}, which a reinstall wipes; set wipeonreinstall: false for its disks")
}

fn check_min_size(volume: &K8sVolume, decision: &VolumeDecision) -> Option<String> {
    let required = match volume.content {
        VolumeContent::Filesystem { format: FilesystemFormat::Xfs, .. } => MIN_XFS_MIB * MIB,
        VolumeContent::Filesystem { .. } | VolumeContent::Block => MINIMUM_VOLUME_BYTES,
    };
    let existing = match decision.size {
        DeviceSize::Known(bytes) if bytes < required => bytes,
        _ => return None,
    };
    let (existing, required) = (common::format::format_bytes(existing), common::format::format_bytes(required));
    Some(format!(
        "has {existing} on {device}, but {content} requires {required}",
        device = decision.device,
        content = volume.content
    ))
}

/// Returns a list of the disks of the machine, for a message.
fn list_disks(inventory: &Inventory) -> String {
    let disks: Vec<&str> = inventory.disks.iter().map(|disk| disk.device.as_str()).collect();
    if disks.is_empty() { "no disks were found".to_owned() } else { format!("its disks are {}", disks.join(", ")) }
}

fn is_of_disk(disk: &InventoryDisk, path: &LayoutPath) -> bool {
    disk.has_path(path.as_str())
}

/// Returns whether this plan is a reinstall that wipes a device with this fate.
fn is_wiped_later(mode: InstallMode, fate: DeviceFate) -> bool {
    mode == InstallMode::Reinstall && fate == DeviceFate::Wiped
}
