//! What the firmware is to know of the installed system.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What the firmware tries first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BootOrder {
    /// The network, then the installed system.
    #[default]
    Pxe,
    /// The installed system.
    Disk,
    /// As it is; what is new comes last.
    Keep,
}

/// A partition that the firmware can boot from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Esp {
    /// `/dev/sda`.
    pub disk: String,
    /// `/dev/sda1`.
    pub device: String,
    pub number: u32,
    /// Of the partition, in the GPT.
    pub guid: Uuid,
    /// In sectors of the disk, as the GPT has them.
    pub first_lba: u64,
    pub sectors: u64,
}

/// Entries of the firmware for the installed system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootEntries {
    /// `drophammer: web-1`.
    pub label: String,
    /// One for each disk that can boot, in the order in which they are tried.
    pub esps: Vec<Esp>,
    pub order: BootOrder,
}
