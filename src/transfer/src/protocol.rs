//! Protocol between two drophammers: a disk is sent in pieces, each with its digest, and the receiver finally
//! acknowledges all pieces.
//!
//! The sender describes its disk (`TransferHello`). The receiver answers with the position after which it needs data,
//! or with a refusal (`HelloAnswer`). Then the sender transmits pieces in the order of the disk, without gaps: bytes,
//! zeros, and unused ranges. If the receiver may have data from an earlier run, the sender first offers the digests of
//! pieces, and does not transmit the bytes that the receiver already has. The receiver reports failure or completion
//! (`ReceiverVerdict`).

mod frames;
pub(crate) mod receive;
pub(crate) mod receive_state;
pub(crate) mod send;

pub(crate) use frames::{SenderRun, TransferHello};

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Size of a chunk, in bytes. A piece with data does not cross a multiple of this size. A chunk is the unit of digests,
/// writes and retransmission.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;

/// Alignment of the start of pieces, in bytes.
pub(crate) const GRANULE_BYTES: u64 = 64 << 10;

/// Returns the number of worker threads per disk.
fn worker_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(1, 4)
}

/// Reason why a connection did not complete the transfer of a disk.
#[derive(Debug)]
pub(crate) enum ConnectionEnd {
    /// The connection was interrupted. Verified data is preserved, and the next connection resumes after this data.
    Interrupted(io::Error),
    /// The receiver does not accept the disk. This connection has not written anything.
    Refused(String),
    /// Permanent failure: a retry would also fail.
    Failed(String),
}

impl From<io::Error> for ConnectionEnd {
    fn from(error: io::Error) -> ConnectionEnd {
        match error.kind() {
            // The peer rejects the local certificate or sends malformed frames. The error for data damaged in transit
            // has another kind.
            ErrorKind::InvalidData => ConnectionEnd::Failed(error.to_string()),
            _ => ConnectionEnd::Interrupted(error),
        }
    }
}

/// Accumulated time that threads spent on one activity.
#[derive(Debug, Default)]
struct BusyTime(AtomicU64);

impl BusyTime {
    fn measure_time<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        self.0.fetch_add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        done
    }

    /// Returns the share of the duration `elapsed` in which the threads were busy, in percent, averaged over the
    /// threads.
    fn busy_percent(&self, elapsed: Duration, threads: usize) -> u8 {
        let all = elapsed.as_nanos() as f64 * threads as f64;
        (self.0.load(Ordering::Relaxed) as f64 / all.max(1.0) * 100.0).clamp(0.0, 100.0) as u8
    }
}
