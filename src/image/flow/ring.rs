//! Buffers that go from stage to stage and come back: memory stays constant, and the slowest stage sets the pace.
//!
//! A [`Pool`] has a fixed number of buffers. A stage takes one, fills it and sends it on as a [`Chunk`], of which several
//! stages can hold parts without a copy. When the last of them lets go, the buffer is free again.
//!
//! The buffers lie in memory of this process, or in memory that it shares with another one (`shared`).

use super::shared::Span;
use super::stages::Clock;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::mpsc::{self, RecvError, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Where a buffer lies.
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

/// Where a buffer goes when nobody holds a part of it any more.
pub trait Home: Send + Sync {
    fn take_back(&self, buffer: Buffer);
}

/// A fixed number of buffers of one size.
#[derive(Clone)]
pub struct Pool {
    shelf: Arc<Shelf>,
    /// Memory for other pools beside this one.
    arena: Option<Arc<Mutex<Span>>>,
}

struct Shelf {
    free: Mutex<Free>,
    returned: Condvar,
    buffer_bytes: usize,
}

struct Free {
    buffers: Vec<Buffer>,
    /// Made when they are needed for the first time: a small image needs few.
    unmade: usize,
}

impl Pool {
    pub fn new(buffers: usize, buffer_bytes: usize) -> Pool {
        Pool::with(Vec::new(), buffers, buffer_bytes, None)
    }

    /// Its buffers lie in `arena`, as far as that has room.
    pub fn within(arena: Span, buffers: usize, buffer_bytes: usize) -> Pool {
        Pool::carved(&Arc::new(Mutex::new(arena)), buffers, buffer_bytes)
    }

    /// Another pool, in the same memory.
    pub fn beside(&self, buffers: usize, buffer_bytes: usize) -> Pool {
        match &self.arena {
            Some(arena) => Pool::carved(arena, buffers, buffer_bytes),
            None => Pool::new(buffers, buffer_bytes),
        }
    }

    fn carved(arena: &Arc<Mutex<Span>>, buffers: usize, buffer_bytes: usize) -> Pool {
        let mut left = arena.lock().unwrap_or_else(PoisonError::into_inner);
        let mut carved: Vec<_> = (0..buffers).map_while(|_| left.split_off(buffer_bytes)).map(Buffer::Shared).collect();
        // The first ones are taken first: what is never taken takes no memory.
        carved.reverse();
        let unmade = buffers - carved.len();
        Pool::with(carved, unmade, buffer_bytes, Some(arena.clone()))
    }

    fn with(buffers: Vec<Buffer>, unmade: usize, buffer_bytes: usize, arena: Option<Arc<Mutex<Span>>>) -> Pool {
        let free = Mutex::new(Free { buffers, unmade });
        Pool { shelf: Arc::new(Shelf { free, returned: Condvar::new(), buffer_bytes }), arena }
    }

    /// A buffer to fill, as soon as there is one.
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
    /// Nothing is left half-done under the lock, so a panic elsewhere does not matter.
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
    /// Without one it goes for good.
    home: Option<Arc<dyn Home>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.take_back(std::mem::replace(&mut self.buffer, Buffer::Own(Vec::new())));
        }
    }
}

/// A buffer that belongs to one stage. What is in it is left over from before.
pub struct Filling(Held);

impl Filling {
    /// The first `length` bytes, to send on.
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

/// A part of a filled buffer. A clone shares it.
#[derive(Clone)]
pub struct Chunk {
    held: Arc<Held>,
    start: usize,
    end: usize,
}

impl Chunk {
    /// Bytes that come from no pool.
    pub fn own(bytes: Vec<u8>) -> Chunk {
        let end = bytes.len();
        Chunk { held: Arc::new(Held { buffer: Buffer::Own(bytes), home: None }), start: 0, end }
    }

    /// What another process has put there.
    pub fn lent(span: Span, home: Arc<dyn Home>) -> Chunk {
        let end = span.len();
        Chunk { held: Arc::new(Held { buffer: Buffer::Shared(span), home: Some(home) }), start: 0, end }
    }

    /// Where its buffer lies in shared memory, and where it lies itself; `None` in memory of this process.
    pub fn shared(&self) -> Option<(&Span, Range<usize>)> {
        match &self.held.buffer {
            Buffer::Shared(span) => Some((span, span.at() + self.start..span.at() + self.end)),
            Buffer::Own(_) => None,
        }
    }

    /// A part of it; `None` where it has none such.
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

    /// Whether holding both keeps only one buffer from coming back.
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

/// What one stage tells the next one.
pub enum Message {
    Chunk(Chunk),
    End,
    Failed(io::Error),
}

/// What a stage sends to the next one. Dropped without [`Sender::end`] or [`Sender::fail`] it counts as a failure: a stage that
/// panicked must not look like the end of the stream.
pub struct Sender(Next);

enum Next {
    Stage(mpsc::SyncSender<Message>),
    Other(Box<dyn Takes>),
}

/// What takes chunks besides a stage of this process. It waits no longer than a moment: the pool bounds what is under way.
pub trait Takes: Send {
    /// # Errors
    /// Nobody listens any more.
    fn take(&self, message: Message) -> Result<(), Gone>;
}

/// Why a stream has no end.
pub const WITHOUT_A_WORD: &str = "the stage before ended without a word";

/// The next stage has gone, and has said why elsewhere.
#[derive(Debug)]
pub struct Gone;

/// A pipe between two stages; the pool bounds the memory, `depth` only how many chunks wait in it.
pub fn pipe(depth: usize) -> (Sender, Receiver) {
    let (sender, receiver) = mpsc::sync_channel(depth);
    (Sender(Next::Stage(sender)), Receiver { origin: Origin::Stage(receiver), early: None, ended: false })
}

impl Sender {
    /// Sends to what is no stage of this process.
    pub fn to(other: Box<dyn Takes>) -> Sender {
        Sender(Next::Other(other))
    }

    /// # Errors
    /// Nobody listens any more.
    pub fn send(&self, chunk: Chunk, clock: &Clock) -> Result<(), Gone> {
        self.tell(Message::Chunk(chunk), clock)
    }

    /// All was sent.
    pub fn end(self) {
        // Nobody listens any more: then nobody needs to know.
        let _ = self.tell(Message::End, &Clock::default());
    }

    /// The stream is broken; the next stage gets the error when it comes to it.
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

/// What gives chunks besides a stage of this process.
pub trait Gives: Send {
    /// The next chunk; `None` after the end.
    ///
    /// # Errors
    /// That of whoever gives them.
    fn give(&mut self) -> io::Result<Option<Chunk>>;
}

/// Where a stage gets its chunks from.
pub struct Receiver {
    origin: Origin,
    /// Came before somebody asked for it.
    early: Option<Message>,
    ended: bool,
}

enum Origin {
    Stage(mpsc::Receiver<Message>),
    Other(Box<dyn Gives>),
}

impl Receiver {
    /// Chunks that no stage of this process gives.
    pub fn of(other: Box<dyn Gives>) -> Receiver {
        Receiver { origin: Origin::Other(other), early: None, ended: false }
    }

    /// Whether the next chunk, or the end, is here already.
    pub fn is_ready(&mut self) -> bool {
        if let (Origin::Stage(channel), None) = (&self.origin, &self.early) {
            self.early = channel.try_recv().ok();
        }
        self.early.is_some()
    }

    /// The next chunk; `None` after the end.
    ///
    /// # Errors
    /// That of the stage before.
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
        assert!(error.to_string().contains("without a word"));
    }

    #[test]
    fn who_sends_to_nobody_is_told() {
        let (sender, receiver) = pipe(1);
        drop(receiver);
        assert!(sender.send(chunk(&Pool::new(1, 4), b"x"), &Clock::default()).is_err());
    }
}
