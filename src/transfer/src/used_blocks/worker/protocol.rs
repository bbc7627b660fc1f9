//! Messages between the worker and its parent. Lengths are checked before memory is allocated.

use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;

/// Maximum number of bytes per read.
pub(crate) const MAXIMUM_REQUEST_BYTES: u32 = 1 << 20;
/// Maximum number of ranges per message.
pub(crate) const MAXIMUM_MESSAGE_RANGES: usize = 4096;
const MAXIMUM_NAME_BYTES: u32 = 1 << 20;

const READ: u8 = 1;
const USED: u8 = 2;
const DONE_MESSAGE: u8 = 3;

/// Request of the parent: size and sector size of the disk to read, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    pub size: u64,
    pub sector: u64,
}

/// Message from the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkerMessage {
    /// Request for bytes of the disk. The response is the byte 1 followed by the requested bytes, or the byte 0 if the
    /// disk cannot be read.
    Read { at: u64, length: u32 },
    /// Next used ranges, in order.
    Used(Vec<Range<u64>>),
    /// All ranges have been sent.
    Done { has_table: bool, what: String },
}

impl ReadRequest {
    pub(crate) fn write_to(self, onto: &mut impl Write) -> io::Result<()> {
        onto.write_all(&[self.size.to_le_bytes(), self.sector.to_le_bytes()].concat())
    }

    pub(crate) fn read_from(from: &mut impl Read) -> io::Result<ReadRequest> {
        Ok(ReadRequest { size: read_u64(from)?, sector: read_u64(from)? })
    }
}

impl WorkerMessage {
    pub(crate) fn write_to(&self, onto: &mut impl Write) -> io::Result<()> {
        let length = |length: usize| u32::try_from(length).map(u32::to_le_bytes).map_err(io::Error::other);
        let mut message = Vec::new();
        match self {
            WorkerMessage::Read { at, length } => {
                message.push(READ);
                message.extend(at.to_le_bytes());
                message.extend(length.to_le_bytes());
            }
            WorkerMessage::Used(ranges) => {
                message.push(USED);
                message.extend(length(ranges.len())?);
                ranges.iter().for_each(|range| message.extend([range.start, range.end].map(u64::to_le_bytes).concat()));
            }
            WorkerMessage::Done { has_table, what } => {
                message.extend([DONE_MESSAGE, u8::from(*has_table)]);
                message.extend(length(what.len())?);
                message.extend(what.as_bytes());
            }
        }
        onto.write_all(&message)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// Fails if the worker is gone or the message is malformed.
    pub(crate) fn read_from(from: &mut impl Read) -> io::Result<WorkerMessage> {
        Ok(match read_byte(from)? {
            READ => WorkerMessage::Read { at: read_u64(from)?, length: read_length(from, MAXIMUM_REQUEST_BYTES)? },
            USED => {
                let count = read_length(from, MAXIMUM_MESSAGE_RANGES as u32)?;
                let ranges = (0..count).map(|_| Ok(read_u64(from)?..read_u64(from)?));
                WorkerMessage::Used(ranges.collect::<io::Result<_>>()?)
            }
            DONE_MESSAGE => {
                let has_table = read_byte(from)? != 0;
                let mut what = vec![0; read_length(from, MAXIMUM_NAME_BYTES)? as usize];
                from.read_exact(&mut what)?;
                WorkerMessage::Done { has_table, what: String::from_utf8_lossy(&what).into_owned() }
            }
            _ => return Err(super::worker_protocol_error()),
        })
    }
}

fn read_byte(from: &mut impl Read) -> io::Result<u8> {
    let mut byte = [0];
    from.read_exact(&mut byte).map(|()| byte[0])
}

fn read_u64(from: &mut impl Read) -> io::Result<u64> {
    let mut number = [0; 8];
    from.read_exact(&mut number).map(|()| u64::from_le_bytes(number))
}

/// Reads a length and checks it against the limit `most`.
fn read_length(from: &mut impl Read, most: u32) -> io::Result<u32> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > most { Err(ErrorKind::InvalidData.into()) } else { Ok(length) }
}
