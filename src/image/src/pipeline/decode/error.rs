//! Errors that occur while a frame is decoded.

use super::CompressionFormat;
use std::io;

#[derive(Debug)]
pub(crate) enum DecodeError {
    /// Error of the previous stage.
    Source(io::Error),
    /// The stream is truncated: it ends at this offset, in the middle of a frame.
    Cut(u64),
    Damaged(String),
}

pub(crate) type DecodeResult<T> = std::result::Result<T, DecodeError>;

impl From<io::Error> for DecodeError {
    fn from(error: io::Error) -> DecodeError {
        DecodeError::Source(error)
    }
}

impl DecodeError {
    /// Converts the error to an I/O error with a message. `position` is the offset of the error in the compressed
    /// stream, in bytes.
    pub(crate) fn into_io_error(self, format: CompressionFormat, position: u64) -> io::Error {
        match self {
            DecodeError::Source(error) => error,
            DecodeError::Cut(end) => {
                damaged_error(format!("the {format} stream is truncated: it ends within a frame, after byte {end}"))
            }
            DecodeError::Damaged(text) => {
                damaged_error(format!("the {format} stream is damaged near byte {position}: {text}"))
            }
        }
    }
}

pub(crate) fn damaged_error(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}
