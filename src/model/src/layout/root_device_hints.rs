//! Root device hints of Ironic, which select a disk of the machine by its attributes.
//!
//! Each hint is an attribute with an expression. The expression is a value, or an operator with its operands. Numbers
//! of `size` are whole GiB. This module also supports some expressions that Ironic documents but does not support:
//! ranges, `<or>` on sizes, `<all-in>`. `size: smallest` and `removable` are extensions.
//!
//! USB sticks and virtual media of a management controller are also disks. Such a disk is selected only if a
//! hint requests it explicitly.

pub(super) mod advice;
mod expression;
mod identifier_spellings;
mod placeholder_detection;
#[cfg(test)]
mod tests;

pub(crate) use advice::collect_doubts;
pub use placeholder_detection::{PlaceholderHint, find_placeholder};

use crate::disk_identifiers::{is_placeholder_serial, is_placeholder_wwn};
use crate::inventory::InventoryDisk;
use common::format;
use expression::{ComparisonOperator, FlagCondition, HintCondition, SizeCondition, TextCondition};
use std::collections::BTreeMap;

/// Expressions of the hints, keyed by attribute.
type DiskHints = BTreeMap<String, String>;

/// Names of Ironic's hints, and `removable`.
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
/// Transport of eMMC and SD cards.
const MMC: &str = "mmc";
/// Hints that can identify a single disk.
const NAMING: [&str; 4] = ["serial", "wwn", "wwn_with_extension", "by_path"];
/// Hints that can identify the hardware of a single disk, independently of its slot.
const HARDWARE: [&str; 3] = ["serial", "wwn", "wwn_with_extension"];
const GIB: u128 = 1 << 30;
/// Number of hexadecimal digits of a world wide name without the vendor extension (NAA 6).
const WWN_DIGITS: usize = 16;
/// Expression of `size` that selects the smallest of the disks that match all other hints.
const SMALLEST: &str = "smallest";
/// Maximum difference in size, in percent, of disks that are considered equally small. Between manufacturers and
/// series, disks of the same nominal capacity differ by less than this.
const SMALLEST_TOLERANCE_PERCENT: u128 = 4;

/// Treatment of placeholders in a disk's identifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdentifierSource {
    /// Placeholders are treated as missing, so they select no disk.
    Usable,
    /// Placeholders are treated like other identifiers that the hardware reports.
    Reported,
}

/// Returns the problems of hints that can be detected without a machine. Each problem is returned with the name of its
/// hint.
pub fn check_hints(hints: &DiskHints) -> Vec<(String, String)> {
    let problem = |(hint, text): (&String, &String)| match HintCondition::parse(hint, text) {
        Err(why) => Some((hint.clone(), why)),
        Ok(_) => None,
    };
    hints.iter().filter_map(problem).collect()
}

/// Returns the hints that the disk does not match, each with the actual value of the attribute. If the disk is
/// removable or attached by USB, and no hint explicitly selects it, also returns a message about this. The list is
/// empty if the disk is a candidate.
///
/// `smallest` is not compared, because it depends on other disks; see [`find_candidates`].
pub fn explain_differences(hints: &DiskHints, disk: &InventoryDisk) -> Vec<String> {
    explain_differences_by(hints, disk, IdentifierSource::Usable)
}

fn explain_differences_by(hints: &DiskHints, disk: &InventoryDisk, identifiers: IdentifierSource) -> Vec<String> {
    let different = |(hint, text): (&String, &String)| {
        let matches =
            HintCondition::parse(hint, text).is_ok_and(|condition| condition.matches_disk(hint, disk, identifiers));
        (!matches).then(|| format!("{hint} {text}: it {}", describe_actual(hint, disk)))
    };
    let is_named = hints.iter().any(|(hint, text)| selects_portable(hint, text, disk, identifiers));
    let unnamed = is_portable(disk) && !is_named;
    let unnamed = unnamed.then(|| {
        let what = if disk.transport == USB { "is attached by USB" } else { "is removable" };
        format!("the disk {what}, and hints match such a disk only together with `tran: usb` or `removable: true`")
    });
    hints.iter().filter_map(different).chain(unnamed).collect()
}

/// Returns whether the disk is removable or attached by USB. Such a disk need not belong to the machine.
pub fn is_portable(disk: &InventoryDisk) -> bool {
    disk.transport == USB || disk.removable
}

/// Returns whether this hint explicitly selects the disk. A condition that most disks satisfy, such as a size, is not
/// an explicit selection. The result is relevant only for disks that are removable or attached by USB.
fn selects_portable(hint: &str, text: &str, disk: &InventoryDisk, identifiers: IdentifierSource) -> bool {
    match HintCondition::parse(hint, text) {
        Ok(HintCondition::Flag(FlagCondition(wanted))) => hint == REMOVABLE && wanted,
        Ok(HintCondition::Text(word)) if hint == "tran" => word.equals_text(USB) && disk.transport == USB,
        Ok(HintCondition::Text(word)) if NAMING.contains(&hint) => {
            collect_attributes(hint, disk, identifiers).iter().any(|value| word.equals_text(&value.to_lowercase()))
                || equals_alternative(&word, hint, disk)
        }
        _ => false,
    }
}

/// Returns whether a hint requires exactly the serial number or WWN of this disk.
pub fn identify_hardware(hints: &DiskHints, disk: &InventoryDisk) -> bool {
    hints.iter().filter(|(hint, _)| HARDWARE.contains(&hint.as_str())).any(|(hint, text)| {
        let Ok(HintCondition::Text(word)) = HintCondition::parse(hint, text) else { return false };
        collect_attributes(hint, disk, IdentifierSource::Usable)
            .iter()
            .any(|value| word.equals_text(&value.to_lowercase()))
            || equals_alternative(&word, hint, disk)
    })
}

/// Returns the disks that match all hints, in the order of `disks`. `smallest` selects all disks of nearly the smallest
/// size.
pub fn find_candidates<'a>(hints: &DiskHints, disks: &'a [InventoryDisk]) -> Vec<&'a InventoryDisk> {
    find_candidates_by(hints, disks, IdentifierSource::Usable)
}

/// Returns the disks that match all hints. Placeholders are compared like other identifiers. Used for hints that
/// protect disks: a hint with a placeholder then protects all disks that report this placeholder.
pub fn find_reported_candidates<'a>(hints: &DiskHints, disks: &'a [InventoryDisk]) -> Vec<&'a InventoryDisk> {
    find_candidates_by(hints, disks, IdentifierSource::Reported)
}

fn find_candidates_by<'a>(
    hints: &DiskHints,
    disks: &'a [InventoryDisk],
    identifiers: IdentifierSource,
) -> Vec<&'a InventoryDisk> {
    let read: Option<Vec<(&str, HintCondition)>> =
        hints.iter().map(|(hint, text)| Some((hint.as_str(), HintCondition::parse(hint, text).ok()?))).collect();
    let Some(read) = read else { return Vec::new() };
    let matches = |disk: &&InventoryDisk| {
        read.iter().all(|(hint, condition)| condition.matches_disk(hint, disk, identifiers))
            && (!is_portable(disk) || explain_differences_by(hints, disk, identifiers).is_empty())
    };
    let mut found: Vec<&InventoryDisk> = disks.iter().filter(matches).collect();
    if hints.get("size").is_some_and(|text| expression::strip_smallest(text).is_some()) {
        let least = found.iter().map(|disk| u128::from(disk.size_bytes)).min().unwrap_or_default();
        let about_least = least * (100 + SMALLEST_TOLERANCE_PERCENT);
        found.retain(|disk| u128::from(disk.size_bytes) * 100 <= about_least);
    }
    found
}

/// Describes the disk's actual attribute value, for messages about the hint.
fn describe_actual(hint: &str, disk: &InventoryDisk) -> String {
    match hint {
        "size" => {
            let gib = disk.size_bytes as f64 / GIB as f64;
            format!("has {gib:.2} GiB ({})", format::format_bytes(disk.size_bytes))
        }
        "rotational" if disk.rotational => "rotates".to_owned(),
        "rotational" => "does not rotate".to_owned(),
        REMOVABLE if disk.removable => "is removable".to_owned(),
        REMOVABLE => "is not removable".to_owned(),
        _ => {
            match (collect_attributes(hint, disk, IdentifierSource::Usable).first(), reported_identifier(hint, disk)) {
                (Some(value), _) => format!("has {value}"),
                (None, "") => "has none".to_owned(),
                (None, placeholder) => format!("has {placeholder:?}, a placeholder"),
            }
        }
    }
}

/// Returns the identifier that the hint compares, as reported by the hardware of the disk.
fn reported_identifier<'a>(hint: &str, disk: &'a InventoryDisk) -> &'a str {
    match hint {
        "serial" => &disk.serial,
        "wwn" | "wwn_with_extension" | "wwn_vendor_extension" => &disk.wwn,
        _ => "",
    }
}

/// Returns all spellings of a string attribute of the disk. The list is empty if the attribute is not known.
fn collect_attributes(hint: &str, disk: &InventoryDisk, identifiers: IdentifierSource) -> Vec<String> {
    let is_placeholder = match hint {
        "serial" => is_placeholder_serial(&disk.serial),
        "wwn" | "wwn_with_extension" | "wwn_vendor_extension" => is_placeholder_wwn(&disk.wwn),
        _ => false,
    };
    if identifiers == IdentifierSource::Usable && is_placeholder {
        return Vec::new();
    }
    let (short, extension) = split_wwn(&disk.wwn);
    let values = match hint {
        "model" => vec![disk.model.as_str()],
        "vendor" => vec![disk.vendor.as_str()],
        "serial" => vec![disk.serial.as_str()],
        // A hint may contain the whole WWN, as in the inventory, or only the first 64 bits, as in udev.
        "wwn" => vec![disk.wwn.as_str(), short],
        "wwn_with_extension" => vec![disk.wwn.as_str()],
        "wwn_vendor_extension" => return extension.map(|digits| format!("0x{digits}")).into_iter().collect(),
        "hctl" => vec![disk.hctl.as_str()],
        "by_path" => vec![disk.by_path.as_str()],
        "name" => vec![disk.device.as_str(), disk.name.as_str()],
        // Inventories of earlier versions do not contain the transport of an eMMC.
        "tran" if disk.transport.is_empty() && disk.name.as_str().starts_with("mmcblk") => vec![MMC],
        "tran" => vec![disk.transport.as_str()],
        _ => Vec::new(),
    };
    values.into_iter().filter(|value| !value.is_empty()).map(str::to_owned).collect()
}

/// Splits a world wide name as udev does, into the first 64 bits and the vendor extension, if there is one.
fn split_wwn(wwn: &str) -> (&str, Option<&str>) {
    let cut = "0x".len() + WWN_DIGITS;
    match wwn.strip_prefix("0x") {
        Some(digits) if digits.len() > WWN_DIGITS && wwn.is_ascii() => (&wwn[..cut], Some(&wwn[cut..])),
        _ => (wwn, None),
    }
}

impl HintCondition {
    fn matches_disk(&self, hint: &str, disk: &InventoryDisk, identifiers: IdentifierSource) -> bool {
        match self {
            HintCondition::Size(number) => number.as_ref().is_none_or(|number| matches_size(number, disk.size_bytes)),
            HintCondition::Flag(FlagCondition(wanted)) if hint == REMOVABLE => disk.removable == *wanted,
            HintCondition::Flag(FlagCondition(wanted)) => disk.rotational == *wanted,
            HintCondition::Text(word) if is_evidently_other(word, hint, disk) => false,
            HintCondition::Text(word) => {
                let values = collect_attributes(hint, disk, identifiers);
                let values: Vec<String> = values.iter().map(|value| value.to_lowercase()).collect();
                match word {
                    // `s!=` matches only if all spellings of the attribute differ from the value.
                    TextCondition::Differs(other) => {
                        !values.is_empty()
                            && values.iter().all(|value| word.matches_text(value))
                            && !identifier_spellings::is_alternative(hint, disk, other)
                    }
                    _ => values.iter().any(|value| word.matches_text(value)) || equals_alternative(word, hint, disk),
                }
            }
        }
    }
}

/// Returns whether the condition requires the attribute to be equal to a value, and this value is an alternative
/// spelling of the disk's attribute. Other conditions, such as `<in>`, are compared only with the spelling in the
/// inventory.
fn equals_alternative(word: &TextCondition, hint: &str, disk: &InventoryDisk) -> bool {
    let is_alternative = |wanted: &String| identifier_spellings::is_alternative(hint, disk, wanted);
    match word {
        TextCondition::Compared(ComparisonOperator::Equal, wanted) => is_alternative(wanted),
        TextCondition::OneOf(words) => words.iter().any(is_alternative),
        _ => false,
    }
}

/// Returns whether the attribute evidently differs from the requested value. This inexpensive check excludes most disks
/// of a machine before their attributes are copied.
fn is_evidently_other(word: &TextCondition, hint: &str, disk: &InventoryDisk) -> bool {
    let value = match hint {
        "serial" => &disk.serial,
        "wwn_with_extension" => &disk.wwn,
        "by_path" => &disk.by_path,
        "wwn" if split_wwn(&disk.wwn).1.is_none() => &disk.wwn,
        _ => return false,
    };
    let TextCondition::Compared(ComparisonOperator::Equal, wanted) = word else { return false };
    value.is_ascii() && !value.eq_ignore_ascii_case(wanted) && !identifier_spellings::is_alternative(hint, disk, wanted)
}

/// Returns whether a size satisfies the condition. Sizes are not rounded: a disk of 894.25 GiB does not match 894.
fn matches_size(number: &SizeCondition, size_bytes: u64) -> bool {
    let size = u128::from(size_bytes);
    let bytes = |gib: &u64| u128::from(*gib) * GIB;
    match number {
        SizeCondition::Compared(comparison, gib) => comparison.compare(&size, &bytes(gib)),
        SizeCondition::OneOf(all) => all.iter().any(|gib| size == bytes(gib)),
        SizeCondition::Within { low, low_included, high, high_included } => {
            let (low, high) = (bytes(low), bytes(high));
            (size > low || (*low_included && size == low)) && (size < high || (*high_included && size == high))
        }
    }
}
