//! Minimal X.509 parser (RFC 5280, section 4.1). It parses only validity period and public key, because no other fields
//! are needed to verify a pinned certificate.
//!
//! The verifier of rustls is not used, because it accepts only certificates of version 3, and Ganeti creates
//! certificates of version 1.

use time::{Date, Month, PrimitiveDateTime, Time};

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const BIT_STRING: u8 = 0x03;
const OBJECT_ID: u8 = 0x06;

/// Object identifier of RSA keys, 1.2.840.113549.1.1.1.
const RSA: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];

/// Parsed fields of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateFields {
    /// Start of the validity period, in seconds since 1970.
    pub not_before: i64,
    /// End of the validity period, in seconds since 1970.
    pub not_after: i64,
    /// Complete SubjectPublicKeyInfo in DER.
    pub public_key: Vec<u8>,
}

/// Parses a certificate of any version. Returns `None` if it is malformed.
pub(crate) fn parse_certificate(certificate: &[u8]) -> Option<CertificateFields> {
    let (outer, rest) = split_element(certificate, SEQUENCE)?;
    if !rest.is_empty() {
        return None;
    }
    let (tbs, _) = split_element(outer.content, SEQUENCE)?;
    let mut rest = tbs.content;
    // Version 1 certificates omit the version.
    if rest.first() == Some(&VERSION) {
        rest = split_element(rest, VERSION)?.1;
    }
    rest = split_element(rest, INTEGER)?.1;
    let algorithm_and_issuer = 2;
    for _ in 0..algorithm_and_issuer {
        rest = split_element(rest, SEQUENCE)?.1;
    }
    let (validity, rest) = split_element(rest, SEQUENCE)?;
    let (not_before, after) = parse_time(validity.content)?;
    let (not_after, _) = parse_time(after)?;
    let (_subject, rest) = split_element(rest, SEQUENCE)?;
    let (public_key, _) = split_element(rest, SEQUENCE)?;
    Some(CertificateFields { not_before, not_after, public_key: public_key.whole.to_vec() })
}

/// Returns the size of an RSA key in bits. Returns `None` if the SubjectPublicKeyInfo is malformed or contains another
/// type of key.
pub(crate) fn count_rsa_bits(public_key: &[u8]) -> Option<usize> {
    let (outer, _) = split_element(public_key, SEQUENCE)?;
    let (algorithm, rest) = split_element(outer.content, SEQUENCE)?;
    let (object_id, _) = split_element(algorithm.content, OBJECT_ID)?;
    if object_id.content != RSA {
        return None;
    }
    let (bits, _) = split_element(rest, BIT_STRING)?;
    let (_unused_bits, key) = bits.content.split_first()?;
    let (key, _) = split_element(key, SEQUENCE)?;
    let (modulus, _) = split_element(key.content, INTEGER)?;
    // A leading zero byte only marks the number as positive.
    let start = modulus.content.iter().position(|&byte| byte != 0)?;
    let leading_zeros = modulus.content[start].leading_zeros();
    (8 * (modulus.content.len() - start)).checked_sub(usize::try_from(leading_zeros).ok()?)
}

struct DerElement<'b> {
    whole: &'b [u8],
    content: &'b [u8],
}

/// Splits off the first DER element, which must have this tag. Returns the element and the remaining bytes.
fn split_element(bytes: &[u8], tag: u8) -> Option<(DerElement<'_>, &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Three bytes of length are enough for every certificate.
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    let (content, behind) = rest.split_at_checked(length)?;
    let whole = &bytes[..bytes.len() - behind.len()];
    (found == tag).then_some((DerElement { whole, content }, behind))
}

/// Parses a UTCTime or GeneralizedTime. Returns seconds since 1970 and the remaining bytes.
fn parse_time(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let tag = *bytes.first()?;
    let (found, rest) = split_element(bytes, tag)?;
    let text = std::str::from_utf8(found.content).ok()?.strip_suffix('Z')?;
    let (year, rest_of_text) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: i32 = parse_digits(year)?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (parse_digits(year)?, rest)
        }
        _ => return None,
    };
    if rest_of_text.len() != 10 {
        return None;
    }
    let two = |at: usize| parse_digits(rest_of_text.get(at..at + 2)?).and_then(|number| u8::try_from(number).ok());
    let date = Date::from_calendar_date(year, Month::try_from(two(0)?).ok()?, two(2)?).ok()?;
    let time = Time::from_hms(two(4)?, two(6)?, two(8)?).ok()?;
    Some((PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp(), rest))
}

fn parse_digits(text: &str) -> Option<i32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
