//! Converts a qcow2 (the format of most cloud images) to a raw disk image. The qcow2 is read from a stream or a file.
//! Streams are converted in the sandboxed process, because images are untrusted.
//!
//! Before anything is written, two functions check that a qcow2 can be converted while it is streamed: [`list_tables`]
//! returns the offsets of its tables, and [`check_tables`] processes the tables like [`cluster_conversion`], but does
//! not read the clusters.
//!
//! The only other module of `image` that this module uses is `pipeline`.

mod cluster_conversion;
mod file_conversion;
mod header;
mod sink;
mod stream_conversion;
mod table_check;
#[cfg(test)]
pub(super) mod tests;

pub(crate) use file_conversion::unpack_file;
pub(crate) use header::{HEADER_BYTES, MAGIC, Qcow2Header};
pub use table_check::{HEAD_BYTES, check_tables, list_tables};

use super::pipeline::{BufferPool, PipelineReader, WorkerOutput};
use sink::PacketSink;
use std::io::{self, Read};
use stream_conversion::{SequentialFile, StreamClusters};

/// Converts the qcow2 in this stream, and sends the raw disk image to `out`.
///
/// # Errors
/// Returns the error of the stream, or an error if the qcow2 is damaged or cannot be converted while it is streamed, or
/// if the receiver is gone.
pub(crate) fn convert_stream(stream: PipelineReader, out: &mut impl WorkerOutput, pool: &BufferPool) -> io::Result<()> {
    let clock = stream.clock();
    let mut arriving = StreamClusters::open_stream(stream)?;
    let mut packets = PacketSink::new(out, pool, &clock);
    cluster_conversion::convert_clusters(&mut arriving, &mut packets)?;
    packets.finish()?;
    // The stream is read to its end, so that the sender can finish.
    arriving.skip_rest()
}

impl SequentialFile for PipelineReader {
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

/// Returns the error for an image that is damaged or not supported, with the kind `InvalidData`.
fn invalid_image(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

fn truncated_error() -> io::Error {
    invalid_image("the qcow2 ends before its last cluster")
}
