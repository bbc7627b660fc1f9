//! Hardware of a machine, except disks.

use super::lldp::LldpNeighbor;
use crate::architecture::Architecture;
use crate::machine_identity::is_usb_driver;
use serde::{Deserialize, Serialize};

/// Identification of the machine from SMBIOS (`/sys/class/dmi/id`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemInfo {
    /// SMBIOS UUID in lower case; `None` if the firmware provides none.
    #[serde(with = "common::empty_string_as_none")]
    pub uuid: Option<String>,
    #[serde(default)]
    pub vendor: String,
    #[serde(default)]
    pub product: String,
    #[serde(default)]
    pub serial: String,
    #[serde(default)]
    pub bios_vendor: String,
    #[serde(default)]
    pub bios_version: String,
    #[serde(default)]
    pub bios_date: String,
    pub firmware: FirmwareType,
    #[serde(default, skip_serializing_if = "Architecture::is_default")]
    pub architecture: Architecture,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FirmwareType {
    #[default]
    Bios,
    Uefi,
}

/// CPU socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    pub vendor: String,
    pub model: String,
    pub cores: u32,
    pub threads: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    pub name: String,
    pub mac: String,
    #[serde(default)]
    pub driver: String,
    /// True if the NIC is a USB device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub usb: bool,
    /// True if a carrier is detected on the link.
    #[serde(default)]
    pub link: bool,
    /// LLDP neighbors at the other end of the cable; empty if no LLDP frame was received.
    #[serde(rename = "neighbours", default, skip_serializing_if = "Vec::is_empty")]
    pub neighbors: Vec<LldpNeighbor>,
}

impl Nic {
    /// Returns whether the NIC is a USB device. For inventories of earlier versions, which do not contain this
    /// information, the driver is used.
    pub fn is_usb(&self) -> bool {
        self.usb || is_usb_driver(&self.driver)
    }
}
