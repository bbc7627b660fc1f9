//! Root device hints as in Ironic: selection of a disk of the machine by its attributes.
//!
//! Each hint is an attribute with an expression: a value, or an operator and its operands. Numbers of `size` are whole GiB. Expressions
//! that Ironic documents but does not support (ranges, `<or>` on sizes, `<all-in>`) work here; `size: smallest` and `removable` are
//! extensions.
//!
//! USB sticks and virtual media of a management controller are disks too. A hint selects them only if it does so explicitly.

pub(super) mod doubts;
mod expression;
mod placeholders;
#[cfg(test)]
mod tests;

pub use placeholders::{Placeholder, placeholder};

use crate::device::identifiers::{is_placeholder_serial, is_placeholder_wwn};
use crate::inventory::Disk;
use crate::text;
use expression::{Comparison, Condition, Flag, Number, Word};
use std::collections::BTreeMap;

/// Expressions by attribute, as in the layout.
type Hints = BTreeMap<String, String>;

/// Ironic's hints, and `removable`.
const KNOWN: [&str; 13] = [
    "size",
    "model",
    "vendor",
    "serial",
    "wwn",
    "wwn_with_extension",
    "wwn_vendor_extension",
    "hctl",
    "by_path",
    "name",
    "rotational",
    "tran",
    REMOVABLE,
];
const REMOVABLE: &str = "removable";
const USB: &str = "usb";
/// Hints that identify exactly one disk.
const NAMING: [&str; 4] = ["serial", "wwn", "wwn_with_extension", "by_path"];
/// Hints that identify the hardware of one disk, independent of its slot.
const HARDWARE: [&str; 3] = ["serial", "wwn", "wwn_with_extension"];
const GIB: u128 = 1 << 30;
/// Hexadecimal digits of a world wide name without the vendor extension (NAA 6).
const WWN_DIGITS: usize = 16;
/// Smallest disk in bytes among those that match all other hints.
const SMALLEST: &str = "smallest";
/// Disks of the same nominal capacity differ by less than this between manufacturers and series, so none of them counts as the smallest.
const SMALLEST_TOLERANCE_PERCENT: u128 = 4;

/// Treatment of placeholders in a disk's identifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Identifiers {
    /// Identifiers without placeholders, which select no disk.
    Usable,
    /// Identifiers as the hardware reports them, placeholders included.
    Reported,
}

/// Returns the problems of hints that do not depend on a machine, each with the name of the hint.
pub fn problems(hints: &Hints) -> Vec<(String, String)> {
    let problem = |(hint, text): (&String, &String)| match Condition::read(hint, text) {
        Err(why) => Some((hint.clone(), why)),
        Ok(_) => None,
    };
    hints.iter().filter_map(problem).collect()
}

/// Returns the hints that the disk does not match, each with the actual value; empty if the disk is a candidate.
///
/// `smallest` depends on other disks: see [`candidates`].
pub fn differs(hints: &Hints, disk: &Disk) -> Vec<String> {
    differs_by(hints, disk, Identifiers::Usable)
}

fn differs_by(hints: &Hints, disk: &Disk, identifiers: Identifiers) -> Vec<String> {
    let different = |(hint, text): (&String, &String)| {
        let matches = Condition::read(hint, text).is_ok_and(|condition| condition.holds(hint, disk, identifiers));
        (!matches).then(|| format!("{hint} {text}: it {}", found(hint, disk)))
    };
    let is_named = hints.iter().any(|(hint, text)| names_portable(hint, text, disk, identifiers));
    let unnamed = is_portable(disk) && !is_named;
    let unnamed = unnamed.then(|| {
        let what = if disk.transport == USB { "is attached by USB" } else { "is removable" };
        format!("the disk {what}, which must be requested with tran: usb or removable: true")
    });
    hints.iter().filter_map(different).chain(unnamed).collect()
}

fn is_portable(disk: &Disk) -> bool {
    disk.transport == USB || disk.removable
}

/// Returns whether this hint explicitly selects the portable disk. A condition that is true for most disks does not.
fn names_portable(hint: &str, text: &str, disk: &Disk, identifiers: Identifiers) -> bool {
    match Condition::read(hint, text) {
        Ok(Condition::Flag(Flag(wanted))) => hint == REMOVABLE && wanted,
        Ok(Condition::Text(word)) if hint == "tran" => word.names(USB) && disk.transport == USB,
        Ok(Condition::Text(word)) if NAMING.contains(&hint) => {
            attributes(hint, disk, identifiers).iter().any(|value| word.names(&value.to_lowercase()))
        }
        _ => false,
    }
}

/// Returns whether a hint is a serial number or WWN of this disk in full.
pub fn name_hardware(hints: &Hints, disk: &Disk) -> bool {
    hints.iter().filter(|(hint, _)| HARDWARE.contains(&hint.as_str())).any(|(hint, text)| {
        let Ok(Condition::Text(word)) = Condition::read(hint, text) else { return false };
        attributes(hint, disk, Identifiers::Usable).iter().any(|value| word.names(&value.to_lowercase()))
    })
}

/// Returns the disks that match all hints, in their order. With `smallest`, all disks of nearly the same size are returned.
pub fn candidates<'a>(hints: &Hints, disks: &'a [Disk]) -> Vec<&'a Disk> {
    candidates_by(hints, disks, Identifiers::Usable)
}

/// Returns the disks that match all hints, comparing identifiers as the hardware reports them, including placeholders. It is used for disks
/// that must not be touched: a placeholder then protects all disks that report it.
pub fn reported_candidates<'a>(hints: &Hints, disks: &'a [Disk]) -> Vec<&'a Disk> {
    candidates_by(hints, disks, Identifiers::Reported)
}

fn candidates_by<'a>(hints: &Hints, disks: &'a [Disk], identifiers: Identifiers) -> Vec<&'a Disk> {
    let read: Option<Vec<(&str, Condition)>> =
        hints.iter().map(|(hint, text)| Some((hint.as_str(), Condition::read(hint, text).ok()?))).collect();
    let Some(read) = read else { return Vec::new() };
    let matches = |disk: &&Disk| {
        read.iter().all(|(hint, condition)| condition.holds(hint, disk, identifiers))
            && (!is_portable(disk) || differs_by(hints, disk, identifiers).is_empty())
    };
    let mut found: Vec<&Disk> = disks.iter().filter(matches).collect();
    if hints.get("size").is_some_and(|text| expression::smallest(text).is_some()) {
        let least = found.iter().map(|disk| u128::from(disk.size_bytes)).min().unwrap_or_default();
        let about_least = least * (100 + SMALLEST_TOLERANCE_PERCENT);
        found.retain(|disk| u128::from(disk.size_bytes) * 100 <= about_least);
    }
    found
}

/// Returns the actual value of the attribute, for messages.
fn found(hint: &str, disk: &Disk) -> String {
    match hint {
        "size" => {
            let gib = disk.size_bytes as f64 / GIB as f64;
            format!("has {gib:.2} GiB ({})", text::bytes(disk.size_bytes))
        }
        "rotational" if disk.rotational => "rotates".to_owned(),
        "rotational" => "does not rotate".to_owned(),
        REMOVABLE if disk.removable => "is removable".to_owned(),
        REMOVABLE => "is not removable".to_owned(),
        _ => match (attributes(hint, disk, Identifiers::Usable).first(), reported(hint, disk)) {
            (Some(value), _) => format!("has {value}"),
            (None, "") => "has none".to_owned(),
            (None, placeholder) => format!("has {placeholder:?}, a placeholder"),
        },
    }
}

/// Returns the identifier that the hint compares, as the hardware reports it.
fn reported<'a>(hint: &str, disk: &'a Disk) -> &'a str {
    match hint {
        "serial" => &disk.serial,
        "wwn" | "wwn_with_extension" | "wwn_vendor_extension" => &disk.wwn,
        _ => "",
    }
}

/// Returns every spelling of a text attribute of the disk; empty if it is not known.
fn attributes(hint: &str, disk: &Disk, identifiers: Identifiers) -> Vec<String> {
    let is_placeholder = match hint {
        "serial" => is_placeholder_serial(&disk.serial),
        "wwn" | "wwn_with_extension" | "wwn_vendor_extension" => is_placeholder_wwn(&disk.wwn),
        _ => false,
    };
    if identifiers == Identifiers::Usable && is_placeholder {
        return Vec::new();
    }
    let (short, extension) = wwn_parts(&disk.wwn);
    let values = match hint {
        "model" => vec![disk.model.as_str()],
        "vendor" => vec![disk.vendor.as_str()],
        "serial" => vec![disk.serial.as_str()],
        // udev reports the first 64 bits, the inventory all of it: both match.
        "wwn" => vec![disk.wwn.as_str(), short],
        "wwn_with_extension" => vec![disk.wwn.as_str()],
        "wwn_vendor_extension" => return extension.map(|digits| format!("0x{digits}")).into_iter().collect(),
        "hctl" => vec![disk.hctl.as_str()],
        "by_path" => vec![disk.by_path.as_str()],
        "name" => vec![disk.device.as_str(), disk.name.as_str()],
        "tran" => vec![disk.transport.as_str()],
        _ => Vec::new(),
    };
    values.into_iter().filter(|value| !value.is_empty()).map(str::to_owned).collect()
}

/// Splits a world wide name as udev does: the first 64 bits, and the vendor extension if there is one.
fn wwn_parts(wwn: &str) -> (&str, Option<&str>) {
    let cut = "0x".len() + WWN_DIGITS;
    match wwn.strip_prefix("0x") {
        Some(digits) if digits.len() > WWN_DIGITS && wwn.is_ascii() => (&wwn[..cut], Some(&wwn[cut..])),
        _ => (wwn, None),
    }
}

impl Condition {
    fn holds(&self, hint: &str, disk: &Disk, identifiers: Identifiers) -> bool {
        match self {
            Condition::Size(number) => number.as_ref().is_none_or(|number| size_holds(number, disk.size_bytes)),
            Condition::Flag(Flag(wanted)) if hint == REMOVABLE => disk.removable == *wanted,
            Condition::Flag(Flag(wanted)) => disk.rotational == *wanted,
            Condition::Text(word) if is_evidently_other(word, hint, disk) => false,
            Condition::Text(word) => {
                let values = attributes(hint, disk, identifiers);
                let values: Vec<String> = values.iter().map(|value| value.to_lowercase()).collect();
                match word {
                    // The disk differs only if none of the spellings of the attribute is equal.
                    Word::Differs(_) => !values.is_empty() && values.iter().all(|value| word.holds(value)),
                    _ => values.iter().any(|value| word.holds(value)),
                }
            }
        }
    }
}

/// Returns whether the only spelling of the attribute differs from the requested one. Most disks differ; for these, no attributes are
/// copied.
fn is_evidently_other(word: &Word, hint: &str, disk: &Disk) -> bool {
    let value = match hint {
        "serial" => &disk.serial,
        "wwn_with_extension" => &disk.wwn,
        "by_path" => &disk.by_path,
        "wwn" if wwn_parts(&disk.wwn).1.is_none() => &disk.wwn,
        _ => return false,
    };
    let Word::Compared(Comparison::Equal, wanted) = word else { return false };
    value.is_ascii() && !value.eq_ignore_ascii_case(wanted)
}

/// Compares sizes exactly, without rounding to GiB: a disk of 894.25 GiB does not match 894.
fn size_holds(number: &Number, size_bytes: u64) -> bool {
    let size = u128::from(size_bytes);
    let bytes = |gib: &u64| u128::from(*gib) * GIB;
    match number {
        Number::Compared(comparison, gib) => comparison.holds(&size, &bytes(gib)),
        Number::OneOf(all) => all.iter().any(|gib| size == bytes(gib)),
        Number::Within { low, low_included, high, high_included } => {
            let (low, high) = (bytes(low), bytes(high));
            (size > low || (*low_included && size == low)) && (size < high || (*high_included && size == high))
        }
    }
}
