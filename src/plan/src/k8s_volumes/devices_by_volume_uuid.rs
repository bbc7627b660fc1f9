//! Devices that have the UUID of a Kubernetes volume.

use super::super::planner_state::PlannerState;
use super::super::{DiskVerdict, InstallMode};
use super::as_preserved;
use crate::content_descriptions;
use model::device_name::DevicePath;
use model::k8s_volume::{K8sVolume, VolumeContent};
use model::storage_graph::{StackUnit, all_units};
use uuid::Uuid;

/// Maximum number of devices with the same UUID that are compared with each other.
const MAXIMUM_COMPARED: usize = 32;

/// A device that has the UUID of a Kubernetes volume.
#[derive(Clone, Copy)]
pub(super) struct VolumeDevice<'a> {
    pub device: &'a DevicePath,
    pub unit: StackUnit<'a>,
    /// True if the volume can be identified by this UUID: for a `Block` volume, the UUID is the GUID of a partition;
    /// for a `Filesystem` volume, it is the UUID of the only signature on the device.
    pub is_plain: bool,
}

impl<'a> PlannerState<'a> {
    /// Returns all devices with the volume's UUID, without members of an assembled device that also has the UUID.
    pub(super) fn find_volume_devices(&self, volume: &K8sVolume) -> Vec<VolumeDevice<'a>> {
        let all: Vec<VolumeDevice> =
            all_units(self.inventory).filter_map(|(device, unit)| as_volume_device(volume, device, unit)).collect();
        // For this many devices, the comparison that omits members would take too long, so it is skipped. The plan is
        // then refused, because several devices have the UUID.
        if all.len() > MAXIMUM_COMPARED {
            return all;
        }
        let shown_above = |lower: &VolumeDevice| {
            all.iter().any(|upper| {
                upper.is_plain && upper.device != lower.device && self.is_below(lower.device, upper.device)
            })
        };
        all.iter().filter(|carrier| !shown_above(carrier)).copied().collect()
    }

    /// Returns the preserved device with the volume's UUID.
    ///
    /// # Errors
    /// Fails if several devices have the UUID, or if the device has additional content or a different filesystem.
    pub(super) fn find_preserved(&self, volume: &K8sVolume) -> Result<Option<(&'a DevicePath, StackUnit<'a>)>, String> {
        let carriers = self.find_volume_devices(volume);
        let is_preserved =
            |carrier: &&VolumeDevice| !self.is_erased(carrier.device) && !self.is_unfinished(volume, carrier);
        let preserved: Vec<&VolumeDevice> = carriers.iter().filter(is_preserved).collect();
        let Some(one) = preserved.first() else { return Ok(None) };
        let copies = carriers.iter().filter(|carrier| is_preserved(carrier) || self.is_lost_copy(carrier.device));
        let copies: Vec<&str> = copies.map(|carrier| carrier.device.as_str()).collect();
        if copies.len() > 1 {
            return Err(format!(
                "has its UUID {uid} on several devices: {devices}; disconnect the copy, or erase it with wipefs in the rescue shell",
                uid = volume.uid,
                devices = copies.join(", ")
            ));
        }
        if !one.is_plain {
            return Err(describe_ambiguity(volume, one));
        }
        if let (VolumeContent::Filesystem { format, .. }, [signature]) = (&volume.content, one.unit.signatures())
            && signature.kind != format.name()
        {
            let there = content_descriptions::describe_signature(signature);
            return Err(format!(
                "must be {format}, but {device}, which has the UUID of the volume, contains {there}",
                device = one.device
            ));
        }
        Ok(Some((one.device, one.unit)))
    }

    /// Returns a device that contains the volume's data and is wiped by this reinstall, even if the list of volumes now
    /// specifies a different device.
    pub(super) fn find_wiped(&self, volume: &K8sVolume) -> Option<&'a DevicePath> {
        let carriers = self.find_volume_devices(volume).into_iter().map(|carrier| carrier.device);
        let files = self.sparse_files(volume.uid);
        let mut lost = carriers.chain(files).filter(|_| self.request.mode == InstallMode::Reinstall);
        lost.find(|device| self.verdicts_on(device).contains(&DiskVerdict::Wipe))
    }

    /// Returns the devices with filesystems that contain the backing file of the volume.
    pub(super) fn sparse_files(&self, uid: Uuid) -> impl Iterator<Item = &'a DevicePath> + use<'a> {
        let filesystems = self.inventory.filesystems.iter();
        filesystems.filter(move |is| is.sparse.iter().any(|file| file.uid == uid)).map(|is| &is.device)
    }

    /// Returns whether this plan erases a disk below the device.
    pub(super) fn is_erased(&self, device: &DevicePath) -> bool {
        self.verdicts_on(device).iter().any(|verdict| matches!(verdict, DiskVerdict::Wipe | DiskVerdict::Make))
    }

    /// Returns whether a reinstall erases the device, and the operator does not discard all of the disks below the
    /// device.
    fn is_lost_copy(&self, device: &DevicePath) -> bool {
        let is_given_up = self.disks_below(device).iter().all(|disk| self.is_discarded(disk));
        self.request.mode == InstallMode::Reinstall && self.is_erased(device) && !is_given_up
    }

    /// Returns whether an earlier attempt was interrupted while it created the volume's filesystem on this device. The
    /// unfinished filesystem may already have the UUID of the volume, because mkfs.xfs writes the UUID first.
    fn is_unfinished(&self, volume: &K8sVolume, carrier: &VolumeDevice) -> bool {
        let content = as_preserved(carrier.device, carrier.unit.signatures(), 0);
        self.find_unfinished(&content).is_some_and(|uuid| uuid == volume.uid.to_string())
    }

    /// Returns whether the upper device is assembled from the lower device, or from the disk that contains the lower
    /// device as a partition.
    fn is_below(&self, lower: &DevicePath, upper: &DevicePath) -> bool {
        let (lower, upper) = (self.stack.kernel_name(lower), self.stack.kernel_name(upper));
        let whole = self.stack.whole_of(&lower.device_path()).and_then(|unit| unit.device());
        let whole = whole.map(|device| self.stack.kernel_name(device));
        let holders = [Some(lower), whole].into_iter().flatten().flat_map(|name| self.stack.holders(&name));
        holders.into_iter().any(|holder| self.stack.topmost_first(&holder).contains(&upper))
    }
}

/// Returns whether the device is a partition with the GUID `uid`, or has a signature with the UUID `uid`.
pub(super) fn has_uuid(unit: StackUnit, uid: Uuid) -> bool {
    has_guid(unit, uid) || has_signature(unit, uid)
}

fn has_guid(unit: StackUnit, uid: Uuid) -> bool {
    matches!(unit, StackUnit::Partition(part) if part.guid == Some(uid))
}

fn has_signature(unit: StackUnit, uid: Uuid) -> bool {
    let uuid = uid.to_string();
    unit.signatures().iter().any(|signature| signature.uuid.eq_ignore_ascii_case(&uuid))
}

fn as_volume_device<'a>(volume: &K8sVolume, device: &'a DevicePath, unit: StackUnit<'a>) -> Option<VolumeDevice<'a>> {
    let uid = volume.uid;
    let is_plain = match volume.content {
        VolumeContent::Block => has_guid(unit, uid),
        VolumeContent::Filesystem { .. } => has_signature(unit, uid) && unit.signatures().len() == 1,
    };
    has_uuid(unit, uid).then_some(VolumeDevice { device, unit, is_plain })
}

/// Explains why the device with the volume's UUID cannot be used as the volume.
fn describe_ambiguity(volume: &K8sVolume, VolumeDevice { device, unit, .. }: &VolumeDevice) -> String {
    let uuid = volume.uid.to_string();
    let signatures: Vec<String> = unit.signatures().iter().map(content_descriptions::describe_signature).collect();
    let other = unit.signatures().iter().find(|signature| !signature.uuid.eq_ignore_ascii_case(&uuid));
    match other {
        Some(other) if unit.signatures().len() > 1 => format!(
            "has its UUID on {device}, which has several signatures: {}; if {stale} is the stale signature, remove it \
                in the rescue shell: wipefs --all --types {stale} {device}",
            signatures.join(" and "),
            stale = other.kind
        ),
        _ => format!(
            "cannot be used as {mode}: its UUID {uuid} is on {device} in another mode: {content}; list the volume in the mode in which it was prepared",
            mode = volume.content,
            content = match signatures.is_empty() {
                true => "the device is a partition with that GUID".to_owned(),
                false => format!("there is {}", signatures.join(" and ")),
            }
        ),
    }
}
