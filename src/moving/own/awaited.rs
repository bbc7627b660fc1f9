//! Receiving state of a disk: acceptable contents, sender, and progress. It outlives single connections.

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

/// Function that opens a destination.
pub type Opens = fn(&Path) -> Opened<Onto>;

/// Limit of remembered runs. A sender that restarts more often attempts to exhaust the memory.
const MOST_EARLIER_RUNS: usize = 1024;

/// Disk that is being received.
pub struct Disk {
    pub name: String,
    path: PathBuf,
    opens: Opens,
    own_bytes: u64,
    sector_bytes: u32,
    magic: Option<String>,
    /// Expected size in bytes.
    size: Option<u64>,
    pub state: Mutex<State>,
    /// Current `position`, readable while a connection holds the state.
    pub placed: AtomicU64,
    current: Mutex<Current>,
}

/// Whether connections are still accepted.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Wait {
    #[default]
    Lasts,
    /// All disks are complete.
    Whole,
    Failed,
}

/// Reason why a connection is not accepted.
#[derive(Debug)]
pub enum Untaken {
    /// The peer receives the message and gives up.
    Refused(String),
    /// The connection is closed, and the peer may retry with a restarted receiver.
    Cut(String),
}

/// Connection that currently transfers a disk.
#[derive(Default)]
struct Current {
    wait: Wait,
    cutter: Option<Cutter>,
    /// Counter of connections.
    number: u64,
    run: Option<Uuid>,
    /// Earlier runs, which are rejected. Otherwise two concurrent senders would restart each other's transfer forever.
    earlier: Vec<Uuid>,
}

/// Sender of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// Certificate of the sender. A machine has a new one after each boot.
    pub certificate: Certificate,
    pub run: Option<Run>,
}

/// Progress of a disk.
pub struct State {
    /// Destination, or `None` if it could not be reopened.
    onto: Option<Onto>,
    /// Whether the disk may contain data from an earlier run.
    pub compare: bool,
    /// Offset up to which all data is verified and on the disk.
    pub position: u64,
    /// Description from the first connection. Later connections must offer the same disk.
    pub hello: Option<Hello>,
    /// Sender of the data before `position`.
    pub from: Option<Sender>,
    pub is_whole: bool,
}

impl State {
    pub fn onto(&self) -> io::Result<&Onto> {
        self.onto.as_ref().ok_or_else(|| io::Error::other("the disk could not be reopened"))
    }
}

impl Disk {
    /// Opens a destination.
    ///
    /// # Errors
    /// Fails as [`Onto::open`] does.
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

    /// Checks that the disk is large enough.
    ///
    /// # Errors
    /// Fails if it is too small.
    pub fn has_room(&self, bytes: u64) -> io::Result<()> {
        match bytes > self.own_bytes {
            true => Err(lock(&self.state).onto()?.too_small(bytes)),
            false => Ok(()),
        }
    }

    /// Receives the whole disk in one connection, as Ganeti sends it.
    ///
    /// # Errors
    /// Fails if `take` fails, another connection transfers the disk, or the receiver has ended.
    pub fn take_alone(&self, from: &Certificate, take: impl FnOnce(&Onto) -> io::Result<u64>) -> io::Result<u64> {
        let mut state =
            self.state.try_lock().map_err(|_| io::Error::other("another connection already transfers this disk"))?;
        if lock(&self.current).wait != Wait::Lasts {
            return Err(io::Error::other("the receiver has ended"));
        }
        let taken = take(state.onto()?)?;
        state.from = Some(Sender { certificate: from.clone(), run: None });
        state.is_whole = true;
        Ok(taken)
    }

    /// Returns the offset up to which all data has been received.
    pub fn placed_bytes(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }

    /// Returns the sender of the disk if it is complete.
    fn brought_by(&self) -> Option<Sender> {
        // A held lock means that a connection is still transferring it.
        let state = self.state.try_lock().ok()?;
        state.from.clone().filter(|_| state.is_whole)
    }

    /// Fails the transfer: closes the current connection and accepts no other.
    pub fn cut(&self) {
        let mut current = lock(&self.current);
        current.wait = Wait::Failed;
        if let Some(cutter) = current.cutter.take() {
            cutter.cut();
        }
    }

    /// Makes this the current connection and closes the previous one, which the peer must have abandoned.
    ///
    /// # Errors
    /// Fails if a later run has started or no disk is awaited.
    pub fn comes_by(&self, cutter: Cutter, run: Option<Uuid>) -> Result<u64, Untaken> {
        let mut current = lock(&self.current);
        match current.wait {
            Wait::Lasts => {}
            Wait::Whole => {
                return Err(Untaken::Refused("the receiver has ended: all disks are complete".to_owned()));
            }
            Wait::Failed => return Err(Untaken::Cut("the receiver has ended".to_owned())),
        }
        if run.is_some_and(|run| current.earlier.contains(&run)) {
            let name = &self.name;
            return Err(Untaken::Refused(format!("another sender, started after this one, now transfers {name}")));
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

    /// Returns whether this is still the current connection and the disk is still awaited.
    pub fn is_current(&self, number: u64) -> bool {
        let current = lock(&self.current);
        current.number == number && current.wait == Wait::Lasts
    }

    /// Restarts the transfer for another run, or another boot, of the sender. Its disk may have been written anywhere in between, so data
    /// from before counts only if its digest matches.
    pub fn begin_again(&self, state: &mut State, from: Sender) -> io::Result<()> {
        tracing::warn!("{}: sender restarted; comparing all data from the beginning", self.name);
        (state.position, state.compare, state.is_whole) = (0, true, false);
        self.placed.store(0, Ordering::Relaxed);
        // It may be closed already, and it holds the first MiB of the previous run.
        state.onto = None;
        let onto = (self.opens)(&self.path).map_err(io::Error::other)?;
        onto.begin()?;
        (state.onto, state.from) = (Some(onto), Some(from));
        Ok(())
    }

    /// Checks whether the offered disk is acceptable. Returns the reason if not.
    pub fn judge(&self, hello: &Hello) -> Result<(), String> {
        let (own, sector) = (self.own_bytes, self.sector_bytes);
        let needed = hello.size_bytes.checked_next_multiple_of(u64::from(sector));
        if hello.magic != self.magic {
            return Err("magic mismatch: this is not the expected disk".to_owned());
        }
        if let Some(size) = self.size.filter(|size| *size != hello.size_bytes) {
            return Err(format!("{} has {} bytes, expected {size}", self.name, hello.size_bytes));
        }
        if needed.is_none_or(|needed| needed > own) {
            return Err(format!("{} has {} bytes, but the destination has only {own}", self.name, hello.size_bytes));
        }
        if hello.has_table && hello.sector_bytes != sector {
            let theirs = hello.sector_bytes;
            return Err(format!(
                "{} has a partition table for sectors of {theirs} bytes, but the destination has sectors of {sector} bytes",
                self.name
            ));
        }
        Ok(())
    }
}

/// Stops accepting connections if all disks are complete. Returns whether they are.
pub fn close_if_whole(disks: &[Disk], from: &Certificate) -> bool {
    // A thread that holds a disk's state may wait for these locks, so the state is only tried. A thread that has not yet taken the state
    // sees the closed wait before it writes. No other code holds two of these locks.
    let mut all: Vec<_> = disks.iter().map(|disk| lock(&disk.current)).collect();
    let whole = are_whole(disks, from);
    if whole {
        all.iter_mut().for_each(|current| current.wait = Wait::Whole);
    }
    whole
}

/// Returns whether all disks were received from this certificate, and all disks of a run by that run. A mixture of two runs would be
/// inconsistent.
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
