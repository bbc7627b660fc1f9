//! Hardware identifiers of disks: serial numbers and world wide names. Bridges, enclosures, firmware and virtual
//! machines report placeholders, which many disks share. When disks are compared or selected, a placeholder is treated
//! as missing. Inventories and plans still contain the placeholder as reported.
//!
//! The rules are in a table in docs/placeholders.md.

mod placeholder_links;
mod placeholders;
#[cfg(test)]
mod tests;

pub(crate) use placeholder_links::names_placeholder;

/// Number of hexadecimal digits of the shortest world wide name (64 bits).
const WWN_DIGITS: usize = 16;
/// Prefixes of world wide names in sysfs, udev and lsblk.
const WWN_PREFIXES: [&str; 5] = ["wwn-", "naa.", "eui.", "0x", "0X"];
/// Minimum number of ATA words that consist of two different characters. A serial number with fewer such words is not
/// compared in byte-swapped form. Otherwise two disks with the serial numbers `00000012` and `00000021` would be
/// treated as the same disk.
const SWAPPED_PAIRS: usize = 4;
/// Minimum length at which a serial number is treated as a placeholder if its byte-swapped form is a placeholder.
const SWAPPED_WORD: usize = 4;

/// Returns a serial number in canonical form for comparison; `None` if it is missing or a placeholder.
///
/// Two serial numbers have the same canonical form if they differ only in case, surrounding blanks, the type of inner
/// blanks, or the byte order of ATA words.
pub fn comparable_serial(text: &str) -> Option<String> {
    let plain = normalize_serial(text);
    let padded = ata_words(&plain);
    let swapped = swap_bytes(&padded);
    if placeholders::is_placeholder(&plain) || (padded.len() >= SWAPPED_WORD && placeholders::is_placeholder(&swapped))
    {
        return None;
    }
    let differing = padded.chunks_exact(2).filter(|pair| pair[0] != pair[1]).count();
    Some(if differing >= SWAPPED_PAIRS { plain.min(swapped) } else { plain })
}

/// Returns a world wide name in canonical form for comparison; `None` if it is missing or a placeholder.
///
/// Names that differ only in prefix (`0x`, `naa.`, `eui.`), separators or case have the same canonical form.
pub fn comparable_wwn(text: &str) -> Option<String> {
    let plain = text.trim().to_lowercase();
    let mut digits = plain.as_str();
    while let Some(rest) = WWN_PREFIXES.iter().find_map(|prefix| digits.strip_prefix(prefix)) {
        digits = rest;
    }
    if let Some(name) = digits.strip_prefix("nvme.") {
        return (!placeholders::is_nvme_placeholder(name)).then_some(plain);
    }
    let digits: String =
        digits.strip_prefix("uuid.").unwrap_or(digits).chars().filter(|c| !"-: _".contains(*c)).collect();
    match digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        true => (!placeholders::is_wwn_placeholder(&digits)).then_some(digits),
        false => (!placeholders::is_placeholder(&plain.to_uppercase())).then_some(plain),
    }
}

/// Returns whether a reported serial number is a placeholder.
pub fn is_placeholder_serial(text: &str) -> bool {
    !text.is_empty() && comparable_serial(text).is_none()
}

/// Returns whether a reported world wide name is a placeholder.
pub fn is_placeholder_wwn(text: &str) -> bool {
    !text.is_empty() && comparable_wwn(text).is_none()
}

/// Returns whether two serial numbers are the same; `None` if either of them is missing or a placeholder.
pub fn is_same_serial(one: &str, other: &str) -> Option<bool> {
    Some(comparable_serial(one)? == comparable_serial(other)?)
}

/// Returns whether two world wide names are the same. Returns `None` if this is unknown:
///
/// * A name is missing or a placeholder.
/// * One name equals the first 64 bits of the other, because udev truncates names to 64 bits.
/// * The names differ and are of different NVMe types, because a namespace may have one name of each type, of which
///   the kernel reports only one.
pub fn is_same_wwn(one: &str, other: &str) -> Option<bool> {
    let types = nvme_type(one).zip(nvme_type(other));
    let is_same_type = types.is_none_or(|(one, other)| one == other);
    let (one, other) = (comparable_wwn(one)?, comparable_wwn(other)?);
    let (short, long) = if one.len() < other.len() { (&one, &other) } else { (&other, &one) };
    let is_cut = short.len() == WWN_DIGITS && long.len() > WWN_DIGITS && long.starts_with(short.as_str());
    (!is_cut && (is_same_type || one == other)).then_some(one == other)
}

/// Returns the type of an NVMe namespace's identifier: the prefix of the identifier, and for the prefix `eui` also the
/// length of the identifier, because an EUI-64 and an NGUID differ only in length. Returns `None` for other world wide
/// names.
fn nvme_type(text: &str) -> Option<(&str, usize)> {
    let text = text.trim();
    match text.strip_prefix("wwn-").unwrap_or(text).split_once('.')? {
        (prefix @ ("uuid" | "nvme"), _) => Some((prefix, 0)),
        (prefix @ "eui", digits) => Some((prefix, digits.len())),
        _ => None,
    }
}

/// Converts a serial number to upper case, replaces each run of blanks and underscores with one underscore, and removes
/// blanks and underscores at the start and end.
fn normalize_serial(text: &str) -> String {
    let is_blank = |c: char| c.is_whitespace() || c.is_control() || c == '_';
    let words: Vec<&str> = text.split(is_blank).filter(|word| !word.is_empty()).collect();
    words.join("_").to_uppercase()
}

/// Returns the characters of a serial number, with padding to an even number, because an ATA word is two bytes.
fn ata_words(plain: &str) -> Vec<char> {
    let mut characters: Vec<char> = plain.replace('_', " ").chars().collect();
    if !characters.len().is_multiple_of(2) {
        characters.push(' ');
    }
    characters
}

/// Swaps the two bytes of each ATA word. Some controllers report serial numbers in this byte order.
fn swap_bytes(words: &[char]) -> String {
    let swapped: String = words.chunks_exact(2).flat_map(|pair| [pair[1], pair[0]]).collect();
    normalize_serial(&swapped)
}
