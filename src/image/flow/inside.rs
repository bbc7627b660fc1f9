//! The worker's end: what it gets, decodes and sends on.

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

/// Longer words are nobody's.
const TEXT_BYTES: usize = 4000;

/// Where what is made of the image goes.
pub trait Outlet {
    /// Bytes that are copied.
    ///
    /// # Errors
    /// Nobody listens any more.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Bytes that stay where they are.
    ///
    /// # Errors
    /// Nobody listens any more.
    fn content(&mut self, chunk: Chunk) -> io::Result<()>;

    /// What was put so far is sent: nothing may come for a while.
    ///
    /// # Errors
    /// Nobody listens any more.
    fn flush(&mut self) -> io::Result<()>;
}

/// What a worker is given.
pub struct Inside {
    wire: Arc<Wire>,
    pub plain: Plain,
    packed: Span,
    pool: Pool,
    returned: Arc<Returned>,
    lent: Arc<Lent>,
}

impl Inside {
    /// Takes the order that comes first.
    ///
    /// # Errors
    /// It is none.
    pub fn open(socket: OwnedFd) -> io::Result<Inside> {
        let wire = Arc::new(Wire::over(socket));
        let mut packet = [0; 1];
        let (length, files) = wire.receive_with(&mut packet)?;
        let files = <[OwnedFd; 3]>::try_from(files).map_err(|_| io::Error::other("the order comes without memory"))?;
        let [packed, plain, returned] = files;
        let packed = Span::map(packed, Region::Packed, PACKED_BYTES, false)?;
        let arena = Span::map(plain, Region::Plain, PLAIN_BYTES, true)?;
        let pool = Pool::within(arena, PLAIN_BUFFERS, PLAIN_BUFFER_BYTES);
        let plain =
            Plain::of(packet[0]).filter(|_| length == 1).ok_or_else(|| io::Error::other("the order is none"))?;
        let returned = Arc::new(Returned(File::from(returned)));
        Ok(Inside { wire, plain, packed, pool, returned, lent: Arc::default() })
    }

    /// Decodes, and hands what comes out to `rest`, which sends on what it makes of it, with the answers to what it asks and with
    /// buffers that need not be copied on the way.
    /// `alone` is called when nobody listens any more.
    pub fn work(
        self,
        landlock: bool,
        refuse: Refuse,
        alone: fn(),
        rest: impl FnOnce(Reader, &mut Out, &mpsc::Receiver<[u64; 2]>, &Pool) -> io::Result<()>,
    ) {
        let mut out = self.out();
        let stages = Stages::start();
        // Each of the buffers is on its way once, and then there is the end.
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
        // Who does not listen needs no end.
        let _ = out.event(&Event::Ready { landlock }).and_then(|()| out.flush()).and_then(|()| {
            match rest(Reader::new(of_decode, clock), &mut out, &answers, &pool) {
                Ok(()) => out.end(&stages),
                Err(error) => out.fail(&error),
            }
        });
    }

    /// In place of work.
    pub fn fail(self, error: &io::Error) {
        // Who does not listen needs no end.
        let _ = self.out().fail(error);
    }

    fn out(&self) -> Out {
        let (wire, lent) = (self.wire.clone(), self.lent.clone());
        Out { wire, lent, last: None, packet: Vec::with_capacity(PACKET_BYTES), inline: None }
    }
}

/// Sends a stream on as it is.
///
/// # Errors
/// The stream's own; nobody listens any more.
pub fn pass_on(mut stream: Reader, out: &mut impl Outlet) -> io::Result<()> {
    while let Some(chunk) = stream.take_chunk(usize::MAX)? {
        out.content(chunk)?;
        out.flush()?;
    }
    Ok(())
}

/// What the agent says, until it says no more.
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
                // An error here says that nobody decodes any more: why is on its way.
                let _ = source.as_ref().map(|source| source.send(piece, &clock));
            }
            ToWorker::Whole => drop(source.take().map(Sender::end)),
            ToWorker::Broken => drop(source.take().map(|source| source.fail(io::Error::other(SOURCE)))),
            ToWorker::Freed { region, at } => lent.give_back((region, at as usize)),
            ToWorker::Answer(answer) => {
                // Who has failed does not wait for it.
                let _ = tell.send(answer);
            }
            ToWorker::Restart => stages.restart(),
        }
    }
}

/// Tells the agent that a buffer of the image may be filled again.
struct Returned(File);

impl Home for Returned {
    fn take_back(&self, buffer: Buffer) {
        if let Buffer::Shared(span) = buffer
            && let Ok(at) = u32::try_from(span.at())
        {
            // Nobody listens any more: then nobody fills it.
            let _ = (&self.0).write_all(&at.to_le_bytes());
        }
    }
}

/// To the agent, in packets.
pub struct Out {
    wire: Arc<Wire>,
    lent: Arc<Lent>,
    /// The buffer that was lent last.
    last: Option<(Region, usize)>,
    packet: Vec<u8>,
    /// Where the bytes begin that are still being added to, and whose length is not final.
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
        // Few buffers are under way at a time.
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
