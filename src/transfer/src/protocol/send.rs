//! Sends a disk over one connection. Several threads read, detect zeros, compute digests and compress; one thread
//! writes to the connection, in order.

mod piece_writer;

use super::frames::{
    self, DiskPiece, HelloAnswer, PieceEncoding, PiecesDigest, ProtocolFrame, ReceiptFigures, TransferHello,
};
use super::{BusyTime, CHUNK_BYTES, ConnectionEnd, GRANULE_BYTES, worker_count};
use crate::source_disk::{DiskSegment, SegmentIter, TransferSource};
use crate::tls_connection::TlsLink;
use common::encoding::encode_hex;
use common::sync::lock_mutex;
use linux::storage::aligned_buffer::AlignedBuffer;
use model::install_report::{ImageTransferFigures, StageShare};
use piece_writer::PieceWriter;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use std::{io, thread};
use zstd::zstd_safe::{CCtx, compress_bound};

/// Number of chunk buffers, 16 MiB in total.
const BUFFERS: usize = 16;

/// Number of segments whose pieces are offered in one frame, if the receiver may already have the pieces. This number
/// is smaller than the number of buffers, so that the workers can continue while the receiver answers.
const OFFERS: usize = 8;

/// Minimum number of waiting segments at which the network is considered the bottleneck. Segments are then compressed
/// with zstd, which is slower than lz4 but compresses better.
const ZSTD_QUEUE_LENGTH: usize = BUFFERS / 2;

/// Compression level of zstd: the fastest level with a good compression ratio.
const LEVEL: i32 = 1;

/// Result of a connection over which the disk was sent completely.
#[derive(Debug)]
pub(crate) struct SendResult {
    /// Statistics like those of `image burn`: bytes on the wire, and the load of each stage.
    pub figures: ImageTransferFigures,
    /// Numbers of bytes of the disk that were transferred over this connection.
    pub sent_bytes: SentBytes,
    pub digest: String,
}

/// Numbers of bytes of the disk, by how they were transferred: as data, as zeros, as unused ranges, or not at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SentBytes {
    pub sent: u64,
    pub zero: u64,
    pub unused: u64,
    /// Number of bytes that the receiver already had.
    pub same: u64,
}

/// Sends a disk over one connection.
///
/// # Errors
/// See [`ConnectionEnd`].
pub(crate) fn send_disk(
    link: &mut TlsLink,
    source: &TransferSource,
    hello: &TransferHello,
) -> Result<SendResult, ConnectionEnd> {
    let (position, compare) = request_position(link, hello)?;
    let began = Instant::now();
    let (empty, empties) = create_buffers();
    let shared = SendShared {
        source,
        todo: Mutex::new((SegmentIter::from_source(source, position).enumerate(), empties)),
        queued: AtomicUsize::new(0),
        read: BusyTime::default(),
        pack: BusyTime::default(),
    };
    let (done, ready) = mpsc::channel();
    let wire = BusyTime::default();
    let (received, sent_bytes, traveled, sum) = thread::scope(|scope| {
        for _ in 0..worker_count() {
            let (done, shared) = (done.clone(), &shared);
            scope.spawn(move || shared.pack_loop(&done));
        }
        drop(done);
        // At the end of this closure, the writer is dropped, which ends the threads that wait for free buffers.
        let mut writer = PieceWriter {
            link,
            wire: &wire,
            sum: PiecesDigest::new(),
            pending: None,
            batch: Vec::new(),
            compare,
            empty,
            sent_bytes: SentBytes::default(),
            traveled: 0,
        };
        let received = writer.write_all_pieces(ready, &shared.queued);
        (received, writer.sent_bytes, writer.traveled, writer.sum)
    });
    let digest = encode_hex(sum.current_digest());
    let ReceiptFigures { digest: theirs, disk_percent } = received?;
    if theirs != digest {
        return Err(ConnectionEnd::Failed(format!(
            "the receiver acknowledged the digest {theirs}, but the sent data has the digest {digest}"
        )));
    }
    let elapsed = began.elapsed();
    let shares = shared.compute_shares(elapsed, &wire, disk_percent);
    let figures = ImageTransferFigures { bytes: traveled, seconds: elapsed.as_secs_f64(), shares };
    Ok(SendResult { figures, sent_bytes, digest })
}

/// Sends the description of the disk. Returns the offset from which the receiver needs data, and whether the receiver
/// may already have data after this offset.
fn request_position(link: &mut TlsLink, hello: &TransferHello) -> Result<(u64, bool), ConnectionEnd> {
    frames::write_frame(link, &ProtocolFrame::Hello(hello.clone()))?;
    match frames::read_frame(link)? {
        ProtocolFrame::Answer(HelloAnswer::From { position, compare }) => Ok((position, compare)),
        ProtocolFrame::Answer(HelloAnswer::Refused(why)) => Err(ConnectionEnd::Refused(why)),
        _ => Err(ConnectionEnd::Failed(
            "protocol error by the receiver: no answer to the description of the disk".to_owned(),
        )),
    }
}

/// Creates the queue of free buffers, filled with all buffers.
fn create_buffers() -> (Sender<AlignedBuffer>, Receiver<AlignedBuffer>) {
    let (empty, empties) = mpsc::channel();
    for _ in 0..BUFFERS {
        // Sending a buffer cannot fail, because the receiver of the channel still exists.
        let _ = empty.send(AlignedBuffer::new(CHUNK_BYTES as usize));
    }
    (empty, empties)
}

/// State that the worker threads share.
struct SendShared<'s> {
    source: &'s TransferSource,
    /// Remaining segments, and free buffers. A segment is taken only together with a buffer. Therefore the segment that
    /// the writer needs next always has a buffer, and there is no deadlock.
    todo: Mutex<(std::iter::Enumerate<SegmentIter<'s>>, Receiver<AlignedBuffer>)>,
    /// Number of segments that are ready but not yet written. Zero means that the network is faster than the workers.
    queued: AtomicUsize,
    read: BusyTime,
    pack: BusyTime,
}

/// Segment of the disk that was read and is ready to be sent.
struct PackedSegment {
    buffer: AlignedBuffer,
    parts: Vec<PackedPart>,
}

struct PackedPart {
    piece: DiskPiece,
    /// Range of the piece's bytes in the buffer. These bytes are sent if `packed` is `None`.
    plain: Range<usize>,
    packed: Option<Vec<u8>>,
}

impl SendShared<'_> {
    /// Returns the load of each stage, in percent.
    fn compute_shares(&self, elapsed: Duration, wire: &BusyTime, disk_percent: u8) -> Vec<StageShare> {
        let threads = worker_count();
        let share = |stage: &str, percent| StageShare { stage: stage.to_owned(), percent };
        vec![
            share("read", self.read.busy_percent(elapsed, threads)),
            share("pack", self.pack.busy_percent(elapsed, threads)),
            share("network", wire.busy_percent(elapsed, 1).saturating_sub(disk_percent)),
            share("write", disk_percent),
        ]
    }

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
            // If sending fails, the writer has failed, and this thread ends.
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
            // No segment is ready to be sent, so the network waits for data, and compression would only delay this
            // data.
            0 => None,
            1..ZSTD_QUEUE_LENGTH => keep_if_smaller(bytes, PieceEncoding::Lz4, lz4_flex::block::compress(bytes)),
            _ => {
                let mut packed = Vec::with_capacity(compress_bound(bytes.len()));
                let done = zstd.compress(&mut packed, bytes, LEVEL);
                // If compression fails for lack of memory, the bytes are sent uncompressed.
                done.ok().and_then(|_| keep_if_smaller(bytes, PieceEncoding::Zstd, packed))
            }
        };
        let (encoding, packed) =
            packed.map_or((PieceEncoding::Plain, None), |(encoding, packed)| (encoding, Some(packed)));
        let piece = DiskPiece::Bytes { offset, length: bytes.len() as u32, encoding, sha256 };
        PackedPart { piece, plain: run, packed }
    }
}

/// Returns the compressed bytes if they are at least an eighth smaller than the original bytes; otherwise decompression
/// is not worthwhile.
fn keep_if_smaller(bytes: &[u8], encoding: PieceEncoding, packed: Vec<u8>) -> Option<(PieceEncoding, Vec<u8>)> {
    (packed.len() < bytes.len() - bytes.len() / 8).then_some((encoding, packed))
}

/// Splits the bytes into runs of granules ([`GRANULE_BYTES`]). A run consists either of granules of zeros, or of
/// granules that contain other bytes. The flag of a run is true if the run consists of zeros.
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

#[cfg(test)]
mod tests;
