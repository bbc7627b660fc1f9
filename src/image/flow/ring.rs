//! Buffers that are passed from stage to stage and reused: memory stays constant, and the slowest stage sets the pace.
//!
//! A [`Pool`] has a fixed number of buffers. A stage takes one, fills it and sends it as a [`Chunk`], parts of which
//! several stages can hold without a copy. When the last of them is dropped, the buffer is free again.
//!
//! The buffers are in private memory, or in memory shared with another process (`shared`).

use super::shared::Span;
use super::stages::Clock;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::mpsc::{self, RecvError, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Memory of a buffer, private or shared.
pub enum Buffer {
    Own(Vec<u8>),
    Shared(Span),
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Buffer::Own(bytes) => bytes,
            Buffer::Shared(span) => span,
        }
    }
}

/// Destination of a buffer that is no longer in use.
pub trait Home: Send + Sync {
    fn take_back(&self, buffer: Buffer);
}

/// A fixed number of buffers of one size.
#[derive(Clone)]
pub struct Pool {
    shelf: Arc<Shelf>,
    /// Memory that further pools can be allocated in.
    arena: Option<Arc<Mutex<Span>>>,
}

struct Shelf {
    free: Mutex<Free>,
    returned: Condvar,
    buffer_bytes: usize,
}

struct Free {
    buffers: Vec<Buffer>,
    /// Number of buffers that are allocated only when they are first needed: a small image needs few.
    unmade: usize,
}

impl Pool {
    pub fn new(buffers: usize, buffer_bytes: usize) -> Pool {
        Pool::with(Vec::new(), buffers, buffer_bytes, None)
    }

    /// Creates a pool whose buffers are in `arena`, as far as there is space.
    pub fn within(arena: Span, buffers: usize, buffer_bytes: usize) -> Pool {
        Pool::carved(&Arc::new(Mutex::new(arena)), buffers, buffer_bytes)
    }

    /// Creates another pool in the same memory.
    pub fn beside(&self, buffers: usize, buffer_bytes: usize) -> Pool {
        match &self.arena {
            Some(arena) => Pool::carved(arena, buffers, buffer_bytes),
            None => Pool::new(buffers, buffer_bytes),
        }
    }

    fn carved(arena: &Arc<Mutex<Span>>, buffers: usize, buffer_bytes: usize) -> Pool {
        let mut left = arena.lock().unwrap_or_else(PoisonError::into_inner);
        let mut carved: Vec<_> = (0..buffers).map_while(|_| left.split_off(buffer_bytes)).map(Buffer::Shared).collect();
        // Buffers at the front are used first, so that memory that is never needed is never committed.
        carved.reverse();
        let unmade = buffers - carved.len();
        Pool::with(carved, unmade, buffer_bytes, Some(arena.clone()))
    }

    fn with(buffers: Vec<Buffer>, unmade: usize, buffer_bytes: usize, arena: Option<Arc<Mutex<Span>>>) -> Pool {
        let free = Mutex::new(Free { buffers, unmade });
        Pool { shelf: Arc::new(Shelf { free, returned: Condvar::new(), buffer_bytes }), arena }
    }

    /// Waits for a free buffer and returns it for filling.
    pub fn take(&self, clock: &Clock) -> Filling {
        let mut free = self.shelf.lock();
        let buffer = loop {
            if let Some(buffer) = free.buffers.pop() {
                break buffer;
            }
            if free.unmade > 0 {
                free.unmade -= 1;
                break Buffer::Own(vec![0; self.shelf.buffer_bytes]);
            }
            free = clock.waiting(|| self.shelf.returned.wait(free).unwrap_or_else(PoisonError::into_inner));
        };
        Filling(Held { buffer, home: Some(self.shelf.clone()) })
    }
}

impl Shelf {
    /// Locks the free list. No operation leaves it inconsistent, so a panic elsewhere does not matter.
    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Home for Shelf {
    fn take_back(&self, buffer: Buffer) {
        self.lock().buffers.push(buffer);
        self.returned.notify_one();
    }
}

struct Held {
    buffer: Buffer,
    /// `None` if the buffer belongs to no pool.
    home: Option<Arc<dyn Home>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.take_back(std::mem::replace(&mut self.buffer, Buffer::Own(Vec::new())));
        }
    }
}

/// Buffer owned by one stage. It contains old data.
pub struct Filling(Held);

impl Filling {
    /// Returns the first `length` bytes as a chunk.
    pub fn filled(self, length: usize) -> Chunk {
        let end = length.min(self.0.buffer.len());
        Chunk { held: Arc::new(self.0), start: 0, end }
    }
}

impl Deref for Filling {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.buffer
    }
}

impl DerefMut for Filling {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0.buffer {
            Buffer::Own(bytes) => bytes,
            Buffer::Shared(span) => span,
        }
    }
}

/// Part of a filled buffer. A clone shares the buffer.
#[derive(Clone)]
pub struct Chunk {
    held: Arc<Held>,
    start: usize,
    end: usize,
}

impl Chunk {
    /// Creates a chunk of bytes that are in no pool.
    pub fn own(bytes: Vec<u8>) -> Chunk {
        let end = bytes.len();
        Chunk { held: Arc::new(Held { buffer: Buffer::Own(bytes), home: None }), start: 0, end }
    }

    /// Creates a chunk of a buffer that another process has filled.
    pub fn lent(span: Span, home: Arc<dyn Home>) -> Chunk {
        let end = span.len();
        Chunk { held: Arc::new(Held { buffer: Buffer::Shared(span), home: Some(home) }), start: 0, end }
    }

    /// Returns the span of the buffer and the range of the chunk in its region, or `None` for private memory.
    pub fn shared(&self) -> Option<(&Span, Range<usize>)> {
        match &self.held.buffer {
            Buffer::Shared(span) => Some((span, span.at() + self.start..span.at() + self.end)),
            Buffer::Own(_) => None,
        }
    }

    /// Returns a part of the chunk, or `None` if the range is outside.
    pub fn part(&self, range: Range<usize>) -> Option<Chunk> {
        let (start, end) = (self.start.checked_add(range.start)?, self.start.checked_add(range.end)?);
        let held = self.held.clone();
        (start <= end && end <= self.end).then_some(Chunk { held, start, end })
    }

    /// Takes up to `count` bytes off the front.
    pub fn split_to(&mut self, count: usize) -> Chunk {
        let end = self.start.saturating_add(count).min(self.end);
        let front = Chunk { held: self.held.clone(), start: self.start, end };
        self.start = end;
        front
    }

    /// Returns whether both chunks are in the same buffer, so that holding both occupies only one.
    pub fn same_buffer(&self, other: &Chunk) -> bool {
        Arc::ptr_eq(&self.held, &other.held)
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.held.buffer[self.start..self.end]
    }
}

/// Message from one stage to the next.
pub enum Message {
    Chunk(Chunk),
    End,
    Failed(io::Error),
}

/// Sending end of a pipe. Dropping it without [`Sender::end`] or [`Sender::fail`] counts as a failure: a stage that
/// panicked must not look like the end of the stream.
pub struct Sender(Next);

enum Next {
    Stage(mpsc::SyncSender<Message>),
    Other(Box<dyn Takes>),
}

/// Receiver of chunks other than a stage of this process. It must not block: the pool limits what is in flight.
pub trait Takes: Send {
    /// Takes a message.
    ///
    /// # Errors
    /// Returns an error if the receiver is gone.
    fn take(&self, message: Message) -> Result<(), Gone>;
}

/// Error of a stream that was dropped without an end.
pub const WITHOUT_A_WORD: &str = "the previous stage ended unexpectedly";

/// The next stage is gone and has reported its error elsewhere.
#[derive(Debug)]
pub struct Gone;

/// Creates a pipe between two stages. The pool limits the memory; `depth` is only the number of chunks that can be
/// queued.
pub fn pipe(depth: usize) -> (Sender, Receiver) {
    let (sender, receiver) = mpsc::sync_channel(depth);
    (Sender(Next::Stage(sender)), Receiver { origin: Origin::Stage(receiver), early: None, ended: false })
}

impl Sender {
    /// Creates a sender to a receiver that is not a stage of this process.
    pub fn to(other: Box<dyn Takes>) -> Sender {
        Sender(Next::Other(other))
    }

    /// Sends a chunk.
    ///
    /// # Errors
    /// Returns an error if the receiver is gone.
    pub fn send(&self, chunk: Chunk, clock: &Clock) -> Result<(), Gone> {
        self.tell(Message::Chunk(chunk), clock)
    }

    /// Ends the stream successfully.
    pub fn end(self) {
        // If the receiver is gone, the end is not needed.
        let _ = self.tell(Message::End, &Clock::default());
    }

    /// Ends the stream with an error, which the next stage receives after all chunks sent before.
    pub fn fail(self, error: io::Error) {
        let _ = self.tell(Message::Failed(error), &Clock::default());
    }

    fn tell(&self, message: Message, clock: &Clock) -> Result<(), Gone> {
        let channel = match &self.0 {
            Next::Stage(channel) => channel,
            Next::Other(other) => return other.take(message),
        };
        match channel.try_send(message) {
            Ok(()) => Ok(()),
            Err(mpsc::TrySendError::Full(message)) => clock.waiting(|| channel.send(message)).map_err(|_| Gone),
            Err(mpsc::TrySendError::Disconnected(_)) => Err(Gone),
        }
    }
}

/// Source of chunks other than a stage of this process.
pub trait Gives: Send {
    /// Returns the next chunk; `None` after the end.
    ///
    /// # Errors
    /// Returns the error of the source.
    fn give(&mut self) -> io::Result<Option<Chunk>>;
}

/// Receiving end of a pipe.
pub struct Receiver {
    origin: Origin,
    /// Message received by [`Receiver::is_ready`], before it was requested.
    early: Option<Message>,
    ended: bool,
}

enum Origin {
    Stage(mpsc::Receiver<Message>),
    Other(Box<dyn Gives>),
}

impl Receiver {
    /// Creates a receiver for a source that is not a stage of this process.
    pub fn of(other: Box<dyn Gives>) -> Receiver {
        Receiver { origin: Origin::Other(other), early: None, ended: false }
    }

    /// Returns whether the next chunk, or the end, is available without waiting.
    pub fn is_ready(&mut self) -> bool {
        if let (Origin::Stage(channel), None) = (&self.origin, &self.early) {
            self.early = channel.try_recv().ok();
        }
        self.early.is_some()
    }

    /// Returns the next chunk; `None` after the end.
    ///
    /// # Errors
    /// Returns the error of the previous stage.
    pub fn next(&mut self, clock: &Clock) -> io::Result<Option<Chunk>> {
        if self.ended {
            return Ok(None);
        }
        let channel = match &mut self.origin {
            Origin::Stage(channel) => channel,
            Origin::Other(other) => {
                let chunk = clock.waiting(|| other.give())?;
                self.ended = chunk.is_none();
                return Ok(chunk);
            }
        };
        let message = match self.early.take().map_or_else(|| channel.try_recv(), Ok) {
            Err(TryRecvError::Empty) => clock.waiting(|| channel.recv()),
            Ok(message) => Ok(message),
            Err(TryRecvError::Disconnected) => Err(RecvError),
        };
        match message {
            Ok(Message::Chunk(chunk)) => Ok(Some(chunk)),
            Ok(Message::End) => {
                self.ended = true;
                Ok(None)
            }
            Ok(Message::Failed(error)) => Err(error),
            Err(RecvError) => Err(io::Error::other(WITHOUT_A_WORD)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::flow::Reader;
    use std::io::Read;
    use std::thread;
    use std::time::Duration;

    fn chunk(pool: &Pool, bytes: &[u8]) -> Chunk {
        let mut filling = pool.take(&Clock::default());
        filling[..bytes.len()].copy_from_slice(bytes);
        filling.filled(bytes.len())
    }

    #[test]
    fn a_buffer_is_free_when_nobody_holds_a_part_of_it() {
        // Again, where the other thread came so late that it had not to wait.
        let waited = (1..1000).any(|milliseconds| {
            let pool = Pool::new(1, 8);
            let mut whole = chunk(&pool, b"abcdefgh");
            let front = whole.split_to(3);
            assert_eq!((&front[..], &whole[..]), (&b"abc"[..], &b"defgh"[..]));
            let (clock, other) = (Clock::default(), pool.clone());
            thread::scope(|scope| {
                let taking = scope.spawn(|| other.take(&clock).len());
                drop(whole);
                thread::sleep(Duration::from_millis(milliseconds));
                assert!(!taking.is_finished());
                drop(front);
                assert_eq!(taking.join().unwrap(), 8);
            });
            !clock.waited().is_zero()
        });
        assert!(waited, "who waits for a buffer is not counted");
    }

    #[test]
    fn many_chunks_are_one_stream_with_few_buffers() {
        let (sender, receiver) = pipe(4);
        let stage = thread::spawn(move || {
            let (pool, clock) = (Pool::new(2, 10), Clock::default());
            for number in 0..100u8 {
                sender.send(chunk(&pool, &[number; 10]), &clock).unwrap();
            }
            sender.end();
        });
        let mut reader = Reader::new(receiver, Arc::default());
        let mut three = [9; 3];
        reader.read_exact(&mut three).unwrap();
        assert_eq!((three, reader.position()), ([0; 3], 3));
        assert_eq!(reader.take_chunk(100).unwrap().unwrap().len(), 7);
        assert_eq!(&reader.take_chunk(4).unwrap().unwrap()[..], [1; 4]);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert_eq!((rest.len(), rest.last(), reader.position()), (986, Some(&99), 1000));
        assert!(reader.take_chunk(1).unwrap().is_none());
        stage.join().unwrap();
    }

    #[test]
    fn an_error_comes_after_what_was_sent_and_silence_is_an_error() {
        let pool = Pool::new(2, 10);
        let (sender, receiver) = pipe(4);
        sender.send(chunk(&pool, b"x"), &Clock::default()).unwrap();
        sender.fail(io::Error::other("cut"));
        let mut bytes = Vec::new();
        let error = Reader::new(receiver, Arc::default()).read_to_end(&mut bytes).unwrap_err();
        assert_eq!((bytes, error.to_string()), (b"x".to_vec(), "cut".to_owned()));

        let (sender, receiver) = pipe(4);
        drop(sender);
        let error = Reader::new(receiver, Arc::default()).read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("ended unexpectedly"));
    }

    #[test]
    fn who_sends_to_nobody_is_told() {
        let (sender, receiver) = pipe(1);
        drop(receiver);
        assert!(sender.send(chunk(&Pool::new(1, 4), b"x"), &Clock::default()).is_err());
    }
}
