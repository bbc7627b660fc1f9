//! Writes a stream of independent zstd frames, each with 4 MiB of content, followed by a seek table:
//! <https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md>. The frames
//! can be compressed and decompressed by several cores in parallel.

use common::sync::lock_mutex;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use zstd::bulk::Compressor;

pub(crate) const FRAME_BYTES: usize = 4 << 20;

/// Magic number of a skippable frame.
const SKIPPABLE: u32 = 0x184d_2a5e;
const SEEKABLE: u32 = 0x8f92_eab1;

type FrameResult = io::Result<Vec<u8>>;

struct CompressJob {
    block: Vec<u8>,
    answer: SyncSender<FrameResult>,
}

/// Writer that compresses a stream into frames.
pub(crate) struct FrameWriter<W> {
    out: W,
    block: Vec<u8>,
    jobs: Sender<CompressJob>,
    /// Frames that are being compressed, in stream order, each with the length of its block before compression.
    pending: VecDeque<(usize, Receiver<FrameResult>)>,
    most_pending: usize,
    table: Vec<u8>,
    frames: u32,
    bytes_in: u64,
}

impl<W: Write> FrameWriter<W> {
    pub fn new(out: W, level: i32) -> FrameWriter<W> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..cores {
            let queue = queue.clone();
            // The thread ends when the sender of the queue is dropped.
            thread::spawn(move || run_compressor(&queue, level));
        }
        let (block, pending, table) = (Vec::with_capacity(FRAME_BYTES), VecDeque::new(), Vec::new());
        // For each core, at most one block is compressed and one is queued, so the memory use is bounded.
        FrameWriter { out, block, jobs, pending, most_pending: 2 * cores, table, frames: 0, bytes_in: 0 }
    }

    /// Writes the remaining data and the seek table; returns the uncompressed length in bytes, and the output.
    ///
    /// # Errors
    /// Returns an error if compressing or writing fails.
    pub(crate) fn finish(mut self) -> io::Result<(u64, W)> {
        if !self.block.is_empty() || self.frames == 0 {
            self.queue_block()?;
        }
        while !self.pending.is_empty() {
            self.write_first_frame()?;
        }
        let body = u32::try_from(self.table.len() + 9).map_err(io::Error::other)?;
        self.out.write_all(&SKIPPABLE.to_le_bytes())?;
        self.out.write_all(&body.to_le_bytes())?;
        self.out.write_all(&self.table)?;
        self.out.write_all(&self.frames.to_le_bytes())?;
        // The byte with the flags is 0: the seek table does not contain checksums, because the frames contain them.
        self.out.write_all(&[0])?;
        self.out.write_all(&SEEKABLE.to_le_bytes())?;
        self.out.flush()?;
        Ok((self.bytes_in, self.out))
    }

    fn queue_block(&mut self) -> io::Result<()> {
        if self.pending.len() >= self.most_pending {
            self.write_first_frame()?;
        }
        let block = std::mem::replace(&mut self.block, Vec::with_capacity(FRAME_BYTES));
        let (answer, receiver) = sync_channel(1);
        self.pending.push_back((block.len(), receiver));
        self.frames += 1;
        self.jobs.send(CompressJob { block, answer }).map_err(|_| thread_panicked())
    }

    fn write_first_frame(&mut self) -> io::Result<()> {
        let Some((length, answer)) = self.pending.pop_front() else { return Ok(()) };
        let frame = answer.recv().map_err(|_| thread_panicked())??;
        for number in [frame.len(), length] {
            self.table.extend(u32::try_from(number).map_err(io::Error::other)?.to_le_bytes());
        }
        self.out.write_all(&frame)
    }
}

impl<W: Write> Write for FrameWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(FRAME_BYTES - self.block.len());
        self.block.extend_from_slice(&bytes[..taken]);
        self.bytes_in += taken as u64;
        if self.block.len() == FRAME_BYTES {
            self.queue_block()?;
        }
        Ok(taken)
    }

    /// Does not flush an incomplete block, because frame boundaries must not depend on how the caller splits its
    /// writes.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn run_compressor(queue: &Mutex<Receiver<CompressJob>>, level: i32) {
    let next = || lock_mutex(queue).recv();
    while let Ok(CompressJob { block, answer }) = next() {
        // An error is ignored: the receiver is dropped only if packing has failed, and that failure is reported
        // separately.
        let _ = answer.send(compress_frame(&block, level));
    }
}

fn compress_frame(block: &[u8], level: i32) -> FrameResult {
    let mut compressor = Compressor::new(level)?;
    compressor.include_checksum(true)?;
    compressor.include_contentsize(true)?;
    compressor.compress(block)
}

fn thread_panicked() -> io::Error {
    io::Error::other("a compression thread panicked; see the console for its message")
}
