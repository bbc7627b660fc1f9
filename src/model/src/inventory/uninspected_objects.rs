//! Opaque objects: objects whose content was not inspected. An opaque object may contain an install marker, or a
//! component of a preserved object. The planner, fleet mode and `drophammer inventory` all use the list that this
//! module returns.
//!
//! | object | condition under which the object is not opaque |
//! |---|---|
//! | volume group that is exported or belongs to another host | each of its volumes is readable through a mapping |
//! | logical volume | it is active, or its content is readable through a read-only mapping |
//! | md array, container of a firmware RAID | it is running |
//! | encrypted container | it is open |
//! | bcache device | its bcache is running |
//! | member of a zpool, DRBD, firmware RAID or another RAID that is not supported | none |
//! | RAID member or physical volume that mdadm or lvm cannot assign | none |
//! | filesystem of a format that is supported for `/` | it is in use or was mounted read-only, and its marker is readable or absent |
//! | region of a disk, array, volume or mapping that cannot be read | it is in a subvolume of a logical volume, whose content is that of the volume |

mod components;
mod device_index;
mod logical_volumes;

use super::{
    DeviceSignature, FilesystemContents, InspectionTarget, Inventory, MdArray, MemberRole, StackedDevice,
    StackedDeviceKind, UnassignedDevices,
};
use crate::device_name::DevicePath;
use device_index::{DeviceIndex, IndexedDevice, all_devices};
use serde::Serialize;
use std::fmt;

/// Filesystem formats that a layout supports for `/`.
const ROOT_FORMATS: [&str; 5] = ["ext2", "ext3", "ext4", "xfs", "btrfs"];

/// Object whose content was not inspected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpaqueObject {
    pub kind: OpaqueKind,
    /// Description of the object: `logical volume vg00/root (thin)`, `crypto_LUKS "vault"`.
    pub name: String,
    /// Underlying devices, spelled as in the entries of the disks, partitions and stacked devices.
    pub devices: Vec<DevicePath>,
    pub reason: String,
    /// Action with which the operator can make the content readable, or remove the object if its data is no
    /// longer needed.
    pub remedy: String,
    /// True if no attempt was made to make the content readable, but the agent may succeed when it runs on the machine.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub untried: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OpaqueKind {
    VolumeGroup,
    LogicalVolume,
    Array,
    Encrypted,
    /// Component of an object that md and LVM do not assemble.
    Component,
    /// RAID member or physical volume that mdadm or lvm cannot assign to an array or volume group.
    Unassigned,
    Filesystem,
    UnreadableRegion,
}

impl OpaqueObject {
    /// Returns whether the object may contain block devices, such as components of arrays, groups, pools and
    /// filesystems that span devices. Returns false for a filesystem, because it contains only files.
    pub fn may_contain_devices(&self) -> bool {
        self.kind != OpaqueKind::Filesystem
    }
}

/// Displays the object and its devices, without reason and remedy.
impl fmt::Display for OpaqueObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.devices.as_slice() {
            [] => f.write_str(&self.name),
            devices => write!(f, "{} on {}", self.name, devices.join(", ")),
        }
    }
}

impl Inventory {
    /// Returns all objects whose content was not inspected.
    pub fn find_opaque_objects(&self) -> Vec<OpaqueObject> {
        let seen = DeviceIndex::new(self);
        let groups = self.groups.iter().flat_map(|group| seen.check_volumes(group));
        let arrays = self.arrays.iter().filter_map(|array| seen.check_array(array)).chain(seen.lost_arrays());
        let components = all_devices(self).flat_map(|device| seen.check_components(&device));
        let unassigned = self.unknown.iter().map(opaque_unassigned);
        let filesystems = all_devices(self).filter_map(|device| seen.check_filesystem(&device));
        let disks = self.disks.iter().filter_map(|disk| opaque_unreadable_region(&disk.device, &disk.unreadable));
        let unreadable = disks.chain(self.stacked.iter().filter_map(|device| seen.check_stacked(device)));
        groups.chain(arrays).chain(components).chain(unassigned).chain(filesystems).chain(unreadable).collect()
    }
}

impl DeviceIndex<'_> {
    fn check_array(&self, array: &MdArray) -> Option<OpaqueObject> {
        if array.running.as_ref().is_some_and(|name| self.has_size(name))
            || array.members.iter().any(|member| self.is_held_by(&member.device, StackedDeviceKind::Array))
        {
            return None;
        }
        let failure = self.find_failure(&InspectionTarget::Array(array.uuid));
        let is_firmware = array.level == "container";
        let is_whole = array.members.iter().any(|member| matches!(member.role, MemberRole::Active(_)));
        let untried = !self.inventory.explored && failure.is_none() && is_whole && !is_firmware;
        let reason = match failure {
            Some(why) => format!("the array does not start: {why}"),
            None if is_firmware => format!(
                "the array is a firmware RAID ({metadata}), which drophammer does not start",
                metadata = array.metadata
            ),
            None if !is_whole => "none of the array's members is known to be complete and current".to_owned(),
            None if untried => "the array was not running when the inventory was read".to_owned(),
            None => "the array is not running".to_owned(),
        };
        let remedy = match is_firmware {
            true => {
                "delete the RAID volume in the firmware setup; if you need its content, first back it up from the \
                 system that uses the volume"
            }
            false => "connect the missing members of the array, or repair the array in the system that uses it",
        };
        let name = if array.name.is_empty() { array.uuid.to_string() } else { format!("\"{}\"", array.name) };
        Some(OpaqueObject {
            kind: OpaqueKind::Array,
            name: format!("array {name} ({})", array.level),
            devices: array.members.iter().map(|member| member.device.clone()).collect(),
            reason,
            remedy: remedy.to_owned(),
            untried,
        })
    }

    /// Returns the arrays that failed to start and have no member that could be read afterwards.
    fn lost_arrays(&self) -> impl Iterator<Item = OpaqueObject> + '_ {
        self.inventory.failed.iter().filter_map(|failed| match &failed.tried {
            InspectionTarget::Array(uuid) if !self.has_array(*uuid) => Some(OpaqueObject {
                kind: OpaqueKind::Array,
                name: format!("array {uuid}"),
                devices: Vec::new(),
                reason: format!(
                    "the array did not start, and its members have become unreadable: {reason}",
                    reason = failed.why
                ),
                remedy: "connect the members of the array".to_owned(),
                untried: false,
            }),
            _ => None,
        })
    }

    /// Returns the unreadable region of a stacked device. Omits volumes below other volumes, such as the copies of a
    /// raid1 volume or the data of a pool: LVM reads them only through the volume on top, which is checked itself,
    /// and a missing copy does not make that volume unreadable.
    fn check_stacked(&self, device: &StackedDevice) -> Option<OpaqueObject> {
        let is_volume = device.kind == StackedDeviceKind::Volume;
        if is_volume && self.is_held_by(&device.device, StackedDeviceKind::Volume) {
            return None;
        }
        opaque_unreadable_region(&device.device, &device.unreadable)
    }

    fn check_filesystem(&self, device: &IndexedDevice) -> Option<OpaqueObject> {
        let format = device.signatures.iter().find(|found| ROOT_FORMATS.contains(&found.kind.as_str()))?;
        let seen = self.find_filesystem(device.path);
        if !device.uses.is_empty() && seen.is_none() {
            return None;
        }
        let failure = self.find_failure(&InspectionTarget::Filesystem(device.path.clone()));
        let is_ambiguous = device.signatures.len() > 1;
        let (reason, remedy) = match (seen, failure) {
            (Some(FilesystemContents { unreadable_marker: None, .. }), _) => return None,
            (Some(FilesystemContents { unreadable_marker: Some(why), .. }), _) => {
                (format!("the install marker cannot be read: {why}"), "repair or remove the marker file")
            }
            (None, Some(why)) => (format!("the filesystem cannot be mounted: {why}"), "repair the filesystem"),
            (None, None) if is_ambiguous => {
                let kinds: Vec<&str> = device.signatures.iter().map(|found| found.kind.as_str()).collect();
                (
                    format!("the device has several signatures: {signatures}", signatures = kinds.join(", ")),
                    "remove the stale signature (wipefs)",
                )
            }
            (None, None) => {
                ("the filesystem is not mounted".to_owned(), "to find out the reason, mount the filesystem read-only")
            }
        };
        Some(OpaqueObject {
            kind: OpaqueKind::Filesystem,
            name: format_signature(format),
            devices: vec![device.path.clone()],
            reason,
            remedy: remedy.to_owned(),
            untried: !self.inventory.explored && seen.is_none() && failure.is_none() && !is_ambiguous,
        })
    }
}

fn opaque_unassigned(unknown: &UnassignedDevices) -> OpaqueObject {
    OpaqueObject {
        kind: OpaqueKind::Unassigned,
        name: "RAID member or physical volume".to_owned(),
        devices: unknown.devices.clone(),
        reason: format!("the array, group or pool is unknown: {reason}", reason = unknown.reason),
        remedy: "connect the other devices of this array, group or pool, or repair the damaged metadata".to_owned(),
        untried: false,
    }
}

fn opaque_unreadable_region(device: &DevicePath, unreadable: &Option<String>) -> Option<OpaqueObject> {
    let why = unreadable.as_ref()?;
    Some(OpaqueObject {
        kind: OpaqueKind::UnreadableRegion,
        name: "unreadable region".to_owned(),
        devices: vec![device.clone()],
        reason: why.clone(),
        remedy: "check the disk and its cabling, or repair the damaged metadata".to_owned(),
        untried: false,
    })
}

fn format_signature(signature: &DeviceSignature) -> String {
    match signature.label.as_str() {
        "" => signature.kind.clone(),
        label => format!("{} \"{label}\"", signature.kind),
    }
}

#[cfg(test)]
mod tests;
