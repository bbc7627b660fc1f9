//! What the tables of a qcow2 say: <https://gitlab.com/qemu-project/qemu/-/blob/master/docs/interop/qcow2.rst>.

use super::wrong;
use std::io;

/// Of every qcow2.
pub const MAGIC: [u8; 4] = *b"QFI\xfb";

/// As much of a header as is looked at.
pub const HEADER_BYTES: usize = 112;

/// The table of tables. With the clusters that qemu-img makes that is an image of 256 TiB.
const MOST_TABLES_BYTES: u64 = 4 << 20;

/// Bits 9 to 55 of an entry.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COPIED: u64 = 1 << 63;
const PACKED: u64 = 1 << 62;
const ZERO: u64 = 1;

/// A disk has whole sectors.
const SECTOR_BYTES: u64 = 512;

const DIRTY: u64 = 1;
const CORRUPT: u64 = 2;
const ELSEWHERE: u64 = 4;
const COMPRESSION: u64 = 8;
const SUBCLUSTERS: u64 = 16;

/// How clusters are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// Without zlib's header.
    Deflate,
    Zstd,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    cluster_bits: u32,
    has_zero_flag: bool,
    pub codec: Codec,
    /// Of the disk.
    pub size_bytes: u64,
    /// Where the table of tables lies in the file.
    pub tables_at: u64,
    /// Which of its entries count.
    pub tables: usize,
}

/// Where a cluster of the disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    Zeros,
    At(u64),
    /// No longer than this.
    Packed {
        at: u64,
        bytes: usize,
    },
}

impl Header {
    /// # Errors
    /// It is no qcow2, or one that cannot be read here: says what to do about it.
    pub fn parse(head: &[u8]) -> io::Result<Header> {
        let (Some(magic), Some(version)) = (head.get(..4), number(head, 4, 4)) else { return Err(short()) };
        if magic != MAGIC {
            return Err(wrong("it is no qcow2"));
        }
        if !matches!(version, 2 | 3) {
            return Err(wrong(format!("the qcow2 is of version {version}; 2 and 3 are known")));
        }
        let long = |at| number(head, at, 8).ok_or_else(short);
        let word = |at| number(head, at, 4).ok_or_else(short);
        let features = if version == 3 { long(72)? } else { 0 };
        refuse(long(8)?, word(32)?, word(60)?, features)?;
        let cluster_bits = word(20)?;
        if !(9..=21).contains(&cluster_bits) {
            return Err(wrong(format!("the qcow2 has clusters of 2^{cluster_bits} bytes; 9 to 21 are possible")));
        }
        let cluster_bits = cluster_bits as u32;
        let has_codec = version == 3 && word(100)? > 104;
        let is_marked = features & COMPRESSION != 0;
        let codec = match if has_codec { head.get(104).copied().unwrap_or(0) } else { 0 } {
            0 if !is_marked => Codec::Deflate,
            1 if is_marked => Codec::Zstd,
            0 | 1 => return Err(wrong("the qcow2 is damaged: its compression contradicts its features")),
            other => return Err(wrong(format!("the qcow2 is compressed in a way that is not known: {other}"))),
        };
        let (size_bytes, in_file, tables_at) = (long(24)?, word(36)?, long(40)?);
        if size_bytes % SECTOR_BYTES != 0 {
            return Err(wrong(format!(
                "the qcow2 has {size_bytes} bytes, which are no whole sectors: readers round it"
            )));
        }
        let tables = size_bytes.div_ceil(1 << (2 * cluster_bits - 3));
        if tables > in_file {
            return Err(wrong(format!("the qcow2 has {in_file} tables, and its {size_bytes} bytes need {tables}")));
        }
        if 8 * tables > MOST_TABLES_BYTES {
            return Err(wrong(format!(
                "the qcow2 has {size_bytes} bytes in clusters of 2^{cluster_bits}: too many to read"
            )));
        }
        if tables > 0 && (tables_at == 0 || tables_at & ((1 << cluster_bits) - 1) != 0) {
            return Err(wrong("the qcow2 is damaged: its table begins in the middle of a cluster"));
        }
        let has_zero_flag = version == 3;
        Ok(Header { cluster_bits, has_zero_flag, codec, size_bytes, tables_at, tables: tables as usize })
    }

    pub fn cluster_bytes(&self) -> usize {
        1 << self.cluster_bits
    }

    /// How many clusters one table is about.
    pub fn entries(&self) -> u64 {
        1 << (self.cluster_bits - 3)
    }

    /// Number of the cluster in the file.
    pub fn cluster(&self, at: u64) -> u64 {
        at >> self.cluster_bits
    }

    /// Where a table of clusters lies; `None` where all of them are zeros.
    ///
    /// # Errors
    /// Not there.
    pub fn table(&self, entry: u64) -> io::Result<Option<u64>> {
        match self.place(entry & !COPIED)? {
            0 => Ok(None),
            at => Ok(Some(at)),
        }
    }

    /// What a table says of one cluster.
    ///
    /// # Errors
    /// What no table says.
    pub fn entry(&self, entry: u64) -> io::Result<Entry> {
        if entry & PACKED != 0 {
            let bits = 62 - (self.cluster_bits - 8);
            let at = entry & ((1 << bits) - 1);
            let more_sectors = (entry & (PACKED - 1)) >> bits;
            let bytes = (more_sectors + 1) * 512 - at % 512;
            return match at >> self.cluster_bits {
                0 => Err(wrong("the qcow2 is damaged: a cluster lies where its header is")),
                _ => Ok(Entry::Packed { at, bytes: bytes as usize }),
            };
        }
        let zeros = self.has_zero_flag && entry & ZERO != 0;
        let at = self.place(entry & !COPIED & if self.has_zero_flag { !ZERO } else { u64::MAX })?;
        Ok(if zeros || at == 0 { Entry::Zeros } else { Entry::At(at) })
    }

    fn place(&self, entry: u64) -> io::Result<u64> {
        match entry & !OFFSET == 0 && entry & ((1 << self.cluster_bits) - 1) == 0 {
            true => Ok(entry),
            false => Err(wrong(format!("the qcow2 is damaged: an entry of a table is {entry:#x}"))),
        }
    }
}

fn refuse(backing: u64, encryption: u64, snapshots: u64, features: u64) -> io::Result<()> {
    let one = "make one file of it with `qemu-img convert -O qcow2`";
    if backing != 0 || features & ELSEWHERE != 0 {
        // Its header can name any file of the machine that follows it.
        return Err(wrong(format!("the qcow2 takes data from another file: {one}")));
    }
    if encryption != 0 {
        return Err(wrong("the qcow2 is encrypted: write it in the clear with `qemu-img convert`"));
    }
    if snapshots != 0 {
        return Err(wrong(format!("the qcow2 has {snapshots} snapshots in it: {one}, which leaves them out")));
    }
    if features & (DIRTY | CORRUPT) != 0 {
        return Err(wrong("the qcow2 was not closed well, or is marked as corrupt: see `qemu-img check`"));
    }
    if features & SUBCLUSTERS != 0 {
        return Err(wrong(
            "the qcow2 has subclusters (extended_l2): write it without, with `qemu-img convert -O qcow2`",
        ));
    }
    match features & !(COMPRESSION) {
        0 => Ok(()),
        other => Err(wrong(format!("the qcow2 has features that are not known here: {other:#x}"))),
    }
}

fn short() -> io::Error {
    wrong("the qcow2 ends in its header")
}

/// Of so many bytes, big end first.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    Some(bytes.get(at..at + length)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// All of a table.
pub fn numbers(table: &[u8]) -> impl Iterator<Item = u64> {
    table.as_chunks::<8>().0.iter().map(|entry| u64::from_be_bytes(*entry))
}
