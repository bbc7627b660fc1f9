//! Converts a qcow2 in a file, whose clusters may be in any order.

use super::cluster_conversion::{self, ClusterSource, DiskSink};
use super::header::{HEADER_BYTES, Qcow2Header, table_entries};
use super::sink::WriterSink;
use super::truncated_error;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

struct FileClusters<'a> {
    file: &'a File,
    header: Qcow2Header,
}

/// Converts a qcow2 file, and writes the raw disk image to `to`.
///
/// # Errors
/// Returns an error if the file cannot be read or is damaged, or if the writer fails.
pub(crate) fn unpack_file(file: &File, to: impl Write) -> io::Result<()> {
    let mut head = [0; HEADER_BYTES];
    let got = read_at(file, 0, &mut head)?;
    let mut lying = FileClusters { file, header: Qcow2Header::parse(&head[..got])? };
    cluster_conversion::convert_clusters(&mut lying, &mut WriterSink::new(to))
}

/// Reads bytes at an offset until the buffer is full or the file ends. Returns the number of bytes read.
fn read_at(file: &File, at: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < into.len() {
        match file.read_at(&mut into[got..], at + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

impl FileClusters<'_> {
    fn read_exact_at(&self, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut found = vec![0; bytes];
        match read_at(self.file, at, &mut found)? == bytes {
            true => Ok(found),
            false => Err(truncated_error()),
        }
    }
}

impl ClusterSource for FileClusters<'_> {
    fn header(&self) -> &Qcow2Header {
        &self.header
    }

    fn read_l1_table(&mut self) -> io::Result<Vec<u64>> {
        Ok(table_entries(&self.read_exact_at(self.header.tables_at, 8 * self.header.tables)?).collect())
    }

    fn read_l2_table(&mut self, _: usize, at: u64) -> io::Result<Vec<u8>> {
        self.read_exact_at(at, self.header.cluster_bytes())
    }

    fn copy_cluster(&mut self, at: u64, bytes: usize, _: u64, sink: &mut impl DiskSink) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            let room = sink.next_buffer()?;
            let now = room.len().min(bytes - done);
            if read_at(self.file, at + done as u64, &mut room[..now])? < now {
                return Err(truncated_error());
            }
            sink.advance(now)?;
            done += now;
        }
        Ok(())
    }

    fn read_compressed(&mut self, at: u64, bytes: usize, _: u64) -> io::Result<Vec<u8>> {
        let mut packed = vec![0; bytes];
        let got = read_at(self.file, at, &mut packed)?;
        packed.truncate(got);
        Ok(packed)
    }
}
