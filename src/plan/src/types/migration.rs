//! Data that is received from another machine instead of an image.

use model::device::{DevicePath, LayoutPath};
use model::layout::FilesystemFormat;
use serde::Serialize;

/// The migration that this machine receives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReceiveMigration {
    /// Id of the order.
    pub order: String,
    /// Id of the machine that has the allocation until now.
    pub machine: String,
    pub devices: Vec<ReceivedDevice>,
}

/// A device that is filled with the content of its counterpart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReceivedDevice {
    /// Name in the layout, on both machines.
    pub name: LayoutPath,
    pub device: DevicePath,
    pub format: FilesystemFormat,
    /// UUID in the notation of blkid; empty if it has none.
    pub uuid: String,
    /// Size in bytes of the device on the source machine; no more than this is written.
    pub size_bytes: u64,
}

/// A device whose content is sent to another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceDevice {
    /// Name in the layout.
    pub name: LayoutPath,
    pub device: DevicePath,
    pub format: FilesystemFormat,
}
