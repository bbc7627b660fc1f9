//! Errors of the decoder inside a frame.

use super::Format;
use std::io;

#[derive(Debug)]
pub enum Fault {
    /// Error of the previous stage.
    Source(io::Error),
    /// The stream ends at this offset, in the middle of a frame.
    Cut(u64),
    Damaged(String),
}

pub type Result<T> = std::result::Result<T, Fault>;

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Source(error)
    }
}

impl Fault {
    /// Returns the error as a message; `position` is the offset in the compressed stream.
    pub fn explain(self, format: Format, position: u64) -> io::Error {
        match self {
            Fault::Source(error) => error,
            Fault::Cut(end) => damaged(format!(
                "the {format} stream ends in the middle of a frame, after byte {end}: it is \
                                 truncated"
            )),
            Fault::Damaged(text) => damaged(format!("the {format} stream is damaged near byte {position}: {text}")),
        }
    }
}

pub fn damaged(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}
