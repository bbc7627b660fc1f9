//! Encrypted containers, and components of pools and RAIDs that neither md nor LVM assembles.

use super::seen::{Device, SeenDevices};
use super::{OpaqueKind, OpaqueObject, signature_name};
use crate::device::DevicePath;
use crate::inventory::{Signature, StackedKind, Tried};

/// Signature types of usage `raid` that mdadm and lvm report; they are listed as arrays, groups or unassigned.
const ASSEMBLED: [&str; 4] = ["linux_raid_member", "isw_raid_member", "ddf_raid_member", "LVM2_member"];

/// Signature types that hide block devices or filesystems although libblkid does not report them as `raid` or
/// `crypto`.
const OTHER_COMPONENTS: [&str; 6] = ["bcache", "DM_snapshot_cow", "DM_verity_hash", "drbd", "stratis", "zfs_member"];

const ENCRYPTED: [&str; 2] = ["BitLocker", "crypto_LUKS"];

/// Suffix of firmware RAID types in libblkid.
const RAID_SUFFIX: &str = "_raid_member";

impl SeenDevices<'_> {
    /// Returns the components on a device. The content of a running array is listed under the array itself.
    pub(super) fn opaque_components(&self, device: &Device) -> Vec<OpaqueObject> {
        if self.is_held_by(device.path, StackedKind::Array) {
            return Vec::new();
        }
        device.signatures.iter().filter_map(|found| self.opaque_component(device.path, found)).collect()
    }

    fn opaque_component(&self, device: &DevicePath, found: &Signature) -> Option<OpaqueObject> {
        let kind = kind(found)?;
        let is_open = match (kind, found.kind.as_str()) {
            (OpaqueKind::Encrypted, _) => self.is_held_by(device, StackedKind::Crypt),
            (_, "bcache") => self.is_held_by(device, StackedKind::Bcache),
            _ => false,
        };
        let failure = self.failure(&Tried::Container(device.clone()));
        let (reason, remedy) = reason_and_remedy(kind, found, failure);
        (!is_open).then(|| OpaqueObject {
            kind,
            name: signature_name(found),
            devices: vec![device.clone()],
            reason,
            remedy: remedy.to_owned(),
            untried: false,
        })
    }
}

fn kind(found: &Signature) -> Option<OpaqueKind> {
    let kind = found.kind.as_str();
    let is_raid = found.usage == "raid" || kind.ends_with(RAID_SUFFIX);
    match () {
        () if OTHER_COMPONENTS.contains(&kind) => Some(OpaqueKind::Component),
        () if ENCRYPTED.contains(&kind) || found.usage == "crypto" => Some(OpaqueKind::Encrypted),
        () if is_raid && !ASSEMBLED.contains(&kind) => Some(OpaqueKind::Component),
        () => None,
    }
}

fn reason_and_remedy(kind: OpaqueKind, found: &Signature, failure: Option<&str>) -> (String, &'static str) {
    let save = "save what is needed in the system that uses it";
    match (kind, found.kind.as_str()) {
        (OpaqueKind::Encrypted, _) => {
            let why = failure.map(|why| format!(": {why}")).unwrap_or_default();
            (
                format!("it is encrypted and not open{why}"),
                "provide its key, or save what is needed in the system that opens it",
            )
        }
        (_, "bcache") => ("its bcache device is not running".to_owned(), save),
        (_, "zfs_member") => {
            ("ZFS is not supported here".to_owned(), "import the pool and save what is needed on a system with ZFS")
        }
        (_, kind) if kind.ends_with(RAID_SUFFIX) => {
            ("md does not support this firmware RAID".to_owned(), "delete the RAID volume in the firmware setup")
        }
        (_, kind) => (format!("{kind} is not supported here"), save),
    }
}
