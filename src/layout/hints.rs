//! Which disk is meant: root device hints as Ironic writes them, matched against the disks of a machine.
//!
//! Each hint is an attribute with an expression: a value, or an operator and its values. Numbers of `size` are whole
//! GiB. What is documented for Ironic and does not work there (ranges, `<or>` on sizes, `<all-in>`) works here, and
//! `size: smallest` is ours.

mod expression;
#[cfg(test)]
mod tests;

use crate::inventory::Disk;
use crate::text;
use expression::{Condition, Flag, Number, Word};
use std::collections::BTreeMap;

/// Attribute to expression, as the layout has them.
type Hints = BTreeMap<String, String>;

/// As Ironic lists them.
const KNOWN: [&str; 12] = [
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
];
const GIB: u128 = 1 << 30;
/// Hexadecimal digits of a world wide name without the extension that its vendor may add (NAA 6).
const WWN_DIGITS: usize = 16;
/// The disk with the fewest bytes among those that match everything else.
const SMALLEST: &str = "smallest";

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
    let different = |(hint, text): (&String, &String)| {
        let matches = Condition::read(hint, text).is_ok_and(|condition| condition.holds(hint, disk));
        (!matches).then(|| format!("{hint} {text}: it {}", found(hint, disk)))
    };
    hints.iter().filter_map(different).collect()
}

/// The disks that match all hints, in their order; of disks that are equally small, all.
pub fn candidates<'a>(hints: &Hints, disks: &'a [Disk]) -> Vec<&'a Disk> {
    let mut found: Vec<&Disk> = disks.iter().filter(|disk| differs(hints, disk).is_empty()).collect();
    if hints.get("size").is_some_and(|text| expression::smallest(text).is_some()) {
        let least = found.iter().map(|disk| disk.size_bytes).min();
        found.retain(|disk| Some(disk.size_bytes) == least);
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
        _ => match attributes(hint, disk).first() {
            Some(value) => format!("has {value}"),
            None => "has none".to_owned(),
        },
    }
}

/// Every spelling of a text attribute of the disk; none when it is not known.
fn attributes(hint: &str, disk: &Disk) -> Vec<String> {
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
    fn holds(&self, hint: &str, disk: &Disk) -> bool {
        match self {
            Condition::Size(number) => number.as_ref().is_none_or(|number| size_holds(number, disk.size_bytes)),
            Condition::Rotational(Flag(wanted)) => disk.rotational == *wanted,
            Condition::Text(word) => {
                let values: Vec<String> = attributes(hint, disk).iter().map(|value| value.to_lowercase()).collect();
                match word {
                    // A disk has not that name only when none of the spellings of its name is it.
                    Word::Differs(_) => !values.is_empty() && values.iter().all(|value| word.holds(value)),
                    _ => values.iter().any(|value| word.holds(value)),
                }
            }
        }
    }
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
