//! The marker: what every finished installation leaves in `/etc/metal` and with the control plane, so that nobody takes
//! the machine for an empty one, and a reinstall finds its disks again whatever they are called today.

use serde::{Deserialize, Serialize};

/// Where it lies on the filesystem that carries `/`.
pub const PATH: &str = "/etc/metal/drophammer.json";

/// An installation that was finished.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "desk", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Marker {
    /// Id of the machine.
    pub machine: String,
    /// Id of the allocation.
    pub allocation: String,
    /// Id of the order that a reinstall carried out; empty for the first installation.
    #[serde(default)]
    pub order: String,
    /// Id of the image.
    pub image: String,
    /// Id of the layout.
    pub layout: String,
    /// RFC 3339, UTC.
    #[serde(default)]
    pub time: String,
    /// The disks that the layout names.
    #[serde(default)]
    pub disks: Vec<MarkedDisk>,
}

/// Which disk the layout's name meant when the machine was installed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "desk", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct MarkedDisk {
    /// As the layout spells it.
    pub device: String,
    /// Empty when the disk has none; so is `wwn`.
    #[serde(default)]
    pub serial: String,
    #[serde(default)]
    pub wwn: String,
    pub size_bytes: u64,
    /// Disk GUID of its GPT, which every table that an installation makes has anew; empty when it has none.
    #[serde(default)]
    pub guid: String,
}
