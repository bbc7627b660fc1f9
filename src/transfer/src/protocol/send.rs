//! Sender of one connection. Several threads read, detect zeros, compute digests and compress; one thread writes to the link, in order.

use super::frames::{
    self, DiskPiece, HelloAnswer, PieceEncoding, PieceOffer, PiecesDigest, ProtocolFrame, ReceiptFigures,
    ReceiverVerdict, TransferHello,
};
use super::{BusyTime, CHUNK_BYTES, ConnectionEnd, GRANULE_BYTES, worker_count};
use crate::connection::TlsLink;
use crate::source::{DiskSegment, SegmentIter, TransferSource};
use common::encoding::encode_hex;
use common::sync::lock_mutex;
use image::raw::AlignedBuffer;
use model::install_report::{ImageTransferFigures, StageShare};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
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
pub struct SendResult {
    /// Statistics as for `image burn`: bytes on the wire, and the load of each stage.
    pub figures: ImageTransferFigures,
    /// Bytes of the disk since the start of this connection.
    pub carried: SentBytes,
    pub digest: String,
}

/// Bytes of the disk, by how they were transferred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SentBytes {
    pub sent: u64,
    pub zero: u64,
    pub unused: u64,
    /// Bytes that the receiver had already.
    pub same: u64,
}

/// Sends a disk over one connection.
///
/// # Errors
/// See [`ConnectionEnd`].
pub fn send_disk(
    link: &mut TlsLink,
    source: &TransferSource,
    hello: &TransferHello,
) -> Result<SendResult, ConnectionEnd> {
    frames::write_frame(link, &ProtocolFrame::Hello(hello.clone()))?;
    let (position, compare) = match frames::read_frame(link)? {
        ProtocolFrame::Answer(HelloAnswer::From { position, compare }) => (position, compare),
        ProtocolFrame::Answer(HelloAnswer::Refused(why)) => return Err(ConnectionEnd::Refused(why)),
        _ => {
            return Err(ConnectionEnd::Failed(
                "protocol error of the receiver: no answer to the description of the disk".to_owned(),
            ));
        }
    };
    let began = Instant::now();
    let (empty, empties) = mpsc::channel();
    for _ in 0..BUFFERS {
        // Cannot fail: the receiver exists.
        let _ = empty.send(AlignedBuffer::new(CHUNK_BYTES as usize));
    }
    let shared = SendShared {
        source,
        todo: Mutex::new((SegmentIter::from_source(source, position).enumerate(), empties)),
        queued: AtomicUsize::new(0),
        read: BusyTime::default(),
        pack: BusyTime::default(),
    };
    let (done, ready) = mpsc::channel();
    let wire = BusyTime::default();
    let (received, carried, travelled, sum) = thread::scope(|scope| {
        for _ in 0..worker_count() {
            let (done, shared) = (done.clone(), &shared);
            scope.spawn(move || shared.pack_loop(&done));
        }
        drop(done);
        // Dropping the writer ends the threads that wait for its buffers.
        let mut writer = PieceWriter {
            link,
            wire: &wire,
            sum: PiecesDigest::new(),
            pending: None,
            batch: Vec::new(),
            compare,
            empty,
            carried: SentBytes::default(),
            travelled: 0,
        };
        let received = writer.write_all_pieces(ready, &shared.queued);
        (received, writer.carried, writer.travelled, writer.sum)
    });
    let digest = encode_hex(sum.current_digest());
    let ReceiptFigures { digest: theirs, disk_percent } = received?;
    if theirs != digest {
        return Err(ConnectionEnd::Failed(format!("the receiver acknowledged {theirs}, but {digest} was sent")));
    }
    let (elapsed, threads) = (began.elapsed(), worker_count());
    let share = |stage: &str, percent| StageShare { stage: stage.to_owned(), percent };
    let shares = vec![
        share("read", shared.read.busy_percent(elapsed, threads)),
        share("pack", shared.pack.busy_percent(elapsed, threads)),
        share("network", wire.busy_percent(elapsed, 1).saturating_sub(disk_percent)),
        share("write", disk_percent),
    ];
    let figures = ImageTransferFigures { bytes: travelled, seconds: elapsed.as_secs_f64(), shares };
    Ok(SendResult { figures, carried, digest })
}

/// State that the worker threads share.
struct SendShared<'s> {
    source: &'s TransferSource,
    /// Segments and free buffers. A segment is only taken together with a buffer, so the segment that the writer needs next always has one.
    todo: Mutex<(std::iter::Enumerate<SegmentIter<'s>>, Receiver<AlignedBuffer>)>,
    /// Number of pieces that are ready but not yet written. Zero means that the network is faster than compression.
    queued: AtomicUsize,
    read: BusyTime,
    pack: BusyTime,
}

/// Segment that is ready to be sent.
struct PackedSegment {
    buffer: AlignedBuffer,
    parts: Vec<PackedPart>,
}

struct PackedPart {
    piece: DiskPiece,
    /// Position in the buffer of bytes that are sent uncompressed.
    plain: Range<usize>,
    packed: Option<Vec<u8>>,
}

impl SendShared<'_> {
    fn pack_loop(&self, done: &Sender<(usize, io::Result<PackedSegment>)>) {
        let mut zstd = CCtx::create();
        loop {
            let (number, segment, buffer) = {
                let mut todo = lock_mutex(&self.todo);
                let Ok(buffer) = todo.1.recv() else { return };
                let Some((number, segment)) = todo.0.next() else { return };
                (number, segment, buffer)
            };
            let packed = self.pack_segment(segment, buffer, &mut zstd);
            self.queued.fetch_add(1, Ordering::Relaxed);
            // The writer has failed.
            if done.send((number, packed)).is_err() {
                return;
            }
        }
    }

    fn pack_segment(
        &self,
        segment: DiskSegment,
        mut buffer: AlignedBuffer,
        zstd: &mut CCtx<'_>,
    ) -> io::Result<PackedSegment> {
        let part = |piece| PackedPart { piece, plain: 0..0, packed: None };
        let range = match segment {
            DiskSegment::Unused(range) => {
                return Ok(PackedSegment { buffer, parts: vec![part(DiskPiece::Unused(range))] });
            }
            DiskSegment::Used(range) => range,
        };
        let length = (range.end - range.start) as usize;
        self.read.measure_time(|| self.source.read_at(range.start, &mut buffer, length))?;
        let parts = self.pack.measure_time(|| {
            let runs = split_zero_runs(&buffer[..length]).into_iter();
            let parts = runs.map(|(run, is_zero)| {
                let place = range.start + run.start as u64..range.start + run.end as u64;
                if is_zero { part(DiskPiece::Zero(place)) } else { self.pack_part(place.start, &buffer, run, zstd) }
            });
            parts.collect()
        });
        Ok(PackedSegment { buffer, parts })
    }

    fn pack_part(&self, offset: u64, buffer: &[u8], run: Range<usize>, zstd: &mut CCtx<'_>) -> PackedPart {
        let bytes = &buffer[run.clone()];
        let sha256 = frames::hash_bytes(bytes);
        let packed = match self.queued.load(Ordering::Relaxed) {
            // The network waits for data, so compression would only delay it.
            0 => None,
            1..MANY => keep_if_smaller(bytes, PieceEncoding::Lz4, lz4_flex::block::compress(bytes)),
            _ => {
                let mut packed = Vec::with_capacity(compress_bound(bytes.len()));
                let done = zstd.compress(&mut packed, bytes, LEVEL);
                // Compression fails if there is not enough memory.
                done.ok().and_then(|_| keep_if_smaller(bytes, PieceEncoding::Zstd, packed))
            }
        };
        let (encoding, packed) =
            packed.map_or((PieceEncoding::Plain, None), |(encoding, packed)| (encoding, Some(packed)));
        let piece = DiskPiece::Bytes { offset, length: bytes.len() as u32, encoding, sha256 };
        PackedPart { piece, plain: run, packed }
    }
}

/// Returns the compressed bytes if they are small enough to be worth decompressing.
fn keep_if_smaller(bytes: &[u8], encoding: PieceEncoding, packed: Vec<u8>) -> Option<(PieceEncoding, Vec<u8>)> {
    (packed.len() < bytes.len() - bytes.len() / 8).then_some((encoding, packed))
}

/// Splits the bytes into runs of granules that are all zero or all nonzero.
fn split_zero_runs(bytes: &[u8]) -> Vec<(Range<usize>, bool)> {
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
struct PieceWriter<'l> {
    link: &'l mut TlsLink,
    wire: &'l BusyTime,
    sum: PiecesDigest,
    /// Zero or unused range, to which the next piece may be merged.
    pending: Option<DiskPiece>,
    batch: Vec<PackedSegment>,
    compare: bool,
    empty: Sender<AlignedBuffer>,
    carried: SentBytes,
    travelled: u64,
}

impl PieceWriter<'_> {
    fn write_all_pieces(
        &mut self,
        ready: Receiver<(usize, io::Result<PackedSegment>)>,
        queued: &AtomicUsize,
    ) -> Result<ReceiptFigures, ConnectionEnd> {
        let (mut early, mut next) = (BTreeMap::new(), 0);
        for (number, packed) in ready {
            early.insert(number, packed);
            while let Some(packed) = early.remove(&next) {
                next += 1;
                queued.fetch_sub(1, Ordering::Relaxed);
                // The disk cannot be read. A retry would fail too.
                let packed = packed.map_err(|error| ConnectionEnd::Failed(error.to_string()))?;
                self.batch.push(packed);
                if !self.compare || self.batch.len() == OFFERS {
                    self.flush_batch()?;
                }
            }
        }
        self.flush_batch()?;
        self.put_pending()?;
        let digest = self.sum.current_digest();
        let wire = self.wire;
        wire.measure_time(|| {
            frames::write_frame(self.link, &ProtocolFrame::End(digest))?;
            self.read_verdict()
        })
    }

    /// Sends all pieces of the batch.
    fn flush_batch(&mut self) -> Result<(), ConnectionEnd> {
        if self.link.has_pending_data() {
            return self.read_verdict().and(Err(ConnectionEnd::Failed(
                "protocol error of the receiver: completion reported too early".to_owned(),
            )));
        }
        let wanted = self.offer_batch()?;
        let mut wanted = wanted.into_iter();
        for PackedSegment { buffer, parts } in std::mem::take(&mut self.batch) {
            for PackedPart { piece, plain, packed } in parts {
                let piece = match piece {
                    DiskPiece::Bytes { offset, length, sha256, .. } if self.compare && wanted.next() != Some(true) => {
                        DiskPiece::Same { offset, length, sha256 }
                    }
                    piece => piece,
                };
                self.put_piece(piece, packed.as_deref().unwrap_or(&buffer[plain]))?;
            }
            // Fails if the workers have ended.
            let _ = self.empty.send(buffer);
        }
        Ok(())
    }

    /// Offers the pieces of the batch. Returns which of them the receiver needs.
    fn offer_batch(&mut self) -> Result<Vec<bool>, ConnectionEnd> {
        let offer = |part: &PackedPart| match part.piece {
            DiskPiece::Bytes { offset, length, sha256, .. } => Some(PieceOffer { offset, length, sha256 }),
            _ => None,
        };
        let offers: Vec<PieceOffer> =
            self.batch.iter().flat_map(|packed| packed.parts.iter().filter_map(offer)).collect();
        if !self.compare || offers.is_empty() {
            return Ok(Vec::new());
        }
        let (count, wire) = (offers.len(), self.wire);
        wire.measure_time(|| {
            frames::write_frame(self.link, &ProtocolFrame::Offered(offers))?;
            match frames::read_frame(self.link)? {
                ProtocolFrame::Wanted(wanted) if wanted.len() == count => Ok(wanted),
                ProtocolFrame::Verdict(ReceiverVerdict::Failed(why)) => Err(ConnectionEnd::Failed(why)),
                _ => Err(ConnectionEnd::Failed(
                    "protocol error of the receiver: no answer to the offered pieces".to_owned(),
                )),
            }
        })
    }

    fn put_piece(&mut self, piece: DiskPiece, bytes: &[u8]) -> Result<(), ConnectionEnd> {
        let joined = match (&mut self.pending, &piece) {
            (Some(DiskPiece::Zero(before)), DiskPiece::Zero(more))
            | (Some(DiskPiece::Unused(before)), DiskPiece::Unused(more)) => {
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
            DiskPiece::Zero(_) | DiskPiece::Unused(_) => {
                self.pending = Some(piece);
                Ok(())
            }
            piece => self.send_piece(&piece, if matches!(piece, DiskPiece::Same { .. }) { &[] } else { bytes }),
        }
    }

    fn put_pending(&mut self) -> Result<(), ConnectionEnd> {
        self.pending.take().map_or(Ok(()), |piece| self.send_piece(&piece, &[]))
    }

    fn send_piece(&mut self, piece: &DiskPiece, bytes: &[u8]) -> Result<(), ConnectionEnd> {
        let range = piece.range();
        let carried = match piece {
            DiskPiece::Bytes { .. } => &mut self.carried.sent,
            DiskPiece::Same { .. } => &mut self.carried.same,
            DiskPiece::Zero(_) => &mut self.carried.zero,
            DiskPiece::Unused(_) => &mut self.carried.unused,
        };
        *carried += range.end - range.start;
        self.travelled += bytes.len() as u64;
        self.sum.add_piece(piece);
        let wire = self.wire;
        match wire.measure_time(|| frames::write_piece(self.link, piece, bytes)) {
            Ok(()) => Ok(()),
            // The receiver may have sent the reason before it closed the connection.
            Err(error) if self.link.has_pending_data() => self
                .read_verdict()
                .map_err(|said| match said {
                    ConnectionEnd::Again(_) => ConnectionEnd::Again(error),
                    said => said,
                })
                .map(drop),
            Err(error) => Err(error.into()),
        }
    }

    fn read_verdict(&mut self) -> Result<ReceiptFigures, ConnectionEnd> {
        match frames::read_frame(self.link)? {
            ProtocolFrame::Verdict(ReceiverVerdict::Received(received)) => Ok(received),
            ProtocolFrame::Verdict(ReceiverVerdict::Failed(why)) => Err(ConnectionEnd::Failed(why)),
            _ => Err(ConnectionEnd::Failed("protocol error of the receiver: unexpected frame".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
