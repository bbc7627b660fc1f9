//! Filesystems that tests build with known used blocks, and the fields of their metadata. Mutations change a field
//! according to its meaning. The readers do not verify checksums, so every mutation is effective.

#![allow(clippy::single_range_in_vec_init, reason = "a list of used blocks can have one range")]

pub(crate) mod btrfs;
pub(crate) mod ext;
pub(crate) mod fat;
pub(crate) mod xfs;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;

const PAGE: u64 = 4096;

/// Role of a number in the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Location of another metadata block, in the unit of [`Image::pointers`].
    Pointer,
    Level,
    /// Number of records or items.
    Count,
    /// Length or sum, which may be zero.
    Length,
    /// Number that determines the used blocks. With another number, the filesystem may be valid and have other used
    /// blocks.
    Defines,
    Generation,
    Owner,
}

#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub at: u64,
    pub width: usize,
    pub is_big_endian: bool,
    pub meaning: Meaning,
}

/// Sparse disk with a filesystem.
#[derive(Clone, Default)]
pub(crate) struct Image {
    /// Name of the filesystem in the reader's description.
    pub what: &'static str,
    pub size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
    pub fields: Vec<Field>,
    /// Values of all pointers.
    pub pointers: Vec<u64>,
    /// Offsets of all metadata blocks, each of `node_bytes` bytes.
    pub nodes: Vec<u64>,
    pub node_bytes: u64,
    pub used: Vec<Range<u64>>,
}

impl Image {
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        for (offset, byte) in (at..).zip(bytes) {
            let page = self.pages.entry(offset / PAGE).or_insert_with(|| vec![0; PAGE as usize]);
            page[(offset % PAGE) as usize] = *byte;
        }
    }

    pub(crate) fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        if at + bytes.len() as u64 > self.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.fill(0);
        let end = at + bytes.len() as u64;
        for (page, content) in self.pages.range(at / PAGE..=end.div_ceil(PAGE)) {
            let (start, last) = ((page * PAGE).max(at), ((page + 1) * PAGE).min(end));
            if start < last {
                let from = (start - page * PAGE) as usize;
                bytes[(start - at) as usize..(last - at) as usize]
                    .copy_from_slice(&content[from..from + (last - start) as usize]);
            }
        }
        Ok(())
    }

    /// Writes a number, and records it as a field that mutations may change.
    pub(crate) fn put(&mut self, at: u64, value: u64, (width, is_big_endian): (usize, bool), meaning: Meaning) {
        let field = Field { at, width, is_big_endian, meaning };
        self.set(&field, value);
        self.fields.push(field);
    }

    pub(crate) fn set(&mut self, field: &Field, value: u64) {
        match field.is_big_endian {
            true => self.write(field.at, &value.to_be_bytes()[8 - field.width..]),
            false => self.write(field.at, &value.to_le_bytes()[..field.width]),
        }
    }

    pub(crate) fn get(&self, field: &Field) -> u64 {
        let mut bytes = [0; 8];
        let range = if field.is_big_endian { 8 - field.width..8 } else { 0..field.width };
        self.read(&mut bytes[range], field.at).unwrap();
        if field.is_big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
    }

    pub(crate) fn starts_with(&self, at: u64, magic: &[u8]) -> bool {
        let mut bytes = vec![0; magic.len()];
        self.read(&mut bytes, at).is_ok() && bytes == magic
    }

    /// Copies the content of one metadata block to another one.
    pub(crate) fn copy_node(&mut self, from: u64, onto: u64) {
        let mut bytes = vec![0; self.node_bytes as usize];
        if self.read(&mut bytes, from).is_ok() {
            self.write(onto, &bytes);
        }
    }
}

/// Number of reads of each offset and length.
#[derive(Default)]
pub(crate) struct Reads(RefCell<HashMap<(u64, usize), u64>>);

impl Reads {
    pub(crate) fn read(&self, image: &Image, bytes: &mut [u8], at: u64) -> io::Result<()> {
        *self.0.borrow_mut().entry((at, bytes.len())).or_default() += 1;
        image.read(bytes, at)
    }

    pub(crate) fn most_of_one_place(&self) -> u64 {
        self.0.borrow().values().copied().max().unwrap_or_default()
    }

    pub(crate) fn all(&self) -> u64 {
        self.0.borrow().values().sum()
    }
}

/// Returns random free ranges of `0..blocks`, in order and not adjacent, that do not overlap `taken`.
pub(crate) fn free_ranges(
    random: &mut fastrand::Rng,
    blocks: u64,
    taken: &[Range<u64>],
    most: usize,
) -> Vec<Range<u64>> {
    let (mut free, mut at) = (Vec::new(), 0);
    while free.len() < most && at + 2 < blocks {
        let start = at + random.u64(0..8.min(blocks - at));
        let most_wanted = if random.u8(0..4) == 0 { blocks / 8 + 1 } else { 6 };
        let wanted = start + random.u64(1..=most_wanted);
        let is_before = |other: &&Range<u64>| start < other.end;
        let end = taken.iter().filter(is_before).fold(wanted.min(blocks), |end, other| end.min(other.start));
        match start < end {
            true => {
                free.push(start..end);
                at = end + 1;
            }
            false => at = start + 1,
        }
    }
    free
}

/// Returns the ranges that are not free.
pub(crate) fn rest(free: &[Range<u64>], blocks: u64) -> Vec<Range<u64>> {
    let (mut used, mut at) = (Vec::new(), 0);
    for range in free {
        used.push(at..range.start);
        at = range.end;
    }
    used.push(at..blocks);
    used
}
