//! Data received from another machine, as text.

use super::operations::OperationText;
use super::strip_dev;
use crate::ReceiveMigration;
use common::format;

/// Describes a migration: `received from machine m-1`, and a line for each device.
pub fn describe_migration(receive: &ReceiveMigration) -> OperationText {
    let below = receive.devices.iter().map(|is| {
        let kept = if is.uuid.is_empty() { "as is".to_owned() } else { format!("UUID {} kept", is.uuid) };
        let what = if is.uuid.is_empty() { "all" } else { is.format.name() };
        format!("{}: {what} of {}, {}, {kept}", strip_dev(&is.device), is.name, format::format_bytes(is.size_bytes))
    });
    OperationText::after(format!("received from machine {}", receive.machine)).with(below.collect())
}
