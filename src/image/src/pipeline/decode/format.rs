//! Detection of the compression format by the first bytes.

use super::error::damaged_error;
use crate::foreign_format::ForeignFormat;
use common::encoding::join_hex;
use std::{fmt, io};

/// Maximum length of the magic numbers of compression formats, in bytes.
pub(crate) const MAGIC_BYTES: usize = 6;
/// Length of the first header of a tar, in bytes. A tar is recognized by this header.
pub(crate) const START_BYTES: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionFormat {
    Zstd,
    Lz4,
    Gzip,
    Xz,
    /// Not compressed.
    Plain,
}

/// Expected content of the stream after decompression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadKind {
    /// A tar, which is recognized by its first header.
    Tar,
    /// Any content. Used for disk images, which have no magic number.
    AnyBytes,
    /// A qcow2, which is converted to a raw disk image.
    Qcow2,
    /// The beginning of a qcow2. The worker returns the offsets of the qcow2's tables.
    Qcow2Head,
    /// The beginning of a qcow2 and its tables. The worker checks whether the image can be converted as a stream.
    Qcow2Tables,
}

impl PayloadKind {
    const ALL: [PayloadKind; 5] =
        [PayloadKind::Tar, PayloadKind::AnyBytes, PayloadKind::Qcow2, PayloadKind::Qcow2Head, PayloadKind::Qcow2Tables];

    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_number(number: u8) -> Option<PayloadKind> {
        PayloadKind::ALL.into_iter().find(|plain| plain.number() == number)
    }
}

impl CompressionFormat {
    /// Returns the format of a stream by its first bytes; `None` if it is unknown. `Plain` means an uncompressed tar.
    pub(crate) fn detect(start: &[u8]) -> Option<CompressionFormat> {
        match start {
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(CompressionFormat::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(CompressionFormat::Lz4),
            [0x1f, 0x8b, ..] => Some(CompressionFormat::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(CompressionFormat::Xz),
            _ => is_tar(start).then_some(CompressionFormat::Plain),
        }
    }
}

impl fmt::Display for CompressionFormat {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            CompressionFormat::Zstd => "zstd",
            CompressionFormat::Lz4 => "lz4",
            CompressionFormat::Gzip => "gzip",
            CompressionFormat::Xz => "xz",
            CompressionFormat::Plain => "uncompressed",
        })
    }
}

/// Returns whether the bytes begin with a tar header: with the magic number of the POSIX or GNU format or, for older
/// formats, a correct checksum.
fn is_tar(start: &[u8]) -> bool {
    let Some(header) = start.get(..512) else { return false };
    header[257..].starts_with(b"ustar")
        || parse_checksum(&header[148..156]).is_some_and(|sum| sum == sum_header(header))
}

/// Parses the checksum field: octal digits, padded with spaces and NUL bytes.
fn parse_checksum(field: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(field).ok()?;
    u32::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

/// Returns the checksum of a header: the sum of all bytes, with spaces in place of the checksum field.
fn sum_header(header: &[u8]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    sum(&header[..148]) + 8 * u32::from(b' ') + sum(&header[156..])
}

pub(crate) fn unknown_format(start: &[u8]) -> io::Error {
    let foreign = ForeignFormat::detect(start).map(|foreign| format!("{}: ", foreign.refusal()));
    damaged_error(format!(
        "{hint}unknown compression: the image begins with {start}; supported formats: zstd, lz4 (frame format), gzip, xz and uncompressed tar",
        hint = foreign.unwrap_or_default(),
        start = format_hex(start)
    ))
}

/// Returns the first four bytes in hexadecimal.
pub(crate) fn format_hex(bytes: &[u8]) -> String {
    join_hex(&bytes[..bytes.len().min(4)], " ")
}
