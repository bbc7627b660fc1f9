//! Reads the receiving end of a pipe as a stream of bytes.

use super::buffer_pipe::{BufferChunk, BufferPool, PipeReceiver};
use super::stage_clock::StageClock;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

/// Reader of the chunks of a [`PipeReceiver`] as one stream of bytes.
pub struct PipelineReader {
    receiver: PipeReceiver,
    clock: Arc<StageClock>,
    current: Option<BufferChunk>,
    /// Chunk after `current`, if it was already received.
    behind: Option<BufferChunk>,
    position: u64,
}

impl PipelineReader {
    pub fn new(receiver: PipeReceiver, clock: Arc<StageClock>) -> PipelineReader {
        PipelineReader { receiver, clock, current: None, behind: None, position: 0 }
    }

    /// Returns the clock of the reading thread. The thread also uses this clock to record its waits for the stage that
    /// receives its output.
    pub(crate) fn clock(&self) -> Arc<StageClock> {
        self.clock.clone()
    }

    /// Sets the clock on which waits are recorded from now on, after the work has moved to another thread.
    pub(crate) fn count_on(&mut self, clock: Arc<StageClock>) {
        self.clock = clock;
    }

    /// Returns the number of bytes consumed so far.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns whether the next bytes, or the end, are available without waiting.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.current.as_ref().is_some_and(|current| !current.is_empty())
            || self.behind.is_some()
            || self.receiver.is_ready()
    }

    /// Takes between one and `count` bytes without a copy; returns `None` at the end of the stream.
    ///
    /// # Errors
    /// Returns the error of the previous stage.
    pub(crate) fn take_chunk(&mut self, count: usize) -> io::Result<Option<BufferChunk>> {
        if !self.advance()? {
            return Ok(None);
        }
        let chunk = self.current.as_mut().map(|current| current.split_to(count));
        self.position += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        Ok(chunk)
    }

    /// Returns the next `count` bytes (fewer at the end of the stream) as one slice, without consuming them. Bytes from
    /// several chunks are copied into one buffer.
    ///
    /// # Errors
    /// Returns the error of the previous stage; nothing more can be read after this error.
    pub(crate) fn peek_bytes(&mut self, count: usize) -> io::Result<&[u8]> {
        if self.advance()? && self.current.as_ref().is_some_and(|current| current.len() < count) {
            let position = self.position;
            let mut whole = BufferPool::new(1, count).take_buffer(&self.clock);
            let mut filled = 0;
            while filled < count
                && let Some(chunk) = self.take_chunk(count - filled)?
            {
                whole[filled..filled + chunk.len()].copy_from_slice(&chunk);
                filled += chunk.len();
            }
            // `whole` now contains all chunks that were taken. The rest of the last chunk, if any, remains in
            // `current`, and follows `whole`.
            self.behind = self.current.replace(whole.into_chunk(filled));
            self.position = position;
        }
        let current = self.current.as_deref().unwrap_or_default();
        Ok(&current[..count.min(current.len())])
    }

    /// Makes the next byte available in `current`, waiting for it if necessary. Returns `false` at the end of the
    /// stream.
    fn advance(&mut self) -> io::Result<bool> {
        while self.current.as_ref().is_none_or(|current| current.is_empty()) {
            // The buffer is released before the wait for the next chunk, which may need it.
            self.current = None;
            let next =
                self.behind.take().map_or_else(|| self.receiver.receive_chunk(&self.clock), |chunk| Ok(Some(chunk)))?;
            match next {
                Some(chunk) => self.current = Some(chunk),
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

impl BufRead for PipelineReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.advance()?;
        Ok(self.current.as_deref().unwrap_or_default())
    }

    fn consume(&mut self, amount: usize) {
        if let Some(current) = &mut self.current {
            self.position += current.split_to(amount).len() as u64;
        }
    }
}

impl Read for PipelineReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.fill_buf()?.read(buf)?;
        self.consume(got);
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookahead_consumes_nothing() {
        for (length, ahead) in [(1, 100), (7, 1), (7, 7), (7, 8), (7, 100), (7, 1000), (1000, 30)] {
            let bytes: Vec<u8> = (0..200u8).collect();
            let mut reader = crate::testing::reader(&bytes, length);
            assert_eq!(reader.take_chunk(3).unwrap().map_or(0, |chunk| chunk.len()), length.min(3));
            let at = length.min(3);
            for count in [1, ahead, ahead, 2 * ahead, 5] {
                let end = (at + count).min(bytes.len());
                assert_eq!(reader.peek_bytes(count).unwrap(), &bytes[at..end], "{count} in pieces of {length}");
                assert_eq!(reader.position(), at as u64);
            }
            let mut rest = Vec::new();
            reader.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, &bytes[at..]);
            assert_eq!(reader.peek_bytes(1).unwrap(), b"");
        }
    }
}
