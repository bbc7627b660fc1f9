//! The sandboxed side: the readers of filesystems, over a socket in place of the disk.

use super::wire::{FromWorker, MOST_RANGES_AT_ONCE, MOST_READ, Order};
use crate::command::{nobody, power};
use crate::moving::used::read_used_blocks;
use crate::moving::used::work::Work;
use nix::sys::resource::{Resource, setrlimit};
use std::cell::RefCell;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Memory: 24 MiB for ranges, 18 for blocks that were visited, 32 for the log of an XFS, 24 for the chunks of a btrfs, and room to grow.
const MEMORY_BYTES: u64 = 256 << 20;

/// Processor time. The largest bitmaps take a few seconds.
const PROCESSOR_SECONDS: u64 = 300;

/// Reads the disk of the parent, whose socket is standard input.
///
/// # Errors
/// The kernel does not sandbox this process. The parent is gone.
pub fn run() -> io::Result<()> {
    nobody::close_others()?;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    setrlimit(Resource::RLIMIT_CPU, PROCESSOR_SECONDS, PROCESSOR_SECONDS)?;
    power::give_up(MEMORY_BYTES)?;
    work(&socket)
}

fn work(socket: &UnixStream) -> io::Result<()> {
    let answers = RefCell::new(BufReader::with_capacity(MOST_READ as usize, socket));
    let order = Order::read_from(&mut *answers.borrow_mut())?;
    let read_at = |bytes: &mut [u8], at: u64| {
        let mut at = at;
        for piece in bytes.chunks_mut(MOST_READ as usize) {
            let length = u32::try_from(piece.len()).map_err(io::Error::other)?;
            let end = at.checked_add(length.into()).filter(|end| *end <= order.size);
            let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
            read_piece(&mut *answers.borrow_mut(), socket, piece, at)?;
            at = end;
        }
        Ok(())
    };
    let used = read_used_blocks(&read_at, order.size, order.sector, &Work::default());
    let mut onto = socket;
    for some in used.ranges.chunks(MOST_RANGES_AT_ONCE) {
        FromWorker::Used(some.to_vec()).write_to(&mut onto)?;
    }
    FromWorker::Done { has_table: used.has_table, what: used.what }.write_to(&mut onto)?;
    onto.flush()
}

fn read_piece(answers: &mut impl Read, mut socket: &UnixStream, piece: &mut [u8], at: u64) -> io::Result<()> {
    let length = u32::try_from(piece.len()).map_err(io::Error::other)?;
    FromWorker::Read { at, length }.write_to(&mut socket)?;
    let mut is_read = [0];
    answers.read_exact(&mut is_read)?;
    match is_read {
        [1] => answers.read_exact(piece),
        _ => Err(io::Error::other("the disk cannot be read there")),
    }
}
