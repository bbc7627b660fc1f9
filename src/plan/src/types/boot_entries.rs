//! Boot entries that are registered with the firmware for the installed system.

use super::{BootOrder, Esp};
use serde::Serialize;

/// Firmware boot entries for the installed system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootEntries {
    /// `drophammer: web-1`.
    pub label: String,
    /// Partitions that may contain a boot loader. The finisher refers to them by index.
    pub esps: Vec<Esp>,
    pub order: BootOrder,
    /// Whether an installer of the image creates the entries instead, if there is one.
    pub unless_installer: bool,
}
