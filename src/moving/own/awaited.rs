//! A disk that is awaited: what it may be, who brings it, and how far it is. It remembers that from one connection to the next.

use super::frames::{Hello, Run};
use crate::error::Result as Opened;
use crate::moving::certificate::Certificate;
use crate::moving::link::Cutter;
use crate::moving::onto::Onto;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// How a device is opened that is written to.
pub type Opens = fn(&Path) -> Opened<Onto>;

/// Earlier runs that are remembered. A sender that was started more often than that is an attack on the memory.
const MOST_EARLIER_RUNS: usize = 1024;

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
    pub state: Mutex<State>,
    /// As its `position`, also while a connection brings it.
    pub placed: AtomicU64,
    current: Mutex<Current>,
}

/// Whether anything may still come.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Wait {
    #[default]
    Lasts,
    /// Every disk is whole.
    Whole,
    Failed,
}

/// Why a connection brings nothing.
#[derive(Debug)]
pub enum Untaken {
    /// The other end is to hear this, and to end.
    Refused(String),
    /// It may find a receiver that was started anew.
    Cut(String),
}

/// The connection that a disk comes by.
#[derive(Default)]
struct Current {
    wait: Wait,
    cutter: Option<Cutter>,
    /// Counts them.
    number: u64,
    run: Option<Uuid>,
    /// Runs that another one has taken the place of. One that is still there would begin anew each time, and the other one too.
    earlier: Vec<Uuid>,
}

/// Who brings a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// A machine has another one after each boot.
    pub certificate: Certificate,
    pub run: Option<Run>,
}

pub struct State {
    /// None: it could not be opened again.
    onto: Option<Onto>,
    /// It may have part of it from before.
    pub compare: bool,
    /// All before it is on the disk and was verified.
    pub position: u64,
    /// The first sender's words: the next connection must bring the same disk.
    pub hello: Option<Hello>,
    /// Who has brought what is before `position`.
    pub from: Option<Sender>,
    pub is_whole: bool,
}

impl State {
    pub fn onto(&self) -> io::Result<&Onto> {
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
        if lock(&self.current).wait != Wait::Lasts {
            return Err(io::Error::other("the receiver has ended"));
        }
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

    /// The wait has failed: ends the connection that it comes by, and takes no other.
    pub fn cut(&self) {
        let mut current = lock(&self.current);
        current.wait = Wait::Failed;
        if let Some(cutter) = current.cutter.take() {
            cutter.cut();
        }
    }

    /// From now on it comes by this connection: the other end has given up what still seems to be open.
    ///
    /// # Errors
    /// Another run has begun since this one, or nothing is awaited any more.
    pub fn comes_by(&self, cutter: Cutter, run: Option<Uuid>) -> Result<u64, Untaken> {
        let mut current = lock(&self.current);
        match current.wait {
            Wait::Lasts => {}
            Wait::Whole => {
                return Err(Untaken::Refused("the receiver has ended: every disk is whole there".to_owned()));
            }
            Wait::Failed => return Err(Untaken::Cut("the receiver has ended".to_owned())),
        }
        if run.is_some_and(|run| current.earlier.contains(&run)) {
            let name = &self.name;
            return Err(Untaken::Refused(format!("another sender that was started after this one brings {name} now")));
        }
        if current.run != run {
            let before = current.run.take();
            if current.earlier.len() >= MOST_EARLIER_RUNS {
                current.earlier.remove(0);
            }
            current.earlier.extend(before);
            current.run = run;
        }
        if let Some(before) = current.cutter.replace(cutter) {
            before.cut();
        }
        current.number += 1;
        Ok(current.number)
    }

    /// No other connection has come since that one, and the disk is still awaited.
    pub fn is_current(&self, number: u64) -> bool {
        let current = lock(&self.current);
        current.number == number && current.wait == Wait::Lasts
    }

    /// Another run, or another boot of the other machine, brings it: there may have been writes anywhere in between. So nothing counts of what
    /// came before but what is the same by its digest.
    pub fn begin_again(&self, state: &mut State, from: Sender) -> io::Result<()> {
        tracing::warn!("{}: its sender was started anew, so all of it is compared from the beginning", self.name);
        (state.position, state.compare, state.is_whole) = (0, true, false);
        self.placed.store(0, Ordering::Relaxed);
        // It may be closed already, and it holds what came for the first MiB.
        state.onto = None;
        let onto = (self.opens)(&self.path).map_err(io::Error::other)?;
        onto.begin()?;
        (state.onto, state.from) = (Some(onto), Some(from));
        Ok(())
    }

    /// Why this is not what it awaits.
    pub fn judge(&self, hello: &Hello) -> Result<(), String> {
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

/// Are all whole? From then on no connection brings anything.
pub fn close_if_whole(disks: &[Disk], from: &Certificate) -> bool {
    // Who has a disk's state may wait for these locks, so its state is only tried. Who has none yet finds the wait closed before it
    // writes. Nobody else has two of these locks.
    let mut all: Vec<_> = disks.iter().map(|disk| lock(&disk.current)).collect();
    let whole = are_whole(disks, from);
    if whole {
        all.iter_mut().for_each(|current| current.wait = Wait::Whole);
    }
    whole
}

/// Has the one with this certificate brought all disks, and each run all that it has? Of two runs they would be a mixture.
fn are_whole(disks: &[Disk], from: &Certificate) -> bool {
    let whole: Option<Vec<(&str, Sender)>> =
        disks.iter().map(|disk| Some((disk.name.as_str(), disk.brought_by()?))).collect();
    let is_of_another = |run: &Run| {
        let others = whole.iter().flatten().filter(|(name, _)| run.disks.iter().any(|disk| disk == name));
        others.into_iter().any(|(_, by)| by.run.as_ref().is_none_or(|other| other.id != run.id))
    };
    let is_good = |by: &Sender| by.certificate == *from && !by.run.as_ref().is_some_and(is_of_another);
    whole.as_ref().is_some_and(|whole| whole.iter().all(|(_, by)| is_good(by)))
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
