//! Checks whether a qcow2 can be converted while it is streamed. The check needs only the tables of the qcow2, which
//! are fetched one by one before anything is written.

use super::header::{HEADER_BYTES, Qcow2Header, table_entries};
use super::sink::NullSink;
use super::stream_conversion::{SequentialFile, StreamClusters};
use super::{cluster_conversion, invalid_image};
use crate::pipeline::{PipelineReader, WorkerOutput};
use std::collections::VecDeque;
use std::io::{self, Read};

/// Length of the file's beginning that is fetched for the check, in bytes. `qemu-img` places the L1 table in the fourth
/// cluster. A cluster is at most 2 MiB long, so this length covers the first four clusters.
pub const HEAD_BYTES: usize = 8 << 20;

/// Maximum number of L2 tables that are fetched. With the default cluster size of qemu-img (64 KiB), this number of
/// tables describes an image of 2 TiB.
const MAXIMUM_L2_TABLES: usize = 4096;
/// Maximum size of all L2 tables together, in bytes.
const MAXIMUM_L2_TABLES_BYTES: usize = 512 << 20;

/// Sends a list of the L2 tables to `out`: first the length that all tables share, then the offset of each table, in
/// file order. All numbers are eight bytes long and big-endian. `stream` provides the first [`HEAD_BYTES`] bytes of the
/// file.
///
/// # Errors
/// Returns the error of the stream, or an error if the qcow2 is not supported or cannot be converted while it is
/// streamed.
pub fn list_tables(mut stream: PipelineReader, out: &mut impl WorkerOutput) -> io::Result<()> {
    let mut head = Vec::new();
    stream.read_to_end(&mut head)?;
    let (header, places) = table_offsets(&head)?;
    out.put(&(header.cluster_bytes() as u64).to_be_bytes())?;
    places.iter().try_for_each(|at| out.put(&at.to_be_bytes()))?;
    out.flush()
}

fn table_offsets(head: &[u8]) -> io::Result<(Qcow2Header, Vec<u64>)> {
    let header = Qcow2Header::parse(&head[..head.len().min(HEADER_BYTES)])?;
    let end = header.tables_at.saturating_add(8 * header.tables as u64);
    let range = usize::try_from(header.tables_at).ok().zip(usize::try_from(end).ok());
    let tables = range.and_then(|(start, end)| head.get(start..end)).ok_or_else(|| {
        invalid_image(
            "the qcow2 cannot be converted while it is streamed, because its tables are not at the beginning of the \
             file; convert it to a raw image with `drophammer image pack`",
        )
    })?;
    let mut places = Vec::new();
    for entry in table_entries(tables) {
        places.extend(header.table_offset(entry)?);
    }
    places.sort();
    match places.len() <= MAXIMUM_L2_TABLES && places.len() * header.cluster_bytes() <= MAXIMUM_L2_TABLES_BYTES {
        true => Ok((header, places)),
        false => Err(invalid_image(format!(
            "the qcow2 has {} tables, too many to fetch and check one by one; convert it to a raw image with \
             `drophammer image pack`",
            places.len()
        ))),
    }
}

/// Checks the tables. The stream contains the length of the file's beginning as an eight-byte big-endian number, the
/// beginning itself, and the L2 tables in the order of [`list_tables`].
///
/// # Errors
/// Returns the same errors as [`list_tables`].
pub fn check_tables(mut stream: PipelineReader) -> io::Result<()> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let mut head = Vec::new();
    (&mut stream).take(u64::from_be_bytes(length).min(HEAD_BYTES as u64)).read_to_end(&mut head)?;
    let (header, places) = table_offsets(&head)?;
    let known = PartialFile { head, at: 0, tables: places.into(), cluster_bytes: header.cluster_bytes(), stream };
    let mut arriving = StreamClusters::open_stream(known)?;
    cluster_conversion::convert_clusters(&mut arriving, &mut NullSink(vec![0; header.cluster_bytes()]))
}

/// Beginning and tables of a file; its other parts are unknown. Reads outside of the known parts return zeros, even
/// after the end of the file.
struct PartialFile {
    head: Vec<u8>,
    at: u64,
    /// Offsets of the tables that have not been read yet, in file order.
    tables: VecDeque<u64>,
    cluster_bytes: usize,
    stream: PipelineReader,
}

impl SequentialFile for PartialFile {
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
