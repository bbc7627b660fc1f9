//! Table of the Kubernetes volumes, with the device and the verdict of each volume.
use crate::{PersistentVerdict, PersistentVolume};
use common::format::{format_bytes, format_columns};
use operations::operation_text::strip_dev;
use std::fmt;

pub(crate) fn write_volumes(f: &mut fmt::Formatter<'_>, volumes: &[PersistentVolume]) -> fmt::Result {
    if volumes.is_empty() {
        return Ok(());
    }
    let mut rows = vec![["volume", "kind", "device", "size", "verdict", "path"].map(str::to_owned)];
    rows.extend(volumes.iter().map(volume_row));
    writeln!(f, "{}", format_columns(&rows))
}

/// Returns the text that is displayed in place of the path of a volume that has no path or whose path is not yet known.
fn describe_unknown_path(volume: &PersistentVolume) -> String {
    match volume.verdict {
        PersistentVerdict::Leave => "none: marked for deletion".to_owned(),
        _ => format!("from the LVM UUID of {}", strip_dev(&volume.device)),
    }
}

fn volume_row(volume: &PersistentVolume) -> [String; 6] {
    let verdict = match volume.verdict {
        PersistentVerdict::Make => "make",
        PersistentVerdict::Keep => "keep",
        PersistentVerdict::Extend => "extend",
        PersistentVerdict::Leave => "leave",
    };
    let disks = volume.disks.join(", ");
    let device = strip_dev(&volume.device).to_owned();
    let device = if device.is_empty() { "-".to_owned() } else { device };
    let device = if disks.is_empty() || disks == device { device } else { format!("{device} on {disks}") };
    [
        volume.name.clone(),
        volume.kind.clone(),
        device,
        volume.size_bytes.map_or_else(|| "-".to_owned(), format_bytes),
        verdict.to_owned(),
        volume.path.clone().unwrap_or_else(|| describe_unknown_path(volume)),
    ]
}
