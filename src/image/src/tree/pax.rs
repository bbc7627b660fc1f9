//! Parses PAX extended headers, which consist of records of the form `LENGTH KEY=VALUE\n`.
//!
//! Records are split by their length. The tar crate splits them at newlines instead, and therefore loses values that
//! contain a newline. Binary values may contain a newline: the file capabilities CAP_DAC_OVERRIDE and CAP_FOWNER
//! together are encoded as the byte 0x0a.
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;

/// Maximum number of xattrs of a member. The number is limited because a short xattr takes several times its length in
/// memory.
const MOST_XATTRS: usize = 1000;

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
                invalid_record(format!("the PAX header has a malformed record: {shown:?}"))
            })?;
            records.push(record);
            text = rest;
        }
        Ok(PaxRecords(records))
    }

    /// Combines these records of a member with the global records. A member's record overrides the global record with
    /// the same key. An empty record of the member thus removes the global record.
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
                "the PAX header has {key}={:?}, which is not a number",
                String::from_utf8_lossy(value)
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
                "the PAX header has {key}={:?}, which is not a time",
                String::from_utf8_lossy(value)
            ))
        })
    }

    /// Returns the extended attributes from the records `SCHILY.xattr.*`, which GNU tar and bsdtar write.
    ///
    /// # Errors
    /// Returns an error if there are more than [`MOST_XATTRS`].
    pub(crate) fn xattrs(&self) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let named = || self.0.iter().filter_map(|(key, value)| Some((key.strip_prefix(b"SCHILY.xattr.")?, value)));
        match named().count() {
            count if count > MOST_XATTRS => Err(invalid_record(format!(
                "the member has {count} extended attributes; at most {MOST_XATTRS} are supported"
            ))),
            _ => Ok(named().map(|(name, value)| (decode_xattr_name(name), value.clone())).collect()),
        }
    }
}

/// Returns whether the text consists only of digits. Rust also parses numbers with a sign, but other tar readers do
/// not, so the archive would be ambiguous.
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

/// Decodes the name of an xattr. GNU tar writes `=`, which would end the key, as `%3D`, and `%` as `%25`.
fn decode_xattr_name(name: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match rest {
            [b'%', b'3', b'D', after @ ..] => (b'=', after),
            [b'%', b'2', b'5', after @ ..] => (b'%', after),
            _ => (*first, after),
        };
        plain.push(byte);
        rest = after;
    }
    OsString::from_vec(plain)
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
    fn values_are_read_by_length_not_by_line() {
        let records = parse(&["SCHILY.xattr.user.a=1\n2\n\n34", "size=900", "path=a=b c"]);
        assert_eq!(records.xattrs().unwrap(), [("user.a".into(), b"1\n2\n\n34".to_vec())]);
        assert_eq!(records.parse_number("size").unwrap(), Some(900));
        assert_eq!(records.get("path"), Some(&b"a=b c"[..]));
    }

    #[test]
    fn more_xattrs_than_any_file_has_are_refused() {
        let records = |count: usize| PaxRecords(vec![(b"SCHILY.xattr.user.a".to_vec(), Vec::new()); count]);
        assert_eq!(records(MOST_XATTRS).xattrs().unwrap().len(), MOST_XATTRS);
        let error = records(MOST_XATTRS + 1).xattrs().unwrap_err().to_string();
        assert_eq!(error, "the member has 1001 extended attributes; at most 1000 are supported");
    }

    #[test]
    fn malformed_records_are_refused() {
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
    fn times() {
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
    fn local_records_win_over_global_ones_and_can_take_them_away() {
        let global = parse(&["uid=10", "gid=20", "comment=x"]);
        let local = parse(&["uid=30", "gid="]).override_global(&global);
        assert_eq!(local.parse_number("uid").unwrap(), Some(30));
        assert_eq!(local.parse_number("gid").unwrap(), None);
        assert_eq!(local.get("comment"), Some(&b"x"[..]));
    }

    #[test]
    fn names_of_attributes_are_decoded() {
        assert_eq!(decode_xattr_name(b"user.a%3Db%25%41%"), OsString::from("user.a=b%%41%"));
    }
}
