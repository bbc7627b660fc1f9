//! Text of several operations, one line each. Operations that differ only in their devices share a line.

use crate::PlannedOperation;
use crate::operation_text::{DeviceSizes, OperationLine, OperationText};

/// Returns the lines for these operations. Operations with the same text on different devices are combined into one
/// line.
pub fn operation_lines<O: PlannedOperation>(operations: &[O], sizes: &DeviceSizes) -> Vec<String> {
    let mut lines: Vec<(Vec<&str>, OperationText)> = Vec::new();
    for operation in operations {
        let OperationLine { device, text } = operation.describe(sizes);
        match lines.iter_mut().find(|(devices, before)| *before == text && !devices.is_empty() && device.is_some()) {
            Some((devices, _)) => devices.extend(device),
            None => lines.push((device.into_iter().collect(), text)),
        }
    }
    lines.into_iter().flat_map(|(devices, text)| text.lines(&devices.join(", "))).collect()
}
