//! Thread pool of the decoder. Parts of the stream that can be decoded independently are decoded by several threads,
//! all other parts by the thread that reads the stream. The output is in stream order.
//!
//! Deadlocks are impossible: output buffers are allocated in stream order, before a part is queued, so the part that
//! must be sent next always has a buffer.

use super::CompressionFormat;
use super::empty_input_limit::EmptyInputLimit;
use super::input::CompressedInput;
use super::lz4_frames::{ContentSum, Lz4Block};
use super::ordered_output::{DecodedItem, OrderedOutput};
use super::zstd_frames::{self, ZstdFrame};
use crate::pipeline::buffer_pipe::{BufferChunk, BufferPool, PipeSender, WritableBuffer};
use crate::pipeline::stage_clock::{StageClock, StageClocks};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use zstd::zstd_safe::DCtx;

/// Maximum output of one part, in bytes: the size of pzstd's frames.
pub(crate) const MAXIMUM_PART_BYTES: usize = 8 << 20;

/// Number of output buffers in addition to one buffer per thread.
pub(crate) const ADDITIONAL_OUTPUT_BUFFERS: usize = 3;

/// Maximum output of a task with several parts, in bytes. Parts are added to a task until their output would exceed
/// this size.
pub(crate) const TASK_BYTES: usize = 4 << 20;

/// Maximum number of parts in a task. The limit bounds the memory for parts without output; ordinary tasks have at most
/// 64 parts.
const MAXIMUM_TASK_PARTS: usize = 256;

/// Maximum number of lz4 frames that were read, but are not yet passed on because earlier output is still missing. The
/// limit is needed for frames without content, because such frames take no output buffers.
const MAXIMUM_PENDING_FRAMES: usize = 1024;

/// Maximum number of fetched buffers that the task being assembled holds.
const MAXIMUM_TASK_BUFFERS: usize = 7;
/// Maximum number of fetched buffers that the task being assembled and the frame being scanned hold together. This
/// limit leaves a free buffer for the download.
const MAXIMUM_HELD_BUFFERS: usize = 2 * MAXIMUM_TASK_BUFFERS;
// 1 is added because the limit is checked only after the header of a block was read, and reading the header may have
// fetched one more buffer.
const _: () = assert!(MAXIMUM_HELD_BUFFERS + 1 < crate::pipeline::BUFFERS);

/// Part of the stream that can be decoded independently.
pub(crate) enum DecodePart {
    ZstdFrame(Vec<BufferChunk>),
    Lz4Block(Lz4Block),
}

/// Consecutive parts, and the buffer for their output.
struct DecodeTask {
    parts: Vec<PositionedPart>,
    room: WritableBuffer,
}

struct PositionedPart {
    part: DecodePart,
    most_bytes: usize,
    /// Offset of the part in the compressed stream, in bytes.
    position: u64,
}

/// Reusable decoder state of one thread.
#[derive(Default)]
pub(crate) struct ThreadDecoders {
    zstd: Option<DCtx<'static>>,
    scratch: Vec<u8>,
}

impl ThreadDecoders {
    pub(crate) fn zstd(&mut self) -> &mut DCtx<'static> {
        self.zstd.get_or_insert_with(DCtx::create)
    }

    pub(crate) fn scratch(&mut self) -> &mut Vec<u8> {
        &mut self.scratch
    }
}

impl DecodeTask {
    fn run(self, tools: &mut ThreadDecoders) -> io::Result<BufferChunk> {
        let (mut room, mut at) = (self.room, 0);
        for PositionedPart { part, most_bytes, position } in self.parts {
            let place = room.get_mut(at..at + most_bytes).unwrap_or_default();
            at += match part {
                DecodePart::ZstdFrame(pieces) => zstd_frames::decode_whole(tools.zstd(), &pieces, place)
                    .map_err(|fault| fault.into_io_error(CompressionFormat::Zstd, position)),
                DecodePart::Lz4Block(block) => block
                    .decode(0, place, &mut tools.scratch)
                    .map_err(|fault| fault.into_io_error(CompressionFormat::Lz4, position)),
            }?;
        }
        Ok(room.into_chunk(at))
    }
}

/// State shared by the threads of the pool and the thread that reads the stream.
pub(crate) struct DecoderState {
    outlet: OrderedOutput,
    tasks: Mutex<TaskQueue>,
    more: Condvar,
}

#[derive(Default)]
struct TaskQueue {
    queue: VecDeque<(u64, DecodeTask)>,
    closed: bool,
}

impl DecoderState {
    pub fn new(sender: PipeSender, empty_input_limit: Arc<EmptyInputLimit>) -> DecoderState {
        DecoderState {
            outlet: OrderedOutput::new(sender, empty_input_limit),
            tasks: Mutex::default(),
            more: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, TaskQueue> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_task(&self, clock: &StageClock) -> Option<(u64, DecodeTask)> {
        let mut tasks = self.lock();
        loop {
            match tasks.queue.pop_front() {
                None if tasks.closed => return None,
                None => tasks = clock.time_wait(|| self.more.wait(tasks).unwrap_or_else(PoisonError::into_inner)),
                task => return task,
            }
        }
    }

    /// Runs one thread of the pool.
    fn run_thread(&self, clock: &StageClock) {
        let _duty = PanicGuard(&self.outlet);
        let mut tools = ThreadDecoders::default();
        while let Some((number, task)) = self.next_task(clock) {
            if !self.outlet.is_stopped() {
                self.outlet.put_item(number, item_of_result(task.run(&mut tools)), clock);
            }
        }
    }
}

fn item_of_result(made: io::Result<BufferChunk>) -> DecodedItem {
    made.map_or_else(|error| DecodedItem::End(Err(error)), DecodedItem::Content)
}

/// Guard that stops the output if its thread panics. Otherwise the other threads would wait for the missing part, and a
/// test would hang instead of failing. The release build aborts on a panic, and does not need this guard or
/// [`OrderedOutput::abandon`].
struct PanicGuard<'a>(&'a OrderedOutput);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abandon();
        }
    }
}

/// Interface of the thread pool for the thread that reads the stream.
pub(crate) struct DecoderPool<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    shared: &'env DecoderState,
    stages: &'env StageClocks,
    threads: usize,
    hired: bool,
    /// Clock that records how long the reading thread waits.
    clock: Arc<StageClock>,
    /// Buffers for output that the reading thread decodes in several pieces.
    pool: &'env BufferPool,
    filling: Option<(WritableBuffer, usize)>,
    pub tools: ThreadDecoders,
    /// Buffers for frames and blocks that are decoded in one piece. The kernel allocates the memory of a buffer only
    /// when the memory is written, and often half of a buffer is never written.
    rooms: BufferPool,
    frame_permits: BufferPool,
    /// Task being assembled: its parts, the size of their output (`parts_bytes`), and the number of buffers that had
    /// been fetched when the task was started (`began`).
    parts: Vec<PositionedPart>,
    parts_bytes: usize,
    began: usize,
    /// Number that the next item of the output gets.
    number: u64,
}

impl<'scope, 'env> DecoderPool<'scope, 'env> {
    pub fn new(
        scope: &'scope Scope<'scope, 'env>,
        shared: &'env DecoderState,
        stages: &'env StageClocks,
        pool: &'env BufferPool,
        threads: usize,
        clock: Arc<StageClock>,
    ) -> Self {
        DecoderPool {
            scope,
            shared,
            stages,
            threads,
            hired: false,
            clock,
            pool,
            filling: None,
            tools: ThreadDecoders::default(),
            rooms: pool.create_sibling(threads + ADDITIONAL_OUTPUT_BUFFERS, MAXIMUM_PART_BYTES),
            frame_permits: BufferPool::new(MAXIMUM_PENDING_FRAMES, 0),
            parts: Vec::new(),
            parts_bytes: 0,
            began: 0,
            number: 0,
        }
    }

    /// Returns whether there are several threads. With a single thread, the stream is not split into parts.
    pub(crate) fn is_several(&self) -> bool {
        self.threads > 1
    }

    /// Scans the zstd frame that begins at the current position. Returns `None` if the frame cannot be decoded in one
    /// piece.
    ///
    /// # Errors
    /// Returns the error of the source.
    pub(crate) fn measure(&self, input: &mut CompressedInput) -> io::Result<Option<ZstdFrame>> {
        let held = if self.parts.is_empty() { 0 } else { (input.pulled() - self.began).min(MAXIMUM_TASK_BUFFERS) };
        zstd_frames::scan_frame(input, MAXIMUM_PART_BYTES, MAXIMUM_HELD_BUFFERS - held)
    }

    /// Adds a part to the task being assembled, and queues the task if it is full. `position` is the part's offset in
    /// the compressed stream.
    ///
    /// # Errors
    /// Returns an error if the output is closed.
    pub(crate) fn add_part(
        &mut self,
        input: &mut CompressedInput,
        part: DecodePart,
        most_bytes: usize,
        position: u64,
    ) -> io::Result<()> {
        if self.parts_bytes + most_bytes > TASK_BYTES {
            self.flush_task(input)?;
        }
        if self.parts.is_empty() {
            self.began = input.pulled();
        }
        self.parts.push(PositionedPart { part, most_bytes, position });
        self.parts_bytes += most_bytes;
        let full = self.parts.len() >= MAXIMUM_TASK_PARTS || input.pulled() - self.began >= MAXIMUM_TASK_BUFFERS;
        if full { self.flush_task(input) } else { Ok(()) }
    }

    /// Queues the task being assembled. Output that is decoded later is sent after the task's output.
    ///
    /// # Errors
    /// Returns an error if the output is closed.
    pub(crate) fn flush_task(&mut self, input: &mut CompressedInput) -> io::Result<()> {
        if self.parts.is_empty() {
            return Ok(());
        }
        self.flush()?;
        if self.is_several() && !self.hired {
            self.start_threads(input);
        }
        let (parts, room) = (std::mem::take(&mut self.parts), self.rooms.take_buffer(&self.clock));
        self.parts_bytes = 0;
        let task = DecodeTask { parts, room };
        if !self.hired {
            let made = task.run(&mut self.tools);
            return self.send_item(item_of_result(made));
        }
        let number = self.next_number()?;
        self.shared.lock().queue.push_back((number, task));
        self.shared.more.notify_one();
        Ok(())
    }

    /// Starts the threads. The first thread takes over the clock of the reading thread, because the reading thread
    /// mostly waits from now on.
    fn start_threads(&mut self, input: &mut CompressedInput) {
        self.hired = true;
        let mut first = Some(std::mem::take(&mut self.clock));
        input.count_on(self.clock.clone());
        for _ in 0..self.threads {
            let clock = first.take().unwrap_or_else(|| self.stages.add_clock("decode"));
            let shared = self.shared;
            self.scope.spawn(move || shared.run_thread(&clock));
        }
    }

    /// Returns the free space of the current output buffer, and the decoder state of the reading thread.
    pub(crate) fn output_space(&mut self) -> (&mut [u8], &mut ThreadDecoders) {
        let (filling, filled) = self.filling.get_or_insert_with(|| (self.pool.take_buffer(&self.clock), 0));
        (&mut filling[*filled..], &mut self.tools)
    }

    /// Marks the next `count` bytes of the current output buffer as filled. Sends the buffer if it is full.
    ///
    /// # Errors
    /// Returns an error if the output is closed.
    pub(crate) fn advance_output(&mut self, count: usize) -> io::Result<()> {
        let Some((filling, filled)) = &mut self.filling else { return Ok(()) };
        *filled += count;
        if *filled < filling.len() { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.filling.take() {
            Some((filling, filled)) => self.send_item(DecodedItem::Content(filling.into_chunk(filled))),
            None => Ok(()),
        }
    }

    /// Waits for a buffer in which the reading thread decodes blocks in one piece.
    pub(crate) fn take_whole_buffer(&self) -> WritableBuffer {
        self.rooms.take_buffer(&self.clock)
    }

    /// Starts an lz4 frame, after all earlier output.
    ///
    /// # Errors
    /// Returns an error if the output is closed.
    pub(crate) fn begin_frame(&mut self, input: &mut CompressedInput, sum: ContentSum) -> io::Result<()> {
        // Queue the task being assembled first. Otherwise the wait for a free buffer could be endless: all buffers may
        // be held by frames that can be sent only after this task.
        self.flush_task(input)?;
        let permit = self.frame_permits.take_buffer(&self.clock);
        self.send_in_order(input, DecodedItem::FrameStart(sum, permit))
    }

    /// Sends an item after all output of earlier parts of the stream.
    ///
    /// # Errors
    /// Returns an error if the output is closed.
    pub(crate) fn send_in_order(&mut self, input: &mut CompressedInput, item: DecodedItem) -> io::Result<()> {
        self.flush_task(input)?;
        self.flush()?;
        self.send_item(item)
    }

    fn send_item(&mut self, item: DecodedItem) -> io::Result<()> {
        let number = self.next_number()?;
        self.shared.outlet.put_item(number, item, &self.clock);
        Ok(())
    }

    fn next_number(&mut self) -> io::Result<u64> {
        if self.shared.outlet.is_stopped() {
            return Err(io::Error::other("the rest of the image is not needed"));
        }
        self.number += 1;
        Ok(self.number - 1)
    }
}

impl Drop for DecoderPool<'_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.outlet.abandon();
        }
        self.shared.lock().closed = true;
        self.shared.more.notify_all();
    }
}

#[cfg(test)]
mod tests;
