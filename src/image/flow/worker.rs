//! The agent's side of the worker: a sandboxed process decodes the image and parses its content (`inside`), and this
//! module receives the result.
//!
//! ```text
//! fetch ─┬─> digest                                            agent
//!        └─> lent ─┐                        ┌─> Reader ─> untar, write
//! ─────────────────┼── shared memory, socket ┼──────────────────────────
//!                  └─> decode ─> members ────┘                 worker
//! ```
//!
//! The digest is computed here, so that a compromised worker cannot forge it. Events of the worker are only trusted to
//! be content of the image, or the reason why there is none.

use super::decode::Plain;
use super::lent::Lent;
use super::ring::{Buffer, Chunk, Gives, Gone, Home, Message, Pool, Sender, Takes, WITHOUT_A_WORD};
use super::shared::{Region, Span, create, seal};
use super::stages::Stages;
use super::wire::{Event, PACKET_BYTES, ToWorker, Wire};
use super::{BUFFER_BYTES, BUFFERS, PLAIN_BUFFER_BYTES, PLAIN_BUFFERS};
use crate::command::powerless::{Job, Powerless};
use crate::text::clean;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;

pub const PACKED_BYTES: usize = BUFFERS * BUFFER_BYTES;

/// Size of the region for output, including what is decoded in one piece.
pub const PLAIN_BYTES: usize = PLAIN_BUFFERS * PLAIN_BUFFER_BYTES + super::decode::MOST_WHOLE_BYTES;

/// Placeholder for the download error in messages of the worker. The worker does not learn that error; the agent
/// inserts it.
pub const SOURCE: &str = "\u{1}the source\u{1}";

/// A worker process and the reading end of its output.
pub struct Worker {
    line: Line,
    /// `None` if a test takes the place of the worker.
    process: Option<Powerless>,
    packed: Span,
    plain: Span,
    pool: Pool,
    lent: Arc<Lent>,
    /// Error of the download.
    broken: Broken,
    stages: Stages,
    packet: Vec<u8>,
    /// Unread rest of the packet.
    left: Range<usize>,
    /// The buffer that was lent last, with its region and offset.
    current: Option<((Region, usize), Chunk)>,
    is_ready: bool,
}

type Broken = Arc<Mutex<Option<String>>>;

/// Sending end of the connection to a worker.
#[derive(Clone)]
pub struct Line(Arc<Wire>);

impl Line {
    /// Restarts the measurement of time.
    pub fn restart(&self) {
        self.say(ToWorker::Restart);
    }

    /// Answers a question of the worker.
    pub fn answer(&self, answer: [u64; 2]) {
        self.say(ToWorker::Answer(answer));
    }

    /// Sends a packet. A closed connection is detected when reading.
    fn say(&self, word: ToWorker) {
        let _ = self.0.send(&word.packet());
    }
}

/// Reports to the worker that its buffer was released.
impl Home for Line {
    fn take_back(&self, buffer: Buffer) {
        if let Buffer::Shared(span) = buffer
            && let Ok(at) = u32::try_from(span.at())
        {
            self.say(ToWorker::Freed { region: span.region(), at });
        }
    }
}

impl Worker {
    /// Starts a worker. Its busy times are added to `stages`.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory, or /proc is missing.
    pub fn start(plain: Plain, stages: &Stages) -> io::Result<Worker> {
        let (wire, socket) = Wire::pair()?;
        let mut worker = Worker::speaking(wire, plain, stages)?;
        worker.process = Some(Powerless::start(Job::Image, socket)?);
        Ok(worker)
    }

    /// Sends the start packet to the other end of the socket.
    fn speaking(wire: Wire, plain: Plain, stages: &Stages) -> io::Result<Worker> {
        let (packed_file, plain_file) = (create(Region::Packed, PACKED_BYTES)?, create(Region::Plain, PLAIN_BYTES)?);
        let packed = Span::map(&packed_file, Region::Packed, PACKED_BYTES, true)?;
        seal(&packed_file)?;
        let plain_span = Span::map(&plain_file, Region::Plain, PLAIN_BYTES, false)?;
        let (returned, returns) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        wire.send_with(&[plain.number()], &[packed_file.as_fd(), plain_file.as_fd(), returns.as_fd()])?;
        let lent = Arc::<Lent>::default();
        let held = lent.clone();
        thread::spawn(move || give_back(File::from(returned), &held));
        Ok(Worker {
            line: Line(Arc::new(wire)),
            process: None,
            pool: Pool::within(packed.clone(), BUFFERS, BUFFER_BYTES),
            packed,
            plain: plain_span,
            lent,
            broken: Arc::default(),
            stages: stages.clone(),
            packet: vec![0; PACKET_BYTES],
            left: 0..0,
            current: None,
            is_ready: false,
        })
    }

    pub fn line(&self) -> Line {
        self.line.clone()
    }

    /// Returns the process id.
    #[cfg(test)]
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Powerless::id)
    }

    /// Returns the pool for the buffers that the worker reads.
    pub fn pool(&self) -> Pool {
        self.pool.clone()
    }

    /// Returns the sending end for the image. Chunks must be in buffers of the pool.
    pub fn sender(&self) -> Sender {
        let (line, lent, broken) = (self.line.clone(), self.lent.clone(), self.broken.clone());
        Sender::to(Box::new(ToThere { line, lent, broken, is_whole: Cell::new(false) }))
    }

    fn next_packet(&mut self) -> io::Result<()> {
        let length = self.line.0.receive(&mut self.packet)?;
        if length > 0 {
            self.left = 0..length;
            return Ok(());
        }
        let how = self.process.as_mut().map_or_else(String::new, |process| clean(&process.end()));
        Err(io::Error::other(format!("the worker that decodes the image ended unexpectedly: {how}")))
    }

    fn lent(&mut self, place: (Region, usize), range: Range<usize>) -> io::Result<Chunk> {
        let known = self.current.as_ref().filter(|(known, _)| *known == place);
        if known.is_none() {
            let memory = if place.0 == Region::Packed { &self.packed } else { &self.plain };
            let span = memory.from(place.1).ok_or_else(nonsense)?;
            self.current = Some((place, Chunk::lent(span, Arc::new(self.line.clone()))));
        }
        let whole = self.current.as_ref().map(|(_, whole)| whole.clone()).ok_or_else(nonsense)?;
        let skipped = range.start.checked_sub(place.1).ok_or_else(nonsense)?;
        whole.part(skipped..skipped + range.len()).ok_or_else(nonsense)
    }

    fn failed(&self, is_content: bool, text: &str) -> io::Error {
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        let text = clean(&text.replace(SOURCE, broken.as_deref().unwrap_or_default()));
        io::Error::new(if is_content { io::ErrorKind::InvalidData } else { io::ErrorKind::Other }, text)
    }
}

impl Gives for Worker {
    fn give(&mut self) -> io::Result<Option<Chunk>> {
        loop {
            if self.left.is_empty() {
                self.next_packet()?;
            }
            // Taken out while the event is parsed, which borrows it.
            let packet = std::mem::take(&mut self.packet);
            let mut words = &packet[self.left.clone()];
            let given = match Event::take(&mut words) {
                Some(Event::Ready { landlock }) if !self.is_ready => {
                    self.is_ready = true;
                    if !landlock {
                        warn_of_landlock();
                    }
                    Ok(None)
                }
                Some(Event::Failed { is_content, text }) => Err(self.failed(is_content, &text)),
                Some(Event::Lent { region, buffer, at, bytes }) if self.is_ready => {
                    self.lent((region, buffer as usize), at as usize..at as usize + bytes as usize).map(Some)
                }
                Some(Event::Inline(bytes)) if self.is_ready => Ok(Some(Chunk::own(bytes.to_vec()))),
                Some(Event::End(busy)) if self.is_ready => {
                    self.stages.add(busy);
                    self.current = None;
                    return Ok(None);
                }
                _ => Err(nonsense()),
            };
            let left = words.len();
            self.packet = packet;
            self.left.start = self.left.end - left;
            if let Some(chunk) = given? {
                return Ok(Some(chunk));
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // This also wakes the sending thread.
        self.line.0.hang_up();
    }
}

fn nonsense() -> io::Error {
    io::Error::other("the worker that decodes the image sent an invalid packet and is no longer trusted")
}

/// Logs the warning once: the kernel is the same for all images.
fn warn_of_landlock() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            "this kernel does not support Landlock; the image decoder is restricted by its user and a system call \
             filter only"
        );
    });
}

/// Sending end of the image to its worker. The download thread sends directly: another thread would cost a wake-up for
/// each buffer.
struct ToThere {
    line: Line,
    lent: Arc<Lent>,
    broken: Broken,
    /// Whether the end was sent.
    is_whole: Cell<bool>,
}

impl Takes for ToThere {
    fn take(&self, message: Message) -> Result<(), Gone> {
        let word = match message {
            Message::Chunk(chunk) => {
                let (place, word) = packed(&chunk).ok_or(Gone)?;
                self.lent.add(place, chunk);
                word
            }
            Message::End => {
                self.is_whole.set(true);
                ToWorker::Whole
            }
            Message::Failed(error) => {
                self.is_whole.set(true);
                *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                ToWorker::Broken
            }
        };
        // If the worker is gone, the reader reports why.
        self.line.0.send(&word.packet()).map_err(|_| Gone)
    }
}

impl Drop for ToThere {
    fn drop(&mut self) {
        if !self.is_whole.get() {
            // If the worker is gone, the message is not needed.
            let _ = self.take(Message::Failed(io::Error::other(WITHOUT_A_WORD)));
        }
    }
}

/// Converts a chunk to a request. The download fills buffers from their beginning, so the span's offset identifies the
/// buffer.
fn packed(chunk: &Chunk) -> Option<((Region, usize), ToWorker)> {
    let (span, range) = chunk.shared()?;
    let (at, bytes) = (u32::try_from(range.start).ok()?, u32::try_from(range.len()).ok()?);
    Some(((span.region(), span.at()), ToWorker::Packed { at, bytes }))
}

/// Releases buffers that the worker has read, until the pipe is closed.
fn give_back(mut returned: File, lent: &Lent) {
    let mut at = [0; 4];
    while returned.read_exact(&mut at).is_ok() {
        lent.give_back((Region::Packed, u32::from_le_bytes(at) as usize));
    }
}

#[cfg(test)]
mod tests;
