//! Install markers: records of finished installations, stored in `/etc/metal` of the installed system and by the
//! control plane.
//!
//! A machine with a marker is treated as installed. A reinstall identifies the disks by the marker, even if their
//! kernel names have changed.

pub mod attempt_proof;
mod fencing_token;
#[cfg(test)]
mod recorded_marker_tests;

pub use attempt_proof::{AttemptRecord, AttemptSecret};
pub use fencing_token::FencingToken;

use crate::disk_identifiers::{comparable_serial, comparable_wwn, is_same_serial, is_same_wwn};
pub mod lineage;

use serde::{Deserialize, Serialize};

/// Path of the marker on the root filesystem.
pub const PATH: &str = "/etc/metal/drophammer.json";

/// Record of a finished installation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct InstallMarker {
    /// Id of the machine.
    pub machine: String,
    /// Id of the allocation.
    pub allocation: String,
    /// Project to which the machine belonged; empty if the control plane reported none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub project: String,
    /// Id of the reinstall order; empty for the first installation.
    #[serde(default, with = "common::empty_string_as_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub order: Option<String>,
    /// Fencing token of this installation; `None` in older markers, or if the control plane issues no tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing: Option<FencingToken>,
    /// Secret of the attempt that wrote this marker; `None` in older markers. See [`attempt_proof`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<AttemptSecret>,
    /// Id of the image.
    pub image: String,
    /// Id of the layout.
    pub layout: String,
    /// `sha256:HEX` of the layout in its canonical form; empty in older markers.
    #[serde(default, with = "common::empty_string_as_none", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub layout_digest: Option<String>,
    /// Time of the installation by the clock of the machine (RFC 3339, UTC). The time is only displayed; [`lineage`]
    /// determines the order of installations.
    #[serde(default)]
    pub time: String,
    /// Disks that the layout lists.
    #[serde(default)]
    pub disks: Vec<RecordedDisk>,
    /// `sha256:HEX` of the certificate of the machine that sent this installation in a migration. If the sending
    /// machine boots its own system again after the transfer, that system may contain newer data.
    #[serde(default, with = "common::empty_string_as_none", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub received_from: Option<String>,
    /// Objects that a reinstall preserves on disks that it may wipe, in addition to the partitions in `disks`:
    /// `array PATH`, `group NAME`, `volume GROUP/NAME`. A group in which only some volumes are preserved is
    /// represented by these volumes. Empty in older markers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preserved: Vec<String>,
    /// Volumes that the layout renews in preserved groups, as `GROUP/NAME`: a reinstall may remove them. `None` in
    /// older markers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed: Option<Vec<String>>,
    /// Digests of the installations that this installation replaced, latest first; empty in markers of earlier
    /// versions. See [`lineage`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supersedes: Vec<String>,
    /// Kubernetes volumes that this installation or an earlier installation has prepared; `None` in older markers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<RecordedVolume>>,
    /// OS definition from which the system was installed; `None` if there was none, and in older markers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<RecordedDefinition>,
}

/// OS definition from which a system was installed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct RecordedDefinition {
    /// Name of the definition, with its variant: `NAME` or `NAME+VARIANT`.
    pub os: String,
    /// Version of the definition (`os_version`); `None` if the definition has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
}

/// Kubernetes volume that an installation has prepared. It is not prepared again while its data may exist.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct RecordedVolume {
    /// UID of the Kubernetes resource (`metadata.uid`).
    pub uid: String,
    #[serde(default)]
    pub name: String,
    /// Persistent device path of the volume: `/dev/disk/by-uuid/…`; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Path that the device of the volume had when the volume was prepared, such as `/dev/sdc`; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// Disks that contain the volume; empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<RecordedDisk>,
}

/// Disk as it was when the machine was installed: its identifiers, size and partition table GUID.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct RecordedDisk {
    /// Device path, spelled as in the layout.
    pub device: String,
    /// Serial number; empty if the disk reports none. Likewise, `wwn` is empty if the disk reports no WWN.
    #[serde(default)]
    pub serial: String,
    #[serde(default)]
    pub wwn: String,
    pub size_bytes: u64,
    /// Logical sector size in bytes; 0 if not recorded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sector_bytes: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Slot that contained the disk, as `/dev/disk/by-path/…`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by_path: String,
    /// Disk GUID in the GPT; empty if the disk has no GPT. Every partition table that an installation writes has a new
    /// GUID.
    #[serde(default, with = "common::empty_string_as_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub guid: Option<String>,
    /// Disk GUID before the attempt started. If the attempt was interrupted, the disk may still have this GUID.
    #[serde(default, with = "common::empty_string_as_none", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub guid_before: Option<String>,
    /// Wipe policy of the disk; `None` in older markers, which do not contain this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<WipePolicy>,
    /// Numbers of the partitions that a reinstall preserves even if it wipes the rest of the disk; empty in older
    /// markers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preserved: Vec<u32>,
    /// Objects that the attempt will create on this disk, recorded before its first write. Empty in the marker of a
    /// finished installation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub making: Vec<PendingCreation>,
}

impl RecordedDisk {
    /// Returns the serial number in its comparable form; `None` if it is missing or a placeholder.
    pub fn comparable_serial(&self) -> Option<String> {
        comparable_serial(&self.serial)
    }

    /// Returns the world wide name in its comparable form; `None` if it is missing or a placeholder.
    pub fn comparable_wwn(&self) -> Option<String> {
        comparable_wwn(&self.wwn)
    }

    /// Returns whether serial number, world wide name or size prove that the two records describe different disks.
    pub fn is_different_disk(&self, other: &RecordedDisk) -> bool {
        is_same_serial(&self.serial, &other.serial) == Some(false)
            || is_same_wwn(&self.wwn, &other.wwn) == Some(false)
            || self.size_bytes != other.size_bytes
    }

    /// Returns, for display, the identifiers that prove that the two records describe the same disk; `None` if no
    /// identifier proves this. The contents of the disks are not compared.
    pub fn explain_same_disk(&self, other: &RecordedDisk) -> Option<String> {
        if is_same_wwn(&self.wwn, &other.wwn) == Some(true) {
            return Some(format!("wwn {}", self.wwn));
        }
        let is_same = is_same_serial(&self.serial, &other.serial) == Some(true);
        let same = is_same && self.model == other.model && self.size_bytes == other.size_bytes;
        same.then(|| format!("serial number {serial}, model and size", serial = self.serial))
    }
}

/// Object that an attempt creates on a disk. The other contents of the disk are preserved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct PendingCreation {
    /// Device on which the object is created: `disk`, `partition GUID`, `array UUID`, `volume GROUP-UUID NAME`.
    pub on: String,
    /// UUID of the filesystem; empty if the whole disk is recreated.
    #[serde(default, with = "common::empty_string_as_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: Option<String>,
    /// True if the device contained no data when the attempt started, because it was blank, did not exist, or was left
    /// unfinished by the previous attempt. Older records lack this field; its absence proves nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_empty: bool,
    /// UUIDs, GUIDs and LVM names of all objects that the attempt creates, if it recreates the whole disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<String>,
}

impl PendingCreation {
    /// Returns the record of a filesystem that is created on an empty device.
    pub fn for_filesystem(on: String, uuid: String) -> PendingCreation {
        PendingCreation { on, uuid: Some(uuid), was_empty: true, contents: Vec::new() }
    }
}

/// Effect of a reinstall on the data of a disk, as specified by the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum WipePolicy {
    /// A reinstall wipes the disk (`wipeonreinstall: true`).
    Wiped,
    /// A reinstall preserves the disk (`wipeonreinstall: false`).
    Kept,
}

impl std::fmt::Display for WipePolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            WipePolicy::Wiped => "wiped",
            WipePolicy::Kept => "kept",
        })
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_without_recorded_volumes_is_parsed() {
        let old = r#"{"machine": "m", "allocation": "a", "order": "", "image": "i", "layout": "l", "disks": []}"#;
        let marker: InstallMarker = serde_json::from_str(old).unwrap();
        assert_eq!(marker.volumes, None);
        let uid = "9474cda7-0dbe-40fc-9842-3cb0404a7201";
        let new = old.replace("\"disks\"", &format!("\"volumes\": [{{\"uid\": \"{uid}\"}}], \"disks\""));
        let marker: InstallMarker = serde_json::from_str(&new).unwrap();
        assert_eq!(marker.volumes, Some(vec![RecordedVolume { uid: uid.to_owned(), ..RecordedVolume::default() }]));
        assert_eq!(serde_json::from_str::<InstallMarker>(&serde_json::to_string(&marker).unwrap()).unwrap(), marker);
    }
}
