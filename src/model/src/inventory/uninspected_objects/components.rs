//! Opaque encrypted containers, and components of pools and RAIDs that md and LVM do not assemble.

use super::device_index::{DeviceIndex, IndexedDevice};
use super::{OpaqueKind, OpaqueObject, format_signature};
use crate::device_name::DevicePath;
use crate::inventory::{DeviceSignature, InspectionTarget, StackedDeviceKind};

/// Signature types of usage `raid` that this module ignores. mdadm and lvm report the devices with these signatures,
/// and the inventory lists them as members of arrays, as physical volumes of groups, or as unassigned devices.
const ASSEMBLED: [&str; 4] = ["linux_raid_member", "isw_raid_member", "ddf_raid_member", "LVM2_member"];

/// Signature types of further devices that may contain block devices or filesystems. The usage that libblkid reports
/// for these types is neither `raid` nor `crypto`.
const OTHER_COMPONENTS: [&str; 6] = ["bcache", "DM_snapshot_cow", "DM_verity_hash", "drbd", "stratis", "zfs_member"];

const ENCRYPTED: [&str; 2] = ["BitLocker", "crypto_LUKS"];

/// Suffix of the type names that libblkid gives to firmware RAIDs.
const RAID_SUFFIX: &str = "_raid_member";

impl DeviceIndex<'_> {
    /// Returns the opaque components on a device. A member of a running array has none, because its contents are listed
    /// under the array.
    pub(super) fn check_components(&self, device: &IndexedDevice) -> Vec<OpaqueObject> {
        if self.is_held_by(device.path, StackedDeviceKind::Array) {
            return Vec::new();
        }
        device.signatures.iter().filter_map(|found| self.check_component(device.path, found)).collect()
    }

    fn check_component(&self, device: &DevicePath, found: &DeviceSignature) -> Option<OpaqueObject> {
        let kind = classify_signature(found)?;
        let is_open = match (kind, found.kind.as_str()) {
            (OpaqueKind::Encrypted, _) => self.is_held_by(device, StackedDeviceKind::Crypt),
            (_, "bcache") => self.is_held_by(device, StackedDeviceKind::Bcache),
            _ => false,
        };
        let failure = self.find_failure(&InspectionTarget::Container(device.clone()));
        let (reason, remedy) = reason_and_remedy(kind, found, failure);
        (!is_open).then(|| OpaqueObject {
            kind,
            name: format_signature(found),
            devices: vec![device.clone()],
            reason,
            remedy: remedy.to_owned(),
            untried: false,
        })
    }
}

fn classify_signature(found: &DeviceSignature) -> Option<OpaqueKind> {
    let kind = found.kind.as_str();
    let is_raid = found.usage == "raid" || kind.ends_with(RAID_SUFFIX);
    match () {
        () if OTHER_COMPONENTS.contains(&kind) => Some(OpaqueKind::Component),
        () if ENCRYPTED.contains(&kind) || found.usage == "crypto" => Some(OpaqueKind::Encrypted),
        () if is_raid && !ASSEMBLED.contains(&kind) => Some(OpaqueKind::Component),
        () => None,
    }
}

fn reason_and_remedy(kind: OpaqueKind, found: &DeviceSignature, failure: Option<&str>) -> (String, &'static str) {
    let save = "boot the system that uses this device, and back up the data";
    match (kind, found.kind.as_str()) {
        (OpaqueKind::Encrypted, _) => {
            let why = failure.map(|why| format!(": {why}")).unwrap_or_default();
            (
                format!("the container is encrypted and not open{why}"),
                "provide the key of the container, or back up the data from a system that can open the container",
            )
        }
        (_, "bcache") => ("the bcache device that uses this device is not running".to_owned(), save),
        (_, "zfs_member") => (
            "drophammer does not support ZFS".to_owned(),
            "import the pool on a system with ZFS, and back up any data you need",
        ),
        (_, kind) if kind.ends_with(RAID_SUFFIX) => {
            ("md does not support this firmware RAID".to_owned(), "delete the RAID volume in the firmware setup")
        }
        (_, kind) => (format!("drophammer does not support {kind}"), save),
    }
}
