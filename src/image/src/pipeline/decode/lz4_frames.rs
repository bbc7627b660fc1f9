//! Reads lz4's frame format block by block: <https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md>.

use super::error::{DecodeError, DecodeResult};
use super::input::CompressedInput;
use crate::pipeline::buffer_pipe::BufferChunk;
use std::hash::Hasher;
use twox_hash::XxHash32;

/// Maximum distance of back-references in a linked block, in bytes.
pub(crate) const HISTORY_BYTES: usize = 64 * 1024;

/// Values in the descriptor of an lz4 frame.
pub(crate) struct Lz4Frame {
    pub block_bytes: usize,
    /// Whether blocks may refer to the output of earlier blocks.
    pub linked: bool,
    block_checksums: bool,
    content_checksum: bool,
    content_bytes: Option<u64>,
}

/// One block as stored in the stream.
pub(crate) struct Lz4Block {
    /// Data of the block, followed by its checksum if `checksum` is set.
    pub pieces: Vec<BufferChunk>,
    pub most_bytes: usize,
    stored: bool,
    checksum: bool,
}

/// Length and checksum of a frame's content, as declared in the frame.
pub(crate) struct ContentTrailer {
    checksum: Option<u32>,
    bytes: Option<u64>,
}

impl Lz4Frame {
    /// Reads the magic number and the descriptor.
    ///
    /// # Errors
    /// Returns the error of the source, or an error if the descriptor is truncated, damaged or not supported.
    pub(crate) fn read_descriptor(input: &mut CompressedInput) -> DecodeResult<Lz4Frame> {
        let mut bytes = [0; 19];
        let got = input.peek(0, &mut bytes)?;
        let [_, _, _, _, flags, block, ..] = bytes;
        let dictionary = flags & 1 != 0;
        let end = 6 + if flags & 8 != 0 { 8 } else { 0 } + if dictionary { 4 } else { 0 };
        if got <= end {
            return Err(DecodeError::Cut(input.end()));
        }
        if flags >> 6 != 1 || flags & 2 != 0 || block & 0x8f != 0 {
            return Err(DecodeError::Damaged("the frame's version is not supported".to_owned()));
        }
        if xxh32(&bytes[4..end]).to_le_bytes()[1] != bytes[end] {
            return Err(DecodeError::Damaged("the header checksum does not match".to_owned()));
        }
        if dictionary {
            return Err(DecodeError::Damaged(
                "the frame requires a dictionary, but dictionaries are not supported; compress the image without a dictionary".to_owned(),
            ));
        }
        let block_bytes = match block >> 4 {
            size @ 4..=7 => 1 << (2 * size + 8),
            other => return Err(DecodeError::Damaged(format!("unknown block size {other}"))),
        };
        let [_, _, _, _, _, _, size @ .., _, _, _, _, _] = bytes;
        input.cut_off(end + 1)?;
        Ok(Lz4Frame {
            block_bytes,
            linked: flags & 0x20 == 0,
            block_checksums: flags & 0x10 != 0,
            content_checksum: flags & 4 != 0,
            content_bytes: (flags & 8 != 0).then(|| u64::from_le_bytes(size)),
        })
    }

    /// Reads the next block. At the end of the frame, returns the frame's trailer as the error of the inner result.
    ///
    /// # Errors
    /// Returns the error of the source, or an error if the stream is truncated or damaged at the current position.
    pub(crate) fn next_block(
        &self,
        input: &mut CompressedInput,
    ) -> DecodeResult<std::result::Result<Lz4Block, ContentTrailer>> {
        let Some(head) = input.peek_all::<4>(0)? else {
            return Err(DecodeError::Cut(input.end()));
        };
        let head = u32::from_le_bytes(head);
        let size = (head & 0x7fff_ffff) as usize;
        if head == 0 {
            return self.read_trailer(input).map(Err);
        }
        if size > self.block_bytes {
            return Err(DecodeError::Damaged(format!(
                "a block is {size} bytes, but the frame allows {limit} bytes per block",
                limit = self.block_bytes
            )));
        }
        input.cut_off(4)?;
        let whole = size + if self.block_checksums { 4 } else { 0 };
        let pieces = input.cut_off(whole)?;
        if pieces.iter().map(|piece| piece.len()).sum::<usize>() < whole {
            return Err(DecodeError::Cut(input.end()));
        }
        let stored = head & 0x8000_0000 != 0;
        let most_bytes = if stored { size } else { self.block_bytes };
        Ok(Ok(Lz4Block { pieces, most_bytes, stored, checksum: self.block_checksums }))
    }

    fn read_trailer(&self, input: &mut CompressedInput) -> DecodeResult<ContentTrailer> {
        input.cut_off(4)?;
        let mut checksum = None;
        if self.content_checksum {
            let Some(bytes) = input.peek_all::<4>(0)? else {
                return Err(DecodeError::Cut(input.end()));
            };
            input.cut_off(4)?;
            checksum = Some(u32::from_le_bytes(bytes));
        }
        Ok(ContentTrailer { checksum, bytes: self.content_bytes })
    }

    /// Returns an accumulator that computes the length and checksum of the frame's content.
    pub(crate) fn start_sum(&self) -> ContentSum {
        ContentSum { bytes: 0, hasher: self.content_checksum.then(|| XxHash32::with_seed(0)) }
    }
}

impl Lz4Block {
    /// Decodes the block into `room`. The first `history` bytes of `room` are the output of earlier blocks; the output
    /// of this block follows. Returns the number of bytes written. `scratch` holds a block whose data is in several
    /// pieces.
    ///
    /// # Errors
    /// Returns an error if the block is damaged.
    pub(crate) fn decode(&self, history: usize, room: &mut [u8], scratch: &mut Vec<u8>) -> DecodeResult<usize> {
        let whole = match &self.pieces[..] {
            [one] => one,
            many => {
                scratch.clear();
                many.iter().for_each(|piece| scratch.extend_from_slice(piece));
                &scratch[..]
            }
        };
        let (data, checksum) = whole.split_at(whole.len() - if self.checksum { 4 } else { 0 });
        if self.checksum && xxh32(data).to_le_bytes() != checksum {
            return Err(DecodeError::Damaged("a block checksum does not match".to_owned()));
        }
        let (before, room) = room.split_at_mut(history);
        let room = &mut room[..self.most_bytes];
        if self.stored {
            room.copy_from_slice(data);
            return Ok(data.len());
        }
        let before = &before[history.saturating_sub(HISTORY_BYTES)..];
        let made = if before.is_empty() {
            lz4_flex::block::decompress_into(data, room)
        } else {
            lz4_flex::block::decompress_into_with_dict(data, room, before)
        };
        made.map_err(|error| DecodeError::Damaged(error.to_string()))
    }
}

/// Length and checksum of the part of a frame's content that was decoded so far.
pub(crate) struct ContentSum {
    bytes: u64,
    hasher: Option<XxHash32>,
}

impl ContentSum {
    pub(crate) fn add(&mut self, content: &[u8]) {
        self.bytes += content.len() as u64;
        if let Some(hasher) = &mut self.hasher {
            hasher.write(content);
        }
    }

    /// Compares length and checksum of the content with the values that the frame declares.
    ///
    /// # Errors
    /// Returns an error if the length or the checksum differs.
    pub(crate) fn check(&self, promise: &ContentTrailer) -> DecodeResult<()> {
        if let Some(bytes) = promise.bytes.filter(|bytes| *bytes != self.bytes) {
            return Err(DecodeError::Damaged(format!(
                "a frame declares {bytes} bytes of content, but contains {expected} bytes",
                expected = self.bytes
            )));
        }
        let found = self.hasher.as_ref().map(|hasher| hasher.finish() as u32);
        if found != promise.checksum {
            return Err(DecodeError::Damaged("the content checksum does not match".to_owned()));
        }
        Ok(())
    }
}

fn xxh32(bytes: &[u8]) -> u32 {
    XxHash32::oneshot(0, bytes)
}
