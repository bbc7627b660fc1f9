//! Syntax of values in documents: integers, numbers, booleans, and sizes with units.

use std::str::FromStr;

/// Formats words as the items of a YAML or JSON list, without brackets.
pub(super) fn quote_words(words: &[&str]) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}

pub(super) fn is_number_or_boolean(text: &str) -> bool {
    let number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) && text.parse::<f64>().is_ok();
    number || matches!(text.to_ascii_lowercase().as_str(), "true" | "false")
}

pub(super) fn parse_integer<T: FromStr>(text: &str) -> Result<T, String> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if text.strip_prefix('-').is_some_and(digits) {
        Err(format!("must not be negative, but is {text}"))
    } else if !digits(text) {
        Err(format!("must be an integer without a unit, but is {text:?}"))
    } else if text.len() > 1 && text.starts_with('0') {
        Err(format!("must be written without leading zeros, but is {text}: some parsers treat that as octal"))
    } else {
        text.parse().map_err(|_| format!("is too large: {text}"))
    }
}

/// Converts a size with a unit to MiB, rounded down. `G` and `GiB` denote powers of 1024, `GB` denotes a power of
/// 1000. Returns `None` if the size is invalid or less than 1 MiB.
pub(super) fn convert_to_mib(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = (text[..digits].parse::<u64>().ok()?, text[digits..].trim().to_ascii_uppercase());
    let (letter, is_decimal) = match unit.as_bytes() {
        [letter] | [letter, b'I', b'B'] | [letter, b'I'] => (*letter, false),
        [letter, b'B'] => (*letter, true),
        _ => return None,
    };
    let power = b"KMGT".iter().position(|known| *known == letter)? as u32 + 1;
    let bytes = number.checked_mul(if is_decimal { 1000u64 } else { 1024 }.checked_pow(power)?)?;
    Some(bytes >> 20).filter(|mib| *mib > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_plain_decimal_or_refused() {
        for (text, number) in [("0", 0), ("500", 500), ("4294967295", u32::MAX)] {
            assert_eq!(parse_integer::<u32>(text), Ok(number));
        }
        for (text, words) in [
            ("-1", "negative"),
            ("", "must be an integer"),
            ("-", "must be an integer"),
            ("+5", "must be an integer"),
            ("1.5", "must be an integer"),
            ("1e3", "must be an integer"),
            ("0x10", "must be an integer"),
            ("1_000", "must be an integer"),
            ("500M", "without a unit"),
            ("٣", "must be an integer"),
            ("010", "octal"),
            ("4294967296", "too large"),
            ("99999999999999999999999999", "too large"),
        ] {
            let why = parse_integer::<u32>(text).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
    }

    #[test]
    fn size_with_unit_is_converted_to_mib() {
        for (text, mib) in [
            ("500G", Some(512_000)),
            ("500 GiB", Some(512_000)),
            ("500gb", Some(476_837)),
            ("1T", Some(1 << 20)),
            ("512M", Some(512)),
            ("4096K", Some(4)),
            ("1K", None),
            ("500", None),
            ("G", None),
            ("5é", None),
            ("99999999999999999T", None),
        ] {
            assert_eq!(convert_to_mib(text), mib, "{text}");
        }
    }
}
