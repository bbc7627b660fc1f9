//! What the firmware is to know of the installed system.

use super::{BootOrder, Esp};
use serde::Serialize;

/// Entries of the firmware for the installed system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootEntries {
    /// `drophammer: web-1`.
    pub label: String,
    /// Where a boot loader may be. What the finisher wants names them by their place in this list.
    pub esps: Vec<Esp>,
    pub order: BootOrder,
    /// An installer of the image makes its own.
    pub unless_installer: bool,
}
