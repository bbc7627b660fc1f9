//! Receiver of one connection. One thread reads; several decompress, verify and write.

use super::awaited::{Disk, Sender, State, Untaken, lock};
use super::frames::{self, Answer, Encoding, Frame, Hello, Offer, Piece, Received, Sum, Verdict};
use super::{CHUNK_BYTES, Spent, Stop, workers};
use crate::image::raw::Aligned;
use crate::moving::certificate::Certificate;
use crate::moving::link::Link;
use crate::moving::onto::Onto;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::{Duration, Instant};
use zstd::zstd_safe::DCtx;

/// Pieces buffered between the network and the disk.
const PIECES: usize = 8;

/// Time for the peer to read the reason of a failure.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Receives a disk over one connection of `from`. Returns the name of the completed disk.
///
/// # Errors
/// See [`Stop`].
pub fn receive(link: &mut Link, disks: &[Disk], from: &Certificate) -> Result<String, Stop> {
    let Frame::Hello(hello) = frames::read(link)? else {
        return Err(Stop::Failed("protocol error of the sender: no description of its disk".to_owned()));
    };
    let found = disks.iter().find(|disk| disk.name == hello.name);
    let found = found.ok_or_else(|| format!("disk {:?} is not expected here", hello.name));
    match found.and_then(|disk| disk.judge(&hello).map(|()| disk)) {
        Err(why) => {
            frames::write(link, &Frame::Answer(Answer::Refused(why.clone())))?;
            link.last_words(LAST_WORDS);
            Err(Stop::Refused(why))
        }
        Ok(disk) => {
            let number = match disk.comes_by(link.cutter()?, hello.run.as_ref().map(|run| run.id)) {
                Ok(number) => number,
                Err(Untaken::Cut(why)) => return Err(Stop::Again(io::Error::other(why))),
                Err(Untaken::Refused(why)) => {
                    frames::write(link, &Frame::Answer(Answer::Refused(why.clone())))?;
                    link.last_words(LAST_WORDS);
                    return Err(Stop::Again(io::Error::other(why)));
                }
            };
            let mut state = lock(&disk.state);
            // While this thread waited for the state, a newer connection may have completed the disk, or all disks may be complete.
            if !disk.is_current(number) {
                return Err(Stop::Again(io::Error::other(
                    "superseded by another connection, or the receiver has ended",
                )));
            }
            let sender = Sender { certificate: from.clone(), run: hello.run.clone() };
            take(link, disk, &mut state, (sender, &hello)).map(|()| disk.name.clone())
        }
    }
}

fn take(link: &mut Link, disk: &Disk, state: &mut State, (from, hello): (Sender, &Hello)) -> Result<(), Stop> {
    match &state.hello {
        None => {
            state.onto()?.begin().map_err(failed)?;
            (state.hello, state.from) = (Some(hello.clone()), Some(from));
        }
        Some(before) if !before.is_same_disk(hello) => {
            let why = format!("{} is not the disk of the previous connection", disk.name);
            frames::write(link, &Frame::Answer(Answer::Refused(why.clone())))?;
            return Err(Stop::Failed(why));
        }
        Some(_) if state.from.as_ref() != Some(&from) => disk.begin_again(state, from).map_err(failed)?,
        Some(_) => {}
    }
    frames::write(link, &Frame::Answer(Answer::From { position: state.position, compare: state.compare }))?;
    let began = Instant::now();
    let pieces = pieces(link, disk, state, hello.size_bytes);
    let received = pieces.and_then(|pieces| {
        if !state.is_whole {
            let onto = state.onto()?;
            pieces.busy.on(|| onto.finish()).map_err(failed)?;
        }
        Ok(Received { digest: pieces.digest, disk_percent: pieces.busy.percent(began.elapsed(), workers()) })
    });
    match received {
        Ok(received) => {
            state.is_whole = true;
            frames::write(link, &Frame::Verdict(Verdict::Received(received)))?;
            link.close()?;
            Ok(())
        }
        Err(Stop::Failed(why)) => {
            // Best effort: the transfer has failed anyway.
            let _ = frames::write(link, &Frame::Verdict(Verdict::Failed(why.clone())));
            link.last_words(LAST_WORDS);
            Err(Stop::Failed(why))
        }
        Err(other) => Err(other),
    }
}

fn failed(error: impl ToString) -> Stop {
    Stop::Failed(error.to_string())
}

/// Result of a connection of which all pieces are on the disk.
struct Taken {
    digest: String,
    busy: Spent,
}

/// Receives pieces until the end of the disk or of the connection. On return they are on the disk, and the position is updated.
fn pieces(link: &mut Link, disk: &Disk, state: &mut State, size_bytes: u64) -> Result<Taken, Stop> {
    let (jobs, todo) = mpsc::sync_channel(PIECES);
    let (onto, placed) = (state.onto()?, &disk.placed);
    let shared = Shared { onto, placed, todo: Mutex::new(todo), failed: Mutex::new(None), busy: Spent::default() };
    let mut sum = Sum::new();
    let mut position = state.position;
    let read = thread::scope(|scope| {
        for _ in 0..workers() {
            scope.spawn(|| shared.work());
        }
        read_pieces(link, &shared, jobs, size_bytes, &mut position, &mut sum)
    });
    let (error, busy) = (lock(&shared.failed).take(), shared.busy);
    if let Some(error) = error {
        return Err(failed(error));
    }
    state.position = position;
    let digest = read?;
    Ok(Taken { digest, busy })
}

fn read_pieces(
    link: &mut Link,
    shared: &Shared<'_>,
    jobs: SyncSender<(Piece, Vec<u8>)>,
    size_bytes: u64,
    position: &mut u64,
    sum: &mut Sum,
) -> Result<String, Stop> {
    let mut scratch = Aligned::new(CHUNK_BYTES as usize);
    loop {
        if lock(&shared.failed).is_some() {
            return Err(Stop::Failed("a write failed".to_owned()));
        }
        match frames::read(link)? {
            Frame::Piece(piece, bytes) if piece.is_within(size_bytes) && piece.range().start == *position => {
                *position = piece.range().end;
                shared.placed.store(*position, Ordering::Relaxed);
                sum.add(&piece);
                // Cannot fail: the workers end after this loop.
                let _ = jobs.send((piece, bytes));
            }
            Frame::Offered(offers) => {
                let wanted = offers.iter().map(|offer| !has(shared.onto, offer, size_bytes, &mut scratch)).collect();
                frames::write(link, &Frame::Wanted(wanted))?;
            }
            Frame::End(digest) if *position == size_bytes && digest == sum.so_far() => {
                return Ok(frames::hex(&digest));
            }
            Frame::End(_) => {
                return Err(Stop::Failed("the received data does not match the digest of the sender".to_owned()));
            }
            _ => return Err(Stop::Failed("protocol error of the sender: unexpected frame".to_owned())),
        }
    }
}

/// Returns whether the piece is on the disk from before. The first MiB is not: it was zeroed.
fn has(onto: &Onto, offer: &Offer, size_bytes: u64, scratch: &mut Aligned) -> bool {
    let Offer { offset, length, sha256 } = *offer;
    let piece = Piece::Same { offset, length, sha256 };
    let length = length as usize;
    offset >= CHUNK_BYTES
        && piece.is_within(size_bytes)
        && onto.read(offset, scratch, length).is_ok()
        && frames::sha256(&scratch[..length]) == sha256
}

/// State that the worker threads share.
struct Shared<'d> {
    onto: &'d Onto,
    placed: &'d AtomicU64,
    todo: Mutex<Receiver<(Piece, Vec<u8>)>>,
    failed: Mutex<Option<io::Error>>,
    busy: Spent,
}

impl Shared<'_> {
    fn work(&self) {
        let (mut buffer, mut zstd) = (Aligned::new(CHUNK_BYTES as usize), DCtx::create());
        loop {
            let job = lock(&self.todo).recv();
            let Ok((piece, bytes)) = job else { return };
            if let Err(error) = self.place(&piece, &bytes, &mut buffer, &mut zstd) {
                lock(&self.failed).get_or_insert(error);
            }
        }
    }

    fn place(&self, piece: &Piece, bytes: &[u8], buffer: &mut Aligned, zstd: &mut DCtx<'_>) -> io::Result<()> {
        let onto = self.onto;
        match piece {
            Piece::Unused(_) | Piece::Same { .. } => Ok(()),
            Piece::Zero(range) => self.busy.on(|| onto.zero(range.clone())),
            Piece::Bytes { offset, length, encoding, sha256 } => {
                let length = *length as usize;
                let unpacked = unpack(*encoding, bytes, &mut buffer[..length], zstd);
                if !unpacked || frames::sha256(&buffer[..length]) != *sha256 {
                    return Err(io::Error::other(format!("digest mismatch of the piece at byte {offset}")));
                }
                self.busy.on(|| onto.put(*offset, buffer, length))
            }
        }
    }
}

/// Decompresses into `onto`. Returns whether the output fills it exactly.
fn unpack(encoding: Encoding, bytes: &[u8], onto: &mut [u8], zstd: &mut DCtx<'_>) -> bool {
    match encoding {
        Encoding::Plain if bytes.len() == onto.len() => {
            onto.copy_from_slice(bytes);
            true
        }
        Encoding::Plain => false,
        Encoding::Zstd => zstd.decompress(onto, bytes).is_ok_and(|length| length == onto.len()),
        Encoding::Lz4 => lz4_flex::block::decompress_into(bytes, onto).is_ok_and(|length| length == onto.len()),
    }
}

#[cfg(test)]
mod tests;
