//! The marker: what every finished installation leaves in `/etc/metal` and with the control plane, so that nobody takes
//! the machine for an empty one, and a reinstall finds its disks again whatever they are called today.

pub mod attempt;
mod fencing_token;

pub use attempt::{AttemptRecord, AttemptSecret};
pub use fencing_token::FencingToken;

use crate::device::identifiers::{comparable_serial, comparable_wwn, is_same_serial, is_same_wwn};
pub mod lineage;

use serde::{Deserialize, Serialize};

/// Where it lies on the filesystem that carries `/`.
pub const PATH: &str = "/etc/metal/drophammer.json";

/// An installation that was finished.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Marker {
    /// Id of the machine.
    pub machine: String,
    /// Id of the allocation.
    pub allocation: String,
    /// Whose it was, where the control plane said so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub project: String,
    /// Id of the order that a reinstall carried out; empty for the first installation.
    #[serde(default, with = "crate::empty")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub order: Option<String>,
    /// Fencing token of this installation; none in older markers, and from control planes that issue none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing: Option<FencingToken>,
    /// Secret of the attempt that has written this marker; none in older markers. See [`attempt`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<AttemptSecret>,
    /// Id of the image.
    pub image: String,
    /// Id of the layout.
    pub layout: String,
    /// `sha256:HEX` of the layout in its canonical form; empty in older markers, which did not have it.
    #[serde(default, with = "crate::empty", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub layout_digest: Option<String>,
    /// RFC 3339, UTC, by the clock of the machine: for display only. [`lineage`] orders installations.
    #[serde(default)]
    pub time: String,
    /// The disks that the layout names.
    #[serde(default)]
    pub disks: Vec<MarkedDisk>,
    /// All of it came from another machine in one boot: `sha256:HEX` of the certificate that it had in that boot. If it has booted since,
    /// its own system may have written something that is not here.
    #[serde(default, with = "crate::empty", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub received_from: Option<String>,
    /// Digests of the installations that this one replaced, the latest first; empty in markers of earlier versions. See [`lineage`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supersedes: Vec<String>,
    /// Volumes of Kubernetes that this installation or an earlier one has prepared; `None` in older markers, which did not record them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<RecordedVolume>>,
}

/// A volume of Kubernetes that an installation has prepared: it is never prepared a second time while its data may exist.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct RecordedVolume {
    /// `metadata.uid` of the resource.
    pub uid: String,
    #[serde(default)]
    pub name: String,
    /// Persistent path: `/dev/disk/by-uuid/…`; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Device that it was prepared on, by its name of that time: `/dev/sdc`; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// Disks below that device; empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<MarkedDisk>,
}

/// Which disk the layout's name meant when the machine was installed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct MarkedDisk {
    /// As the layout spells it.
    pub device: String,
    /// Empty when the disk has none; so is `wwn`.
    #[serde(default)]
    pub serial: String,
    #[serde(default)]
    pub wwn: String,
    pub size_bytes: u64,
    /// Logical sector; 0 when it was not recorded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sector_bytes: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// `/dev/disk/by-path/…`: the place in the machine that the disk had.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by_path: String,
    /// Disk GUID of its GPT; empty when it has none. Every table that an installation writes has a new one.
    #[serde(default, with = "crate::empty")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub guid: Option<String>,
    /// The GUID that was there when an attempt began. If that attempt was cut off, the disk may still have it.
    #[serde(default, with = "crate::empty", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub guid_before: Option<String>,
    /// What a reinstall may do to it; `None` in older markers, which did not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<Promise>,
    /// What an attempt that has begun was about to make on this kept disk. The marker of a finished installation has
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub making: Vec<Making>,
}

impl MarkedDisk {
    /// Serial number in its comparable form; `None` if it is missing or a placeholder.
    pub fn comparable_serial(&self) -> Option<String> {
        comparable_serial(&self.serial)
    }

    /// World wide name in its comparable form; `None` if it is missing or a placeholder.
    pub fn comparable_wwn(&self) -> Option<String> {
        comparable_wwn(&self.wwn)
    }

    /// Returns whether serial number, world wide name or size show that these are two disks.
    pub fn is_another_than(&self, other: &MarkedDisk) -> bool {
        is_same_serial(&self.serial, &other.serial) == Some(false)
            || is_same_wwn(&self.wwn, &other.wwn) == Some(false)
            || self.size_bytes != other.size_bytes
    }

    /// In words, by what both are one disk, whatever is written on it: by its hardware's own names. None: nothing says so.
    pub fn is_one_with(&self, other: &MarkedDisk) -> Option<String> {
        if is_same_wwn(&self.wwn, &other.wwn) == Some(true) {
            return Some(format!("wwn {}", self.wwn));
        }
        let is_same = is_same_serial(&self.serial, &other.serial) == Some(true);
        let same = is_same && self.model == other.model && self.size_bytes == other.size_bytes;
        same.then(|| format!("serial number {}, model and size", self.serial))
    }
}

/// Something that is made on a disk whose other content is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Making {
    /// `disk`, `partition GUID`, `array UUID`, `volume GROUP-UUID NAME`.
    pub on: String,
    /// UUID of the filesystem; empty when the whole disk is made anew.
    #[serde(default, with = "crate::empty")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: Option<String>,
    /// Whether the device held nothing when the attempt started: it was blank, did not exist yet, or was left unfinished
    /// by the attempt before. Older records do not contain it, and prove nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_empty: bool,
    /// UUIDs, GUIDs and LVM names of everything that the attempt makes; only for a disk that is made anew.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<String>,
}

impl Making {
    /// Record of a filesystem that is made on a device without content.
    pub fn filesystem(on: String, uuid: String) -> Making {
        Making { on, uuid: Some(uuid), was_empty: true, contents: Vec::new() }
    }
}

/// What a layout promises for the data of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Promise {
    /// `wipeonreinstall: true`.
    Wiped,
    /// `wipeonreinstall: false`.
    Kept,
}

impl std::fmt::Display for Promise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Promise::Wiped => "wiped",
            Promise::Kept => "kept",
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
    fn a_marker_from_before_volumes_were_recorded_loads() {
        let old = r#"{"machine": "m", "allocation": "a", "order": "", "image": "i", "layout": "l", "disks": []}"#;
        let marker: Marker = serde_json::from_str(old).unwrap();
        assert_eq!(marker.volumes, None);
        let uid = "9474cda7-0dbe-40fc-9842-3cb0404a7201";
        let new = old.replace("\"disks\"", &format!("\"volumes\": [{{\"uid\": \"{uid}\"}}], \"disks\""));
        let marker: Marker = serde_json::from_str(&new).unwrap();
        assert_eq!(marker.volumes, Some(vec![RecordedVolume { uid: uid.to_owned(), ..RecordedVolume::default() }]));
        assert_eq!(serde_json::from_str::<Marker>(&serde_json::to_string(&marker).unwrap()).unwrap(), marker);
    }
}
