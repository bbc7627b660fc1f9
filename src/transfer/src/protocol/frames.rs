//! Frames of the protocol. A frame consists of type, length and body. Lengths are checked against limits, and a frame
//! is read completely before it is used.

use super::{CHUNK_BYTES, GRANULE_BYTES};
use ring::digest::{Context, Digest, SHA256, SHA256_OUTPUT_LEN};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use uuid::Uuid;

/// Maximum length of the body of a frame with JSON, offers or answers to offers, in bytes.
const TEXT_BYTES: usize = 64 << 10;

/// Maximum length of the body of a frame with a piece or the final digest, in bytes. A piece that compression would
/// enlarge is sent uncompressed.
const BODY_BYTES: usize = CHUNK_BYTES as usize + PIECE_HEAD_BYTES;

/// Length of the header of a piece, in bytes: offset, length, encoding and digest.
const PIECE_HEAD_BYTES: usize = 8 + 4 + 1 + SHA256_OUTPUT_LEN;

pub(crate) type Sha256Bytes = [u8; SHA256_OUTPUT_LEN];

/// Description of the sender's disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransferHello {
    /// Name of the disk, with which the receiver selects the destination.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub magic: Option<String>,
    pub size_bytes: u64,
    pub sector_bytes: u32,
    /// Whether the disk has a partition table. If so, the destination must have the same sector size.
    pub has_table: bool,
    /// Run of the sender; `None` for senders of earlier versions and for agents. An agent is identified by its
    /// certificate, which changes with each boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<SenderRun>,
}

impl TransferHello {
    /// Returns whether both descriptions are equal. The run is not compared.
    pub(crate) fn is_same_disk(&self, other: &TransferHello) -> bool {
        TransferHello { run: None, ..self.clone() } == TransferHello { run: None, ..other.clone() }
    }
}

/// One run of `drophammer move send`. Other programs may write to the disks between two runs, so disks that were
/// received in different runs are inconsistent with each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SenderRun {
    pub id: Uuid,
    /// Names of all disks that this run sends.
    pub disks: Vec<String>,
}

/// Answer of the receiver to [`TransferHello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HelloAnswer {
    /// The disk is accepted. All data before offset `position` has been verified and written to the destination. If
    /// `compare` is set, the destination may also contain later data from an earlier run, which must be compared by
    /// digest.
    From {
        position: u64,
        compare: bool,
    },
    Refused(String),
}

/// Final message of the receiver: success or failure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReceiverVerdict {
    Received(ReceiptFigures),
    Failed(String),
}

/// Acknowledgement of the receiver that all data is on its disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReceiptFigures {
    /// Digest of all pieces of this connection, in hexadecimal; see [`PiecesDigest`].
    pub digest: String,
    /// Share of time in which the receiver's disk was busy, in percent.
    pub disk_percent: u8,
}

/// Piece of the disk: a contiguous range with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DiskPiece {
    Bytes {
        offset: u64,
        length: u32,
        encoding: PieceEncoding,
        sha256: Sha256Bytes,
    },
    /// Bytes that are not transmitted, because the receiver already has them.
    Same {
        offset: u64,
        length: u32,
        sha256: Sha256Bytes,
    },
    Zero(Range<u64>),
    Unused(Range<u64>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceEncoding {
    Plain = 0,
    Lz4 = 1,
    Zstd = 2,
}

/// Frame that was read and parsed.
#[derive(Debug, PartialEq)]
pub(crate) enum ProtocolFrame {
    Hello(TransferHello),
    Answer(HelloAnswer),
    /// Piece, with its encoded bytes for [`DiskPiece::Bytes`].
    Piece(DiskPiece, Vec<u8>),
    /// Offers of pieces that the receiver may already have.
    Offered(Vec<PieceOffer>),
    /// Answer to the offers: for each piece, whether the receiver needs it.
    Wanted(Vec<bool>),
    /// Digest of all pieces of this connection; ends the transfer of the disk.
    End(Sha256Bytes),
    Verdict(ReceiverVerdict),
}

/// Range and digest of a piece that is offered because the receiver may already have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PieceOffer {
    pub offset: u64,
    pub length: u32,
    pub sha256: Sha256Bytes,
}

const HELLO: u8 = 1;
const ANSWER_FRAME: u8 = 2;
const BYTES: u8 = 3;
const SAME_PIECE: u8 = 4;
const ZERO: u8 = 5;
const UNUSED: u8 = 6;
const OFFERED: u8 = 7;
const WANTED: u8 = 8;
const END: u8 = 9;
const VERDICT: u8 = 10;

impl DiskPiece {
    pub(crate) fn range(&self) -> Range<u64> {
        match self {
            DiskPiece::Bytes { offset, length, .. } | DiskPiece::Same { offset, length, .. } => {
                *offset..offset.saturating_add(u64::from(*length))
            }
            DiskPiece::Zero(range) | DiskPiece::Unused(range) => range.clone(),
        }
    }

    /// Returns whether the range of the piece is aligned and within a disk of this size.
    pub(crate) fn is_within(&self, size_bytes: u64) -> bool {
        let range = self.range();
        let in_one_chunk = || range.start / CHUNK_BYTES == (range.end - 1) / CHUNK_BYTES;
        let is_long = matches!(self, DiskPiece::Zero(_) | DiskPiece::Unused(_));
        let is_cut_well = range.end.is_multiple_of(GRANULE_BYTES) || range.end == size_bytes;
        range.start < range.end
            && range.end <= size_bytes
            && range.start.is_multiple_of(GRANULE_BYTES)
            && is_cut_well
            && (is_long || in_one_chunk())
    }

    fn frame_type(&self) -> u8 {
        match self {
            DiskPiece::Bytes { .. } => BYTES,
            DiskPiece::Same { .. } => SAME_PIECE,
            DiskPiece::Zero(_) => ZERO,
            DiskPiece::Unused(_) => UNUSED,
        }
    }

    fn encode_head(&self) -> Vec<u8> {
        let range = self.range();
        let mut head = range.start.to_be_bytes().to_vec();
        match self {
            DiskPiece::Bytes { length, encoding, sha256, .. } => {
                head.extend(length.to_be_bytes());
                head.push(*encoding as u8);
                head.extend(sha256);
            }
            DiskPiece::Same { length, sha256, .. } => {
                head.extend(length.to_be_bytes());
                head.extend(sha256);
            }
            DiskPiece::Zero(_) | DiskPiece::Unused(_) => head.extend((range.end - range.start).to_be_bytes()),
        }
        head
    }
}

/// Digest of all pieces of a connection. It covers position and content of each piece, even of pieces whose bytes were
/// not transmitted.
pub(crate) struct PiecesDigest(Context);

impl PiecesDigest {
    pub(crate) fn new() -> PiecesDigest {
        PiecesDigest(Context::new(&SHA256))
    }

    pub(crate) fn add_piece(&mut self, piece: &DiskPiece) {
        let range = piece.range();
        self.0.update(&range.start.to_be_bytes());
        self.0.update(&range.end.to_be_bytes());
        match piece {
            DiskPiece::Bytes { sha256, .. } | DiskPiece::Same { sha256, .. } => self.0.update(sha256),
            DiskPiece::Zero(_) => self.0.update(b"zero"),
            DiskPiece::Unused(_) => self.0.update(b"unused"),
        }
    }

    pub(crate) fn current_digest(&self) -> Sha256Bytes {
        digest_bytes(&self.0.clone().finish())
    }
}

pub(crate) fn hash_bytes(bytes: &[u8]) -> Sha256Bytes {
    digest_bytes(&ring::digest::digest(&SHA256, bytes))
}

fn digest_bytes(digest: &Digest) -> Sha256Bytes {
    let mut array = Sha256Bytes::default();
    array.copy_from_slice(digest.as_ref());
    array
}

/// Writes a frame.
///
/// # Errors
/// Fails if the peer is gone.
pub(crate) fn write_frame(onto: &mut impl Write, frame: &ProtocolFrame) -> io::Result<()> {
    match frame {
        ProtocolFrame::Hello(hello) => write_json(onto, HELLO, hello),
        ProtocolFrame::Answer(answer) => write_json(onto, ANSWER_FRAME, answer),
        ProtocolFrame::Verdict(verdict) => write_json(onto, VERDICT, verdict),
        ProtocolFrame::Piece(piece, bytes) => write_piece(onto, piece, bytes),
        ProtocolFrame::Offered(offers) => {
            let mut body = Vec::new();
            for PieceOffer { offset, length, sha256 } in offers {
                body.extend(offset.to_be_bytes());
                body.extend(length.to_be_bytes());
                body.extend(sha256);
            }
            write_parts(onto, OFFERED, &body, &[])
        }
        ProtocolFrame::Wanted(wanted) => {
            let body: Vec<u8> = wanted.iter().map(|wanted| u8::from(*wanted)).collect();
            write_parts(onto, WANTED, &body, &[])
        }
        ProtocolFrame::End(digest) => write_parts(onto, END, digest, &[]),
    }
}

/// Writes a piece as a frame. `bytes` are its encoded bytes.
///
/// # Errors
/// Fails for the same reasons as [`write_frame`].
pub(crate) fn write_piece(onto: &mut impl Write, piece: &DiskPiece, bytes: &[u8]) -> io::Result<()> {
    write_parts(onto, piece.frame_type(), &piece.encode_head(), bytes)
}

fn write_json(onto: &mut impl Write, kind: u8, value: &impl Serialize) -> io::Result<()> {
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
pub(crate) fn read_frame(from: &mut impl Read) -> io::Result<ProtocolFrame> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = u32::from_be_bytes(length) as usize;
    let most = match kind {
        HELLO | ANSWER_FRAME | VERDICT | OFFERED | WANTED => TEXT_BYTES,
        _ => BODY_BYTES,
    };
    if length > most {
        return Err(protocol_error(&format!("a frame of {length} bytes is longer than allowed")));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    parse_frame(kind, body)
        .ok_or_else(|| protocol_error(&format!("a frame of type {kind} with {length} bytes is malformed")))
}

fn protocol_error(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("protocol error by the peer: {what}"))
}

fn parse_frame(kind: u8, mut body: Vec<u8>) -> Option<ProtocolFrame> {
    let piece = |piece: DiskPiece| Some(ProtocolFrame::Piece(piece, Vec::new()));
    match kind {
        HELLO => parse_json(&body).map(ProtocolFrame::Hello),
        ANSWER_FRAME => parse_json(&body).map(ProtocolFrame::Answer),
        VERDICT => parse_json(&body).map(ProtocolFrame::Verdict),
        END => body.try_into().ok().map(ProtocolFrame::End),
        BYTES => {
            let mut reader = FieldReader(&body);
            let (offset, length, encoding) = (reader.read_u64()?, reader.read_u32()?, reader.read_bytes::<1>()?);
            let encoding = match encoding {
                [0] => PieceEncoding::Plain,
                [1] => PieceEncoding::Lz4,
                [2] => PieceEncoding::Zstd,
                _ => return None,
            };
            let sha256 = reader.read_bytes()?;
            body.drain(..PIECE_HEAD_BYTES);
            Some(ProtocolFrame::Piece(DiskPiece::Bytes { offset, length, encoding, sha256 }, body))
        }
        SAME_PIECE => {
            let PieceOffer { offset, length, sha256 } =
                parse_offer(&mut FieldReader(&body)).filter(|_| body.len() == OFFER_BYTES)?;
            piece(DiskPiece::Same { offset, length, sha256 })
        }
        ZERO | UNUSED => {
            let mut reader = FieldReader(&body);
            let (start, length) = (reader.read_u64()?, reader.read_u64()?);
            let range = start..start.checked_add(length)?;
            match reader.0.is_empty() {
                true if kind == ZERO => piece(DiskPiece::Zero(range)),
                true => piece(DiskPiece::Unused(range)),
                false => None,
            }
        }
        OFFERED => {
            let offers = body.chunks(OFFER_BYTES).map(|offer_bytes| parse_offer(&mut FieldReader(offer_bytes)));
            offers.collect::<Option<_>>().map(ProtocolFrame::Offered)
        }
        WANTED => Some(ProtocolFrame::Wanted(body.iter().map(|byte| *byte != 0).collect())),
        _ => None,
    }
}

const OFFER_BYTES: usize = 8 + 4 + SHA256_OUTPUT_LEN;

fn parse_offer(reader: &mut FieldReader<'_>) -> Option<PieceOffer> {
    Some(PieceOffer { offset: reader.read_u64()?, length: reader.read_u32()?, sha256: reader.read_bytes()? })
}

fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

struct FieldReader<'b>(&'b [u8]);

impl FieldReader<'_> {
    fn read_bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn read_u64(&mut self) -> Option<u64> {
        self.read_bytes().map(u64::from_be_bytes)
    }

    fn read_u32(&mut self) -> Option<u32> {
        self.read_bytes().map(u32::from_be_bytes)
    }
}

#[cfg(test)]
mod tests;
