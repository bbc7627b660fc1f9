//! Reader of the compressed stream with lookahead. To avoid copies, the decoders read directly from the fetched
//! buffers, and parts that are split off the stream refer to these buffers.

use super::empty_input_limit::{EmptyInputLimit, MAXIMUM_EMPTY_INPUT_BYTES};
use super::error::damaged_error;
use crate::pipeline::buffer_pipe::BufferChunk;
use crate::pipeline::pipe_reader::PipelineReader;
use crate::pipeline::stage_clock::StageClock;
use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

pub(crate) struct CompressedInput {
    source: PipelineReader,
    /// Fetched chunks that have not been consumed. None of the chunks is empty.
    ahead: VecDeque<BufferChunk>,
    /// Number of chunks received so far.
    pulled: usize,
    position: u64,
    empty_input_limit: Arc<EmptyInputLimit>,
    failed: bool,
}

impl CompressedInput {
    pub fn new(source: PipelineReader) -> CompressedInput {
        CompressedInput::bounded(source, MAXIMUM_EMPTY_INPUT_BYTES)
    }

    /// Creates an input that fails after `empty_input_bytes` consecutive bytes that produce no output.
    pub(crate) fn bounded(source: PipelineReader, empty_input_bytes: u64) -> CompressedInput {
        let empty_input_limit = Arc::new(EmptyInputLimit::with_limit(empty_input_bytes));
        CompressedInput { source, ahead: VecDeque::new(), pulled: 0, position: 0, empty_input_limit, failed: false }
    }

    pub(crate) fn clock(&self) -> Arc<StageClock> {
        self.source.clock()
    }

    /// Returns the counter of input that has not produced output. The caller must add all output to this counter.
    pub(crate) fn empty_input_limit(&self) -> Arc<EmptyInputLimit> {
        self.empty_input_limit.clone()
    }

    /// Sets the clock on which waits are recorded from this call on.
    pub(crate) fn count_on(&mut self, clock: Arc<StageClock>) {
        self.source.count_on(clock);
    }

    /// Returns the number of bytes consumed.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the offset in the stream at which the fetched data ends.
    pub(crate) fn end(&self) -> u64 {
        self.position + self.ahead.iter().map(|chunk| chunk.len() as u64).sum::<u64>()
    }

    /// Returns whether the source has failed, or the limit on input without output was exceeded. If so, an error of the
    /// decoder is only a consequence of that failure.
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }

    pub(crate) fn pulled(&self) -> usize {
        self.pulled
    }

    /// Returns the number of buffers held by the lookahead.
    pub(crate) fn held(&self) -> usize {
        self.ahead.len()
    }

    /// Fetches one more chunk; returns `false` at the end of the stream.
    fn pull(&mut self) -> io::Result<bool> {
        let next = self.source.take_chunk(usize::MAX).and_then(|next| {
            self.empty_input_limit.add_input(next.as_ref().map_or(0, |chunk| chunk.len()))?;
            Ok(next)
        });
        let next = next.inspect_err(|_| self.failed = true)?;
        let more = next.is_some();
        self.pulled += usize::from(more);
        self.ahead.extend(next);
        Ok(more)
    }

    /// Copies bytes that begin `offset` bytes after the current position, without consuming them. Returns their number,
    /// which is smaller than the buffer only at the end of the stream.
    pub(crate) fn peek(&mut self, offset: usize, into: &mut [u8]) -> io::Result<usize> {
        let (mut skip, mut filled, mut at) = (offset, 0, 0);
        while filled < into.len() {
            let Some(chunk) = self.ahead.get(at) else {
                if self.pull()? {
                    continue;
                }
                break;
            };
            let rest = chunk.get(skip..).unwrap_or_default();
            let count = rest.len().min(into.len() - filled);
            into[filled..filled + count].copy_from_slice(&rest[..count]);
            skip = skip.saturating_sub(chunk.len());
            (filled, at) = (filled + count, at + 1);
        }
        Ok(filled)
    }

    /// Returns the `COUNT` bytes that begin `offset` bytes after the current position, or `None` if the stream ends
    /// earlier.
    pub(crate) fn peek_all<const COUNT: usize>(&mut self, offset: usize) -> io::Result<Option<[u8; COUNT]>> {
        let mut bytes = [0; COUNT];
        let got = self.peek(offset, &mut bytes)?;
        Ok((got == COUNT).then_some(bytes))
    }

    /// Takes the next `count` bytes without a copy. Takes fewer bytes only at the end of the stream.
    pub(crate) fn cut_off(&mut self, count: usize) -> io::Result<Vec<BufferChunk>> {
        let (mut left, mut pieces) = (count, Vec::new());
        while left > 0 {
            let Some(chunk) = self.ahead.front_mut() else {
                if self.pull()? {
                    continue;
                }
                break;
            };
            let piece = if chunk.len() > left { Some(chunk.split_to(left)) } else { self.ahead.pop_front() };
            left -= piece.as_ref().map_or(0, |piece| piece.len());
            pieces.extend(piece);
        }
        self.position += (count - left) as u64;
        Ok(pieces)
    }

    /// Takes the rest of the current chunk; returns `None` at the end of the stream.
    pub(crate) fn take_chunk_rest(&mut self) -> io::Result<Option<BufferChunk>> {
        let count = self.fill_buf()?.len();
        Ok(self.cut_off(count)?.pop())
    }

    /// Skips skippable frames, which contain no data of the image. zstd and lz4 define them in the same way. pzstd
    /// writes one before each frame.
    pub(crate) fn skip_skippable_frames(&mut self) -> io::Result<()> {
        while let Some([0x50..=0x5f, 0x2a, 0x4d, 0x18, a, b, c, d]) = self.peek_all::<8>(0)? {
            let mut left = 8 + u64::from(u32::from_le_bytes([a, b, c, d]));
            while left > 0 {
                let got = self.fill_buf()?.len();
                if got == 0 {
                    let position = self.position;
                    return Err(damaged_error(format!(
                        "the image is truncated: it ends within a skippable frame, at byte {position}"
                    )));
                }
                let skipped = (got as u64).min(left);
                self.consume(skipped as usize);
                left -= skipped;
            }
        }
        Ok(())
    }
}

impl BufRead for CompressedInput {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.ahead.is_empty() {
            self.pull()?;
        }
        Ok(self.ahead.front().map(|chunk| &chunk[..]).unwrap_or_default())
    }

    fn consume(&mut self, amount: usize) {
        let Some(chunk) = self.ahead.front_mut() else { return };
        self.position += chunk.split_to(amount).len() as u64;
        // The buffer is released immediately, because the download may need it.
        if chunk.is_empty() {
            self.ahead.pop_front();
        }
    }
}

impl Read for CompressedInput {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.fill_buf()?.read(buf)?;
        self.consume(got);
        Ok(got)
    }
}
