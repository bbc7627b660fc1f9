//! What the first bytes say.

use super::fault::damaged;
use std::fmt;
use std::io;

/// Magic numbers lie in the first bytes, a tar's in its first block.
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

/// What may come uncompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain {
    /// A tar, which is known by its first header.
    Tar,
    /// Whatever it is: a disk has no magic number of its own.
    AnyBytes,
    /// The same, of a qcow2: it becomes the disk that it is.
    Qcow2,
    /// Its beginning, for where its tables are.
    Qcow2Head,
    /// Its beginning and its tables, for whether they have an order.
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
    /// None for what is not known. `Plain` is a tar.
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

/// The magic number of POSIX and GNU, or, in what is older, a checksum that is right.
fn is_tar(start: &[u8]) -> bool {
    let Some(header) = start.get(..512) else { return false };
    header[257..].starts_with(b"ustar") || checksum(&header[148..156]).is_some_and(|sum| sum == sum_of(header))
}

/// Octal, between spaces and a NUL.
fn checksum(field: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(field).ok()?;
    u32::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

/// Of all bytes, those of the field itself taken as spaces.
fn sum_of(header: &[u8]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    sum(&header[..148]) + 8 * u32::from(b' ') + sum(&header[156..])
}

pub fn unknown(start: &[u8]) -> io::Error {
    damaged(format!(
        "unknown compression: the image begins with {}; zstd, lz4 (frame format), gzip, xz and plain tar are known",
        hex(start)
    ))
}

/// The first four bytes.
pub fn hex(bytes: &[u8]) -> String {
    let bytes: Vec<_> = bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    bytes.join(" ")
}
