//! Buffers that are passed from stage to stage and reused. Memory use is constant, and the slowest stage determines the
//! rate.
//!
//! A [`BufferPool`] has a fixed number of buffers. A stage takes a buffer, fills it and sends it as a [`BufferChunk`].
//! Several stages can hold parts of the chunk without a copy. When the last part is dropped, the buffer returns to the
//! pool.
//!
//! The buffers are in private memory, or in memory shared with another process (`shared_memory`).

use super::shared_memory::SharedSpan;
use super::stage_clock::StageClock;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::mpsc::{self, RecvError, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Memory of a buffer: private, or shared with another process.
pub(crate) enum BufferMemory {
    Own(Vec<u8>),
    Shared(SharedSpan),
}

impl Deref for BufferMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            BufferMemory::Own(bytes) => bytes,
            BufferMemory::Shared(span) => span,
        }
    }
}

/// Owner to which a buffer returns when the buffer is no longer in use.
pub(crate) trait BufferOwner: Send + Sync {
    fn take_back(&self, buffer: BufferMemory);
}

/// Pool with a fixed number of buffers of the same size.
#[derive(Clone)]
pub(crate) struct BufferPool {
    shelf: Arc<PoolShared>,
    /// Rest of the shared memory, from which further pools are allocated; `None` for private memory.
    arena: Option<Arc<Mutex<SharedSpan>>>,
}

struct PoolShared {
    free: Mutex<FreeBuffers>,
    returned: Condvar,
    buffer_bytes: usize,
}

struct FreeBuffers {
    buffers: Vec<BufferMemory>,
    /// Number of buffers that are not allocated yet. A buffer is allocated when it is first needed, because a small
    /// image needs only a few buffers.
    unmade: usize,
}

impl BufferPool {
    pub fn new(buffers: usize, buffer_bytes: usize) -> BufferPool {
        BufferPool::with_buffers(Vec::new(), buffers, buffer_bytes, None)
    }

    /// Creates a pool whose buffers are in `arena`. Buffers that do not fit into `arena` are allocated in private
    /// memory.
    pub(crate) fn in_arena(arena: SharedSpan, buffers: usize, buffer_bytes: usize) -> BufferPool {
        BufferPool::carve_arena(&Arc::new(Mutex::new(arena)), buffers, buffer_bytes)
    }

    /// Creates another pool in the rest of this pool's shared memory.
    pub(crate) fn create_sibling(&self, buffers: usize, buffer_bytes: usize) -> BufferPool {
        match &self.arena {
            Some(arena) => BufferPool::carve_arena(arena, buffers, buffer_bytes),
            None => BufferPool::new(buffers, buffer_bytes),
        }
    }

    fn carve_arena(arena: &Arc<Mutex<SharedSpan>>, buffers: usize, buffer_bytes: usize) -> BufferPool {
        let mut left = arena.lock().unwrap_or_else(PoisonError::into_inner);
        let mut carved: Vec<_> =
            (0..buffers).map_while(|_| left.split_front(buffer_bytes)).map(BufferMemory::Shared).collect();
        // Buffers at the start of the memory are used first, so that the kernel does not allocate memory for buffers
        // that are never used.
        carved.reverse();
        let unmade = buffers - carved.len();
        BufferPool::with_buffers(carved, unmade, buffer_bytes, Some(arena.clone()))
    }

    fn with_buffers(
        buffers: Vec<BufferMemory>,
        unmade: usize,
        buffer_bytes: usize,
        arena: Option<Arc<Mutex<SharedSpan>>>,
    ) -> BufferPool {
        let free = Mutex::new(FreeBuffers { buffers, unmade });
        BufferPool { shelf: Arc::new(PoolShared { free, returned: Condvar::new(), buffer_bytes }), arena }
    }

    /// Waits for a free buffer and returns it. The wait is recorded on `clock`.
    pub(crate) fn take_buffer(&self, clock: &StageClock) -> WritableBuffer {
        let mut free = self.shelf.lock();
        let buffer = loop {
            if let Some(buffer) = free.buffers.pop() {
                break buffer;
            }
            if free.unmade > 0 {
                free.unmade -= 1;
                break BufferMemory::Own(vec![0; self.shelf.buffer_bytes]);
            }
            free = clock.time_wait(|| self.shelf.returned.wait(free).unwrap_or_else(PoisonError::into_inner));
        };
        WritableBuffer(OwnedBuffer { buffer, home: Some(self.shelf.clone()) })
    }
}

impl PoolShared {
    /// Locks the free list. A poisoned lock is ignored, because no operation can leave the list inconsistent.
    fn lock(&self) -> MutexGuard<'_, FreeBuffers> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BufferOwner for PoolShared {
    fn take_back(&self, buffer: BufferMemory) {
        self.lock().buffers.push(buffer);
        self.returned.notify_one();
    }
}

struct OwnedBuffer {
    buffer: BufferMemory,
    /// Owner to which the buffer returns; `None` if the buffer does not belong to a pool.
    home: Option<Arc<dyn BufferOwner>>,
}

impl Drop for OwnedBuffer {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.take_back(std::mem::replace(&mut self.buffer, BufferMemory::Own(Vec::new())));
        }
    }
}

/// Buffer that one stage owns and fills. Initially the buffer contains the data of its previous use.
pub(crate) struct WritableBuffer(OwnedBuffer);

impl WritableBuffer {
    /// Returns the first `length` bytes as a chunk.
    pub(crate) fn into_chunk(self, length: usize) -> BufferChunk {
        let end = length.min(self.0.buffer.len());
        BufferChunk { held: Arc::new(self.0), start: 0, end }
    }
}

impl Deref for WritableBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.buffer
    }
}

impl DerefMut for WritableBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0.buffer {
            BufferMemory::Own(bytes) => bytes,
            BufferMemory::Shared(span) => span,
        }
    }
}

/// Part of a filled buffer. Clones refer to the same buffer.
#[derive(Clone)]
pub(crate) struct BufferChunk {
    held: Arc<OwnedBuffer>,
    start: usize,
    end: usize,
}

impl BufferChunk {
    /// Creates a chunk from bytes that do not belong to a pool.
    pub(crate) fn from_vec(bytes: Vec<u8>) -> BufferChunk {
        let end = bytes.len();
        BufferChunk { held: Arc::new(OwnedBuffer { buffer: BufferMemory::Own(bytes), home: None }), start: 0, end }
    }

    /// Creates a chunk from a buffer that another process has filled. `home` is notified when the buffer is no longer
    /// in use.
    pub(crate) fn from_shared(span: SharedSpan, home: Arc<dyn BufferOwner>) -> BufferChunk {
        let end = span.len();
        BufferChunk {
            held: Arc::new(OwnedBuffer { buffer: BufferMemory::Shared(span), home: Some(home) }),
            start: 0,
            end,
        }
    }

    /// Returns the shared memory of the buffer, and the range of the chunk in the whole shared region; `None` if the
    /// buffer is in private memory.
    pub(crate) fn shared_range(&self) -> Option<(&SharedSpan, Range<usize>)> {
        match &self.held.buffer {
            BufferMemory::Shared(span) => Some((span, span.at() + self.start..span.at() + self.end)),
            BufferMemory::Own(_) => None,
        }
    }

    /// Returns a part of the chunk, or `None` if the range exceeds the chunk.
    pub(crate) fn slice(&self, range: Range<usize>) -> Option<BufferChunk> {
        let (start, end) = (self.start.checked_add(range.start)?, self.start.checked_add(range.end)?);
        let held = self.held.clone();
        (start <= end && end <= self.end).then_some(BufferChunk { held, start, end })
    }

    /// Splits off and returns the first `count` bytes, or all bytes if the chunk is shorter.
    pub(crate) fn split_to(&mut self, count: usize) -> BufferChunk {
        let end = self.start.saturating_add(count).min(self.end);
        let front = BufferChunk { held: self.held.clone(), start: self.start, end };
        self.start = end;
        front
    }

    /// Returns whether both chunks are parts of the same buffer and therefore together occupy only one buffer of the
    /// pool.
    pub(crate) fn is_same_buffer(&self, other: &BufferChunk) -> bool {
        Arc::ptr_eq(&self.held, &other.held)
    }
}

impl Deref for BufferChunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.held.buffer[self.start..self.end]
    }
}

/// Message from one stage to the next.
pub(crate) enum PipeMessage {
    Chunk(BufferChunk),
    End,
    Failed(io::Error),
}

/// Sending end of a pipe. If the sending end is dropped without [`PipeSender::end`] or [`PipeSender::fail`], for
/// example by a panic, the receiver gets an error instead of the end of the stream.
pub(crate) struct PipeSender(SenderTarget);

enum SenderTarget {
    Stage(mpsc::SyncSender<PipeMessage>),
    Other(Box<dyn ChunkSink>),
}

/// Receiver of chunks that is not a stage of this process. The receiver must not block; the pool limits the number of
/// chunks in flight.
pub(crate) trait ChunkSink: Send {
    /// Receives a message.
    ///
    /// # Errors
    /// Returns an error if the receiver is gone.
    fn take_message(&self, message: PipeMessage) -> Result<(), ReceiverGone>;
}

/// Error message that the receiver gets if the sender was dropped before it ended the stream.
pub(crate) const UNEXPECTED_END: &str = "the previous stage of the image pipeline ended unexpectedly";

/// Error of a stage that cannot send because the next stage has ended. The next stage reports the cause itself.
#[derive(Debug)]
pub(crate) struct ReceiverGone;

/// Creates a pipe between two stages, in which `depth` chunks can be queued. The memory is limited by the buffer pool.
pub(crate) fn create_pipe(depth: usize) -> (PipeSender, PipeReceiver) {
    let (sender, receiver) = mpsc::sync_channel(depth);
    (
        PipeSender(SenderTarget::Stage(sender)),
        PipeReceiver { origin: ReceiverOrigin::Stage(receiver), early: None, ended: false },
    )
}

impl PipeSender {
    /// Creates a sender to a receiver that is not a stage of this process.
    pub(crate) fn to_sink(other: Box<dyn ChunkSink>) -> PipeSender {
        PipeSender(SenderTarget::Other(other))
    }

    /// Sends a chunk.
    ///
    /// # Errors
    /// Returns an error if the receiver is gone.
    pub(crate) fn send(&self, chunk: BufferChunk, clock: &StageClock) -> Result<(), ReceiverGone> {
        self.send_message(PipeMessage::Chunk(chunk), clock)
    }

    /// Ends the stream successfully.
    pub(crate) fn end(self) {
        // An error is ignored: it means that the receiver no longer exists, and does not need the end of the stream.
        let _ = self.send_message(PipeMessage::End, &StageClock::default());
    }

    /// Ends the stream with an error. The next stage receives all chunks that were sent before the error, and then the
    /// error.
    pub(crate) fn fail(self, error: io::Error) {
        let _ = self.send_message(PipeMessage::Failed(error), &StageClock::default());
    }

    fn send_message(&self, message: PipeMessage, clock: &StageClock) -> Result<(), ReceiverGone> {
        let channel = match &self.0 {
            SenderTarget::Stage(channel) => channel,
            SenderTarget::Other(other) => return other.take_message(message),
        };
        match channel.try_send(message) {
            Ok(()) => Ok(()),
            Err(mpsc::TrySendError::Full(message)) => {
                clock.time_wait(|| channel.send(message)).map_err(|_| ReceiverGone)
            }
            Err(mpsc::TrySendError::Disconnected(_)) => Err(ReceiverGone),
        }
    }
}

/// Source of chunks that is not a stage of this process.
pub(crate) trait ChunkSource: Send {
    /// Returns the next chunk; `None` after the end.
    ///
    /// # Errors
    /// Returns the error of the source.
    fn next_chunk(&mut self) -> io::Result<Option<BufferChunk>>;
}

/// Receiving end of a pipe.
pub struct PipeReceiver {
    origin: ReceiverOrigin,
    /// Message that [`PipeReceiver::is_ready`] has received ahead of [`PipeReceiver::receive_chunk`].
    early: Option<PipeMessage>,
    ended: bool,
}

enum ReceiverOrigin {
    Stage(mpsc::Receiver<PipeMessage>),
    Other(Box<dyn ChunkSource>),
}

impl PipeReceiver {
    /// Creates a receiver for a source that is not a stage of this process.
    pub(crate) fn from_source(other: Box<dyn ChunkSource>) -> PipeReceiver {
        PipeReceiver { origin: ReceiverOrigin::Other(other), early: None, ended: false }
    }

    /// Returns whether the next chunk, or the end, is available without waiting.
    pub(crate) fn is_ready(&mut self) -> bool {
        if let (ReceiverOrigin::Stage(channel), None) = (&self.origin, &self.early) {
            self.early = channel.try_recv().ok();
        }
        self.early.is_some()
    }

    /// Waits for the next chunk and returns it; `None` after the end of the stream.
    ///
    /// # Errors
    /// Returns the error of the previous stage.
    pub(crate) fn receive_chunk(&mut self, clock: &StageClock) -> io::Result<Option<BufferChunk>> {
        if self.ended {
            return Ok(None);
        }
        let channel = match &mut self.origin {
            ReceiverOrigin::Stage(channel) => channel,
            ReceiverOrigin::Other(other) => {
                let chunk = clock.time_wait(|| other.next_chunk())?;
                self.ended = chunk.is_none();
                return Ok(chunk);
            }
        };
        let message = match self.early.take().map_or_else(|| channel.try_recv(), Ok) {
            Err(TryRecvError::Empty) => clock.time_wait(|| channel.recv()),
            Ok(message) => Ok(message),
            Err(TryRecvError::Disconnected) => Err(RecvError),
        };
        match message {
            Ok(PipeMessage::Chunk(chunk)) => Ok(Some(chunk)),
            Ok(PipeMessage::End) => {
                self.ended = true;
                Ok(None)
            }
            Ok(PipeMessage::Failed(error)) => Err(error),
            Err(RecvError) => Err(io::Error::other(UNEXPECTED_END)),
        }
    }
}

#[cfg(test)]
mod tests;
