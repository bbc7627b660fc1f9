//! What comes from another machine instead of an image.

use crate::device::{DevicePath, LayoutPath};
use crate::layout::Format;
use serde::Serialize;

/// All that a moved machine brings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Receive {
    /// Id of the order.
    pub order: String,
    /// The one that has it until now.
    pub machine: String,
    pub devices: Vec<Received>,
}

/// One device that is filled with what is on its like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Received {
    /// As the layout calls it, on both machines.
    pub name: LayoutPath,
    pub device: DevicePath,
    pub format: Format,
    /// As blkid writes it; empty where it has none.
    pub uuid: String,
    /// Of the device on the other machine: no more is written.
    pub size_bytes: u64,
}

/// A device of which another machine gets what is on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FromDevice {
    /// As the layout calls it.
    pub name: LayoutPath,
    pub device: DevicePath,
    pub format: Format,
}
