//! Detection of the compression format by the first bytes.

use super::fault::damaged;
use std::fmt;
use std::io;

/// Length of the magic numbers of compression formats; a tar is recognized by its first block.
pub const MAGIC_BYTES: usize = 6;
pub const START_BYTES: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Zstd,
    Lz4,
    Gzip,
    Xz,
    /// Not compressed.
    Plain,
}

/// Expected content of the stream after decompression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain {
    /// A tar, which is recognized by its first header.
    Tar,
    /// Any content: a disk image has no magic number.
    AnyBytes,
    /// A qcow2, which is converted to a raw disk image.
    Qcow2,
    /// The beginning of a qcow2, to list the offsets of its tables.
    Qcow2Head,
    /// The beginning of a qcow2 and its tables, to check whether they are in order.
    Qcow2Tables,
}

impl Plain {
    const ALL: [Plain; 5] = [Plain::Tar, Plain::AnyBytes, Plain::Qcow2, Plain::Qcow2Head, Plain::Qcow2Tables];

    pub fn number(self) -> u8 {
        self as u8
    }

    pub fn of(number: u8) -> Option<Plain> {
        Plain::ALL.into_iter().find(|plain| plain.number() == number)
    }
}

impl Format {
    /// Returns `None` for an unknown format. `Plain` means a tar.
    pub fn of(start: &[u8]) -> Option<Format> {
        match start {
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Format::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Format::Lz4),
            [0x1f, 0x8b, ..] => Some(Format::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Format::Xz),
            _ => is_tar(start).then_some(Format::Plain),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Format::Zstd => "zstd",
            Format::Lz4 => "lz4",
            Format::Gzip => "gzip",
            Format::Xz => "xz",
            Format::Plain => "uncompressed",
        })
    }
}

/// Returns whether this is a tar header: it has the magic number of POSIX or GNU, or, in older formats, a correct
/// checksum.
fn is_tar(start: &[u8]) -> bool {
    let Some(header) = start.get(..512) else { return false };
    header[257..].starts_with(b"ustar") || checksum(&header[148..156]).is_some_and(|sum| sum == sum_of(header))
}

/// Parses the checksum field: octal digits between spaces and a NUL byte.
fn checksum(field: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(field).ok()?;
    u32::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

/// Returns the sum of all bytes of a header, with the checksum field itself taken as spaces.
fn sum_of(header: &[u8]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    sum(&header[..148]) + 8 * u32::from(b' ') + sum(&header[156..])
}

pub fn unknown(start: &[u8]) -> io::Error {
    damaged(format!(
        "unknown compression: the image begins with {}; supported: zstd, lz4 (frame format), gzip, xz and plain tar",
        hex(start)
    ))
}

/// Returns the first four bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let bytes: Vec<_> = bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    bytes.join(" ")
}
