//! Scans and decodes zstd frames. A scan determines the compressed length and the maximum output of a frame from its
//! headers, without decoding it (RFC 8878 §3.1.1).

use super::error::{DecodeError, DecodeResult};
use super::input::CompressedInput;
use crate::pipeline::buffer_pipe::BufferChunk;
use std::io::{self, BufRead};
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, get_error_name};

/// Maximum window: 128 MiB, the window of `--long` and `--ultra -22`, and the maximum that `zstd -d` accepts by
/// default. A larger window would be too large for a machine with 512 MiB of memory. Only the size that a frame
/// requires is allocated: 8 MiB for `-19`.
const WINDOW_LOG_MAX: u32 = 27;
const WINDOW_BYTES_MAX: u64 = 1 << WINDOW_LOG_MAX;

const BLOCK_BYTES_MAX: u64 = 128 * 1024;

/// Frame that can be decoded independently and in one piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ZstdFrame {
    pub compressed_bytes: usize,
    /// Maximum length of the frame's output, in bytes.
    pub most_bytes: usize,
}

/// Scans the frame that begins at the current position. Returns `None` if the frame's output may exceed `most_bytes`
/// bytes, if the scan would hold more than `most_held` buffers, or if the frame is invalid. For an invalid frame, the
/// decoder later returns the error.
///
/// # Errors
/// Returns the error of the source.
pub(crate) fn scan_frame(
    input: &mut CompressedInput,
    most_bytes: usize,
    most_held: usize,
) -> io::Result<Option<ZstdFrame>> {
    let mut bytes = [0; 18];
    let got = input.peek(0, &mut bytes)?;
    let Some(header) = ZstdHeader::parse(&bytes[..got]) else { return Ok(None) };
    if header.content_bytes.is_some_and(|content| content > most_bytes as u64) {
        return Ok(None);
    }
    let (mut offset, mut sum) = (header.bytes, 0);
    loop {
        let Some([a, b, c]) = input.peek_all::<3>(offset)? else { return Ok(None) };
        let block = u32::from_le_bytes([a, b, c, 0]);
        let size = block >> 3;
        let (stored, most) = match block >> 1 & 3 {
            0 => (size, u64::from(size)),
            1 => (1, u64::from(size)),
            2 => (size, header.block_bytes),
            _ => return Ok(None),
        };
        offset += 3 + stored as usize;
        sum += most;
        let fits = header.content_bytes.is_some() || sum <= most_bytes as u64;
        if !fits || u64::from(size) > header.block_bytes || offset > 2 * most_bytes || input.held() > most_held {
            return Ok(None);
        }
        if block & 1 == 1 {
            break;
        }
    }
    let compressed_bytes = offset + header.checksum_bytes;
    // Peeking at the last byte of the frame ensures that the whole frame is available.
    if input.peek_all::<1>(compressed_bytes - 1)?.is_none() || input.held() > most_held {
        return Ok(None);
    }
    let most = header.content_bytes.unwrap_or(sum);
    Ok(usize::try_from(most).ok().map(|most_bytes| ZstdFrame { compressed_bytes, most_bytes }))
}

struct ZstdHeader {
    bytes: usize,
    content_bytes: Option<u64>,
    /// Maximum size of a block's content, in bytes.
    block_bytes: u64,
    checksum_bytes: usize,
}

impl ZstdHeader {
    /// Parses the header of a frame. Returns `None` if the header is truncated or not supported, because it has
    /// reserved bits, a dictionary, or a window that is too large. The decoder rejects such frames.
    fn parse(bytes: &[u8]) -> Option<ZstdHeader> {
        let descriptor = *bytes.get(4)?;
        let single_segment = descriptor & 0x20 != 0;
        if descriptor & 0x08 != 0 {
            return None;
        }
        let mut at = 5;
        let mut number = |count: usize| {
            let slice = bytes.get(at..at + count)?;
            at += count;
            Some(slice.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        };
        let window = match single_segment {
            true => None,
            false => {
                let descriptor = number(1)?;
                let base = 1_u64 << (10 + (descriptor >> 3));
                Some(base + base / 8 * (descriptor & 7))
            }
        };
        if number([0, 1, 2, 4][usize::from(descriptor & 3)])? != 0 {
            return None;
        }
        let content = match descriptor >> 6 {
            0 if single_segment => Some(number(1)?),
            0 => None,
            1 => Some(number(2)? + 256),
            2 => Some(number(4)?),
            _ => Some(number(8)?),
        };
        let window = window.or(content).filter(|window| *window <= WINDOW_BYTES_MAX)?;
        Some(ZstdHeader {
            bytes: at,
            content_bytes: content,
            block_bytes: window.min(BLOCK_BYTES_MAX),
            checksum_bytes: if descriptor & 4 != 0 { 4 } else { 0 },
        })
    }
}

/// Decodes a complete frame directly into its part of the output buffer. Returns the number of bytes written.
///
/// # Errors
/// Returns an error if the frame is damaged.
pub(crate) fn decode_whole(decoder: &mut DCtx, pieces: &[BufferChunk], room: &mut [u8]) -> DecodeResult<usize> {
    reset_decoder(decoder)?;
    // With this parameter the library uses the output buffer as its window, which saves a copy of all data.
    decoder.set_parameter(DParameter::StableOutBuffer(true)).map_err(describe_error)?;
    let mut output = OutBuffer::around(room);
    let mut left = 1;
    for piece in pieces {
        let mut input = InBuffer::around(piece);
        while left != 0 && input.pos() < piece.len() {
            left = decoder.decompress_stream(&mut output, &mut input).map_err(describe_error)?;
        }
    }
    if left == 0 {
        Ok(output.pos())
    } else {
        Err(DecodeError::Damaged("a block does not declare its length".to_owned()))
    }
}

/// Resets the decoder for a new frame, and sets the window limit.
///
/// # Errors
/// Returns the error of the library.
pub(crate) fn reset_decoder(decoder: &mut DCtx) -> DecodeResult<()> {
    decoder.reset(ResetDirective::SessionAndParameters).map_err(describe_error)?;
    decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(describe_error)?;
    Ok(())
}

/// Decodes more of the frame into `room`; returns the number of bytes written and whether the frame has ended.
///
/// # Errors
/// Returns the error of the source, or an error if the frame is damaged or truncated.
pub(crate) fn decode_some(
    decoder: &mut DCtx,
    input: &mut CompressedInput,
    room: &mut [u8],
) -> DecodeResult<(usize, bool)> {
    let mut output = OutBuffer::around(room);
    let (at, compressed) = (input.position(), input.fill_buf()?);
    let end = compressed.is_empty();
    let mut source = InBuffer::around(compressed);
    let left = decoder.decompress_stream(&mut output, &mut source).map_err(describe_error)?;
    let (taken, made) = (source.pos(), output.pos());
    input.consume(taken);
    match (left, made) {
        (0, _) => Ok((made, true)),
        (_, 0) if end => Err(DecodeError::Cut(at)),
        _ => Ok((made, false)),
    }
}

fn describe_error(code: usize) -> DecodeError {
    let text = get_error_name(code);
    let hint = if text.contains("too much memory") {
        "; the window must not exceed 128 MiB: compress with at most --long=27"
    } else {
        ""
    };
    DecodeError::Damaged(format!("{text}{hint}"))
}
