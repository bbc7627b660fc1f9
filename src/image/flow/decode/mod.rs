//! Decompression of a stream: zstd, lz4, gzip, xz or uncompressed, as detected by the first bytes. The stream is
//! complete only if its last frame is complete and nothing follows it.
//!
//! ```text
//! input ──> reading thread ─┬─> tasks ──> decoder threads ──┬─> output, in order
//!                           └─> frames decoded in place ────┘
//! ```

mod barren;
mod crew;
mod fault;
mod format;
mod input;
mod lz4_blocks;
mod outlet;
#[cfg(test)]
mod tests;
mod xz;
mod zstd_frames;

pub use format::{Format, Plain};

use super::reader::Reader;
use super::ring::{Pool, Sender};
use super::stages::Stages;
use crew::{Crew, MOST_BYTES, Part, ROOMS_BESIDE, Shared, TASK_BYTES};
use fault::{Fault, damaged};
use flate2::bufread::GzDecoder;
use input::Input;
use lz4_blocks::{Frame, HISTORY_BYTES};
use outlet::Item;
use std::io::{self, Read};
use std::thread;
use xz::Xz;

/// Maximum number of decoder threads: no link delivers enough data to keep more than four cores busy.
const MOST_THREADS: usize = 4;

/// Maximum memory for what is decoded in one piece, in addition to the pool.
pub const MOST_WHOLE_BYTES: usize = (MOST_THREADS + ROOMS_BESIDE) * MOST_BYTES;

/// Returns a specific error for the first bytes of a stream that is not a tar, if the caller knows more about them than
/// the decoders.
pub type Refuse = fn(&[u8]) -> io::Result<()>;

/// Sends the decompressed stream on, to its end or its first error. `plain` is the expected content; if that is a tar
/// and the stream has another format, `refuse` may return a better error.
///
/// zstd frames and independent lz4 blocks are decoded by several threads; all clocks belong to the stage "decode".
/// Memory is bounded for any input and is allocated in the pool's shared memory.
pub fn decode(compressed: Reader, plain: Plain, refuse: Refuse, pool: &Pool, stages: &Stages, sender: Sender) {
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_THREADS));
    decode_with(threads, Input::new(compressed), plain, refuse, pool, stages, sender);
}

fn decode_with(
    threads: usize,
    input: Input,
    plain: Plain,
    refuse: Refuse,
    pool: &Pool,
    stages: &Stages,
    sender: Sender,
) {
    let shared = Shared::new(sender, input.barren());
    thread::scope(|scope| {
        let crew = Crew::new(scope, &shared, stages, pool, threads, input.clock());
        let mut decoding = Decoding { input, crew, plain, refuse, format: None };
        let end = decoding.run();
        // This fails only if the output is closed, and then the end is not needed.
        let _ = decoding.crew.put(&mut decoding.input, Item::End(end));
    });
}

struct Decoding<'scope, 'env> {
    input: Input,
    crew: Crew<'scope, 'env>,
    plain: Plain,
    refuse: Refuse,
    /// Format of the frames so far; all of them have the same one.
    format: Option<Format>,
}

impl Decoding<'_, '_> {
    fn run(&mut self) -> io::Result<()> {
        while let Some(format) = self.next_format()? {
            self.format = Some(format);
            let frame = match format {
                Format::Plain => return self.plain(),
                Format::Zstd => self.zstd(),
                Format::Lz4 => self.lz4(),
                Format::Gzip => self.gzip(),
                Format::Xz => self.xz(),
            };
            frame.map_err(|fault| fault.explain(format, self.input.position()))?;
        }
        Ok(())
    }

    /// Returns the format of the frame that begins here; `None` at the end of the stream.
    fn next_format(&mut self) -> io::Result<Option<Format>> {
        match self.format {
            Some(Format::Xz) => xz::skip_padding(&mut self.input)?,
            None | Some(Format::Zstd | Format::Lz4) => self.input.skip_skippable_frames()?,
            Some(Format::Gzip | Format::Plain) => {}
        }
        let position = self.input.position();
        let mut start = [0; format::START_BYTES];
        // Only the first frame can have any format.
        let count = if self.format.is_none() { start.len() } else { format::MAGIC_BYTES };
        let got = self.input.peek(0, &mut start[..count])?;
        let start = &start[..got];
        let found = Format::of(start);
        match self.format {
            Some(_) if start.is_empty() => Ok(None),
            Some(format) if found != Some(format) => Err(damaged(format!(
                "data follows the end of the {format} stream at byte {position}: {}",
                format::hex(start)
            ))),
            None if start.is_empty() => Err(damaged("the image is empty")),
            None if found.is_none() => match self.plain {
                Plain::Tar => (self.refuse)(start).and(Err(format::unknown(start))),
                _ if position == 0 => Ok(Some(Format::Plain)),
                _ => Err(format::unknown(start)),
            },
            _ => Ok(found),
        }
    }

    /// Passes the stream on without a copy.
    fn plain(&mut self) -> io::Result<()> {
        while let Some(chunk) = self.input.take_some()? {
            self.crew.put(&mut self.input, Item::Content(chunk))?;
        }
        Ok(())
    }

    fn zstd(&mut self) -> fault::Result<()> {
        if self.crew.is_several() {
            let position = self.input.position();
            let mut whole = self.crew.measure(&mut self.input)?;
            if whole.is_none() {
                // Without a task in the making there may be enough buffers to scan further.
                self.crew.hand_out(&mut self.input)?;
                whole = self.crew.measure(&mut self.input)?;
            }
            if let Some(whole) = whole {
                let part = Part::ZstdFrame(self.input.cut_off(whole.compressed_bytes)?);
                self.crew.add(&mut self.input, part, whole.most_bytes, position)?;
                return Ok(());
            }
        }
        self.crew.hand_out(&mut self.input)?;
        zstd_frames::begin(self.crew.tools.zstd())?;
        loop {
            let (room, tools) = self.crew.room();
            let (made, ended) = zstd_frames::decode_some(tools.zstd(), &mut self.input, room)?;
            self.crew.wrote(made)?;
            if ended {
                return Ok(());
            }
        }
    }

    fn lz4(&mut self) -> fault::Result<()> {
        let frame = Frame::begin(&mut self.input)?;
        self.crew.begin(&mut self.input, frame.sum())?;
        let promise = if frame.linked { self.linked_blocks(&frame)? } else { self.independent_blocks(&frame)? };
        let position = self.input.position();
        self.crew.put(&mut self.input, Item::Ends(promise, position))?;
        Ok(())
    }

    fn independent_blocks(&mut self, frame: &Frame) -> fault::Result<lz4_blocks::Promise> {
        loop {
            let position = self.input.position();
            match frame.next(&mut self.input)? {
                Err(promise) => return Ok(promise),
                Ok(block) => {
                    let most_bytes = block.most_bytes;
                    self.crew.add(&mut self.input, Part::Lz4Block(block), most_bytes, position)?;
                }
            }
        }
    }

    /// Decodes linked blocks. The data that the next block refers to stays in front of it in the buffer, so that it is
    /// contiguous.
    fn linked_blocks(&mut self, frame: &Frame) -> fault::Result<lz4_blocks::Promise> {
        let mut history = Vec::new();
        loop {
            let mut room = self.crew.whole_room();
            room[..history.len()].copy_from_slice(&history);
            let (start, mut at) = (history.len(), history.len());
            let mut promise = None;
            while promise.is_none() && at + frame.block_bytes <= room.len() && at < start + TASK_BYTES {
                match frame.next(&mut self.input)? {
                    Ok(block) => at += block.decode(at, &mut room, self.crew.tools.scratch())?,
                    Err(end) => promise = Some(end),
                }
            }
            history.clear();
            history.extend_from_slice(&room[at.saturating_sub(HISTORY_BYTES)..at]);
            let mut chunk = room.filled(at);
            drop(chunk.split_to(start));
            self.crew.put(&mut self.input, Item::Content(chunk))?;
            if let Some(promise) = promise {
                return Ok(promise);
            }
        }
    }

    fn gzip(&mut self) -> fault::Result<()> {
        let mut decoder = GzDecoder::new(&mut self.input);
        loop {
            match decoder.read(self.crew.room().0) {
                Ok(0) => return Ok(()),
                Ok(made) => self.crew.wrote(made)?,
                Err(error) if decoder.get_ref().failed() => return Err(Fault::Source(error)),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(Fault::Cut(decoder.get_ref().position()));
                }
                Err(error) => return Err(Fault::Damaged(error.to_string())),
            }
        }
    }

    fn xz(&mut self) -> fault::Result<()> {
        let mut decoder = Xz::new()?;
        loop {
            let (made, ended) = decoder.decode_some(&mut self.input, self.crew.room().0)?;
            self.crew.wrote(made)?;
            if ended {
                return Ok(());
            }
        }
    }
}
