//! Decompresses xz with liblzma, stream by stream. Verifies all integrity checks of a stream, and its index.

use super::error::{DecodeError, DecodeResult};
use super::input::CompressedInput;
use liblzma::stream::{Action, Error, Status, Stream, TELL_UNSUPPORTED_CHECK};
use std::io::{self, BufRead};

/// Memory limit of the decoder, in bytes: a dictionary of 128 MiB (like zstd's window, and twice that of `xz -9`), and
/// 2 MiB for the decoder itself.
const MEMORY_BYTES: u64 = (128 + 2) << 20;

pub(crate) struct XzDecoder(Stream);

impl XzDecoder {
    /// Creates a decoder.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn new() -> DecodeResult<XzDecoder> {
        Stream::new_stream_decoder(MEMORY_BYTES, TELL_UNSUPPORTED_CHECK).map(XzDecoder).map_err(describe_error)
    }

    /// Decodes more of the stream into `room`; returns the number of bytes written and whether the stream has ended.
    ///
    /// # Errors
    /// Returns the error of the source, or an error if the stream is damaged or truncated.
    pub(crate) fn decode_some(&mut self, input: &mut CompressedInput, room: &mut [u8]) -> DecodeResult<(usize, bool)> {
        let (at, compressed) = (input.position(), input.fill_buf()?);
        let end = compressed.is_empty();
        let (taken, made) = (self.0.total_in(), self.0.total_out());
        let status = self.0.process(compressed, room, Action::Run).map_err(describe_error)?;
        let (taken, made) = ((self.0.total_in() - taken) as usize, (self.0.total_out() - made) as usize);
        input.consume(taken);
        match status {
            Status::StreamEnd => Ok((made, true)),
            _ if made == 0 && end => Err(DecodeError::Cut(at)),
            Status::MemNeeded => Err(DecodeError::Damaged("the xz decoder makes no progress".to_owned())),
            _ => Ok((made, false)),
        }
    }
}

/// Skips the padding between and after streams, which consists of zero bytes in multiples of four.
///
/// # Errors
/// Returns the error of the source.
pub(crate) fn skip_padding(input: &mut CompressedInput) -> io::Result<()> {
    while input.peek_all::<4>(0)? == Some([0; 4]) {
        input.cut_off(4)?;
    }
    Ok(())
}

fn describe_error(error: Error) -> DecodeError {
    DecodeError::Damaged(match error {
        Error::Data => "the compressed data, a checksum or the index is invalid".to_owned(),
        Error::MemLimit => {
            "the dictionary is larger than 128 MiB, the supported maximum; compress with level -9 or lower".to_owned()
        }
        Error::UnsupportedCheck => "the type of the integrity check is not supported".to_owned(),
        other => other.to_string(),
    })
}
