//! State of a disk that is being received: expected contents, sender, and progress. The state outlives single
//! connections.

use super::frames::{SenderRun, TransferHello};
use crate::destination_disk::TransferDestination;
use crate::ganeti_certificate::PeerCertificate;
use crate::tls_connection::ShutdownHandle;
use common::error::Result as Opened;
use common::sync::lock_mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use uuid::Uuid;

/// Function that opens a destination.
pub(crate) type OpenDest = fn(&Path) -> Opened<TransferDestination>;

/// Maximum number of earlier runs that are remembered. This number limits the memory that a sender can consume by
/// restarting repeatedly.
const MAXIMUM_EARLIER_RUNS: usize = 1024;

/// Disk that is being received.
pub(crate) struct ReceivedDisk {
    pub name: String,
    path: PathBuf,
    opens: OpenDest,
    own_bytes: u64,
    sector_bytes: u32,
    magic: Option<String>,
    /// Expected size in bytes, if the operator has specified it.
    size: Option<u64>,
    pub state: Mutex<ReceiveState>,
    /// Copy of the current position. It can be read while a connection has locked `state`.
    pub placed: AtomicU64,
    current: Mutex<CurrentConnection>,
}

/// State of the receiver, which determines whether connections are still accepted.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum WaitState {
    #[default]
    Running,
    /// All disks are complete.
    Complete,
    Failed,
}

/// Reason why a connection is not accepted.
#[derive(Debug)]
pub(crate) enum ConnectionRejection {
    /// The peer receives the message as a refusal, and does not retry.
    Refused(String),
    /// The connection is closed without a message. The peer retries, and may then reach a restarted receiver.
    Cut(String),
}

/// Connection that currently transfers a disk.
#[derive(Default)]
struct CurrentConnection {
    wait: WaitState,
    cutter: Option<ShutdownHandle>,
    /// Number of the current connection; each new connection increments it.
    number: u64,
    run: Option<Uuid>,
    /// Ids of earlier runs, whose connections are rejected. Otherwise two concurrent senders would endlessly restart
    /// the transfer of each other.
    earlier: Vec<Uuid>,
}

/// Sender from which a disk is received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransferSender {
    /// Certificate of the sender. An agent has a new certificate after each boot.
    pub certificate: PeerCertificate,
    pub run: Option<SenderRun>,
}

/// Progress of receiving a disk.
pub(crate) struct ReceiveState {
    /// Destination; `None` if the destination could not be reopened for another run of the sender.
    onto: Option<TransferDestination>,
    /// Whether the disk may contain data from an earlier run. Such data is compared by digest.
    pub compare: bool,
    /// Offset before which all data is verified and on the disk, in bytes.
    pub position: u64,
    /// Description of the disk from the first connection. Later connections must offer the same disk.
    pub hello: Option<TransferHello>,
    /// Sender of the data before `position`.
    pub from: Option<TransferSender>,
    pub is_whole: bool,
}

impl ReceiveState {
    pub(crate) fn open_destination(&self) -> io::Result<&TransferDestination> {
        self.onto.as_ref().ok_or_else(|| io::Error::other("the disk could not be reopened"))
    }
}

impl ReceivedDisk {
    /// Opens the destination for a disk.
    ///
    /// # Errors
    /// Fails for the same reasons as [`TransferDestination::open_destination`].
    pub(crate) fn open_disk(
        name: String,
        (path, opens): (PathBuf, OpenDest),
        magic: Option<String>,
        size: Option<u64>,
        compare: bool,
    ) -> Opened<ReceivedDisk> {
        let onto = opens(&path)?;
        Ok(ReceivedDisk {
            name,
            path,
            opens,
            own_bytes: onto.size_bytes(),
            sector_bytes: onto.sector_bytes(),
            magic,
            size,
            state: Mutex::new(ReceiveState {
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

    /// Checks that the destination has at least `bytes` bytes.
    ///
    /// # Errors
    /// Fails if the destination is too small.
    pub(crate) fn require_size(&self, bytes: u64) -> io::Result<()> {
        match bytes > self.own_bytes {
            true => Err(lock_mutex(&self.state).open_destination()?.too_small_error(bytes)),
            false => Ok(()),
        }
    }

    /// Receives the whole disk over one connection, as required by Ganeti's protocol.
    ///
    /// # Errors
    /// Fails if `take` fails, another connection transfers the disk, or the receiver has finished.
    pub(crate) fn receive_at_once(
        &self,
        from: &PeerCertificate,
        take: impl FnOnce(&TransferDestination) -> io::Result<u64>,
    ) -> io::Result<u64> {
        let mut state =
            self.state.try_lock().map_err(|_| io::Error::other("another connection already transfers this disk"))?;
        if lock_mutex(&self.current).wait != WaitState::Running {
            return Err(io::Error::other("the receiver has finished"));
        }
        let taken = take(state.open_destination()?)?;
        state.from = Some(TransferSender { certificate: from.clone(), run: None });
        state.is_whole = true;
        Ok(taken)
    }

    /// Returns the number of bytes of the disk that were received so far.
    pub fn received_bytes(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }

    /// Returns the sender of the disk if the disk is complete.
    fn complete_sender(&self) -> Option<TransferSender> {
        // If the state is locked, a connection is still transferring the disk.
        let state = self.state.try_lock().ok()?;
        state.from.clone().filter(|_| state.is_whole)
    }

    /// Ends the transfer as failed: closes the current connection and rejects further connections.
    pub(crate) fn fail_transfer(&self) {
        let mut current = lock_mutex(&self.current);
        current.wait = WaitState::Failed;
        if let Some(cutter) = current.cutter.take() {
            cutter.shut_down();
        }
    }

    /// Makes a new connection the current one, and closes the previous one, because a peer that opens a new connection
    /// no longer uses the previous one. Returns the number of the new connection.
    ///
    /// # Errors
    /// Fails if the connection belongs to an earlier run, or the receiver has finished.
    pub(crate) fn make_current(&self, cutter: ShutdownHandle, run: Option<Uuid>) -> Result<u64, ConnectionRejection> {
        let mut current = lock_mutex(&self.current);
        match current.wait {
            WaitState::Running => {}
            WaitState::Complete => {
                return Err(ConnectionRejection::Refused(
                    "the receiver has finished: all disks are complete".to_owned(),
                ));
            }
            WaitState::Failed => return Err(ConnectionRejection::Cut("the receiver has finished".to_owned())),
        }
        if run.is_some_and(|run| current.earlier.contains(&run)) {
            let name = &self.name;
            return Err(ConnectionRejection::Refused(format!(
                "another sender, started after this one, now transfers {name}"
            )));
        }
        if current.run != run {
            let before = current.run.take();
            if current.earlier.len() >= MAXIMUM_EARLIER_RUNS {
                current.earlier.remove(0);
            }
            current.earlier.extend(before);
            current.run = run;
        }
        if let Some(before) = current.cutter.replace(cutter) {
            before.shut_down();
        }
        current.number += 1;
        Ok(current.number)
    }

    /// Returns whether connection `number` is still the current one, and the receiver has not ended.
    pub(crate) fn is_current(&self, number: u64) -> bool {
        let current = lock_mutex(&self.current);
        current.number == number && current.wait == WaitState::Running
    }

    /// Restarts the transfer for another run, or another boot, of the sender. The sender's disk may have been modified
    /// between the runs, so data that was received before the restart is accepted only if its digest matches.
    pub(crate) fn restart_transfer(&self, state: &mut ReceiveState, from: TransferSender) -> io::Result<()> {
        tracing::warn!("{disk}: sender restarted; comparing all data from the beginning", disk = self.name);
        (state.position, state.compare, state.is_whole) = (0, true, false);
        self.placed.store(0, Ordering::Relaxed);
        // The destination is reopened, because it may be closed, and because it still holds the first MiB of the
        // previous run.
        state.onto = None;
        let onto = (self.opens)(&self.path).map_err(io::Error::other)?;
        onto.erase_head()?;
        (state.onto, state.from) = (Some(onto), Some(from));
        Ok(())
    }

    /// Checks whether the offered disk is acceptable. The error is the reason why the disk is not acceptable.
    pub(crate) fn check_offer(&self, hello: &TransferHello) -> Result<(), String> {
        let (own, sector) = (self.own_bytes, self.sector_bytes);
        let needed = hello.size_bytes.checked_next_multiple_of(u64::from(sector));
        if hello.magic != self.magic {
            return Err("magic mismatch: the peer transfers a disk other than the expected one".to_owned());
        }
        if let Some(size) = self.size.filter(|size| *size != hello.size_bytes) {
            return Err(format!(
                "{disk} is {actual} bytes, expected {size}",
                disk = self.name,
                actual = hello.size_bytes
            ));
        }
        if needed.is_none_or(|needed| needed > own) {
            return Err(format!(
                "{disk} is {actual} bytes, but the destination is only {own} bytes",
                disk = self.name,
                actual = hello.size_bytes
            ));
        }
        if hello.has_table && hello.sector_bytes != sector {
            let theirs = hello.sector_bytes;
            return Err(format!(
                "{disk} has a partition table for sectors of {theirs} bytes, but the destination has sectors of {sector} bytes",
                disk = self.name
            ));
        }
        Ok(())
    }
}

/// Stops accepting connections if all disks are complete. Returns whether all are complete.
pub(crate) fn close_if_complete(disks: &[ReceivedDisk], from: &PeerCertificate) -> bool {
    // The locks of all connections are held while the states are examined. The states are locked with `try_lock`,
    // because a thread that has locked a state may wait for one of the held locks. A thread that has not locked its
    // state yet will detect `WaitState::Complete` before it writes. No other code holds two of these locks.
    let mut all: Vec<_> = disks.iter().map(|disk| lock_mutex(&disk.current)).collect();
    let whole = are_complete(disks, from);
    if whole {
        all.iter_mut().for_each(|current| current.wait = WaitState::Complete);
    }
    whole
}

/// Returns whether all disks are complete and consistent: the sender of each disk has this certificate, and all disks
/// that a run sends were received from this run. Disks from two runs would be inconsistent with each other.
fn are_complete(disks: &[ReceivedDisk], from: &PeerCertificate) -> bool {
    let whole: Option<Vec<(&str, TransferSender)>> =
        disks.iter().map(|disk| Some((disk.name.as_str(), disk.complete_sender()?))).collect();
    let is_of_another = |run: &SenderRun| {
        let others = whole.iter().flatten().filter(|(name, _)| run.disks.iter().any(|disk| disk == name));
        others.into_iter().any(|(_, by)| by.run.as_ref().is_none_or(|other| other.id != run.id))
    };
    let is_good = |by: &TransferSender| by.certificate == *from && !by.run.as_ref().is_some_and(is_of_another);
    whole.as_ref().is_some_and(|whole| whole.iter().all(|(_, by)| is_good(by)))
}
