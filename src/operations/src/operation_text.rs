//! Text of a single operation.

use model::device_name::DevicePath;
use std::collections::BTreeMap;

pub(crate) const MIB: u64 = 1 << 20;

/// Known sizes of devices in bytes, by device path.
pub(crate) type DeviceSizes = BTreeMap<DevicePath, u64>;

/// Text of an operation, and the device used to group operations.
pub struct OperationLine<'a> {
    /// Device of the operation. Operations with the same text share one line, which lists their devices. `None` if
    /// the operation always has a separate line.
    pub device: Option<&'a str>,
    pub text: OperationText,
}

impl<'a> OperationLine<'a> {
    /// Returns a line with the text `before`, the device, and the text `after`.
    pub(crate) fn on_device(before: &str, device: &'a str, after: impl Into<String>) -> OperationLine<'a> {
        let text = OperationText { before: before.to_owned(), after: after.into(), below: Vec::new() };
        OperationLine { device: Some(strip_dev(device)), text }
    }
}

impl From<OperationText> for OperationLine<'_> {
    fn from(text: OperationText) -> Self {
        OperationLine { device: None, text }
    }
}

impl From<String> for OperationLine<'_> {
    fn from(line: String) -> Self {
        OperationText::after(line).into()
    }
}

impl From<&str> for OperationLine<'_> {
    fn from(line: &str) -> Self {
        OperationText::after(line).into()
    }
}

/// Text of an operation: the parts before and after the names of its devices, and further lines below.
#[derive(PartialEq, Eq)]
pub struct OperationText {
    before: String,
    after: String,
    pub(crate) below: Vec<String>,
}

impl OperationText {
    pub(crate) fn after(after: impl Into<String>) -> OperationText {
        OperationText { before: String::new(), after: after.into(), below: Vec::new() }
    }

    pub(crate) fn with(self, below: Vec<String>) -> OperationText {
        OperationText { below, ..self }
    }

    pub(crate) fn and(mut self, line: Option<String>) -> OperationText {
        self.below.extend(line);
        self
    }

    pub(crate) fn lines(self, devices: &str) -> Vec<String> {
        let first = format!("{}{devices}{}", self.before, self.after);
        std::iter::once(first).chain(self.below.into_iter().map(|line| format!("  {line}"))).collect()
    }
}

/// Returns the device path without the prefix `/dev/`.
pub fn strip_dev<D: AsRef<str> + ?Sized>(device: &D) -> &str {
    let device = device.as_ref();
    device.strip_prefix("/dev/").unwrap_or(device)
}

pub(crate) fn join_devices(devices: &[DevicePath]) -> String {
    devices.iter().map(strip_dev).collect::<Vec<_>>().join(", ")
}

/// Returns the minimum size of a device, in the form `  19498 MiB` that follows the device's name; empty if the size is
/// unknown. The plan contains this size, but not the UUIDs of new objects, because an offline plan cannot predict these
/// UUIDs.
pub(crate) fn describe_size(sizes: &DeviceSizes, device: &DevicePath) -> String {
    sizes.get(device).map(|bytes| format!("  {} MiB", bytes / MIB)).unwrap_or_default()
}
