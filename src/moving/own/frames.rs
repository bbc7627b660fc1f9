//! Frames: type, length, body. Frames of the peer are read completely and checked against limits before use.

use super::{CHUNK_BYTES, GRANULE_BYTES};
use ring::digest::{Context, Digest, SHA256, SHA256_OUTPUT_LEN};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use uuid::Uuid;

/// Size limit of JSON bodies.
const TEXT_BYTES: usize = 64 << 10;

/// Size limit of other bodies. A piece that grows under compression is sent uncompressed.
const BODY_BYTES: usize = CHUNK_BYTES as usize + PIECE_HEAD_BYTES;

/// Header of a piece: offset, length, encoding, digest.
const PIECE_HEAD_BYTES: usize = 8 + 4 + 1 + SHA256_OUTPUT_LEN;

pub type Sha256 = [u8; SHA256_OUTPUT_LEN];

/// Description of the sender's disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Name that selects one of several disks.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub magic: Option<String>,
    pub size_bytes: u64,
    pub sector_bytes: u32,
    /// Whether the disk has a partition table, which requires the same sector size at the destination.
    pub has_table: bool,
    /// Run of the sender. `None` for older senders, and for agents, whose certificate changes with each boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

impl Hello {
    /// Returns whether both describe the same disk, regardless of the run.
    pub fn is_same_disk(&self, other: &Hello) -> bool {
        Hello { run: None, ..self.clone() } == Hello { run: None, ..other.clone() }
    }
}

/// One execution of the sender. Its disks may be written before and after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub id: Uuid,
    /// Names of all disks that it sends.
    pub disks: Vec<String>,
}

/// Answer of the receiver to [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Data before this offset is verified and on the disk. `compare`: data after it may be there too, subject to its digest.
    From {
        position: u64,
        compare: bool,
    },
    Refused(String),
}

/// Final message of the receiver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Received(Received),
    Failed(String),
}

/// Acknowledgement that all data is on the disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// Digest over all pieces of this connection, in hex.
    pub digest: String,
    /// Busy share of the receiver's disk, in percent.
    pub disk_percent: u8,
}

/// Contiguous piece of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Bytes {
        offset: u64,
        length: u32,
        encoding: Encoding,
        sha256: Sha256,
    },
    /// Data that the receiver has already.
    Same {
        offset: u64,
        length: u32,
        sha256: Sha256,
    },
    Zero(Range<u64>),
    Unused(Range<u64>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Plain = 0,
    Lz4 = 1,
    Zstd = 2,
}

/// Parsed frame.
#[derive(Debug, PartialEq)]
pub enum Frame {
    Hello(Hello),
    Answer(Answer),
    /// Piece with its encoded bytes.
    Piece(Piece, Vec<u8>),
    /// Digests of pieces that the receiver may have.
    Offered(Vec<Offer>),
    /// Whether each offered piece is needed.
    Wanted(Vec<bool>),
    /// Digest over all pieces.
    End(Sha256),
    Verdict(Verdict),
}

/// Piece that the receiver may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub offset: u64,
    pub length: u32,
    pub sha256: Sha256,
}

const HELLO: u8 = 1;
const ANSWER: u8 = 2;
const BYTES: u8 = 3;
const SAME: u8 = 4;
const ZERO: u8 = 5;
const UNUSED: u8 = 6;
const OFFERED: u8 = 7;
const WANTED: u8 = 8;
const END: u8 = 9;
const VERDICT: u8 = 10;

impl Piece {
    pub fn range(&self) -> Range<u64> {
        match self {
            Piece::Bytes { offset, length, .. } | Piece::Same { offset, length, .. } => {
                *offset..offset.saturating_add(u64::from(*length))
            }
            Piece::Zero(range) | Piece::Unused(range) => range.clone(),
        }
    }

    /// Returns whether the piece is aligned and within a disk of that size.
    pub fn is_within(&self, size_bytes: u64) -> bool {
        let range = self.range();
        let in_one_chunk = || range.start / CHUNK_BYTES == (range.end - 1) / CHUNK_BYTES;
        let is_long = matches!(self, Piece::Zero(_) | Piece::Unused(_));
        let is_cut_well = range.end.is_multiple_of(GRANULE_BYTES) || range.end == size_bytes;
        range.start < range.end
            && range.end <= size_bytes
            && range.start.is_multiple_of(GRANULE_BYTES)
            && is_cut_well
            && (is_long || in_one_chunk())
    }

    fn kind(&self) -> u8 {
        match self {
            Piece::Bytes { .. } => BYTES,
            Piece::Same { .. } => SAME,
            Piece::Zero(_) => ZERO,
            Piece::Unused(_) => UNUSED,
        }
    }

    fn head(&self) -> Vec<u8> {
        let range = self.range();
        let mut head = range.start.to_be_bytes().to_vec();
        match self {
            Piece::Bytes { length, encoding, sha256, .. } => {
                head.extend(length.to_be_bytes());
                head.push(*encoding as u8);
                head.extend(sha256);
            }
            Piece::Same { length, sha256, .. } => {
                head.extend(length.to_be_bytes());
                head.extend(sha256);
            }
            Piece::Zero(_) | Piece::Unused(_) => head.extend((range.end - range.start).to_be_bytes()),
        }
        head
    }
}

/// Digest over all pieces of a connection: content and position, whether transmitted or not.
pub struct Sum(Context);

impl Sum {
    pub fn new() -> Sum {
        Sum(Context::new(&SHA256))
    }

    pub fn add(&mut self, piece: &Piece) {
        let range = piece.range();
        self.0.update(&range.start.to_be_bytes());
        self.0.update(&range.end.to_be_bytes());
        match piece {
            Piece::Bytes { sha256, .. } | Piece::Same { sha256, .. } => self.0.update(sha256),
            Piece::Zero(_) => self.0.update(b"zero"),
            Piece::Unused(_) => self.0.update(b"unused"),
        }
    }

    pub fn so_far(&self) -> Sha256 {
        array(&self.0.clone().finish())
    }
}

pub fn sha256(bytes: &[u8]) -> Sha256 {
    array(&ring::digest::digest(&SHA256, bytes))
}

fn array(digest: &Digest) -> Sha256 {
    let mut array = Sha256::default();
    array.copy_from_slice(digest.as_ref());
    array
}

pub fn hex(digest: &Sha256) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a frame.
///
/// # Errors
/// Fails if the peer is gone.
pub fn write(onto: &mut impl Write, frame: &Frame) -> io::Result<()> {
    match frame {
        Frame::Hello(hello) => write_text(onto, HELLO, hello),
        Frame::Answer(answer) => write_text(onto, ANSWER, answer),
        Frame::Verdict(verdict) => write_text(onto, VERDICT, verdict),
        Frame::Piece(piece, bytes) => write_piece(onto, piece, bytes),
        Frame::Offered(offers) => {
            let mut body = Vec::new();
            for Offer { offset, length, sha256 } in offers {
                body.extend(offset.to_be_bytes());
                body.extend(length.to_be_bytes());
                body.extend(sha256);
            }
            write_parts(onto, OFFERED, &body, &[])
        }
        Frame::Wanted(wanted) => {
            let body: Vec<u8> = wanted.iter().map(|wanted| u8::from(*wanted)).collect();
            write_parts(onto, WANTED, &body, &[])
        }
        Frame::End(digest) => write_parts(onto, END, digest, &[]),
    }
}

/// Writes a piece whose bytes are stored separately.
///
/// # Errors
/// Fails as [`write`] does.
pub fn write_piece(onto: &mut impl Write, piece: &Piece, bytes: &[u8]) -> io::Result<()> {
    write_parts(onto, piece.kind(), &piece.head(), bytes)
}

fn write_text(onto: &mut impl Write, kind: u8, value: &impl Serialize) -> io::Result<()> {
    write_parts(onto, kind, &serde_json::to_vec(value)?, &[])
}

fn write_parts(onto: &mut impl Write, kind: u8, first: &[u8], second: &[u8]) -> io::Result<()> {
    let length = u32::try_from(first.len() + second.len()).map_err(io::Error::other)?;
    let mut head = vec![kind];
    head.extend(length.to_be_bytes());
    head.extend(first);
    onto.write_all(&head)?;
    onto.write_all(second)
}

/// Reads the next frame.
///
/// # Errors
/// Fails if the connection ends or the frame is malformed.
pub fn read(from: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = u32::from_be_bytes(length) as usize;
    let most = match kind {
        HELLO | ANSWER | VERDICT | OFFERED | WANTED => TEXT_BYTES,
        _ => BODY_BYTES,
    };
    if length > most {
        return Err(wrong(&format!("frame of {length} bytes")));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    parse(kind, body).ok_or_else(|| wrong(&format!("frame of type {kind} with {length} bytes")))
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("protocol error of the peer: {what}"))
}

fn parse(kind: u8, mut body: Vec<u8>) -> Option<Frame> {
    let piece = |piece: Piece| Some(Frame::Piece(piece, Vec::new()));
    match kind {
        HELLO => text(&body).map(Frame::Hello),
        ANSWER => text(&body).map(Frame::Answer),
        VERDICT => text(&body).map(Frame::Verdict),
        END => body.try_into().ok().map(Frame::End),
        BYTES => {
            let mut reader = Fields(&body);
            let (offset, length, encoding) = (reader.u64()?, reader.u32()?, reader.bytes::<1>()?);
            let encoding = match encoding {
                [0] => Encoding::Plain,
                [1] => Encoding::Lz4,
                [2] => Encoding::Zstd,
                _ => return None,
            };
            let sha256 = reader.bytes()?;
            body.drain(..PIECE_HEAD_BYTES);
            Some(Frame::Piece(Piece::Bytes { offset, length, encoding, sha256 }, body))
        }
        SAME => {
            let Offer { offset, length, sha256 } = offer(&mut Fields(&body)).filter(|_| body.len() == OFFER_BYTES)?;
            piece(Piece::Same { offset, length, sha256 })
        }
        ZERO | UNUSED => {
            let mut reader = Fields(&body);
            let (start, length) = (reader.u64()?, reader.u64()?);
            let range = start..start.checked_add(length)?;
            match reader.0.is_empty() {
                true if kind == ZERO => piece(Piece::Zero(range)),
                true => piece(Piece::Unused(range)),
                false => None,
            }
        }
        OFFERED => {
            let offers = body.chunks(OFFER_BYTES).map(|offer_bytes| offer(&mut Fields(offer_bytes)));
            offers.collect::<Option<_>>().map(Frame::Offered)
        }
        WANTED => Some(Frame::Wanted(body.iter().map(|byte| *byte != 0).collect())),
        _ => None,
    }
}

const OFFER_BYTES: usize = 8 + 4 + SHA256_OUTPUT_LEN;

fn offer(reader: &mut Fields<'_>) -> Option<Offer> {
    Some(Offer { offset: reader.u64()?, length: reader.u32()?, sha256: reader.bytes()? })
}

fn text<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_be_bytes)
    }
}

#[cfg(test)]
mod tests;
