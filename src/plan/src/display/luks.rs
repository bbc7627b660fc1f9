//! Operations on LUKS containers, as text.

use super::strip_dev;
use crate::LuksContainer;
use model::layout::KeySource;

/// Describes the creation of a container: `sda3: LUKS2, key: server, opened as luks-…`, `sda3: LUKS2, key: tpm2 and disk_key, opened as
/// luks-…`.
pub fn describe_creation(LuksContainer { device, mapping, source, key, withheld, .. }: &LuksContainer) -> String {
    let beside = match (source, key.is_empty() && !withheld) {
        (KeySource::Tpm2, true) => " only (no disk_key given)",
        (KeySource::Tpm2, false) => " and disk_key",
        _ => "",
    };
    format!("{}: LUKS2, key: {source}{beside}, opened as {}", strip_dev(device), strip_dev(mapping))
}

/// Describes a check for prerequisites: `cryptsetup and the keys of sda3 (server) are available`, `cryptsetup, a TPM 2 and the keys of sda3
/// (tpm2) are available`.
pub fn describe_check(containers: &[LuksContainer]) -> String {
    let keys = containers.iter().map(|is| format!("{} ({})", strip_dev(&is.device), is.source));
    let by_tpm = containers.iter().any(|is| is.source == KeySource::Tpm2);
    let there = if by_tpm { "cryptsetup, a TPM 2 and" } else { "cryptsetup and" };
    format!("{there} the keys of {} are available", keys.collect::<Vec<_>>().join(", "))
}
