//! Which disk is meant: root device hints as Ironic writes them, matched against the disks of a machine.
//!
//! Each hint is an attribute with an expression: a value, or an operator and its values. Numbers of `size` are whole
//! GiB. What is documented for Ironic and does not work there (ranges, `<or>` on sizes, `<all-in>`) works here, and
//! `size: smallest` and `removable` are ours.
//!
//! Somebody's USB stick and the virtual medium of a management controller are disks as well. No hint means them that does
//! not say so.

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

/// Attribute to expression, as the layout has them.
type Hints = BTreeMap<String, String>;

/// As Ironic lists them, and `removable`.
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
/// Hints that are about one disk and no other.
const NAMING: [&str; 4] = ["serial", "wwn", "wwn_with_extension", "by_path"];
/// Hints that are about the hardware of one disk, wherever it is.
const HARDWARE: [&str; 3] = ["serial", "wwn", "wwn_with_extension"];
const GIB: u128 = 1 << 30;
/// Hexadecimal digits of a world wide name without the extension that its vendor may add (NAA 6).
const WWN_DIGITS: usize = 16;
/// The disk with the fewest bytes among those that match everything else.
const SMALLEST: &str = "smallest";
/// Disks of one capacity on paper differ by less than this, by maker and series: none of them is the smallest.
const SMALLEST_TOLERANCE_PERCENT: u128 = 4;

/// Identifiers of a disk that hints are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Identifiers {
    /// Identifiers without placeholders, which select no disk.
    Usable,
    /// Identifiers as the hardware reports them, placeholders included.
    Reported,
}

/// What is wrong with hints whatever the machine: the hint, and what to say about it.
pub fn problems(hints: &Hints) -> Vec<(String, String)> {
    let problem = |(hint, text): (&String, &String)| match Condition::read(hint, text) {
        Err(why) => Some((hint.clone(), why)),
        Ok(_) => None,
    };
    hints.iter().filter_map(problem).collect()
}

/// The hints that the disk does not match, each with what the disk has instead; none: it is a candidate.
///
/// `smallest` is no matter of one disk: [`candidates`] sees to it.
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
        format!("it {what}, which tran: usb or removable: true must say")
    });
    hints.iter().filter_map(different).chain(unnamed).collect()
}

fn is_portable(disk: &Disk) -> bool {
    disk.transport == USB || disk.removable
}

/// Does this hint of a disk that comes and goes mean such a one? A condition that every disk but some fulfils does not.
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

/// The disks that match all hints, in their order; of disks that are about equally small, all.
pub fn candidates<'a>(hints: &Hints, disks: &'a [Disk]) -> Vec<&'a Disk> {
    candidates_by(hints, disks, Identifiers::Usable)
}

/// Returns the disks that match all hints by what the hardware reports, placeholders included. For disks that are left alone: a
/// placeholder there protects all disks that report it.
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

/// What the disk has, for a person.
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

/// The identifier that the hint is about, as the hardware reports it.
fn reported<'a>(hint: &str, disk: &'a Disk) -> &'a str {
    match hint {
        "serial" => &disk.serial,
        "wwn" | "wwn_with_extension" | "wwn_vendor_extension" => &disk.wwn,
        _ => "",
    }
}

/// Every spelling of a text attribute of the disk; none when it is not known.
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
        // udev gives the first 64 bits, our inventory all of it: both are right.
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

/// A world wide name as udev cuts it: 64 bits, and the extension of its vendor where it has one.
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
                    // A disk has not that name only when none of the spellings of its name is it.
                    Word::Differs(_) => !values.is_empty() && values.iter().all(|value| word.holds(value)),
                    _ => values.iter().any(|value| word.holds(value)),
                }
            }
        }
    }
}

/// Returns whether the only spelling of the attribute differs from the wanted one. Most disks differ, and need no copy of their attributes.
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

/// Exact, without rounding to GiB: a disk of 894.25 GiB is none of 894.
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
