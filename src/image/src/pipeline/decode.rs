//! Decompresses a stream. The format (zstd, lz4, gzip, xz or uncompressed) is detected by the first bytes. The stream
//! is accepted only if its last frame is complete and no other data follows.
//!
//! ```text
//! input ──> reading thread ─┬─> tasks ──> decoder threads ──┬─> output, in order
//!                           └─> frames decoded in place ────┘
//! ```

mod empty_input_limit;
mod error;
mod format;
mod input;
mod lz4_frames;
mod ordered_output;
#[cfg(test)]
mod tests;
mod thread_pool;
mod xz;
mod zstd_frames;

pub use format::{CompressionFormat, PayloadKind};

use super::buffer_pipe::{BufferPool, PipeSender};
use super::pipe_reader::PipelineReader;
use super::stage_clock::StageClocks;
use error::{DecodeError, damaged_error};
use flate2::bufread::GzDecoder;
use input::CompressedInput;
use lz4_frames::{HISTORY_BYTES, Lz4Frame};
use ordered_output::DecodedItem;
use std::io::{self, Read};
use std::thread;
use thread_pool::{ADDITIONAL_OUTPUT_BUFFERS, DecodePart, DecoderPool, DecoderState, MAXIMUM_PART_BYTES, TASK_BYTES};
use xz::XzDecoder;

/// Maximum number of decoder threads. Typical network links do not deliver enough data to occupy more than four
/// threads.
const MAXIMUM_DECODER_THREADS: usize = 4;

/// Maximum memory for frames and blocks that are decoded in one piece, in bytes, in addition to the buffers of the
/// pool.
pub(crate) const MAXIMUM_WHOLE_FRAME_BYTES: usize =
    (MAXIMUM_DECODER_THREADS + ADDITIONAL_OUTPUT_BUFFERS) * MAXIMUM_PART_BYTES;

/// Function that receives the first bytes of a stream that is not a tar. If the function recognizes the format, such as
/// a disk image, it returns a specific error.
pub(crate) type RefusePayload = fn(&[u8]) -> io::Result<()>;

/// Decompresses the stream and sends the output to `sender`, until the end or the first error. `plain` is the expected
/// content. If a tar is expected and the format is unknown, `refuse` may return a specific error.
///
/// zstd frames and independent lz4 blocks are decoded by several threads, all of which belong to the stage "decode" of
/// `stages`. Memory is bounded for any input. Output buffers are in the shared memory of `pool`.
pub(crate) fn decode(
    compressed: PipelineReader,
    plain: PayloadKind,
    refuse: RefusePayload,
    pool: &BufferPool,
    stages: &StageClocks,
    sender: PipeSender,
) {
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get().min(MAXIMUM_DECODER_THREADS));
    decode_with(threads, CompressedInput::new(compressed), plain, refuse, pool, stages, sender);
}

fn decode_with(
    threads: usize,
    input: CompressedInput,
    plain: PayloadKind,
    refuse: RefusePayload,
    pool: &BufferPool,
    stages: &StageClocks,
    sender: PipeSender,
) {
    let shared = DecoderState::new(sender, input.empty_input_limit());
    thread::scope(|scope| {
        let crew = DecoderPool::new(scope, &shared, stages, pool, threads, input.clock());
        let mut decoding = StreamDecoder { input, crew, plain, refuse, format: None };
        let end = decoding.decode_frames();
        // An error is ignored: this call fails only if the output is closed, and the end of the stream is then not
        // needed.
        let _ = decoding.crew.send_in_order(&mut decoding.input, DecodedItem::End(end));
    });
}

struct StreamDecoder<'scope, 'env> {
    input: CompressedInput,
    crew: DecoderPool<'scope, 'env>,
    plain: PayloadKind,
    refuse: RefusePayload,
    /// Format of the first frame; `None` before it is detected. All further frames must have the same format.
    format: Option<CompressionFormat>,
}

impl StreamDecoder<'_, '_> {
    fn decode_frames(&mut self) -> io::Result<()> {
        while let Some(format) = self.detect_next_format()? {
            self.format = Some(format);
            let frame = match format {
                CompressionFormat::Plain => return self.pass_plain(),
                CompressionFormat::Zstd => self.decode_zstd_frame(),
                CompressionFormat::Lz4 => self.decode_lz4_frame(),
                CompressionFormat::Gzip => self.decode_gzip(),
                CompressionFormat::Xz => self.decode_xz(),
            };
            frame.map_err(|fault| fault.into_io_error(format, self.input.position()))?;
        }
        Ok(())
    }

    /// Returns the format of the frame that begins at the current position; `None` at the end of the stream.
    fn detect_next_format(&mut self) -> io::Result<Option<CompressionFormat>> {
        match self.format {
            Some(CompressionFormat::Xz) => xz::skip_padding(&mut self.input)?,
            None | Some(CompressionFormat::Zstd | CompressionFormat::Lz4) => self.input.skip_skippable_frames()?,
            Some(CompressionFormat::Gzip | CompressionFormat::Plain) => {}
        }
        let position = self.input.position();
        let mut start = [0; format::START_BYTES];
        // The first frame may have any format. A tar can be recognized only if its first header is complete.
        let count = if self.format.is_none() { start.len() } else { format::MAGIC_BYTES };
        let got = self.input.peek(0, &mut start[..count])?;
        let start = &start[..got];
        let found = CompressionFormat::detect(start);
        match self.format {
            Some(_) if start.is_empty() => Ok(None),
            Some(format) if found != Some(format) => Err(damaged_error(format!(
                "unexpected data after the end of the {format} stream, at byte {position}: {start}",
                start = format::format_hex(start)
            ))),
            None if start.is_empty() => Err(damaged_error("the image is empty")),
            None if found.is_none() => match self.plain {
                PayloadKind::Tar => (self.refuse)(start).and(Err(format::unknown_format(start))),
                _ if position == 0 => Ok(Some(CompressionFormat::Plain)),
                _ => Err(format::unknown_format(start)),
            },
            _ => Ok(found),
        }
    }

    /// Passes on an uncompressed stream without a copy.
    fn pass_plain(&mut self) -> io::Result<()> {
        while let Some(chunk) = self.input.take_chunk_rest()? {
            self.crew.send_in_order(&mut self.input, DecodedItem::Content(chunk))?;
        }
        Ok(())
    }

    fn decode_zstd_frame(&mut self) -> error::DecodeResult<()> {
        if self.crew.is_several() {
            let position = self.input.position();
            let mut whole = self.crew.measure(&mut self.input)?;
            if whole.is_none() {
                // The scan may have failed because the task being assembled holds too many buffers. After this task is
                // queued, its buffers no longer count, so the scan is repeated.
                self.crew.flush_task(&mut self.input)?;
                whole = self.crew.measure(&mut self.input)?;
            }
            if let Some(whole) = whole {
                let part = DecodePart::ZstdFrame(self.input.cut_off(whole.compressed_bytes)?);
                self.crew.add_part(&mut self.input, part, whole.most_bytes, position)?;
                return Ok(());
            }
        }
        self.crew.flush_task(&mut self.input)?;
        zstd_frames::reset_decoder(self.crew.tools.zstd())?;
        loop {
            let (room, tools) = self.crew.output_space();
            let (made, ended) = zstd_frames::decode_some(tools.zstd(), &mut self.input, room)?;
            self.crew.advance_output(made)?;
            if ended {
                return Ok(());
            }
        }
    }

    fn decode_lz4_frame(&mut self) -> error::DecodeResult<()> {
        let frame = Lz4Frame::read_descriptor(&mut self.input)?;
        self.crew.begin_frame(&mut self.input, frame.start_sum())?;
        let promise =
            if frame.linked { self.decode_linked_blocks(&frame)? } else { self.decode_independent_blocks(&frame)? };
        let position = self.input.position();
        self.crew.send_in_order(&mut self.input, DecodedItem::FrameEnd(promise, position))?;
        Ok(())
    }

    fn decode_independent_blocks(&mut self, frame: &Lz4Frame) -> error::DecodeResult<lz4_frames::ContentTrailer> {
        loop {
            let position = self.input.position();
            match frame.next_block(&mut self.input)? {
                Err(promise) => return Ok(promise),
                Ok(block) => {
                    let most_bytes = block.most_bytes;
                    self.crew.add_part(&mut self.input, DecodePart::Lz4Block(block), most_bytes, position)?;
                }
            }
        }
    }

    /// Decodes linked blocks, which refer to the output of earlier blocks. The buffer contains this earlier output
    /// directly before the free space for the next block, so the earlier output and the decoded block are contiguous.
    fn decode_linked_blocks(&mut self, frame: &Lz4Frame) -> error::DecodeResult<lz4_frames::ContentTrailer> {
        let mut history = Vec::new();
        loop {
            let mut room = self.crew.take_whole_buffer();
            room[..history.len()].copy_from_slice(&history);
            let (start, mut at) = (history.len(), history.len());
            let mut promise = None;
            while promise.is_none() && at + frame.block_bytes <= room.len() && at < start + TASK_BYTES {
                match frame.next_block(&mut self.input)? {
                    Ok(block) => at += block.decode(at, &mut room, self.crew.tools.scratch())?,
                    Err(end) => promise = Some(end),
                }
            }
            history.clear();
            history.extend_from_slice(&room[at.saturating_sub(HISTORY_BYTES)..at]);
            let mut chunk = room.into_chunk(at);
            drop(chunk.split_to(start));
            self.crew.send_in_order(&mut self.input, DecodedItem::Content(chunk))?;
            if let Some(promise) = promise {
                return Ok(promise);
            }
        }
    }

    fn decode_gzip(&mut self) -> error::DecodeResult<()> {
        let mut decoder = GzDecoder::new(&mut self.input);
        loop {
            match decoder.read(self.crew.output_space().0) {
                Ok(0) => return Ok(()),
                Ok(made) => self.crew.advance_output(made)?,
                Err(error) if decoder.get_ref().failed() => return Err(DecodeError::Source(error)),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(DecodeError::Cut(decoder.get_ref().position()));
                }
                Err(error) => return Err(DecodeError::Damaged(error.to_string())),
            }
        }
    }

    fn decode_xz(&mut self) -> error::DecodeResult<()> {
        let mut decoder = XzDecoder::new()?;
        loop {
            let (made, ended) = decoder.decode_some(&mut self.input, self.crew.output_space().0)?;
            self.crew.advance_output(made)?;
            if ended {
                return Ok(());
            }
        }
    }
}
