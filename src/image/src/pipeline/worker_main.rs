//! The worker's side of the connection: receives the image, decodes it and sends the result to the agent.

use super::buffer_pipe::{BufferChunk, BufferMemory, BufferOwner, BufferPool, PipeSender, create_pipe};
use super::decode::{self, PayloadKind, RefusePayload};
use super::peer_held_buffers::PeerHeldBuffers;
use super::pipe_reader::PipelineReader;
use super::shared_memory::{SharedRegion, SharedSpan};
use super::stage_clock::{StageClock, StageClocks};
use super::worker_client::{PACKED_BYTES, PLAIN_BYTES, SOURCE};
use super::worker_protocol::{INLINE, PACKET_BYTES, WorkerEvent, WorkerRequest, WorkerSocket};
use super::{BUFFERS, PLAIN_BUFFER_BYTES, PLAIN_BUFFERS};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread;

/// Maximum length of an error message, in bytes.
const TEXT_BYTES: usize = 4000;

/// Receiver of the worker's output.
pub(crate) trait WorkerOutput {
    /// Adds bytes, which are copied, to the output.
    ///
    /// # Errors
    /// Returns an error if the receiver is gone.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Adds a chunk to the output. A chunk in shared memory is not copied.
    ///
    /// # Errors
    /// Returns an error if the receiver is gone.
    fn content(&mut self, chunk: BufferChunk) -> io::Result<()>;

    /// Sends all output added so far. Must be called before each wait for input; otherwise the output would reach the
    /// receiver only after the wait.
    ///
    /// # Errors
    /// Returns an error if the receiver is gone.
    fn flush(&mut self) -> io::Result<()>;
}

/// Parameters, memory and sockets that a worker receives when it starts.
pub(crate) struct WorkerStart {
    wire: Arc<WorkerSocket>,
    pub plain: PayloadKind,
    packed: SharedSpan,
    pool: BufferPool,
    returned: Arc<ReturnPipe>,
    lent: Arc<PeerHeldBuffers>,
}

impl WorkerStart {
    /// Receives the first packet, to which the shared memory is attached.
    ///
    /// # Errors
    /// Returns an error if the packet is invalid.
    pub(crate) fn receive_start(socket: OwnedFd) -> io::Result<WorkerStart> {
        let wire = Arc::new(WorkerSocket::over(socket));
        let mut packet = [0; 1];
        let (length, files) = wire.receive_with(&mut packet)?;
        let files = <[OwnedFd; 3]>::try_from(files)
            .map_err(|_| io::Error::other("the start packet does not carry a descriptor of the shared memory"))?;
        let [packed, plain, returned] = files;
        let packed = SharedSpan::map(packed, SharedRegion::Packed, PACKED_BYTES, false)?;
        let arena = SharedSpan::map(plain, SharedRegion::Plain, PLAIN_BYTES, true)?;
        let pool = BufferPool::in_arena(arena, PLAIN_BUFFERS, PLAIN_BUFFER_BYTES);
        let plain = PayloadKind::from_number(packet[0])
            .filter(|_| length == 1)
            .ok_or_else(|| io::Error::other("the start packet is invalid"))?;
        let returned = Arc::new(ReturnPipe(File::from(returned)));
        Ok(WorkerStart { wire, plain, packed, pool, returned, lent: Arc::default() })
    }

    /// Decodes the image and calls `rest` with the decompressed stream, the sender of packets to the agent, the
    /// receiver of the agent's answers, and a pool of buffers in shared memory. `alone` is called when the connection
    /// to the agent is closed.
    pub(crate) fn run(
        self,
        landlock: bool,
        refuse: RefusePayload,
        alone: fn(),
        rest: impl FnOnce(PipelineReader, &mut PacketSender, &mpsc::Receiver<[u64; 2]>, &BufferPool) -> io::Result<()>,
    ) {
        let mut out = self.open_sender();
        let stages = StageClocks::start();
        // The pipe has room for all buffers and the end of the stream, so sending to it never blocks.
        let (sender, receiver) = create_pipe(BUFFERS + 1);
        let (tell, answers) = mpsc::channel();
        let WorkerStart { wire, plain, packed, pool, returned, lent } = self;
        let counted = stages.clone();
        thread::spawn(move || {
            receive_packets(&wire, sender, &packed, &returned, &lent, &tell, &counted);
            alone();
        });
        let source = PipelineReader::new(receiver, stages.add_clock("decode"));
        let (to_last, of_decode) = create_pipe(PLAIN_BUFFERS);
        let (counted, made) = (stages.clone(), pool.clone());
        thread::spawn(move || decode::decode(source, plain, refuse, &made, &counted, to_last));
        let clock = match plain {
            PayloadKind::Tar => stages.add_clock("untar"),
            PayloadKind::Qcow2 => stages.add_clock("convert"),
            _ => Arc::default(),
        };
        // An error is ignored: if the agent has exited, it does not need the result.
        let _ = out.add_event(&WorkerEvent::Ready { landlock }).and_then(|()| out.flush()).and_then(|()| {
            match rest(PipelineReader::new(of_decode, clock), &mut out, &answers, &pool) {
                Ok(()) => out.send_end(&stages),
                Err(error) => out.send_failure(&error),
            }
        });
    }

    /// Reports an error to the agent instead of decoding the image.
    pub(crate) fn report_error(self, error: &io::Error) {
        // A failure to send is ignored: if the agent has exited, it does not need the error.
        let _ = self.open_sender().send_failure(error);
    }

    fn open_sender(&self) -> PacketSender {
        let (wire, lent) = (self.wire.clone(), self.lent.clone());
        PacketSender { wire, lent, last: None, packet: Vec::with_capacity(PACKET_BYTES), inline: None }
    }
}

/// Passes a stream on unchanged.
///
/// # Errors
/// Returns the error of the stream, or an error if the receiver is gone.
pub(crate) fn pass_through(mut stream: PipelineReader, out: &mut impl WorkerOutput) -> io::Result<()> {
    while let Some(chunk) = stream.take_chunk(usize::MAX)? {
        out.content(chunk)?;
        out.flush()?;
    }
    Ok(())
}

/// Handles packets of the agent until the connection is closed.
fn receive_packets(
    wire: &WorkerSocket,
    source: PipeSender,
    packed: &SharedSpan,
    returned: &Arc<ReturnPipe>,
    lent: &PeerHeldBuffers,
    tell: &mpsc::Sender<[u64; 2]>,
    stages: &StageClocks,
) {
    let (mut source, mut packet, clock) = (Some(source), [0; 64], StageClock::default());
    while let Some(word) =
        wire.receive(&mut packet).ok().and_then(|length| WorkerRequest::from_packet(&packet[..length]))
    {
        match word {
            WorkerRequest::Packed { at, bytes } => {
                let Some(span) = packed.slice_from(at as usize) else { return };
                let piece = BufferChunk::from_shared(span, returned.clone()).split_to(bytes as usize);
                // An error is ignored: this call fails only if the decoder has ended, and the decoder's error is then
                // already being sent.
                let _ = source.as_ref().map(|source| source.send(piece, &clock));
            }
            WorkerRequest::Whole => drop(source.take().map(PipeSender::end)),
            WorkerRequest::Broken => drop(source.take().map(|source| source.fail(io::Error::other(SOURCE)))),
            WorkerRequest::Freed { region, at } => lent.release((region, at as usize)),
            WorkerRequest::Answer(answer) => {
                // An error is ignored: if the receiver has failed, it does not need the answer.
                let _ = tell.send(answer);
            }
            WorkerRequest::Restart => stages.restart(),
        }
    }
}

/// Pipe through which the worker reports to the agent that a buffer of the image can be reused.
struct ReturnPipe(File);

impl BufferOwner for ReturnPipe {
    fn take_back(&self, buffer: BufferMemory) {
        if let BufferMemory::Shared(span) = buffer
            && let Ok(at) = u32::try_from(span.at())
        {
            // An error is ignored: if the agent has exited, it does not need the buffer.
            let _ = (&self.0).write_all(&at.to_le_bytes());
        }
    }
}

/// Sender of packets to the agent.
pub(crate) struct PacketSender {
    wire: Arc<WorkerSocket>,
    lent: Arc<PeerHeldBuffers>,
    /// Region and offset of the buffer to which the last event referred.
    last: Option<(SharedRegion, usize)>,
    packet: Vec<u8>,
    /// Offset in the packet of inline bytes to which more bytes may be appended; `None` if there are no such bytes. The
    /// length of the inline bytes is written into the packet when they are complete.
    inline: Option<usize>,
}

impl PacketSender {
    fn add_event(&mut self, event: &WorkerEvent) -> io::Result<()> {
        self.close_inline();
        event.append_to(&mut self.packet);
        if self.packet.len() > PACKET_BYTES / 2 { self.flush() } else { Ok(()) }
    }

    fn send_end(&mut self, stages: &StageClocks) -> io::Result<()> {
        let busy = stages.busy();
        let busy = busy.iter().map(|(name, time)| (*name, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)));
        self.add_event(&WorkerEvent::End(busy.collect()))?;
        self.flush()
    }

    fn send_failure(&mut self, error: &io::Error) -> io::Result<()> {
        let is_content = error.kind() == io::ErrorKind::InvalidData;
        let text = error.to_string();
        let text = String::from_utf8_lossy(&text.as_bytes()[..text.len().min(TEXT_BYTES)]).into_owned();
        self.add_event(&WorkerEvent::Failed { is_content, text })?;
        self.flush()
    }

    fn close_inline(&mut self) {
        if let Some(begin) = self.inline.take() {
            let length = u32::try_from(self.packet.len() - begin).unwrap_or_default();
            self.packet[begin - 4..begin].copy_from_slice(&length.to_le_bytes());
        }
    }
}

impl WorkerOutput for PacketSender {
    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.packet.len() + 5 >= PACKET_BYTES {
                self.flush()?;
            }
            if self.inline.is_none() {
                self.packet.extend([INLINE, 0, 0, 0, 0]);
                self.inline = Some(self.packet.len());
            }
            let (now, later) = bytes.split_at(bytes.len().min(PACKET_BYTES - self.packet.len()));
            self.packet.extend(now);
            bytes = later;
        }
        Ok(())
    }

    fn content(&mut self, chunk: BufferChunk) -> io::Result<()> {
        let Some((span, range)) = chunk.shared_range() else { return self.put(&chunk) };
        let place = (span.region(), span.at());
        let small = |number: usize| u32::try_from(number).map_err(io::Error::other);
        let (buffer, at, bytes) = (small(place.1)?, small(range.start)?, small(chunk.len())?);
        let is_new = self.last != Some(place);
        if is_new {
            self.last = Some(place);
            self.lent.add(place, chunk);
        }
        self.add_event(&WorkerEvent::SharedBuffer { region: place.0, buffer, at, bytes })?;
        // The packet is sent immediately, because only few buffers are in flight at a time, and the agent may be
        // waiting for this one.
        if is_new { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.close_inline();
        if self.packet.is_empty() {
            return Ok(());
        }
        let sent = self.wire.send(&self.packet);
        self.packet.clear();
        sent
    }
}
