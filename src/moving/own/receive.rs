//! The receiver's end. One thread reads the link; several unpack, verify and write. A disk remembers how far it is, for the next
//! connection.

use super::frames::{self, Answer, Encoding, Frame, Hello, Offer, Piece, Received, Run, Sum, Verdict};
use super::{CHUNK_BYTES, Spent, Stop, workers};
use crate::error::Result as Opened;
use crate::image::raw::Aligned;
use crate::moving::certificate::Certificate;
use crate::moving::link::{Cutter, Link};
use crate::moving::onto::Onto;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;
use zstd::zstd_safe::DCtx;

/// Pieces between the link and the disk.
const PIECES: usize = 8;

/// For the other end to read why it failed.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// How a device is opened that is written to.
pub type Opens = fn(&Path) -> Opened<Onto>;

/// A disk that is awaited.
pub struct Disk {
    pub name: String,
    path: PathBuf,
    opens: Opens,
    own_bytes: u64,
    sector_bytes: u32,
    magic: Option<String>,
    /// It is to have so many bytes.
    size: Option<u64>,
    state: Mutex<State>,
    /// As its `position`, also while a connection brings it.
    placed: AtomicU64,
    current: Mutex<Current>,
}

/// The connection that a disk comes by.
#[derive(Default)]
struct Current {
    cutter: Option<Cutter>,
    run: Option<Uuid>,
    /// Runs that another one has taken the place of. One that is still there would begin anew each time, and the other one too.
    earlier: Vec<Uuid>,
}

/// Who brings a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// A machine has another one after each boot.
    certificate: Certificate,
    run: Option<Run>,
}

struct State {
    /// None: it could not be opened again.
    onto: Option<Onto>,
    /// It may have part of it from before.
    compare: bool,
    /// All before it is on the disk and was verified.
    position: u64,
    /// The first sender's words: the next connection must bring the same disk.
    hello: Option<Hello>,
    /// Who has brought what is before `position`.
    from: Option<Sender>,
    is_whole: bool,
}

impl State {
    fn onto(&self) -> io::Result<&Onto> {
        self.onto.as_ref().ok_or_else(|| io::Error::other("it could not be opened again"))
    }
}

impl Disk {
    /// # Errors
    /// As [`Onto::open`].
    pub fn open(
        name: String,
        (path, opens): (PathBuf, Opens),
        magic: Option<String>,
        size: Option<u64>,
        compare: bool,
    ) -> Opened<Disk> {
        let onto = opens(&path)?;
        Ok(Disk {
            name,
            path,
            opens,
            own_bytes: onto.size_bytes(),
            sector_bytes: onto.sector_bytes(),
            magic,
            size,
            state: Mutex::new(State {
                onto: Some(onto),
                compare,
                position: 0,
                hello: None,
                from: None,
                is_whole: false,
            }),
            placed: AtomicU64::new(0),
            current: Mutex::default(),
        })
    }

    /// # Errors
    /// So much does not fit.
    pub fn has_room(&self, bytes: u64) -> io::Result<()> {
        match bytes > self.own_bytes {
            true => Err(lock(&self.state).onto()?.too_small(bytes)),
            false => Ok(()),
        }
    }

    /// Takes it at once and whole, as Ganeti's end brings it.
    ///
    /// # Errors
    /// What the taking says, or it is at work already.
    pub fn take_alone(&self, from: &Certificate, take: impl FnOnce(&Onto) -> io::Result<u64>) -> io::Result<u64> {
        let mut state = self.state.try_lock().map_err(|_| io::Error::other("another connection brings this disk"))?;
        let taken = take(state.onto()?)?;
        state.from = Some(Sender { certificate: from.clone(), run: None });
        state.is_whole = true;
        Ok(taken)
    }

    /// All before it has come.
    pub fn placed_bytes(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }

    /// Who has brought all of it.
    fn brought_by(&self) -> Option<Sender> {
        // Who has the lock is at work on it.
        let state = self.state.try_lock().ok()?;
        state.from.clone().filter(|_| state.is_whole)
    }

    /// Ends the connection that it comes by.
    pub fn cut(&self) {
        if let Some(cutter) = lock(&self.current).cutter.take() {
            cutter.cut();
        }
    }

    /// From now on it comes by this connection: the other end has given up what still seems to be open. False: another run has begun
    /// since this one.
    fn comes_by(&self, cutter: Cutter, run: Option<Uuid>) -> bool {
        let mut current = lock(&self.current);
        if run.is_some_and(|run| current.earlier.contains(&run)) {
            return false;
        }
        if current.run != run {
            let before = current.run.take();
            current.earlier.extend(before);
            current.run = run;
        }
        if let Some(before) = current.cutter.replace(cutter) {
            before.cut();
        }
        true
    }

    /// Why this is not what it awaits.
    fn judge(&self, hello: &Hello) -> Result<(), String> {
        let (own, sector) = (self.own_bytes, self.sector_bytes);
        let needed = hello.size_bytes.checked_next_multiple_of(u64::from(sector));
        if hello.magic != self.magic {
            return Err("the magic is another one: this is not the disk that is awaited".to_owned());
        }
        if let Some(size) = self.size.filter(|size| *size != hello.size_bytes) {
            return Err(format!("{} has {} bytes, and it is to have {size}", self.name, hello.size_bytes));
        }
        if needed.is_none_or(|needed| needed > own) {
            return Err(format!("{} has {} bytes, and there are {own} for it", self.name, hello.size_bytes));
        }
        if hello.has_table && hello.sector_bytes != sector {
            let theirs = hello.sector_bytes;
            return Err(format!(
                "{} has partitions in sectors of {theirs} bytes, and they are of {sector} here",
                self.name
            ));
        }
        Ok(())
    }
}

/// Has the one with this certificate brought all disks, and each run all that it has? Of two runs they would be a mixture.
pub fn are_whole(disks: &[Disk], from: &Certificate) -> bool {
    let whole: Option<Vec<(&str, Sender)>> =
        disks.iter().map(|disk| Some((disk.name.as_str(), disk.brought_by()?))).collect();
    let is_of_another = |run: &Run| {
        let others = whole.iter().flatten().filter(|(name, _)| run.disks.iter().any(|disk| disk == name));
        others.into_iter().any(|(_, by)| by.run.as_ref().is_none_or(|other| other.id != run.id))
    };
    let is_good = |by: &Sender| by.certificate == *from && !by.run.as_ref().is_some_and(is_of_another);
    whole.as_ref().is_some_and(|whole| whole.iter().all(|(_, by)| is_good(by)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes what one connection of `from` brings; returns the name of the disk that is whole now.
///
/// # Errors
/// See [`Stop`].
pub fn receive(link: &mut Link, disks: &[Disk], from: &Certificate) -> Result<String, Stop> {
    let Frame::Hello(hello) = frames::read(link)? else {
        return Err(Stop::Failed("the sender does not say what it has".to_owned()));
    };
    let found = disks.iter().find(|disk| disk.name == hello.name);
    let found = found.ok_or_else(|| format!("no disk {:?} is awaited here", hello.name));
    match found.and_then(|disk| disk.judge(&hello).map(|()| disk)) {
        Err(why) => {
            frames::write(link, &Frame::Answer(Answer::Refused(why.clone())))?;
            link.last_words(LAST_WORDS);
            Err(Stop::Refused(why))
        }
        Ok(disk) => {
            if !disk.comes_by(link.cutter()?, hello.run.as_ref().map(|run| run.id)) {
                let why = format!("another sender that was started after this one brings {} now", disk.name);
                frames::write(link, &Frame::Answer(Answer::Refused(why.clone())))?;
                link.last_words(LAST_WORDS);
                return Err(Stop::Again(io::Error::other(why)));
            }
            let mut state = lock(&disk.state);
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
            let why = format!("{} comes as another disk than before", disk.name);
            frames::write(link, &Frame::Answer(Answer::Refused(why.clone())))?;
            return Err(Stop::Failed(why));
        }
        Some(_) if state.from.as_ref() != Some(&from) => begin_again(disk, state, from)?,
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
            // It is told where it can be; here it has failed anyway.
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

/// Another run, or another boot of the other machine, brings it: there may have been writes anywhere in between. So nothing counts of what
/// came before but what is the same by its digest.
fn begin_again(disk: &Disk, state: &mut State, from: Sender) -> Result<(), Stop> {
    tracing::warn!("{}: its sender was started anew, so all of it is compared from the beginning", disk.name);
    (state.position, state.compare, state.is_whole) = (0, true, false);
    disk.placed.store(0, Ordering::Relaxed);
    // It may be closed already, and it holds what came for the first MiB.
    state.onto = None;
    let onto = (disk.opens)(&disk.path).map_err(failed)?;
    onto.begin().map_err(failed)?;
    (state.onto, state.from) = (Some(onto), Some(from));
    Ok(())
}

/// All pieces of a connection are on the disk.
struct Taken {
    digest: String,
    busy: Spent,
}

/// Takes pieces until the end of the disk or of the connection. What came is on the disk then, and the position behind it.
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
            return Err(Stop::Failed("see above".to_owned()));
        }
        match frames::read(link)? {
            Frame::Piece(piece, bytes) if piece.is_within(size_bytes) && piece.range().start == *position => {
                *position = piece.range().end;
                shared.placed.store(*position, Ordering::Relaxed);
                sum.add(&piece);
                // The threads end after this one.
                let _ = jobs.send((piece, bytes));
            }
            Frame::Offered(offers) => {
                let wanted = offers.iter().map(|offer| !has(shared.onto, offer, size_bytes, &mut scratch)).collect();
                frames::write(link, &Frame::Wanted(wanted))?;
            }
            Frame::End(digest) if *position == size_bytes && digest == sum.so_far() => {
                return Ok(frames::hex(&digest));
            }
            Frame::End(_) => return Err(Stop::Failed("what came is not what the sender says it has sent".to_owned())),
            _ => return Err(Stop::Failed("the sender sends what does not belong there".to_owned())),
        }
    }
}

/// Is it there from before? What lies in the first MiB is not: that was made zero.
fn has(onto: &Onto, offer: &Offer, size_bytes: u64, scratch: &mut Aligned) -> bool {
    let Offer { offset, length, sha256 } = *offer;
    let piece = Piece::Same { offset, length, sha256 };
    let length = length as usize;
    offset >= CHUNK_BYTES
        && piece.is_within(size_bytes)
        && onto.read(offset, scratch, length).is_ok()
        && frames::sha256(&scratch[..length]) == sha256
}

/// What the threads work on.
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
                    return Err(io::Error::other(format!("the piece at byte {offset} is not what its digest says")));
                }
                self.busy.on(|| onto.put(*offset, buffer, length))
            }
        }
    }
}

/// Whether it fills all of that.
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
