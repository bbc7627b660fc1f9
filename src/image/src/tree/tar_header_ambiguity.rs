//! Rejects a member if tar readers disagree on the name of the member, or on its extent (the length of its data in the
//! archive). Otherwise one tar reader could check different content than another tar reader unpacks.
//!
//! | ambiguous declarations | GNU tar, libarchive, Python and other readers |
//! |---|---|
//! | PAX `size` and the size in the header | use either of them; some ignore a `size` of 0 |
//! | records in a global header | apply them or ignore them |
//! | a record twice, or without a value | use the first record, the last record, or the field of the header |
//! | PAX `path` and a GNU long name | use the first name, the last name, or always the name in one of the two formats |
//! | a path prefix in a header that is not in POSIX format | prepend or ignore the prefix |
//! | malformed numbers: signs, spaces, other bytes after them | parse another number or none, or end the archive |
//! | sparse maps in two notations, with gaps, or on links | use different maps |

use super::pax::PaxRecords;
use std::io;
use std::ops::Range;
use tar::Header;

/// Maximum size that fits into the octal digits of a header.
const MAXIMUM_OCTAL_SIZE: u64 = 0o777_7777_7777;

/// Maximum size of the placeholder that GNU tar writes as the path of a sparse file, in bytes: the size of the name
/// field in a header.
const PLACEHOLDER_SIZE: usize = 100;

/// Keywords of PAX extended header records that change the name or extent of a member. Each keyword may occur only once
/// per member.
const SINGLE: [&str; 11] = [
    "path",
    "linkpath",
    "size",
    "GNU.sparse.name",
    "GNU.sparse.size",
    "GNU.sparse.realsize",
    "GNU.sparse.major",
    "GNU.sparse.minor",
    "GNU.sparse.map",
    "GNU.sparse.numblocks",
    "hdrcharset",
];

/// Keywords of records that change names or extents, and that only some tar readers support.
const UNSUPPORTED: [&str; 8] = [
    "SCHILY.realsize",
    "SCHILY.offset",
    "SCHILY.filetype",
    "SUN.holesdata",
    "GNU.volume.filename",
    "GNU.volume.offset",
    "GNU.volume.size",
    "GNU.dumpdir",
];

/// All declarations of the name and the extent of one member.
pub(crate) struct MemberClaims<'a> {
    pub header: &'a Header,
    pub records: &'a PaxRecords,
    pub long_name: Option<&'a [u8]>,
    pub long_link: Option<&'a [u8]>,
    /// Size field of the header, in bytes.
    pub header_size: u64,
}

/// Returns the reason if tar readers disagree on records of a global header.
pub(crate) fn global_disagreement(records: &PaxRecords) -> Option<String> {
    let key = records.iter().map(|(key, _)| key).find(|key| {
        let is = |known: &&str| known.as_bytes() == *key;
        key.starts_with(b"GNU.sparse.") || SINGLE.iter().any(&is) || UNSUPPORTED.iter().any(is)
    })?;
    Some(format!("a global header contains {key}, which some tar readers ignore", key = String::from_utf8_lossy(key)))
}

impl MemberClaims<'_> {
    /// Returns the reason if tar readers disagree on this member.
    pub(crate) fn disagreement(&self) -> Option<String> {
        format_disagreement(self.header)
            .or_else(|| self.records_disagreement())
            .or_else(|| self.names_disagreement())
            .or_else(|| self.sparse_disagreement())
            .or_else(|| self.size_disagreement())
    }

    fn has(&self, key: &str) -> bool {
        self.records.iter().any(|(own, _)| own == key.as_bytes())
    }

    fn is_sparse(&self) -> bool {
        self.records.iter().any(|(key, _)| key.starts_with(b"GNU.sparse."))
    }

    fn records_disagreement(&self) -> Option<String> {
        if let Some(key) = UNSUPPORTED.iter().find(|key| self.has(key)) {
            return Some(format!(
                "the member's record {key} is ambiguous: tar readers interpret this record in different ways"
            ));
        }
        let charset = self.records.get("hdrcharset");
        if charset.is_some_and(|charset| ![&b"BINARY"[..], b"ISO-IR 10646 2000 UTF-8"].contains(&charset)) {
            return Some("the member's record hdrcharset has an unsupported value".to_owned());
        }
        SINGLE.iter().find_map(|key| {
            let mut values = self.records.iter().filter(|(own, _)| *own == key.as_bytes()).map(|(_, value)| value);
            match (values.next(), values.next()) {
                (Some(_), Some(_)) => Some(format!("the member has two {key} records")),
                (Some([]), None) => Some(format!("the member's record {key} is empty")),
                _ => None,
            }
        })
    }

    fn names_disagreement(&self) -> Option<String> {
        let path = self.records.get("path");
        let link = self.records.get("linkpath");
        let sparse_name = self.records.get("GNU.sparse.name");
        let differs = |one: Option<&[u8]>, other: Option<&[u8]>| matches!((one, other), (Some(a), Some(b)) if a != b);
        if differs(self.long_name, path) || differs(self.long_name, sparse_name) {
            return Some("the member has two different long names".to_owned());
        }
        if differs(self.long_link, link) {
            return Some("the member has two different long link targets".to_owned());
        }
        if self.has_ambiguous_sparse_path() {
            return Some("the member has a path record after its GNU.sparse.name record".to_owned());
        }
        let header_path = self.header.path_bytes();
        let name = sparse_name.or(path).or(self.long_name).unwrap_or(&header_path);
        if matches!(self.header.as_bytes()[156], b'0' | b'7') && name.ends_with(b"/") {
            return Some("the member is a file, but its name ends with a slash like that of a directory".to_owned());
        }
        let names = [path, link, sparse_name, self.long_name, self.long_link];
        let has_nul = names.into_iter().flatten().any(|name| name.contains(&0));
        has_nul.then(|| "the member's name has a zero byte".to_owned())
    }

    /// Returns whether tar readers use different names for a sparse file. If a file has the records `GNU.sparse.name`
    /// and `path`, Python uses whichever comes last, and other readers use `GNU.sparse.name`. A `path` after
    /// `GNU.sparse.name` is accepted only if it is the placeholder of GNU tar, which cannot be confused with the name
    /// of another member. GNU tar writes the placeholder if the name is not ASCII or too long for the header.
    fn has_ambiguous_sparse_path(&self) -> bool {
        let position = |key: &str| self.records.iter().position(|(own, _)| own == key.as_bytes());
        let (Some(name), Some(path)) = (position("GNU.sparse.name"), position("path")) else { return false };
        let value = |key: &str| self.records.get(key).unwrap_or_default();
        path > name && !is_sparse_placeholder(value("path"), value("GNU.sparse.name"))
    }

    fn sparse_disagreement(&self) -> Option<String> {
        if !self.is_sparse() {
            return None;
        }
        if !matches!(self.header.entry_type().as_byte(), 0 | b'0' | b'7') {
            return Some("the member has records of a sparse file, but is not a regular file".to_owned());
        }
        if &self.header.as_bytes()[257..265] != b"ustar\x0000" {
            return Some(
                "the member has records of a sparse file, but its header is not in POSIX format, so GNU tar ignores \
                 these records"
                    .to_owned(),
            );
        }
        self.sparse_map_disagreement().or_else(|| self.sparse_length_disagreement())
    }

    fn sparse_map_disagreement(&self) -> Option<String> {
        // The record must specify version 1 of the sparse format. No tar writer uses the record with version 0, and
        // readers disagree on such a member: some use no map, others a different map.
        if self.has("GNU.sparse.major") && self.records.get("GNU.sparse.major") != Some(&b"1"[..]) {
            return Some("the member uses a version of the sparse format that is not supported".to_owned());
        }
        let maps = [
            self.has("GNU.sparse.offset") || self.has("GNU.sparse.numbytes"),
            self.has("GNU.sparse.map"),
            // With this record, a map is stored before the data of the file.
            self.has("GNU.sparse.major"),
        ];
        if maps.into_iter().filter(|is_there| *is_there).count() > 1 {
            return Some("the member has two sparse maps".to_owned());
        }
        // A map before the data contains the number of its segments, so a record must not specify this number again.
        if self.has("GNU.sparse.major") && self.has("GNU.sparse.numblocks") {
            return Some("the member specifies the number of segments in its sparse map twice".to_owned());
        }
        None
    }

    fn sparse_length_disagreement(&self) -> Option<String> {
        // Python parses each member that has a `GNU.sparse.size` record as version 0, and ignores the
        // `GNU.sparse.realsize` record of this member.
        let (length, other) = match self.has("GNU.sparse.major") {
            true => ("GNU.sparse.realsize", "GNU.sparse.size"),
            false => ("GNU.sparse.size", "GNU.sparse.realsize"),
        };
        if self.has(other) {
            return Some(format!(
                "the record {other} does not match the version of the sparse format that the member uses"
            ));
        }
        if !self.has(length) {
            return Some(
                "the member is a sparse file without a record of its length, which is not supported".to_owned(),
            );
        }
        // Python uses the `GNU.sparse.size` record, which is the length of the unpacked file, as the extent of the
        // member.
        let is_small = self.records.parse_number("size").ok().flatten().is_some_and(|size| size <= MAXIMUM_OCTAL_SIZE);
        is_small.then(|| {
            "the member is ambiguous: tar readers interpret a sparse file with a size record in different ways"
                .to_owned()
        })
    }

    /// Returns the reason if the size in the header differs from the size in the PAX records. If the size is too large
    /// for the header (8 GiB or more), the header must contain 0 or the largest number that fits.
    fn size_disagreement(&self) -> Option<String> {
        let size = self.records.parse_number("size").ok().flatten()?;
        let is_placeholder = size > MAXIMUM_OCTAL_SIZE && [0, MAXIMUM_OCTAL_SIZE].contains(&self.header_size);
        if size == self.header_size || is_placeholder {
            return None;
        }
        Some(format!(
            "the member's size is {header_size} bytes in the header, but {size} bytes in the PAX record",
            header_size = self.header_size
        ))
    }
}

/// Returns whether a path is the placeholder that GNU tar writes for a sparse file with this name:
/// `%d/GNUSparseFile.%p/%f`, in which `%d` is the directory part of the name, `%f` is the last component of the name,
/// and `%p` is the process ID. GNU tar truncates the placeholder after [`PLACEHOLDER_SIZE`] bytes.
fn is_sparse_placeholder(path: &[u8], name: &[u8]) -> bool {
    let (directory, file_name) = match name.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&name[..slash], &name[slash + 1..]),
        None => (&b"."[..], name),
    };
    let before = [directory, b"/GNUSparseFile."].concat();
    let Some(process_and_file) = path.strip_prefix(&before[..]) else {
        return path.len() == PLACEHOLDER_SIZE && before.starts_with(path);
    };
    let digits = process_and_file.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let expected = [&before, &process_and_file[..digits], b"/", file_name].concat();
    digits > 0 && (path == expected || path.len() == PLACEHOLDER_SIZE && expected.starts_with(path))
}

/// Returns the reason if the header is not in the format of POSIX, GNU or the old Unix V7.
fn format_disagreement(header: &Header) -> Option<String> {
    let (bytes, kind) = (header.as_bytes(), header.entry_type().as_byte());
    match &bytes[257..265] {
        b"ustar\x0000" => None,
        b"ustar  \0" | [0, 0, 0, 0, 0, 0, 0, 0] if kind == b'S' || bytes[345] == 0 => None,
        b"ustar  \0" | [0, 0, 0, 0, 0, 0, 0, 0] => {
            Some("the member's header has a path prefix, which the format of the header does not support".to_owned())
        }
        _ => Some("the member's header has an unknown format".to_owned()),
    }
}

/// Parses a numeric field of a header. Some writers, such as .NET's, write an empty field for zero, and all tar readers
/// parse an empty field as zero.
///
/// # Errors
/// Returns an error if tar readers disagree on the value of the field.
pub(crate) fn parse_number(field: &[u8]) -> io::Result<u64> {
    if field.iter().all(|byte| matches!(byte, 0 | b' ')) {
        return Ok(0);
    }
    if !is_plain_number(field) {
        let text = "the header contains an ambiguous number, which tar readers parse in different ways";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let as_digits = |base: u64| move |number: u64, byte: &u8| number.wrapping_mul(base).wrapping_add(u64::from(*byte));
    Ok(match field[0] {
        0x80 => field[1..].iter().fold(0, as_digits(256)),
        0xff => field[1..].iter().fold(u64::MAX, as_digits(256)),
        _ => field.iter().filter(|byte| byte.is_ascii_digit()).fold(0, |n, byte| n * 8 + u64::from(byte - b'0')),
    })
}

/// Numeric fields of a header except the size, each with its range of bytes. Python parses all of them for every type
/// of member, and treats a member with an invalid number as the end of the archive.
const NUMERIC_FIELDS: [(&str, Range<usize>); 7] = [
    ("mode", 100..108),
    ("uid", 108..116),
    ("gid", 116..124),
    ("mtime", 136..148),
    ("checksum", 148..156),
    ("device major", 329..337),
    ("device minor", 337..345),
];

/// Returns the name of the first numeric field of a header, except the size, on which tar readers disagree.
pub(crate) fn ambiguous_number(header: &Header) -> Option<&'static str> {
    let is_ambiguous = |field: &[u8]| !field.iter().all(|byte| matches!(byte, 0 | b' ')) && !is_plain_number(field);
    NUMERIC_FIELDS.into_iter().find(|(_, range)| is_ambiguous(&header.as_bytes()[range.clone()])).map(|(name, _)| name)
}

/// Returns whether all tar readers parse this numeric field of a header in the same way. The field must consist of
/// optional spaces, octal digits, and spaces or NUL bytes at the end. Numbers in base 256 that fit into 64 bits, and a
/// field of NUL bytes, are also accepted.
pub(crate) fn is_plain_number(field: &[u8]) -> bool {
    if field[0] & 0x80 != 0 {
        // A number in base 256 must begin with 0x80 or 0xff, because GNU tar and Python accept no other first byte.
        let (marker, ignored) = (field[0], &field[1..field.len().saturating_sub(8).max(1)]);
        return matches!(marker, 0x80 | 0xff)
            && ignored.iter().all(|byte| *byte == if marker == 0xff { 0xff } else { 0 });
    }
    if field.iter().all(|byte| *byte == 0) {
        return true;
    }
    let after_blanks = field.iter().position(|byte| *byte != b' ').unwrap_or(field.len());
    let digits = &field[after_blanks..];
    let end = digits.iter().position(|byte| !(b'0'..=b'7').contains(byte)).unwrap_or(digits.len());
    end > 0 && digits[end..].iter().all(|byte| matches!(byte, b' ' | 0))
}
