//! Parses PAX extended headers, which consist of records of the form `LENGTH KEY=VALUE\n`.
//!
//! Records are split by their length. The tar crate splits them at newlines instead, and therefore loses values that
//! contain a newline. Binary values may contain a newline: the file capabilities CAP_DAC_OVERRIDE and CAP_FOWNER
//! together are encoded as the byte 0x0a.
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use common::encoding::decode_hex;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;

/// Maximum number of xattrs of a member. The number is limited because a short xattr takes several times its length in
/// memory.
const MAXIMUM_XATTRS: usize = 1000;

/// Records of one PAX header, in order. A key may occur several times, as in GNU sparse format 0.0.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PaxRecords(Vec<PaxRecord>);

type PaxRecord = (Vec<u8>, Vec<u8>);

impl PaxRecords {
    /// Parses the content of a PAX header.
    ///
    /// # Errors
    /// Returns an error if a record has a wrong length or no `=`.
    pub(crate) fn parse(mut text: &[u8]) -> io::Result<PaxRecords> {
        let mut records = Vec::new();
        while !text.is_empty() {
            let (record, rest) = split_record(text).ok_or_else(|| {
                let shown = String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned();
                invalid_record(format!("the PAX header contains a malformed record: {shown:?}"))
            })?;
            records.push(record);
            text = rest;
        }
        Ok(PaxRecords(records))
    }

    /// Combines these records of a member with the global records. A member's record overrides the global record with
    /// the same key. An empty record of the member therefore removes the global record.
    pub(crate) fn override_global(mut self, global: &PaxRecords) -> PaxRecords {
        if global.0.is_empty() {
            return self;
        }
        let own: BTreeSet<&[u8]> = self.0.iter().map(|(key, _)| key.as_slice()).collect();
        let mut all: Vec<_> = global.0.iter().filter(|(key, _)| !own.contains(key.as_slice())).cloned().collect();
        all.append(&mut self.0);
        PaxRecords(all)
    }

    /// Returns the approximate memory use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.iter().map(|(key, value)| key.len() + value.len() + 48).sum()
    }

    /// Returns the last value of a key; `None` if the key does not exist or the value is empty.
    pub(crate) fn get(&self, key: &str) -> Option<&[u8]> {
        let (_, value) = self.0.iter().rev().find(|(own, _)| own == key.as_bytes())?;
        (!value.is_empty()).then_some(value)
    }

    /// Returns all records in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(key, value)| (key.as_slice(), value.as_slice()))
    }

    /// Parses the value of a key as a decimal number; returns `None` if there is no value.
    ///
    /// # Errors
    /// Returns an error if the value is not a number.
    pub(crate) fn parse_number(&self, key: &str) -> io::Result<Option<u64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number =
            if is_digits(value) { std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()) } else { None };
        number.map(Some).ok_or_else(|| {
            invalid_record(format!(
                "the PAX header contains {key}={value:?}, which is not a number",
                value = String::from_utf8_lossy(value)
            ))
        })
    }

    /// Parses the value of a key as a time such as `1700000000.123456789` or `-0.5`. Returns seconds since 1970 and
    /// nanoseconds.
    ///
    /// # Errors
    /// Returns an error if the value is not a time.
    pub(crate) fn time_value(&self, key: &str) -> io::Result<Option<(i64, u32)>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        parse_time(value).map(Some).ok_or_else(|| {
            invalid_record(format!(
                "the PAX header contains {key}={value:?}, which is not a time",
                value = String::from_utf8_lossy(value)
            ))
        })
    }

    /// Returns the extended attributes. They are stored in records of GNU tar and bsdtar (`SCHILY.xattr.NAME`), in GNU
    /// tar's SELinux record (`RHT.security.selinux`), or in records of earlier versions of bsdtar
    /// (`LIBARCHIVE.xattr.NAME`). If several records contain the same attribute, the form that is listed first takes
    /// precedence.
    ///
    /// # Errors
    /// Returns an error if there are more than [`MAXIMUM_XATTRS`], or if a record cannot be decoded.
    pub(crate) fn xattrs(&self) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let mut found: BTreeMap<OsString, (u8, Vec<u8>)> = BTreeMap::new();
        for (count, attribute) in self.0.iter().filter_map(decode_xattr).enumerate() {
            let (rank, name, value) = attribute?;
            if count >= MAXIMUM_XATTRS {
                let text =
                    format!("the member has more than {MAXIMUM_XATTRS} extended attributes, which is not supported");
                return Err(invalid_record(text));
            }
            if found.get(&name).is_none_or(|known| known.0 <= rank) {
                found.insert(name, (rank, value));
            }
        }
        Ok(found.into_iter().map(|(name, (_, value))| (name, value)).collect())
    }
}

/// Returns the rank of the record's form, and the name and value of the extended attribute that the record contains.
/// Returns `None` if the record does not contain an extended attribute.
fn decode_xattr((key, value): &PaxRecord) -> Option<io::Result<(u8, OsString, Vec<u8>)>> {
    if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
        // GNU tar encodes `=`, which would end the key, as `%3D`, and `%` as `%25`.
        Some(Ok((2, decode_percent(name, |byte| b"=%".contains(&byte)), value.clone())))
    } else if key == b"RHT.security.selinux" {
        Some(Ok((1, OsString::from("security.selinux"), value.clone())))
    } else {
        let name = decode_percent(key.strip_prefix(b"LIBARCHIVE.xattr.")?, |_| true);
        Some(decode_base64(key, value).map(|value| (0, name, value)))
    }
}

/// Returns whether the text consists only of digits. Rust also parses numbers with a sign, but other tar readers do
/// not; such an archive is ambiguous.
fn is_digits(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_digit)
}

fn split_record(text: &[u8]) -> Option<(PaxRecord, &[u8])> {
    let blank = text.iter().take(20).position(|byte| *byte == b' ')?;
    let length = text.get(..blank).filter(|length| is_digits(length))?;
    let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
    let record = text.get(blank + 1..length)?;
    let (newline, record) = record.split_last()?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    let pair = (record[..equals].to_vec(), record[equals + 1..].to_vec());
    (*newline == b'\n' && equals > 0).then_some((pair, &text[length..]))
}

fn parse_time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    // Fractions of a nanosecond are dropped.
    let nanoseconds: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    if whole.starts_with('-') && nanoseconds > 0 {
        return Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds));
    }
    Some((seconds, nanoseconds))
}

/// Decodes a name in which the bytes selected by `is_encoded` are percent-encoded. Other percent signs are preserved.
fn decode_percent(name: &[u8], is_encoded: fn(u8) -> bool) -> OsString {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|digits| decode_hex(std::str::from_utf8(digits).ok()?));
        let (byte, after) = match code.as_deref() {
            Some([byte]) if *first == b'%' && is_encoded(*byte) => (*byte, &after[2..]),
            _ => (*first, after),
        };
        plain.push(byte);
        rest = after;
    }
    OsString::from_vec(plain)
}

/// Decodes a base64 value, whose padding may be missing, as in archives of bsdtar.
fn decode_base64(key: &[u8], value: &[u8]) -> io::Result<Vec<u8>> {
    let end = value.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    STANDARD_NO_PAD.decode(&value[..end]).map_err(|error| {
        invalid_record(format!(
            "the value of {key} in the PAX header is not base64: {error}",
            key = String::from_utf8_lossy(key)
        ))
    })
}

fn invalid_record(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pax_record;

    fn parse(pairs: &[&str]) -> PaxRecords {
        let text: Vec<u8> = pairs.iter().flat_map(|pair| pax_record(pair.as_bytes())).collect();
        PaxRecords::parse(&text).unwrap()
    }

    #[test]
    fn pax_values_are_parsed_by_length() {
        let records = parse(&["SCHILY.xattr.user.a=1\n2\n\n34", "size=900", "path=a=b c"]);
        assert_eq!(records.xattrs().unwrap(), [("user.a".into(), b"1\n2\n\n34".to_vec())]);
        assert_eq!(records.parse_number("size").unwrap(), Some(900));
        assert_eq!(records.get("path"), Some(&b"a=b c"[..]));
    }

    #[test]
    fn refuses_more_xattrs_than_supported() {
        let record = |index: usize| (format!("SCHILY.xattr.user.{index}").into_bytes(), Vec::new());
        let records = |count: usize| PaxRecords((0..count).map(record).collect());
        assert_eq!(records(MAXIMUM_XATTRS).xattrs().unwrap().len(), MAXIMUM_XATTRS);
        let error = records(MAXIMUM_XATTRS + 1).xattrs().unwrap_err().to_string();
        assert_eq!(error, "the member has more than 1000 extended attributes, which is not supported");
    }

    #[test]
    fn xattrs_are_decoded_in_every_form_by_precedence() {
        let label = |text: &str| ("security.selinux".into(), text.as_bytes().to_vec());
        for (records, expected) in [
            (&["RHT.security.selinux=system_u:object_r:etc_t:s0"][..], vec![label("system_u:object_r:etc_t:s0")]),
            (&["RHT.security.selinux=a", "SCHILY.xattr.security.selinux=b"], vec![label("b")]),
            (&["SCHILY.xattr.security.selinux=b", "RHT.security.selinux=a"], vec![label("b")]),
            (&["SCHILY.xattr.user.a=1", "SCHILY.xattr.user.a=2"], vec![("user.a".into(), b"2".to_vec())]),
            (&["LIBARCHIVE.xattr.user.a%20b=AP8"], vec![("user.a b".into(), vec![0, 255])]),
            (&["LIBARCHIVE.xattr.user.a=AA==", "SCHILY.xattr.user.a=x"], vec![("user.a".into(), b"x".to_vec())]),
            (&["RHT.security=a", "LIBARCHIVE.creationtime=1"], vec![]),
        ] {
            assert_eq!(parse(records).xattrs().unwrap(), expected, "{records:?}");
        }
        let error = parse(&["LIBARCHIVE.xattr.user.a=%"]).xattrs().unwrap_err().to_string();
        assert!(error.contains("LIBARCHIVE.xattr.user.a in the PAX header is not base64"), "{error}");
    }

    #[test]
    fn refuses_malformed_pax_records() {
        for bad in [
            &b"12 size=900"[..],
            b"13 size=900\n",
            b"11 size=900\n",
            b"99999999999999999999 a=b\n",
            b"999 a=b\n",
            b"8 novalue\n",
            b"5 =b\n",
            b"0 a=b\n",
            b"2 a=b\n",
            b"x a=b\n",
            b"\n",
            b"12size=900\n",
        ] {
            assert!(PaxRecords::parse(bad).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn pax_times_are_parsed() {
        for (text, time) in [
            ("0", Some((0, 0))),
            ("1700000000", Some((1_700_000_000, 0))),
            ("1700000000.5", Some((1_700_000_000, 500_000_000))),
            ("1700000000.123456789999", Some((1_700_000_000, 123_456_789))),
            ("-1", Some((-1, 0))),
            ("-1.25", Some((-2, 750_000_000))),
            ("-0.25", Some((-1, 750_000_000))),
            ("", None),
            ("now", None),
            ("1.2.3", None),
            ("1.x", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse_time(text.as_bytes()), time, "{text}");
        }
    }

    #[test]
    fn local_pax_records_override_or_remove_global_ones() {
        let global = parse(&["uid=10", "gid=20", "comment=x"]);
        let local = parse(&["uid=30", "gid="]).override_global(&global);
        assert_eq!(local.parse_number("uid").unwrap(), Some(30));
        assert_eq!(local.parse_number("gid").unwrap(), None);
        assert_eq!(local.get("comment"), Some(&b"x"[..]));
    }

    #[test]
    fn percent_encoded_attribute_names_are_decoded() {
        let gnu = |byte| b"=%".contains(&byte);
        assert_eq!(decode_percent(b"user.a%3Db%25%41%", gnu), OsString::from("user.a=b%%41%"));
        assert_eq!(decode_percent(b"user.a%3Db%25%41%4", |_| true), OsString::from("user.a=b%A%4"));
    }
}
