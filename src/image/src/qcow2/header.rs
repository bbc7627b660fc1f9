//! Header and tables of a qcow2: <https://gitlab.com/qemu-project/qemu/-/blob/master/docs/interop/qcow2.rst>.

use super::invalid_image;
use std::io;

/// Magic number of a qcow2.
pub(crate) const MAGIC: [u8; 4] = *b"QFI\xfb";

/// Length of the part of the header that is parsed, in bytes.
pub(crate) const HEADER_BYTES: usize = 112;

/// Maximum size of the L1 table, in bytes. With the default cluster size of qemu-img (64 KiB) such a table describes an
/// image of 256 TiB.
const MAXIMUM_L1_TABLE_BYTES: u64 = 4 << 20;

/// Mask of the offset in a table entry: bits 9 to 55.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COPIED: u64 = 1 << 63;
const PACKED: u64 = 1 << 62;
const ZERO: u64 = 1;

/// Sector size, in bytes. The size of a disk must be a multiple of the sector size.
const SECTOR_BYTES: u64 = 512;

const DIRTY: u64 = 1;
const CORRUPT: u64 = 2;
const EXTERNAL_DATA_FILE_BIT: u64 = 4;
const COMPRESSION: u64 = 8;
const SUBCLUSTERS: u64 = 16;

/// Compression of clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClusterCodec {
    /// Raw deflate, without a zlib header.
    Deflate,
    Zstd,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Qcow2Header {
    cluster_bits: u32,
    has_zero_flag: bool,
    pub codec: ClusterCodec,
    /// Size of the raw disk image, in bytes.
    pub size_bytes: u64,
    /// Offset of the L1 table in the file, in bytes.
    pub tables_at: u64,
    /// Number of used entries of the L1 table.
    pub tables: usize,
}

/// Location of a cluster of the disk in the qcow2 file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClusterLocation {
    Zeros,
    At(u64),
    /// Compressed data at offset `at`, with a length of at most `bytes` bytes.
    Packed {
        at: u64,
        bytes: usize,
    },
}

impl Qcow2Header {
    /// Parses a header.
    ///
    /// # Errors
    /// Returns an error if the header does not belong to a qcow2, or a feature is not supported. The error contains a
    /// remedy.
    pub(crate) fn parse(head: &[u8]) -> io::Result<Qcow2Header> {
        let (Some(magic), Some(version)) = (head.get(..4), parse_number(head, 4, 4)) else {
            return Err(truncated_header());
        };
        if magic != MAGIC {
            return Err(invalid_image("the data is not a qcow2"));
        }
        if !matches!(version, 2 | 3) {
            return Err(invalid_image(format!("the qcow2 has version {version}; supported versions: 2 and 3")));
        }
        let long = |at| parse_number(head, at, 8).ok_or_else(truncated_header);
        let word = |at| parse_number(head, at, 4).ok_or_else(truncated_header);
        let features = if version == 3 { long(72)? } else { 0 };
        reject_unsupported(long(8)?, word(32)?, word(60)?, features)?;
        let cluster_bits = word(20)?;
        if !(9..=21).contains(&cluster_bits) {
            return Err(invalid_image(format!(
                "the qcow2 has clusters of 2^{cluster_bits} bytes; sizes from 2^9 to 2^21 bytes are supported"
            )));
        }
        let cluster_bits = cluster_bits as u32;
        let has_codec = version == 3 && word(100)? > 104;
        let compression = if has_codec { head.get(104).copied().unwrap_or(0) } else { 0 };
        let codec = select_codec(compression, features & COMPRESSION != 0)?;
        let (size_bytes, in_file, tables_at) = (long(24)?, word(36)?, long(40)?);
        if size_bytes % SECTOR_BYTES != 0 {
            return Err(invalid_image(format!(
                "the qcow2 has a size of {size_bytes} bytes, which is not a multiple of 512"
            )));
        }
        let tables = size_bytes.div_ceil(1 << (2 * cluster_bits - 3));
        if tables > in_file {
            return Err(invalid_image(format!(
                "the qcow2 has {in_file} L1 table entries, but a size of {size_bytes} bytes requires {tables} entries"
            )));
        }
        if 8 * tables > MAXIMUM_L1_TABLE_BYTES {
            return Err(invalid_image(format!(
                "the qcow2 has {size_bytes} bytes in clusters of 2^{cluster_bits} bytes, so its L1 table exceeds the supported size"
            )));
        }
        if tables > 0 && (tables_at == 0 || tables_at & ((1 << cluster_bits) - 1) != 0) {
            return Err(invalid_image("the qcow2 is damaged: its L1 table is not aligned to a cluster boundary"));
        }
        let has_zero_flag = version == 3;
        Ok(Qcow2Header { cluster_bits, has_zero_flag, codec, size_bytes, tables_at, tables: tables as usize })
    }

    pub(crate) fn cluster_bytes(&self) -> usize {
        1 << self.cluster_bits
    }

    /// Returns the number of clusters described by one L2 table.
    pub(crate) fn clusters_per_table(&self) -> u64 {
        1 << (self.cluster_bits - 3)
    }

    /// Returns the number of the file's cluster that contains this offset.
    pub(crate) fn cluster_at(&self, at: u64) -> u64 {
        at >> self.cluster_bits
    }

    /// Parses an entry of the L1 table. Returns the offset of the L2 table; `None` if there is no L2 table, because all
    /// clusters of its range contain only zeros.
    ///
    /// # Errors
    /// Returns an error if the entry is invalid.
    pub(crate) fn table_offset(&self, entry: u64) -> io::Result<Option<u64>> {
        match self.checked_offset(entry & !COPIED)? {
            0 => Ok(None),
            at => Ok(Some(at)),
        }
    }

    /// Parses an entry of an L2 table, which describes one cluster.
    ///
    /// # Errors
    /// Returns an error if the entry is invalid.
    pub(crate) fn parse_entry(&self, entry: u64) -> io::Result<ClusterLocation> {
        if entry & PACKED != 0 {
            let bits = 62 - (self.cluster_bits - 8);
            let at = entry & ((1 << bits) - 1);
            let more_sectors = (entry & (PACKED - 1)) >> bits;
            let bytes = (more_sectors + 1) * 512 - at % 512;
            return match at >> self.cluster_bits {
                0 => Err(invalid_image("the qcow2 is damaged: a cluster overlaps the header")),
                _ => Ok(ClusterLocation::Packed { at, bytes: bytes as usize }),
            };
        }
        let zeros = self.has_zero_flag && entry & ZERO != 0;
        let at = self.checked_offset(entry & !COPIED & if self.has_zero_flag { !ZERO } else { u64::MAX })?;
        Ok(if zeros || at == 0 { ClusterLocation::Zeros } else { ClusterLocation::At(at) })
    }

    fn checked_offset(&self, entry: u64) -> io::Result<u64> {
        match entry & !OFFSET == 0 && entry & ((1 << self.cluster_bits) - 1) == 0 {
            true => Ok(entry),
            false => Err(invalid_image(format!("the qcow2 is damaged: invalid table entry {entry:#x}"))),
        }
    }
}

fn reject_unsupported(backing: u64, encryption: u64, snapshots: u64, features: u64) -> io::Result<()> {
    let one = "convert the qcow2 to a single file with `qemu-img convert -O qcow2`";
    if backing != 0 || features & EXTERNAL_DATA_FILE_BIT != 0 {
        // Images that depend on another file are refused: the header could name any file of the machine that converts
        // the image.
        return Err(invalid_image(format!("the qcow2 depends on another file (backing file or data file); {one}")));
    }
    if encryption != 0 {
        return Err(invalid_image("the qcow2 is encrypted; decrypt it with `qemu-img convert`"));
    }
    if snapshots != 0 {
        return Err(invalid_image(format!(
            "the qcow2 contains {snapshots} snapshots; {one}, which omits the snapshots"
        )));
    }
    if features & (DIRTY | CORRUPT) != 0 {
        return Err(invalid_image("the qcow2 was not closed properly or is marked as corrupt; run `qemu-img check`"));
    }
    if features & SUBCLUSTERS != 0 {
        return Err(invalid_image(
            "the qcow2 has subclusters (extended_l2); convert the qcow2 with `qemu-img convert -O qcow2`",
        ));
    }
    match features & !(COMPRESSION) {
        0 => Ok(()),
        other => Err(invalid_image(format!("the qcow2 has unsupported features: {other:#x}"))),
    }
}

/// Returns the codec of a compression type. `is_marked` is the feature bit that must be set for any type except the
/// default (0).
fn select_codec(compression: u8, is_marked: bool) -> io::Result<ClusterCodec> {
    match compression {
        0 if !is_marked => Ok(ClusterCodec::Deflate),
        1 if is_marked => Ok(ClusterCodec::Zstd),
        0 | 1 => Err(invalid_image("the qcow2 is damaged: its compression type contradicts its feature bits")),
        other => Err(invalid_image(format!("the qcow2 has an unsupported compression type: {other}"))),
    }
}

fn truncated_header() -> io::Error {
    invalid_image("the qcow2 is truncated: it ends within the header")
}

/// Parses a big-endian number of `length` bytes at offset `at`; returns `None` if there are too few bytes.
fn parse_number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    Some(bytes.get(at..at + length)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// Returns the entries of an L1 or L2 table.
pub(crate) fn table_entries(table: &[u8]) -> impl Iterator<Item = u64> {
    table.as_chunks::<8>().0.iter().map(|entry| u64::from_be_bytes(*entry))
}
