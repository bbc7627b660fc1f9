//! Sender of one connection. Several threads read, detect zeros, compute digests and compress; one thread writes to the link, in order.

use super::frames::{self, Answer, Encoding, Frame, Hello, Offer, Piece, Received, Sum, Verdict};
use super::{CHUNK_BYTES, GRANULE_BYTES, Spent, Stop, workers};
use crate::facts::{BurnFigures, Share};
use crate::image::raw::Aligned;
use crate::moving::link::Link;
use crate::moving::source::{Segment, Segments, Source};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;
use zstd::zstd_safe::{CCtx, compress_bound};

/// Number of chunk buffers, 16 MiB in total.
const BUFFERS: usize = 16;

/// Pieces per offer to a receiver that may have them already. Less than the number of buffers, so that the workers continue in the
/// meantime.
const OFFERS: usize = 8;

/// Number of pieces waiting for the network from which on the network is the bottleneck, so that slower compression pays off.
const MANY: usize = BUFFERS / 2;

/// Compression level of zstd: the fastest one with the usual ratio.
const LEVEL: i32 = 1;

/// Result of a connection.
#[derive(Debug)]
pub struct Sent {
    /// Statistics as for `image burn`: bytes on the wire, and the load of each stage.
    pub figures: BurnFigures,
    /// Bytes of the disk since the start of this connection.
    pub carried: Carried,
    pub digest: String,
}

/// Bytes of the disk, by how they were transferred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    pub sent: u64,
    pub zero: u64,
    pub unused: u64,
    /// Bytes that the receiver had already.
    pub same: u64,
}

/// Sends a disk over one connection.
///
/// # Errors
/// See [`Stop`].
pub fn send(link: &mut Link, source: &Source, hello: &Hello) -> Result<Sent, Stop> {
    frames::write(link, &Frame::Hello(hello.clone()))?;
    let (position, compare) = match frames::read(link)? {
        Frame::Answer(Answer::From { position, compare }) => (position, compare),
        Frame::Answer(Answer::Refused(why)) => return Err(Stop::Refused(why)),
        _ => {
            return Err(Stop::Failed(
                "protocol error of the receiver: no answer to the description of the disk".to_owned(),
            ));
        }
    };
    let began = Instant::now();
    let (empty, empties) = mpsc::channel();
    for _ in 0..BUFFERS {
        // Cannot fail: the receiver exists.
        let _ = empty.send(Aligned::new(CHUNK_BYTES as usize));
    }
    let shared = Shared {
        source,
        todo: Mutex::new((Segments::from(source, position).enumerate(), empties)),
        queued: AtomicUsize::new(0),
        read: Spent::default(),
        pack: Spent::default(),
    };
    let (done, ready) = mpsc::channel();
    let wire = Spent::default();
    let (received, carried, travelled, sum) = thread::scope(|scope| {
        for _ in 0..workers() {
            let (done, shared) = (done.clone(), &shared);
            scope.spawn(move || shared.work(&done));
        }
        drop(done);
        // Dropping the writer ends the threads that wait for its buffers.
        let mut writer = Writer {
            link,
            wire: &wire,
            sum: Sum::new(),
            pending: None,
            batch: Vec::new(),
            compare,
            empty,
            carried: Carried::default(),
            travelled: 0,
        };
        let received = writer.write(ready, &shared.queued);
        (received, writer.carried, writer.travelled, writer.sum)
    });
    let digest = frames::hex(&sum.so_far());
    let Received { digest: theirs, disk_percent } = received?;
    if theirs != digest {
        return Err(Stop::Failed(format!("the receiver acknowledged {theirs}, but {digest} was sent")));
    }
    let (elapsed, threads) = (began.elapsed(), workers());
    let share = |stage: &str, percent| Share { stage: stage.to_owned(), percent };
    let shares = vec![
        share("read", shared.read.percent(elapsed, threads)),
        share("pack", shared.pack.percent(elapsed, threads)),
        share("network", wire.percent(elapsed, 1).saturating_sub(disk_percent)),
        share("write", disk_percent),
    ];
    let figures = BurnFigures { bytes: travelled, seconds: elapsed.as_secs_f64(), shares };
    Ok(Sent { figures, carried, digest })
}

/// State that the worker threads share.
struct Shared<'s> {
    source: &'s Source,
    /// Segments and free buffers. A segment is only taken together with a buffer, so the segment that the writer needs next always has one.
    todo: Mutex<(std::iter::Enumerate<Segments<'s>>, Receiver<Aligned>)>,
    /// Number of pieces that are ready but not yet written. Zero means that the network is faster than compression.
    queued: AtomicUsize,
    read: Spent,
    pack: Spent,
}

/// Segment that is ready to be sent.
struct Packed {
    buffer: Aligned,
    parts: Vec<Part>,
}

struct Part {
    piece: Piece,
    /// Position in the buffer of bytes that are sent uncompressed.
    plain: Range<usize>,
    packed: Option<Vec<u8>>,
}

impl Shared<'_> {
    fn work(&self, done: &Sender<(usize, io::Result<Packed>)>) {
        let mut zstd = CCtx::create();
        loop {
            let (number, segment, buffer) = {
                let mut todo = self.todo.lock().unwrap_or_else(PoisonError::into_inner);
                let Ok(buffer) = todo.1.recv() else { return };
                let Some((number, segment)) = todo.0.next() else { return };
                (number, segment, buffer)
            };
            let packed = self.pack(segment, buffer, &mut zstd);
            self.queued.fetch_add(1, Ordering::Relaxed);
            // The writer has failed.
            if done.send((number, packed)).is_err() {
                return;
            }
        }
    }

    fn pack(&self, segment: Segment, mut buffer: Aligned, zstd: &mut CCtx<'_>) -> io::Result<Packed> {
        let part = |piece| Part { piece, plain: 0..0, packed: None };
        let range = match segment {
            Segment::Unused(range) => return Ok(Packed { buffer, parts: vec![part(Piece::Unused(range))] }),
            Segment::Used(range) => range,
        };
        let length = (range.end - range.start) as usize;
        self.read.on(|| self.source.read(range.start, &mut buffer, length))?;
        let parts = self.pack.on(|| {
            let runs = runs(&buffer[..length]).into_iter();
            let parts = runs.map(|(run, is_zero)| {
                let place = range.start + run.start as u64..range.start + run.end as u64;
                if is_zero { part(Piece::Zero(place)) } else { self.part(place.start, &buffer, run, zstd) }
            });
            parts.collect()
        });
        Ok(Packed { buffer, parts })
    }

    fn part(&self, offset: u64, buffer: &[u8], run: Range<usize>, zstd: &mut CCtx<'_>) -> Part {
        let bytes = &buffer[run.clone()];
        let sha256 = frames::sha256(bytes);
        let packed = match self.queued.load(Ordering::Relaxed) {
            // The network waits for data, so compression would only delay it.
            0 => None,
            1..MANY => smaller(bytes, Encoding::Lz4, lz4_flex::block::compress(bytes)),
            _ => {
                let mut packed = Vec::with_capacity(compress_bound(bytes.len()));
                let done = zstd.compress(&mut packed, bytes, LEVEL);
                // Compression fails if there is not enough memory.
                done.ok().and_then(|_| smaller(bytes, Encoding::Zstd, packed))
            }
        };
        let (encoding, packed) = packed.map_or((Encoding::Plain, None), |(encoding, packed)| (encoding, Some(packed)));
        let piece = Piece::Bytes { offset, length: bytes.len() as u32, encoding, sha256 };
        Part { piece, plain: run, packed }
    }
}

/// Returns the compressed bytes if they are small enough to be worth decompressing.
fn smaller(bytes: &[u8], encoding: Encoding, packed: Vec<u8>) -> Option<(Encoding, Vec<u8>)> {
    (packed.len() < bytes.len() - bytes.len() / 8).then_some((encoding, packed))
}

/// Splits the bytes into runs of granules that are all zero or all nonzero.
fn runs(bytes: &[u8]) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    let mut start = 0;
    for granule in bytes.chunks(GRANULE_BYTES as usize) {
        let (end, is_zero) = (start + granule.len(), is_zero(granule));
        match runs.last_mut() {
            Some((run, was_zero)) if *was_zero == is_zero => run.end = end,
            _ => runs.push((start..end, is_zero)),
        }
        start = end;
    }
    runs
}

fn is_zero(bytes: &[u8]) -> bool {
    // Compares 16 bytes at a time. Most nonzero data is detected in the first 16.
    let (chunks, rest) = bytes.as_chunks::<16>();
    chunks.iter().all(|chunk| u128::from_ne_bytes(*chunk) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Writer, the only thread that uses the link.
struct Writer<'l> {
    link: &'l mut Link,
    wire: &'l Spent,
    sum: Sum,
    /// Zero or unused range, to which the next piece may be merged.
    pending: Option<Piece>,
    batch: Vec<Packed>,
    compare: bool,
    empty: Sender<Aligned>,
    carried: Carried,
    travelled: u64,
}

impl Writer<'_> {
    fn write(&mut self, ready: Receiver<(usize, io::Result<Packed>)>, queued: &AtomicUsize) -> Result<Received, Stop> {
        let (mut early, mut next) = (BTreeMap::new(), 0);
        for (number, packed) in ready {
            early.insert(number, packed);
            while let Some(packed) = early.remove(&next) {
                next += 1;
                queued.fetch_sub(1, Ordering::Relaxed);
                // The disk cannot be read. A retry would fail too.
                let packed = packed.map_err(|error| Stop::Failed(error.to_string()))?;
                self.batch.push(packed);
                if !self.compare || self.batch.len() == OFFERS {
                    self.flush()?;
                }
            }
        }
        self.flush()?;
        self.put_pending()?;
        let digest = self.sum.so_far();
        let wire = self.wire;
        wire.on(|| {
            frames::write(self.link, &Frame::End(digest))?;
            self.heard()
        })
    }

    /// Sends all pieces of the batch.
    fn flush(&mut self) -> Result<(), Stop> {
        if self.link.has_spoken() {
            return self
                .heard()
                .and(Err(Stop::Failed("protocol error of the receiver: completion reported too early".to_owned())));
        }
        let wanted = self.offer()?;
        let mut wanted = wanted.into_iter();
        for Packed { buffer, parts } in std::mem::take(&mut self.batch) {
            for Part { piece, plain, packed } in parts {
                let piece = match piece {
                    Piece::Bytes { offset, length, sha256, .. } if self.compare && wanted.next() != Some(true) => {
                        Piece::Same { offset, length, sha256 }
                    }
                    piece => piece,
                };
                self.put(piece, packed.as_deref().unwrap_or(&buffer[plain]))?;
            }
            // Fails if the workers have ended.
            let _ = self.empty.send(buffer);
        }
        Ok(())
    }

    /// Offers the pieces of the batch. Returns which of them the receiver needs.
    fn offer(&mut self) -> Result<Vec<bool>, Stop> {
        let offer = |part: &Part| match part.piece {
            Piece::Bytes { offset, length, sha256, .. } => Some(Offer { offset, length, sha256 }),
            _ => None,
        };
        let offers: Vec<Offer> = self.batch.iter().flat_map(|packed| packed.parts.iter().filter_map(offer)).collect();
        if !self.compare || offers.is_empty() {
            return Ok(Vec::new());
        }
        let (count, wire) = (offers.len(), self.wire);
        wire.on(|| {
            frames::write(self.link, &Frame::Offered(offers))?;
            match frames::read(self.link)? {
                Frame::Wanted(wanted) if wanted.len() == count => Ok(wanted),
                Frame::Verdict(Verdict::Failed(why)) => Err(Stop::Failed(why)),
                _ => Err(Stop::Failed("protocol error of the receiver: no answer to the offered pieces".to_owned())),
            }
        })
    }

    fn put(&mut self, piece: Piece, bytes: &[u8]) -> Result<(), Stop> {
        let joined = match (&mut self.pending, &piece) {
            (Some(Piece::Zero(before)), Piece::Zero(more)) | (Some(Piece::Unused(before)), Piece::Unused(more)) => {
                before.end = more.end;
                true
            }
            _ => false,
        };
        if joined {
            return Ok(());
        }
        self.put_pending()?;
        match piece {
            Piece::Zero(_) | Piece::Unused(_) => {
                self.pending = Some(piece);
                Ok(())
            }
            piece => self.put_now(&piece, if matches!(piece, Piece::Same { .. }) { &[] } else { bytes }),
        }
    }

    fn put_pending(&mut self) -> Result<(), Stop> {
        self.pending.take().map_or(Ok(()), |piece| self.put_now(&piece, &[]))
    }

    fn put_now(&mut self, piece: &Piece, bytes: &[u8]) -> Result<(), Stop> {
        let range = piece.range();
        let carried = match piece {
            Piece::Bytes { .. } => &mut self.carried.sent,
            Piece::Same { .. } => &mut self.carried.same,
            Piece::Zero(_) => &mut self.carried.zero,
            Piece::Unused(_) => &mut self.carried.unused,
        };
        *carried += range.end - range.start;
        self.travelled += bytes.len() as u64;
        self.sum.add(piece);
        let wire = self.wire;
        match wire.on(|| frames::write_piece(self.link, piece, bytes)) {
            Ok(()) => Ok(()),
            // The receiver may have sent the reason before it closed the connection.
            Err(error) if self.link.has_spoken() => self
                .heard()
                .map_err(|said| match said {
                    Stop::Again(_) => Stop::Again(error),
                    said => said,
                })
                .map(drop),
            Err(error) => Err(error.into()),
        }
    }

    fn heard(&mut self) -> Result<Received, Stop> {
        match frames::read(self.link)? {
            Frame::Verdict(Verdict::Received(received)) => Ok(received),
            Frame::Verdict(Verdict::Failed(why)) => Err(Stop::Failed(why)),
            _ => Err(Stop::Failed("protocol error of the receiver: unexpected frame".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
