//! Sandboxed process (the worker) that reads filesystems, and its parent, which reads the disk on the worker's request.
//! The worker has access only to a socket: it has no descriptor of the disk, no files, and no network.
//!
//! If the worker exits before its answer is complete, the whole disk is treated as used.

mod child_process;
mod protocol;

pub use child_process::run_worker;

use super::work_limits::{MAXIMUM_READ_BYTES, MAXIMUM_READS};
use super::{UsedBlocks, mark_all_used, round_ranges, used_ranges};
use common::format::{replace_hidden, truncate_bytes};
use linux::process::worker_process::{WorkerJob, WorkerProcess};
use protocol::{ReadRequest, WorkerMessage};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Timeout of the worker, after which the whole disk is treated as used.
const WORKER_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Maximum length of the description of a disk, such as `GPT with vfat, ext4, …`, in bytes.
const NAME_BYTES: usize = 400;

/// Starts a worker, and returns the used blocks of a disk. Never writes to the disk.
pub(crate) fn read_in_worker(disk: &File, size: u64, sector: u64) -> UsedBlocks {
    let started = start_worker().map_err(|error| error.to_string());
    let read = started.and_then(|(mut worker, socket)| {
        let served = serve_worker(&socket, disk, ReadRequest { size, sector }, Instant::now() + WORKER_TIMEOUT);
        served.map_err(|why| {
            if why.kind() == ErrorKind::UnexpectedEof {
                replace_hidden(&worker.describe_end())
            } else {
                why.to_string()
            }
        })
    });
    read.unwrap_or_else(|why| {
        let why = replace_hidden(truncate_bytes(&why, NAME_BYTES));
        // The whole disk is treated as used, and as if it had a partition table, because it was not read.
        UsedBlocks {
            what: format!("the whole disk, because its filesystems cannot be read: {why}"),
            has_table: true,
            ..mark_all_used(size)
        }
    })
}

fn start_worker() -> io::Result<(WorkerProcess, UnixStream)> {
    let (here, there) = UnixStream::pair()?;
    Ok((WorkerProcess::start(WorkerJob::UsedBlocks, OwnedFd::from(there))?, here))
}

/// Sends the request and serves reads until the worker has sent its last range.
///
/// # Errors
/// Fails if the worker exits early, exceeds the timeout, or violates the protocol.
fn serve_worker(socket: &UnixStream, disk: &File, order: ReadRequest, until: Instant) -> io::Result<UsedBlocks> {
    let (mut reads, mut bytes, mut found) = (0, 0, Vec::new());
    let mut piece = Vec::new();
    let mut socket_in_time = DeadlineSocket { socket, until };
    order.write_to(&mut socket_in_time)?;
    loop {
        match WorkerMessage::read_from(&mut socket_in_time)? {
            WorkerMessage::Read { at, length } => {
                (reads, bytes) = (reads + 1, bytes + u64::from(length));
                let is_within = at.checked_add(length.into()).is_some_and(|end| end <= order.size);
                // The parent also checks the limits, because a compromised worker may ignore them.
                if reads > MAXIMUM_READS + MAXIMUM_READ_BYTES / u64::from(protocol::MAXIMUM_REQUEST_BYTES)
                    || bytes > MAXIMUM_READ_BYTES
                    || !is_within
                {
                    return Err(worker_protocol_error());
                }
                piece.resize(length as usize, 0);
                let is_read = disk.read_exact_at(&mut piece, at).is_ok();
                socket_in_time.write_all(&[u8::from(is_read)])?;
                if is_read {
                    socket_in_time.write_all(&piece)?;
                }
            }
            WorkerMessage::Used(used) => {
                for range in used {
                    let is_next = found.last().is_none_or(|before: &Range<u64>| before.end < range.start);
                    if !is_next
                        || range.start >= range.end
                        || range.end > order.size
                        || found.len() >= used_ranges::MAXIMUM_RANGES
                    {
                        return Err(worker_protocol_error());
                    }
                    found.push(range);
                }
            }
            WorkerMessage::Done { has_table, what } => {
                // The worker has sent its last message. Both ends of the disk are always treated as used, regardless of
                // the ranges that the worker has sent.
                socket.shutdown(std::net::Shutdown::Both)?;
                let what = replace_hidden(truncate_bytes(&what, NAME_BYTES));
                return Ok(UsedBlocks { ranges: round_ranges(found, order.size), what, has_table });
            }
        }
    }
}

fn worker_protocol_error() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "protocol error by the worker process")
}

/// Socket whose reads and writes fail after a deadline.
struct DeadlineSocket<'s> {
    socket: &'s UnixStream,
    until: Instant,
}

impl DeadlineSocket<'_> {
    fn time_left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(timeout_error()),
            false => Ok(Some(left)),
        }
    }
}

fn timeout_error() -> io::Error {
    io::Error::new(
        ErrorKind::TimedOut,
        format!("timed out after {minutes} minutes", minutes = WORKER_TIMEOUT.as_secs() / 60),
    )
}

fn map_timeout<T>(done: io::Result<T>) -> io::Result<T> {
    done.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => timeout_error(),
        // The worker has exited before it received the message. The error is the same as for an incomplete answer.
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => ErrorKind::UnexpectedEof.into(),
        _ => error,
    })
}

impl Read for DeadlineSocket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.time_left()?)?;
        map_timeout(self.socket.read(buffer))
    }
}

impl Write for DeadlineSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.time_left()?)?;
        map_timeout(self.socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
