//! LUKS containers in the plan's words.

use super::short;
use crate::layout::KeySource;
use crate::plan::Container;

/// `sda3: LUKS2, key: server, opened as luks-…`, `sda3: LUKS2, key: tpm2 and disk_key beside it, opened as luks-…`.
pub fn made(Container { device, mapping, source, key, withheld, .. }: &Container) -> String {
    let beside = match (source, key.is_empty() && !withheld) {
        (KeySource::Tpm2, true) => " alone: no disk_key was given",
        (KeySource::Tpm2, false) => " and disk_key beside it",
        _ => "",
    };
    format!("{}: LUKS2, key: {source}{beside}, opened as {}", short(device), short(mapping))
}

/// `cryptsetup is there, and the keys of sda3 (server)`, `cryptsetup and a TPM 2 are there, and the keys of sda3 (tpm2)`.
pub fn checked(containers: &[Container]) -> String {
    let keys = containers.iter().map(|is| format!("{} ({})", short(&is.device), is.source));
    let by_tpm = containers.iter().any(|is| is.source == KeySource::Tpm2);
    let there = if by_tpm { "cryptsetup and a TPM 2 are" } else { "cryptsetup is" };
    format!("{there} there, and the keys of {}", keys.collect::<Vec<_>>().join(", "))
}
