//! Client of the worker, in the agent. The worker is a sandboxed process that decodes the image and parses its content
//! (`worker_main`). This module passes the fetched buffers to the worker, and receives its output.
//!
//! ```text
//! fetch ─┬─> digest                                            agent
//!        └─> pass ─┐                        ┌─> Reader ─> untar, write
//! ─────────────────┼── shared memory, socket ┼──────────────────────────
//!                  └─> decode ─> members ────┘                 worker
//! ```
//!
//! The digest is computed in the agent, so that a compromised worker cannot forge it. Events from the worker are
//! untrusted: the agent uses their data only as content of the image or as an error message.

use super::buffer_pipe::{
    BufferChunk, BufferMemory, BufferOwner, BufferPool, ChunkSink, ChunkSource, PipeMessage, PipeSender, ReceiverGone,
    UNEXPECTED_END,
};
use super::decode::PayloadKind;
use super::peer_held_buffers::PeerHeldBuffers;
use super::shared_memory::{SharedRegion, SharedSpan, create_memory, seal_writes};
use super::stage_clock::StageClocks;
use super::worker_protocol::{PACKET_BYTES, WorkerEvent, WorkerRequest, WorkerSocket};
use super::{BUFFER_BYTES, BUFFERS, PLAIN_BUFFER_BYTES, PLAIN_BUFFERS};
use common::format::replace_hidden;
use common::sync::lock_mutex;
use linux::process::worker_process::{WorkerJob, WorkerProcess};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Once};
use std::thread;

pub(crate) const PACKED_BYTES: usize = BUFFERS * BUFFER_BYTES;

/// Size of the region for the worker's output, in bytes, including the buffers for frames that are decoded in one
/// piece.
pub(crate) const PLAIN_BYTES: usize = PLAIN_BUFFERS * PLAIN_BUFFER_BYTES + super::decode::MAXIMUM_WHOLE_FRAME_BYTES;

/// Placeholder for the download error in messages of the worker. The worker does not receive the download error, so the
/// agent inserts the error into the worker's message.
pub(crate) const SOURCE: &str = "\u{1}the source\u{1}";

/// Worker process, and the receiving end of its output.
pub(crate) struct DecodeWorker {
    line: WorkerConnection,
    /// Worker process; `None` in tests that simulate the worker.
    process: Option<WorkerProcess>,
    packed: SharedSpan,
    plain: SharedSpan,
    pool: BufferPool,
    lent: Arc<PeerHeldBuffers>,
    /// Error of the download, if the download has failed.
    broken: SharedDownloadError,
    stages: StageClocks,
    packet: Vec<u8>,
    /// Range of the packet that has not been parsed yet.
    left: Range<usize>,
    /// Buffer to which the worker's last event referred, with its region and its offset in the region.
    current: Option<((SharedRegion, usize), BufferChunk)>,
    is_ready: bool,
}

type SharedDownloadError = Arc<Mutex<Option<String>>>;

/// Sending end of the connection to a worker.
#[derive(Clone)]
pub(crate) struct WorkerConnection(Arc<WorkerSocket>);

impl WorkerConnection {
    /// Restarts the time measurement of the worker.
    pub(crate) fn restart(&self) {
        self.send_request(WorkerRequest::Restart);
    }

    /// Sends the current limits to the worker, which has requested them.
    pub(crate) fn answer(&self, answer: [u64; 2]) {
        self.send_request(WorkerRequest::Answer(answer));
    }

    /// Sends a packet. Errors are ignored, since a closed connection is detected when reading.
    fn send_request(&self, word: WorkerRequest) {
        let _ = self.0.send(&word.to_packet());
    }
}

/// Reports to the worker that the agent has released one of the worker's buffers.
impl BufferOwner for WorkerConnection {
    fn take_back(&self, buffer: BufferMemory) {
        if let BufferMemory::Shared(span) = buffer
            && let Ok(at) = u32::try_from(span.at())
        {
            self.send_request(WorkerRequest::Freed { region: span.region(), at });
        }
    }
}

impl DecodeWorker {
    /// Starts a worker process. When the process ends, the busy times of its stages are added to `stages`.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory, or /proc is missing.
    pub fn start(plain: PayloadKind, stages: &StageClocks) -> io::Result<DecodeWorker> {
        let (wire, socket) = WorkerSocket::create_pair()?;
        let mut worker = DecodeWorker::connect(wire, plain, stages)?;
        worker.process = Some(WorkerProcess::start(WorkerJob::Image, socket)?);
        Ok(worker)
    }

    /// Sends the start packet to the other end of the socket.
    fn connect(wire: WorkerSocket, plain: PayloadKind, stages: &StageClocks) -> io::Result<DecodeWorker> {
        let (packed_file, plain_file) =
            (create_memory(SharedRegion::Packed, PACKED_BYTES)?, create_memory(SharedRegion::Plain, PLAIN_BYTES)?);
        let packed = SharedSpan::map(&packed_file, SharedRegion::Packed, PACKED_BYTES, true)?;
        seal_writes(&packed_file)?;
        let plain_span = SharedSpan::map(&plain_file, SharedRegion::Plain, PLAIN_BYTES, false)?;
        let (returned, returns) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        wire.send_with(&[plain.number()], &[packed_file.as_fd(), plain_file.as_fd(), returns.as_fd()])?;
        let lent = Arc::<PeerHeldBuffers>::default();
        let held = lent.clone();
        thread::spawn(move || release_returned(File::from(returned), &held));
        Ok(DecodeWorker {
            line: WorkerConnection(Arc::new(wire)),
            process: None,
            pool: BufferPool::in_arena(packed.clone(), BUFFERS, BUFFER_BYTES),
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

    pub(crate) fn line(&self) -> WorkerConnection {
        self.line.clone()
    }

    /// Returns the process id of the worker.
    #[cfg(test)]
    pub(crate) fn id(&self) -> Option<u32> {
        self.process.as_ref().map(WorkerProcess::id)
    }

    /// Returns the pool for the buffers that the worker reads.
    pub(crate) fn pool(&self) -> BufferPool {
        self.pool.clone()
    }

    /// Returns the pipe through which the image is sent to the worker. Chunks must be in buffers of [`Self::pool`].
    pub(crate) fn sender(&self) -> PipeSender {
        let (line, lent, broken) = (self.line.clone(), self.lent.clone(), self.broken.clone());
        PipeSender::to_sink(Box::new(WorkerSink { line, lent, broken, is_whole: Cell::new(false) }))
    }

    fn receive_packet(&mut self) -> io::Result<()> {
        let length = self.line.0.receive(&mut self.packet)?;
        if length > 0 {
            self.left = 0..length;
            return Ok(());
        }
        let how = self.process.as_mut().map_or_else(String::new, |process| replace_hidden(&process.describe_end()));
        Err(io::Error::other(format!("the worker process that decodes the image ended unexpectedly: {how}")))
    }

    fn chunk_in_buffer(&mut self, place: (SharedRegion, usize), range: Range<usize>) -> io::Result<BufferChunk> {
        let known = self.current.as_ref().filter(|(known, _)| *known == place);
        if known.is_none() {
            let memory = if place.0 == SharedRegion::Packed { &self.packed } else { &self.plain };
            let span = memory.slice_from(place.1).ok_or_else(protocol_error)?;
            self.current = Some((place, BufferChunk::from_shared(span, Arc::new(self.line.clone()))));
        }
        let whole = self.current.as_ref().map(|(_, whole)| whole.clone()).ok_or_else(protocol_error)?;
        let skipped = range.start.checked_sub(place.1).ok_or_else(protocol_error)?;
        whole.slice(skipped..skipped + range.len()).ok_or_else(protocol_error)
    }

    fn worker_error(&self, is_content: bool, text: &str) -> io::Error {
        let broken = lock_mutex(&self.broken);
        let text = replace_hidden(&text.replace(SOURCE, broken.as_deref().unwrap_or_default()));
        io::Error::new(if is_content { io::ErrorKind::InvalidData } else { io::ErrorKind::Other }, text)
    }
}

impl ChunkSource for DecodeWorker {
    fn next_chunk(&mut self) -> io::Result<Option<BufferChunk>> {
        loop {
            if self.left.is_empty() {
                self.receive_packet()?;
            }
            // The packet is taken out of `self`, because the parsed event borrows it.
            let packet = std::mem::take(&mut self.packet);
            let mut words = &packet[self.left.clone()];
            let given = match WorkerEvent::parse_front(&mut words) {
                Some(WorkerEvent::Ready { landlock }) if !self.is_ready => {
                    self.is_ready = true;
                    if !landlock {
                        warn_without_landlock();
                    }
                    Ok(None)
                }
                Some(WorkerEvent::Failed { is_content, text }) => Err(self.worker_error(is_content, &text)),
                Some(WorkerEvent::SharedBuffer { region, buffer, at, bytes }) if self.is_ready => {
                    self.chunk_in_buffer((region, buffer as usize), at as usize..at as usize + bytes as usize).map(Some)
                }
                Some(WorkerEvent::Inline(bytes)) if self.is_ready => Ok(Some(BufferChunk::from_vec(bytes.to_vec()))),
                Some(WorkerEvent::End(busy)) if self.is_ready => {
                    self.stages.add_busy_times(busy);
                    self.current = None;
                    return Ok(None);
                }
                _ => Err(protocol_error()),
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

impl Drop for DecodeWorker {
    fn drop(&mut self) {
        // Closing the socket also wakes the thread that sends the image.
        self.line.0.close();
    }
}

fn protocol_error() -> io::Error {
    io::Error::other(
        "the worker process that decodes the image sent an invalid packet, so its output is no longer trusted",
    )
}

/// Logs a warning on the first call only, because the warning concerns the kernel and not the image.
fn warn_without_landlock() {
    static LIMIT_REPORTED: Once = Once::new();
    LIMIT_REPORTED.call_once(|| {
        tracing::warn!(
            "this kernel does not support Landlock: the image decoder is restricted only by its unprivileged user and \
             a system call filter"
        );
    });
}

/// Sink that sends the image to the worker. The download thread calls it directly, because a separate thread would cost
/// a wake-up for each buffer.
struct WorkerSink {
    line: WorkerConnection,
    lent: Arc<PeerHeldBuffers>,
    broken: SharedDownloadError,
    /// Whether the end of the image, or an error, was sent.
    is_whole: Cell<bool>,
}

impl ChunkSink for WorkerSink {
    fn take_message(&self, message: PipeMessage) -> Result<(), ReceiverGone> {
        let word = match message {
            PipeMessage::Chunk(chunk) => {
                let (place, word) = packed_request(&chunk).ok_or(ReceiverGone)?;
                self.lent.add(place, chunk);
                word
            }
            PipeMessage::End => {
                self.is_whole.set(true);
                WorkerRequest::Whole
            }
            PipeMessage::Failed(error) => {
                self.is_whole.set(true);
                *lock_mutex(&self.broken) = Some(error.to_string());
                WorkerRequest::Broken
            }
        };
        // The cause is not reported here: if the worker has exited, the thread that reads its output reports why.
        self.line.0.send(&word.to_packet()).map_err(|_| ReceiverGone)
    }
}

impl Drop for WorkerSink {
    fn drop(&mut self) {
        if !self.is_whole.get() {
            // An error is ignored: if the worker has exited, it does not need the message.
            let _ = self.take_message(PipeMessage::Failed(io::Error::other(UNEXPECTED_END)));
        }
    }
}

/// Returns the request that passes a chunk to the worker, and the region and offset of the chunk's buffer. Returns
/// `None` if the chunk is in private memory.
fn packed_request(chunk: &BufferChunk) -> Option<((SharedRegion, usize), WorkerRequest)> {
    let (span, range) = chunk.shared_range()?;
    let (at, bytes) = (u32::try_from(range.start).ok()?, u32::try_from(range.len()).ok()?);
    Some(((span.region(), span.at()), WorkerRequest::Packed { at, bytes }))
}

/// Releases the buffers that the worker reports as read, until the worker closes the pipe.
fn release_returned(mut returned: File, lent: &PeerHeldBuffers) {
    let mut at = [0; 4];
    while returned.read_exact(&mut at).is_ok() {
        lent.release((SharedRegion::Packed, u32::from_le_bytes(at) as usize));
    }
}

#[cfg(test)]
mod tests;
