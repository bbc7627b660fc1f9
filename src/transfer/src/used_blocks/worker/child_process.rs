//! Worker process: runs the filesystem readers, which request the bytes of the disk from the parent process over a
//! socket.

use super::protocol::{MAXIMUM_MESSAGE_RANGES, MAXIMUM_REQUEST_BYTES, ReadRequest, WorkerMessage};
use crate::used_blocks::read_used_blocks;
use crate::used_blocks::work_limits::WorkLimits;
use linux::process::{privilege_drop, worker_sandbox};
use nix::sys::resource::{Resource, setrlimit};
use std::cell::RefCell;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Memory limit of the worker, in bytes: 24 MiB for ranges, 18 MiB for visited blocks, 32 MiB for the log of an XFS, 24
/// MiB for the chunks of a btrfs filesystem, and a reserve.
const MEMORY_BYTES: u64 = 256 << 20;

/// Limit on the worker's CPU time, in seconds. The largest bitmaps take a few seconds.
const PROCESSOR_SECONDS: u64 = 300;

/// Runs the worker: reads the disk through the parent, over the socket on standard input, and sends the used ranges.
///
/// # Errors
/// Fails if this process cannot be sandboxed, or the parent is gone.
pub fn run_worker() -> io::Result<()> {
    privilege_drop::close_inherited_files()?;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    setrlimit(Resource::RLIMIT_CPU, PROCESSOR_SECONDS, PROCESSOR_SECONDS)?;
    worker_sandbox::drop_privileges(MEMORY_BYTES)?;
    read_and_send(&socket)
}

fn read_and_send(socket: &UnixStream) -> io::Result<()> {
    let answers = RefCell::new(BufReader::with_capacity(MAXIMUM_REQUEST_BYTES as usize, socket));
    let order = ReadRequest::read_from(&mut *answers.borrow_mut())?;
    let read_at = |bytes: &mut [u8], at: u64| {
        let mut at = at;
        for piece in bytes.chunks_mut(MAXIMUM_REQUEST_BYTES as usize) {
            let length = u32::try_from(piece.len()).map_err(io::Error::other)?;
            let end = at.checked_add(length.into()).filter(|end| *end <= order.size);
            let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
            read_piece(&mut *answers.borrow_mut(), socket, piece, at)?;
            at = end;
        }
        Ok(())
    };
    let used = read_used_blocks(&read_at, order.size, order.sector, &WorkLimits::default());
    let mut onto = socket;
    for some in used.ranges.chunks(MAXIMUM_MESSAGE_RANGES) {
        WorkerMessage::Used(some.to_vec()).write_to(&mut onto)?;
    }
    WorkerMessage::Done { has_table: used.has_table, what: used.what }.write_to(&mut onto)?;
    onto.flush()
}

fn read_piece(answers: &mut impl Read, mut socket: &UnixStream, piece: &mut [u8], at: u64) -> io::Result<()> {
    let length = u32::try_from(piece.len()).map_err(io::Error::other)?;
    WorkerMessage::Read { at, length }.write_to(&mut socket)?;
    let mut is_read = [0];
    answers.read_exact(&mut is_read)?;
    match is_read {
        [1] => answers.read_exact(piece),
        _ => Err(io::Error::other("the parent process cannot read the disk")),
    }
}
