//! Buffers that go from stage to stage and come back: memory stays constant, and the slowest stage sets the pace.
//!
//! A [`Pool`] has a fixed number of buffers. A stage takes one, fills it and sends it on as a [`Chunk`], of which several
//! stages can hold parts without a copy. When the last of them lets go, the buffer is free again.

use super::stages::Clock;
use std::io::{self, BufRead, Read};
use std::ops::{Deref, DerefMut};
use std::sync::mpsc::{self, RecvError, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A fixed number of buffers of one size.
#[derive(Clone)]
pub struct Pool(Arc<Shelf>);

struct Shelf {
    free: Mutex<Free>,
    returned: Condvar,
    buffer_bytes: usize,
}

struct Free {
    buffers: Vec<Vec<u8>>,
    /// Made when they are needed for the first time: a small image needs few.
    unmade: usize,
}

impl Pool {
    pub fn new(buffers: usize, buffer_bytes: usize) -> Pool {
        let free = Mutex::new(Free { buffers: Vec::new(), unmade: buffers });
        Pool(Arc::new(Shelf { free, returned: Condvar::new(), buffer_bytes }))
    }

    /// A buffer to fill, as soon as there is one.
    pub fn take(&self, clock: &Clock) -> Filling {
        let mut free = self.0.lock();
        let buffer = loop {
            if let Some(buffer) = free.buffers.pop() {
                break buffer;
            }
            if free.unmade > 0 {
                free.unmade -= 1;
                break vec![0; self.0.buffer_bytes];
            }
            free = clock.waiting(|| self.0.returned.wait(free).unwrap_or_else(PoisonError::into_inner));
        };
        Filling(Held { buffer, shelf: self.0.clone() })
    }
}

impl Shelf {
    /// Nothing is left half-done under the lock, so a panic elsewhere does not matter.
    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Held {
    buffer: Vec<u8>,
    shelf: Arc<Shelf>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shelf.lock().buffers.push(std::mem::take(&mut self.buffer));
        self.shelf.returned.notify_one();
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
        &mut self.0.buffer
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

enum Message {
    Chunk(Chunk),
    End,
    Failed(io::Error),
}

/// What a stage sends to the next one. Dropped without [`Sender::end`] or [`Sender::fail`] it counts as a failure: a stage that
/// panicked must not look like the end of the stream.
pub struct Sender(mpsc::SyncSender<Message>);

/// The next stage has gone, and has said why elsewhere.
#[derive(Debug)]
pub struct Gone;

/// A pipe between two stages; the pool bounds the memory, `depth` only how many chunks wait in it.
pub fn pipe(depth: usize) -> (Sender, Receiver) {
    let (sender, receiver) = mpsc::sync_channel(depth);
    (Sender(sender), Receiver { channel: receiver, ended: false })
}

impl Sender {
    /// # Errors
    /// Nobody listens any more.
    pub fn send(&self, chunk: Chunk, clock: &Clock) -> Result<(), Gone> {
        match self.0.try_send(Message::Chunk(chunk)) {
            Ok(()) => Ok(()),
            Err(mpsc::TrySendError::Full(message)) => clock.waiting(|| self.0.send(message)).map_err(|_| Gone),
            Err(mpsc::TrySendError::Disconnected(_)) => Err(Gone),
        }
    }

    /// All was sent.
    pub fn end(self) {
        // Nobody listens any more: then nobody needs to know.
        let _ = self.0.send(Message::End);
    }

    /// The stream is broken; the next stage gets the error when it comes to it.
    pub fn fail(self, error: io::Error) {
        let _ = self.0.send(Message::Failed(error));
    }
}

/// Where a stage gets its chunks from.
pub struct Receiver {
    channel: mpsc::Receiver<Message>,
    ended: bool,
}

impl Receiver {
    /// The next chunk; `None` after the end.
    ///
    /// # Errors
    /// That of the stage before.
    pub fn next(&mut self, clock: &Clock) -> io::Result<Option<Chunk>> {
        if self.ended {
            return Ok(None);
        }
        let message = match self.channel.try_recv() {
            Err(TryRecvError::Empty) => clock.waiting(|| self.channel.recv()),
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
            Err(RecvError) => Err(io::Error::other("the stage before ended without a word")),
        }
    }
}

/// The chunks of a [`Receiver`] as one stream of bytes.
pub struct Reader {
    receiver: Receiver,
    clock: Arc<Clock>,
    current: Option<Chunk>,
    /// What comes after it, where that is here already.
    behind: Option<Chunk>,
    position: u64,
}

impl Reader {
    pub fn new(receiver: Receiver, clock: Arc<Clock>) -> Reader {
        Reader { receiver, clock, current: None, behind: None, position: 0 }
    }

    /// What counts this thread's waits; for what it sends on, too.
    pub fn clock(&self) -> Arc<Clock> {
        self.clock.clone()
    }

    /// From now on the waits count on another one: the work has gone to another thread.
    pub fn count_on(&mut self, clock: Arc<Clock>) {
        self.clock = clock;
    }

    /// Bytes taken so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Up to `count` bytes without a copy, at least one; `None` at the end.
    ///
    /// # Errors
    /// That of the stage before.
    pub fn take_chunk(&mut self, count: usize) -> io::Result<Option<Chunk>> {
        if !self.advance()? {
            return Ok(None);
        }
        let chunk = self.current.as_mut().map(|current| current.split_to(count));
        self.position += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        Ok(chunk)
    }

    /// The next `count` bytes in one piece, without taking them; fewer at the end. They are copied where they came in several.
    ///
    /// # Errors
    /// That of the stage before: nothing more is to be had then.
    pub fn look_ahead(&mut self, count: usize) -> io::Result<&[u8]> {
        if self.advance()? && self.current.as_ref().is_some_and(|current| current.len() < count) {
            let position = self.position;
            let mut whole = Pool::new(1, count).take(&self.clock);
            let mut filled = 0;
            while filled < count
                && let Some(chunk) = self.take_chunk(count - filled)?
            {
                whole[filled..filled + chunk.len()].copy_from_slice(&chunk);
                filled += chunk.len();
            }
            // All that was behind is in it or in the current one.
            self.behind = self.current.replace(whole.filled(filled));
            self.position = position;
        }
        let current = self.current.as_deref().unwrap_or_default();
        Ok(&current[..count.min(current.len())])
    }

    /// Whether there is a byte ahead.
    fn advance(&mut self) -> io::Result<bool> {
        while self.current.as_ref().is_none_or(|current| current.is_empty()) {
            // Before waiting for the next one: it may need this buffer.
            self.current = None;
            let next = self.behind.take().map_or_else(|| self.receiver.next(&self.clock), |chunk| Ok(Some(chunk)))?;
            match next {
                Some(chunk) => self.current = Some(chunk),
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

impl BufRead for Reader {
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

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.fill_buf()?.read(buf)?;
        self.consume(got);
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn who_looks_ahead_takes_nothing() {
        for (length, ahead) in [(1, 100), (7, 1), (7, 7), (7, 8), (7, 100), (7, 1000), (1000, 30)] {
            let bytes: Vec<u8> = (0..200u8).collect();
            let mut reader = crate::image::testing::reader(&bytes, length);
            assert_eq!(reader.take_chunk(3).unwrap().map_or(0, |chunk| chunk.len()), length.min(3));
            let at = length.min(3);
            for count in [1, ahead, ahead, 2 * ahead, 5] {
                let end = (at + count).min(bytes.len());
                assert_eq!(reader.look_ahead(count).unwrap(), &bytes[at..end], "{count} in pieces of {length}");
                assert_eq!(reader.position(), at as u64);
            }
            let mut rest = Vec::new();
            reader.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, &bytes[at..]);
            assert_eq!(reader.look_ahead(1).unwrap(), b"");
        }
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
