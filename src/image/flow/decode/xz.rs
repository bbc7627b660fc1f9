//! xz by liblzma: one stream after the other. Every check that a stream carries is verified, and its index.

use super::fault::{Fault, Result};
use super::input::Input;
use liblzma::stream::{Action, Error, Status, Stream, TELL_UNSUPPORTED_CHECK};
use std::io::{self, BufRead};

/// 128 MiB of dictionary, twice what `xz -9` takes, as for zstd; the rest is the decoder itself.
const MEMORY_BYTES: u64 = (128 + 2) << 20;

pub struct Xz(Stream);

impl Xz {
    /// # Errors
    /// No memory.
    pub fn new() -> Result<Xz> {
        Stream::new_stream_decoder(MEMORY_BYTES, TELL_UNSUPPORTED_CHECK).map(Xz).map_err(words)
    }

    /// Decodes some more of the stream into `room`; says how much, and whether the stream has ended.
    ///
    /// # Errors
    /// The source's own, or the stream is damaged or cut.
    pub fn decode_some(&mut self, input: &mut Input, room: &mut [u8]) -> Result<(usize, bool)> {
        let (at, compressed) = (input.position(), input.fill_buf()?);
        let end = compressed.is_empty();
        let (taken, made) = (self.0.total_in(), self.0.total_out());
        let status = self.0.process(compressed, room, Action::Run).map_err(words)?;
        let (taken, made) = ((self.0.total_in() - taken) as usize, (self.0.total_out() - made) as usize);
        input.consume(taken);
        match status {
            Status::StreamEnd => Ok((made, true)),
            _ if made == 0 && end => Err(Fault::Cut(at)),
            Status::MemNeeded => Err(Fault::Damaged("the decoder does not go on".to_owned())),
            _ => Ok((made, false)),
        }
    }
}

/// Zeroes between and after streams, in fours: a file is padded so to a multiple of its medium's blocks.
///
/// # Errors
/// The source's own.
pub fn skip_padding(input: &mut Input) -> io::Result<()> {
    while input.peek_all::<4>(0)? == Some([0; 4]) {
        input.cut_off(4)?;
    }
    Ok(())
}

fn words(error: Error) -> Fault {
    Fault::Damaged(match error {
        Error::Data => "data, checksum or index are not what they should be".to_owned(),
        Error::MemLimit => "its dictionary is too large (up to 128 MiB are taken: compress with -9 or less)".to_owned(),
        Error::UnsupportedCheck => "its integrity check is of an unknown kind".to_owned(),
        other => other.to_string(),
    })
}
