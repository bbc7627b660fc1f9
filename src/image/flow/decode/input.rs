//! The compressed stream with a look ahead: what is cut out of it, and what the decoders read, are parts of the fetched
//! buffers themselves.

use super::barren::{Barren, MOST_BYTES};
use super::fault::damaged;
use crate::image::flow::reader::Reader;
use crate::image::flow::ring::Chunk;
use crate::image::flow::stages::Clock;
use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

pub struct Input {
    source: Reader,
    /// Fetched, and not taken yet. None is empty.
    ahead: VecDeque<Chunk>,
    /// Chunks that came so far.
    pulled: usize,
    position: u64,
    barren: Arc<Barren>,
    failed: bool,
}

impl Input {
    pub fn new(source: Reader) -> Input {
        Input::bounded(source, MOST_BYTES)
    }

    /// An error where so many bytes in a row bring nothing.
    pub fn bounded(source: Reader, most_barren: u64) -> Input {
        let barren = Arc::new(Barren::up_to(most_barren));
        Input { source, ahead: VecDeque::new(), pulled: 0, position: 0, barren, failed: false }
    }

    pub fn clock(&self) -> Arc<Clock> {
        self.source.clock()
    }

    /// Is to be told what comes out.
    pub fn barren(&self) -> Arc<Barren> {
        self.barren.clone()
    }

    /// From now on waits count on this one.
    pub fn count_on(&mut self, clock: Arc<Clock>) {
        self.source.count_on(clock);
    }

    /// Bytes taken.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Where what has been fetched ends.
    pub fn end(&self) -> u64 {
        self.position + self.ahead.iter().map(|chunk| chunk.len() as u64).sum::<u64>()
    }

    /// The source has failed, or nothing comes out of it: what is read of it is not to blame.
    pub fn failed(&self) -> bool {
        self.failed
    }

    pub fn pulled(&self) -> usize {
        self.pulled
    }

    /// Buffers that are held by looking ahead.
    pub fn held(&self) -> usize {
        self.ahead.len()
    }

    /// Looks one chunk further ahead; false at the end.
    fn pull(&mut self) -> io::Result<bool> {
        let next = self.source.take_chunk(usize::MAX).and_then(|next| {
            self.barren.came(next.as_ref().map_or(0, |chunk| chunk.len()))?;
            Ok(next)
        });
        let next = next.inspect_err(|_| self.failed = true)?;
        let more = next.is_some();
        self.pulled += usize::from(more);
        self.ahead.extend(next);
        Ok(more)
    }

    /// Copies what lies so far ahead; says how much there is, fewer bytes than asked for only at the end.
    pub fn peek(&mut self, offset: usize, into: &mut [u8]) -> io::Result<usize> {
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

    /// The next bytes, or the end of the stream in their place.
    pub fn peek_all<const COUNT: usize>(&mut self, offset: usize) -> io::Result<Option<[u8; COUNT]>> {
        let mut bytes = [0; COUNT];
        let got = self.peek(offset, &mut bytes)?;
        Ok((got == COUNT).then_some(bytes))
    }

    /// The next bytes without a copy; fewer only at the end.
    pub fn cut_off(&mut self, count: usize) -> io::Result<Vec<Chunk>> {
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

    /// What lies ahead in one piece; none at the end.
    pub fn take_some(&mut self) -> io::Result<Option<Chunk>> {
        let count = self.fill_buf()?.len();
        Ok(self.cut_off(count)?.pop())
    }

    /// zstd and lz4 share them; pzstd puts one before each frame. They hold nothing of the image.
    pub fn skip_skippable_frames(&mut self) -> io::Result<()> {
        while let Some([0x50..=0x5f, 0x2a, 0x4d, 0x18, a, b, c, d]) = self.peek_all::<8>(0)? {
            let mut left = 8 + u64::from(u32::from_le_bytes([a, b, c, d]));
            while left > 0 {
                let got = self.fill_buf()?.len();
                if got == 0 {
                    let position = self.position;
                    return Err(damaged(format!(
                        "the image ends in a skippable frame, at byte {position}: it was cut"
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

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.ahead.is_empty() {
            self.pull()?;
        }
        Ok(self.ahead.front().map(|chunk| &chunk[..]).unwrap_or_default())
    }

    fn consume(&mut self, amount: usize) {
        let Some(chunk) = self.ahead.front_mut() else { return };
        self.position += chunk.split_to(amount).len() as u64;
        // Given back at once: the fetch may need it.
        if chunk.is_empty() {
            self.ahead.pop_front();
        }
    }
}

impl Read for Input {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.fill_buf()?.read(buf)?;
        self.consume(got);
        Ok(got)
    }
}
