//! Placeholder identifiers.

use super::comparable_serial;
use common::encoding::decode_hex;

/// Known placeholders, reduced to their letters and digits.
const KNOWN_PLACEHOLDERS: [&str; 36] = [
    "NONE",
    "NULL",
    "NIL",
    "NA",
    "NAN",
    "OEM",
    "SN",
    "TBD",
    "EMPTY",
    "BLANK",
    "DUMMY",
    "FALSE",
    "GENERIC",
    "INVALID",
    "UNKNOWN",
    "UNDEFINED",
    "UNSPECIFIED",
    "UNSET",
    "DEFAULT",
    "STRING",
    "DEFAULTSTRING",
    "SERIAL",
    "SERIALNO",
    "SERIALNUMBER",
    "SYSTEMSERIALNUMBER",
    "CHASSISSERIALNUMBER",
    "DISKSERIALNUMBER",
    "NOSERIAL",
    "NOSERIALNUMBER",
    "NOTSPECIFIED",
    "NOTAVAILABLE",
    "NOTAPPLICABLE",
    "NOTPRESENT",
    "NOTSET",
    "TOBEFILLEDBYOEM",
    "DEADBEEF",
];
/// Minimum length at which a string of one repeated character is treated as a placeholder. A string of zeros
/// is a placeholder at any length.
const REPEATED: usize = 4;
/// Minimum length at which an ascending or descending sequence is treated as a placeholder.
const SEQUENCE: usize = 5;
/// Maximum length of a block of characters whose repetition is treated as a placeholder.
const MAXIMUM_REPEATED_BLOCK_LENGTH: usize = 4;
/// Minimum number of repetitions of a block in a string that is treated as a placeholder.
const BLOCKS: usize = 3;
/// Minimum length of a string of repeated blocks that is treated as a placeholder.
const BLOCKS_LENGTH: usize = 8;
/// Minimum length at which a world wide name with exactly one nonzero digit is treated as a placeholder.
const WWN_LENGTH: usize = 8;

/// Length of a world wide name of type NAA in hexadecimal digits.
const NAA_LENGTH: usize = 16;
/// Number of leading hexadecimal digits that contain the type and the OUI in a world wide name of type NAA 5.
const OUI_END: usize = 7;

/// Returns whether an upper-case text is a placeholder.
pub(super) fn is_placeholder(text: &str) -> bool {
    let letters: Vec<char> = text.chars().filter(|c| c.is_alphanumeric()).collect();
    let word: String = letters.iter().collect();
    letters.iter().all(|c| *c == '0')
        || KNOWN_PLACEHOLDERS.contains(&word.as_str())
        || (letters.len() >= REPEATED && letters.iter().all(|c| *c == letters[0]))
        || (letters.len() >= SEQUENCE && is_sequence(&letters))
        || repeats_a_block(&letters)
}

/// Returns whether the digits of a world wide name are a placeholder.
pub(super) fn is_wwn_placeholder(digits: &str) -> bool {
    let set = digits.bytes().filter(|digit| *digit != b'0').count();
    // A NAA 5 name consists of the type, the manufacturer's OUI and the device number (SPC-5, section 7.7.6.6.5).
    let number = digits.get(OUI_END..).filter(|_| digits.len() == NAA_LENGTH && digits.starts_with('5'));
    let is_unnumbered = number.is_some_and(|number| number.bytes().all(|digit| digit == b'0'));
    is_unnumbered || set == 0 || (set == 1 && digits.len() >= WWN_LENGTH) || is_placeholder(&digits.to_uppercase())
}

/// Returns whether the kernel's fallback name of an NVMe namespace contains a placeholder. The kernel forms this name
/// for a namespace that does not have an EUI-64, NGUID or UUID. The name consists of vendor, serial number and model in
/// hexadecimal, and the namespace number. The name is therefore only as unique as the serial number.
pub(super) fn is_nvme_placeholder(name: &str) -> bool {
    let serial = name.split('-').nth(1).and_then(decode_hex).unwrap_or_default();
    let serial: String = serial.into_iter().map(char::from).collect();
    comparable_serial(&serial).is_none()
}

/// Returns whether the text is an ascending or descending sequence: `1234567890`, `0123456789ABCDEF`, `87654321`.
fn is_sequence(letters: &[char]) -> bool {
    let follows = |one: char, next: char| match (one, next) {
        ('9', '0' | 'A') | ('F', '0') | ('0', 'A') => true,
        _ => u32::from(next) == u32::from(one) + 1,
    };
    letters.windows(2).all(|pair| follows(pair[0], pair[1])) || letters.windows(2).all(|pair| follows(pair[1], pair[0]))
}

/// Returns whether the text repeats a block: `ABABABAB`, `012301230123`.
fn repeats_a_block(letters: &[char]) -> bool {
    let is_block = |length: usize| {
        letters.len() >= length * BLOCKS && letters.iter().enumerate().all(|(at, c)| *c == letters[at % length])
    };
    letters.len() >= BLOCKS_LENGTH && (2..=MAXIMUM_REPEATED_BLOCK_LENGTH).any(is_block)
}
