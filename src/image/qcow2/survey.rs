//! Whether a qcow2 can be written as it comes, by its tables alone: these are fetched one by one, before anything is written.

use super::convert;
use super::header::{HEADER_BYTES, Header, numbers};
use super::order::{Arriving, Stream};
use super::sink::Nowhere;
use super::wrong;
use crate::image::flow::{Outlet, Reader};
use crate::order;
use std::collections::VecDeque;
use std::io::{self, Read};

/// So much of the file's beginning is looked at. The table of tables lies in it where `qemu-img` has made the image: in its fourth cluster,
/// and none is larger than 2 MiB.
pub const HEAD_BYTES: usize = 8 << 20;

/// No more tables are fetched. With the clusters that qemu-img makes that is an image of 2 TiB.
const MOST_TABLES: usize = 4096;
/// Nor more of them, however large they are.
const MOST_TABLES_BYTES: usize = 512 << 20;

/// Says where the tables lie: the length of each, and then the place of each in the order of the file, as numbers of eight bytes, big end first. The stream has
/// the file's first [`HEAD_BYTES`].
///
/// # Errors
/// The stream's own; it is no qcow2 that can be read, or none that can be written as it comes.
pub fn list(mut stream: Reader, out: &mut impl Outlet) -> io::Result<()> {
    let mut head = Vec::new();
    stream.read_to_end(&mut head)?;
    let (header, places) = places(&head)?;
    out.put(&(header.cluster_bytes() as u64).to_be_bytes())?;
    places.iter().try_for_each(|at| out.put(&at.to_be_bytes()))?;
    out.flush()
}

fn places(head: &[u8]) -> io::Result<(Header, Vec<u64>)> {
    let header = Header::parse(&head[..head.len().min(HEADER_BYTES)])?;
    let end = header.tables_at.saturating_add(8 * header.tables as u64);
    let range = usize::try_from(header.tables_at).ok().zip(usize::try_from(end).ok());
    let tables = range.and_then(|(start, end)| head.get(start..end)).ok_or_else(|| {
        wrong(
            "the qcow2 does not begin with its tables, so that it cannot be written as it comes: make a raw image of it with \
             `drophammer image pack`",
        )
    })?;
    let mut places = Vec::new();
    for entry in numbers(tables) {
        places.extend(header.table(entry)?);
    }
    order::sort(&mut places);
    match places.len() <= MOST_TABLES && places.len() * header.cluster_bytes() <= MOST_TABLES_BYTES {
        true => Ok((header, places)),
        false => Err(wrong(format!(
            "the qcow2 has {} tables, which are not looked at one by one: make a raw image of it with `drophammer image pack`",
            places.len()
        ))),
    }
}

/// Goes through the tables. The stream has the length of the file's beginning as a number of eight bytes, that, and the tables in
/// the order in which [`list`] has named them.
///
/// # Errors
/// As [`list`].
pub fn check(mut stream: Reader) -> io::Result<()> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let mut head = Vec::new();
    (&mut stream).take(u64::from_be_bytes(length).min(HEAD_BYTES as u64)).read_to_end(&mut head)?;
    let (header, places) = places(&head)?;
    let known = Known { head, at: 0, tables: places.into(), cluster_bytes: header.cluster_bytes(), stream };
    let mut arriving = Arriving::open(known)?;
    convert::convert(&mut arriving, &mut Nowhere(vec![0; header.cluster_bytes()]))
}

/// A file of which only the beginning and the tables are known. The rest reads as zeros, without an end.
struct Known {
    head: Vec<u8>,
    at: u64,
    /// Where the tables lie that have not come yet. They come in the order of the file.
    tables: VecDeque<u64>,
    cluster_bytes: usize,
    stream: Reader,
}

impl Stream for Known {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        into.fill(0);
        if self.tables.front() == Some(&self.at) && into.len() == self.cluster_bytes {
            self.tables.pop_front();
            self.stream.read_exact(into)?;
        } else if let Some(there) = usize::try_from(self.at).ok().and_then(|at| self.head.get(at..)) {
            let now = there.len().min(into.len());
            into[..now].copy_from_slice(&there[..now]);
        }
        self.skip(into.len() as u64)?;
        Ok(into.len())
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.at = self.at.saturating_add(bytes);
        Ok(())
    }
}
