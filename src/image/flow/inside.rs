//! The worker's side of the connection: receives the image, decodes it and sends the result to the agent.

use super::decode::{self, Plain, Refuse};
use super::lent::Lent;
use super::reader::Reader;
use super::ring::{Buffer, Chunk, Home, Pool, Sender, pipe};
use super::shared::{Region, Span};
use super::stages::{Clock, Stages};
use super::wire::{Event, INLINE, PACKET_BYTES, ToWorker, Wire};
use super::worker::{PACKED_BYTES, PLAIN_BYTES, SOURCE};
use super::{BUFFERS, PLAIN_BUFFER_BYTES, PLAIN_BUFFERS};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread;

/// Maximum length of an error message, in bytes.
const TEXT_BYTES: usize = 4000;

/// Receiver of the worker's output.
pub trait Outlet {
    /// Sends bytes as a copy.
    ///
    /// # Errors
    /// Returns an error if the receiver is gone.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Sends a chunk without a copy, if it is in shared memory.
    ///
    /// # Errors
    /// Returns an error if the receiver is gone.
    fn content(&mut self, chunk: Chunk) -> io::Result<()>;

    /// Sends what was put so far, because there may be nothing more for a while.
    ///
    /// # Errors
    /// Returns an error if the receiver is gone.
    fn flush(&mut self) -> io::Result<()>;
}

/// Everything that a worker receives at its start.
pub struct Inside {
    wire: Arc<Wire>,
    pub plain: Plain,
    packed: Span,
    pool: Pool,
    returned: Arc<Returned>,
    lent: Arc<Lent>,
}

impl Inside {
    /// Receives the first packet with the shared memory.
    ///
    /// # Errors
    /// Returns an error if the packet is invalid.
    pub fn open(socket: OwnedFd) -> io::Result<Inside> {
        let wire = Arc::new(Wire::over(socket));
        let mut packet = [0; 1];
        let (length, files) = wire.receive_with(&mut packet)?;
        let files = <[OwnedFd; 3]>::try_from(files).map_err(|_| {
            io::Error::other(
                "the start packet has no shared \
                                                                                  memory attached",
            )
        })?;
        let [packed, plain, returned] = files;
        let packed = Span::map(packed, Region::Packed, PACKED_BYTES, false)?;
        let arena = Span::map(plain, Region::Plain, PLAIN_BYTES, true)?;
        let pool = Pool::within(arena, PLAIN_BUFFERS, PLAIN_BUFFER_BYTES);
        let plain = Plain::of(packet[0])
            .filter(|_| length == 1)
            .ok_or_else(|| io::Error::other("the start packet is invalid"))?;
        let returned = Arc::new(Returned(File::from(returned)));
        Ok(Inside { wire, plain, packed, pool, returned, lent: Arc::default() })
    }

    /// Decodes the image and passes the output to `rest`, together with the answers of the agent and buffers whose
    /// content need not be copied. `alone` is called when the agent is gone.
    pub fn work(
        self,
        landlock: bool,
        refuse: Refuse,
        alone: fn(),
        rest: impl FnOnce(Reader, &mut Out, &mpsc::Receiver<[u64; 2]>, &Pool) -> io::Result<()>,
    ) {
        let mut out = self.out();
        let stages = Stages::start();
        // All buffers may be in flight once, followed by the end.
        let (sender, receiver) = pipe(BUFFERS + 1);
        let (tell, answers) = mpsc::channel();
        let Inside { wire, plain, packed, pool, returned, lent } = self;
        let counted = stages.clone();
        thread::spawn(move || {
            listen(&wire, sender, &packed, &returned, &lent, &tell, &counted);
            alone();
        });
        let source = Reader::new(receiver, stages.clock("decode"));
        let (to_last, of_decode) = pipe(PLAIN_BUFFERS);
        let (counted, made) = (stages.clone(), pool.clone());
        thread::spawn(move || decode::decode(source, plain, refuse, &made, &counted, to_last));
        let clock = match plain {
            Plain::Tar => stages.clock("untar"),
            Plain::Qcow2 => stages.clock("convert"),
            _ => Arc::default(),
        };
        // If the agent is gone, the result is not needed.
        let _ = out.event(&Event::Ready { landlock }).and_then(|()| out.flush()).and_then(|()| {
            match rest(Reader::new(of_decode, clock), &mut out, &answers, &pool) {
                Ok(()) => out.end(&stages),
                Err(error) => out.fail(&error),
            }
        });
    }

    /// Reports an error instead of starting to work.
    pub fn fail(self, error: &io::Error) {
        // If the agent is gone, the error is not needed.
        let _ = self.out().fail(error);
    }

    fn out(&self) -> Out {
        let (wire, lent) = (self.wire.clone(), self.lent.clone());
        Out { wire, lent, last: None, packet: Vec::with_capacity(PACKET_BYTES), inline: None }
    }
}

/// Passes a stream on unchanged.
///
/// # Errors
/// Returns the error of the stream, or an error if the receiver is gone.
pub fn pass_on(mut stream: Reader, out: &mut impl Outlet) -> io::Result<()> {
    while let Some(chunk) = stream.take_chunk(usize::MAX)? {
        out.content(chunk)?;
        out.flush()?;
    }
    Ok(())
}

/// Handles packets of the agent until the connection is closed.
fn listen(
    wire: &Wire,
    source: Sender,
    packed: &Span,
    returned: &Arc<Returned>,
    lent: &Lent,
    tell: &mpsc::Sender<[u64; 2]>,
    stages: &Stages,
) {
    let (mut source, mut packet, clock) = (Some(source), [0; 64], Clock::default());
    while let Some(word) = wire.receive(&mut packet).ok().and_then(|length| ToWorker::of(&packet[..length])) {
        match word {
            ToWorker::Packed { at, bytes } => {
                let Some(span) = packed.from(at as usize) else { return };
                let piece = Chunk::lent(span, returned.clone()).split_to(bytes as usize);
                // This fails only if the decoder is gone, and its error is on the way.
                let _ = source.as_ref().map(|source| source.send(piece, &clock));
            }
            ToWorker::Whole => drop(source.take().map(Sender::end)),
            ToWorker::Broken => drop(source.take().map(|source| source.fail(io::Error::other(SOURCE)))),
            ToWorker::Freed { region, at } => lent.give_back((region, at as usize)),
            ToWorker::Answer(answer) => {
                // After a failure the receiver does not wait for it.
                let _ = tell.send(answer);
            }
            ToWorker::Restart => stages.restart(),
        }
    }
}

/// Reports to the agent that a buffer of the image can be reused.
struct Returned(File);

impl Home for Returned {
    fn take_back(&self, buffer: Buffer) {
        if let Buffer::Shared(span) = buffer
            && let Ok(at) = u32::try_from(span.at())
        {
            // If the agent is gone, the buffer is not needed.
            let _ = (&self.0).write_all(&at.to_le_bytes());
        }
    }
}

/// Sender of packets to the agent.
pub struct Out {
    wire: Arc<Wire>,
    lent: Arc<Lent>,
    /// The buffer that was lent last.
    last: Option<(Region, usize)>,
    packet: Vec<u8>,
    /// Offset of the inline bytes that are still being added to; their length is not final.
    inline: Option<usize>,
}

impl Out {
    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.close();
        event.add_to(&mut self.packet);
        if self.packet.len() > PACKET_BYTES / 2 { self.flush() } else { Ok(()) }
    }

    fn end(&mut self, stages: &Stages) -> io::Result<()> {
        let busy = stages.busy();
        let busy = busy.iter().map(|(name, time)| (*name, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)));
        self.event(&Event::End(busy.collect()))?;
        self.flush()
    }

    fn fail(&mut self, error: &io::Error) -> io::Result<()> {
        let is_content = error.kind() == io::ErrorKind::InvalidData;
        let text = error.to_string();
        let text = String::from_utf8_lossy(&text.as_bytes()[..text.len().min(TEXT_BYTES)]).into_owned();
        self.event(&Event::Failed { is_content, text })?;
        self.flush()
    }

    fn close(&mut self) {
        if let Some(begin) = self.inline.take() {
            let length = u32::try_from(self.packet.len() - begin).unwrap_or_default();
            self.packet[begin - 4..begin].copy_from_slice(&length.to_le_bytes());
        }
    }
}

impl Outlet for Out {
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

    fn content(&mut self, chunk: Chunk) -> io::Result<()> {
        let Some((span, range)) = chunk.shared() else { return self.put(&chunk) };
        let place = (span.region(), span.at());
        let small = |number: usize| u32::try_from(number).map_err(io::Error::other);
        let (buffer, at, bytes) = (small(place.1)?, small(range.start)?, small(chunk.len())?);
        let is_new = self.last != Some(place);
        if is_new {
            self.last = Some(place);
            self.lent.add(place, chunk);
        }
        self.event(&Event::Lent { region: place.0, buffer, at, bytes })?;
        // Flush, since only few buffers are in flight at a time.
        if is_new { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.close();
        if self.packet.is_empty() {
            return Ok(());
        }
        let sent = self.wire.send(&self.packet);
        self.packet.clear();
        sent
    }
}
