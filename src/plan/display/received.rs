//! Data received from another machine, as text.

use super::operations::Said;
use super::short;
use crate::plan::Receive;
use crate::text;

/// Describes a migration: `received from machine m-1`, and a line for each device.
pub fn from(receive: &Receive) -> Said {
    let below = receive.devices.iter().map(|is| {
        let kept = if is.uuid.is_empty() { "as is".to_owned() } else { format!("UUID {} kept", is.uuid) };
        let what = if is.uuid.is_empty() { "all" } else { is.format.name() };
        format!("{}: {what} of {}, {}, {kept}", short(&is.device), is.name, text::bytes(is.size_bytes))
    });
    Said::after(format!("received from machine {}", receive.machine)).with(below.collect())
}
