//! A qcow2, which most clouds' images are published as, becomes the disk that it is: as it comes, or from a file. It is read by the
//! process without power, as all that strangers have made.
//!
//! Whether one can be written as it comes is known before anything is written: [`list`] says where its tables lie, [`check`] goes
//! through them as [`convert`] does later, without the clusters.
//!
//! Of `image` it uses `flow` alone.

mod convert;
mod file;
mod header;
mod order;
mod sink;
mod survey;
#[cfg(test)]
pub(super) mod tests;

pub use file::unpack;
pub use header::{HEADER_BYTES, Header, MAGIC};
pub use survey::{HEAD_BYTES, check, list};

use super::flow::{Outlet, Pool, Reader};
use order::{Arriving, Stream};
use sink::Packets;
use std::io::{self, Read};

/// Sends on the disk that the qcow2 in this stream is.
///
/// # Errors
/// The stream's own; it is damaged, or cannot be read as it comes; nobody listens any more.
pub fn convert(stream: Reader, out: &mut impl Outlet, pool: &Pool) -> io::Result<()> {
    let clock = stream.clock();
    let mut arriving = Arriving::open(stream)?;
    let mut packets = Packets::new(out, pool, &clock);
    convert::convert(&mut arriving, &mut packets)?;
    packets.end()?;
    // Whoever sends it must be able to end.
    arriving.skip_rest()
}

impl Stream for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < into.len() {
            match Read::read(self, &mut into[got..])? {
                0 => break,
                more => got += more,
            }
        }
        Ok(got)
    }

    fn skip(&mut self, mut bytes: u64) -> io::Result<()> {
        while bytes > 0 {
            let Some(chunk) = self.take_chunk(usize::try_from(bytes).unwrap_or(usize::MAX))? else { return Ok(()) };
            bytes -= chunk.len() as u64;
        }
        Ok(())
    }
}

/// Damaged, or of a kind that cannot be read.
fn wrong(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}
