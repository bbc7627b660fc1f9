//! What two of ours speak over the link: a disk in pieces, each with its digest, and at the end an acknowledgement of all of them.
//!
//! The sender says what it has (`Hello`), the receiver from where on it wants it, or why it wants nothing (`Answer`). Then come pieces
//! in the order of the disk, without a gap: bytes, zeros, what no filesystem uses, and, where the receiver has part of it from before,
//! what it has already. The receiver speaks again when it fails or when all is on its disk (`Verdict`).

pub mod awaited;
mod frames;
pub mod receive;
pub mod send;

pub use frames::{Hello, Run};

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Pieces do not go over multiples of this: a digest, a write, and what is sent again after a cut.
pub const CHUNK_BYTES: u64 = 1 << 20;

/// Pieces begin at multiples of this.
pub const GRANULE_BYTES: u64 = 64 << 10;

/// How many processors one disk may keep busy at each end.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(1, 4)
}

/// Why a connection has not brought a disk to its end.
#[derive(Debug)]
pub enum Stop {
    /// It was cut. What was verified stays, and the next one goes on there.
    Again(io::Error),
    /// One end does not want what the other has. Nothing was written.
    Refused(String),
    /// To try again would change nothing.
    Failed(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        match error.kind() {
            // Our certificate is not taken, or what comes is no frame. What was damaged on its way is another kind.
            ErrorKind::InvalidData => Stop::Failed(error.to_string()),
            _ => Stop::Again(error),
        }
    }
}

/// Time that threads have spent on one thing.
#[derive(Debug, Default)]
struct Spent(AtomicU64);

impl Spent {
    fn on<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        self.0.fetch_add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        done
    }

    /// Of so long, by so many threads.
    fn percent(&self, elapsed: Duration, threads: usize) -> u8 {
        let all = elapsed.as_nanos() as f64 * threads as f64;
        (self.0.load(Ordering::Relaxed) as f64 / all.max(1.0) * 100.0).clamp(0.0, 100.0) as u8
    }
}
