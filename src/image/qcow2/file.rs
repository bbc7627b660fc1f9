//! The clusters of a qcow2 in a file, in any order.

use super::convert::{self, Clusters, Sink};
use super::header::{HEADER_BYTES, Header, numbers};
use super::sink::Whole;
use super::wrong;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

struct Lying<'a> {
    file: &'a File,
    header: Header,
}

/// Writes the raw disk of a qcow2 file.
///
/// # Errors
/// Returns an error if the file cannot be read or is damaged, or the writer fails.
pub fn unpack(file: &File, to: impl Write) -> io::Result<()> {
    let mut head = [0; HEADER_BYTES];
    let got = read(file, 0, &mut head)?;
    let mut lying = Lying { file, header: Header::parse(&head[..got])? };
    convert::convert(&mut lying, &mut Whole::new(to))
}

/// Reads at an offset; fewer bytes at the end of the file.
fn read(file: &File, at: u64, into: &mut [u8]) -> io::Result<usize> {
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

impl Lying<'_> {
    fn whole(&self, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut found = vec![0; bytes];
        match read(self.file, at, &mut found)? == bytes {
            true => Ok(found),
            false => Err(cut()),
        }
    }
}

impl Clusters for Lying<'_> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn tables(&mut self) -> io::Result<Vec<u64>> {
        Ok(numbers(&self.whole(self.header.tables_at, 8 * self.header.tables)?).collect())
    }

    fn table(&mut self, _: usize, at: u64) -> io::Result<Vec<u8>> {
        self.whole(at, self.header.cluster_bytes())
    }

    fn copy(&mut self, at: u64, bytes: usize, _: u64, sink: &mut impl Sink) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            let room = sink.room()?;
            let now = room.len().min(bytes - done);
            if read(self.file, at + done as u64, &mut room[..now])? < now {
                return Err(cut());
            }
            sink.filled(now)?;
            done += now;
        }
        Ok(())
    }

    fn packed(&mut self, at: u64, bytes: usize, _: u64) -> io::Result<Vec<u8>> {
        let mut packed = vec![0; bytes];
        let got = read(self.file, at, &mut packed)?;
        packed.truncate(got);
        Ok(packed)
    }
}

fn cut() -> io::Error {
    wrong("the qcow2 ends before its last cluster")
}
