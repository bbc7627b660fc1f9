//! Kubernetes quantities that MetalK8s accepts: positive integers, optionally with a unit.

/// Parses a quantity, and returns it in bytes.
///
/// # Errors
/// Fails if the text is not a supported quantity, or if the quantity exceeds 2⁶³ bytes.
pub(crate) fn parse_quantity(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor: Option<u64> = match unit {
        "" => Some(1),
        "Ki" => Some(1 << 10),
        "Mi" => Some(1 << 20),
        "Gi" => Some(1 << 30),
        "Ti" => Some(1 << 40),
        "Pi" => Some(1 << 50),
        "k" => Some(1_000),
        "M" => Some(1_000_000),
        "G" => Some(1_000_000_000),
        "T" => Some(1_000_000_000_000),
        "P" => Some(1_000_000_000_000_000),
        _ => None,
    };
    let wrong = || format!("must be a whole number with a unit, such as 10Gi or 500M, found {text:?}");
    let factor = factor.filter(|_| !number.is_empty() && !number.starts_with('0')).ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    // The quantity must fit a signed number, because file offsets are signed.
    let bytes = number.checked_mul(factor).filter(|bytes| i64::try_from(*bytes).is_ok());
    bytes.ok_or_else(|| format!("{text} exceeds the maximum of 2⁶³ bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary_or_decimal() {
        for (text, expected) in [
            ("1", 1),
            ("42Gi", 45_097_156_608),
            ("100M", 100_000_000),
            ("1024", 1024),
            ("3Ki", 3072),
            ("7k", 7000),
            ("1Pi", 1 << 50),
            ("2T", 2_000_000_000_000),
        ] {
            assert_eq!(parse_quantity(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn refuses_quantities_that_metalk8s_refuses() {
        for text in ["", "0", "0Gi", "01", "-1", "1.5Gi", "1K", "1ki", "Gi", " 1", "1 ", "1Gi ", "1e3", "1Ei", "ä"] {
            assert!(parse_quantity(text).unwrap_err().contains("as 10Gi"), "{text}");
        }
        for text in ["9223372036854775808", "8192Pi", "18446744073709551615"] {
            assert!(parse_quantity(text).unwrap_err().contains("exceeds the maximum"), "{text}");
        }
        assert_eq!(parse_quantity("8191Pi"), Ok(8191 << 50));
    }
}
