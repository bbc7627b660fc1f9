//! Data that is received from another machine instead of an image.

use model::device_name::{DevicePath, LayoutPath};
use model::layout::FilesystemFormat;

/// A device whose content is sent to another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceDevice {
    /// Name of the device in the layout.
    pub name: LayoutPath,
    pub device: DevicePath,
    pub format: FilesystemFormat,
}
