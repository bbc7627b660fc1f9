//! State of the server in SQLite. One thread owns the connection; all others send it work, which `jobs` queues fairly.
//!
//! This file has what the others need, and machines and digests. `store` is the database file, `identity` tells it from another
//! one, `schema` has the tables, `history` and `log` what machines have said. `standing` says how far an allocation has come, `boots` who may speak for a machine,
//! `registered` what a machine has reported about itself, `machine_identities` by which UUID and MACs it is known, `next` what it boots. `strangers` are machines without a file,
//! `renamed` those with a new id, `moves` those that move to other hardware. `first` is the beginning of a first installation, `orders` what becomes of an order, `adopted`
//! what the operator reports as installed. `epoch` issues fencing tokens, `confirmed` holds what was restored until it is confirmed.

mod adopted;
pub mod boots;
pub mod confirmed;
pub mod epoch;
mod first;
mod history;
pub mod identity;
mod jobs;
mod log;
mod machine_identities;
mod moves;
mod next;
mod orders;
mod registered;
mod renamed;
pub mod schema;
mod standing;
pub mod store;
mod strangers;
#[cfg(test)]
mod tests;
mod unremembered;

pub use adopted::Adopted;
pub use boots::{Boot, Enrolled, Heard};
pub use confirmed::ConfirmOutcome;
pub use first::BegunFirst;
pub use log::LogKept;
pub use moves::{Heard as MoveHeard, Placed, in_a_move};
pub use next::{Asked, Files, Handed, NextBoot};
pub use orders::{ATTEMPTS, Begun, Cancelled, Ordered, Reported};
pub use registered::Registered;
pub use renamed::Renamed;
pub use standing::{First, HandedOut, Order, Outcome, Standing, Words};

use super::metrics::Metrics;
use super::requests;
use super::token::Hash;
use crate::error::{Context, Error, Phase, Result};
use crate::facts::Event;
use jobs::JobSender;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{Durability, Store};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::{oneshot, watch};

/// Number of events that are kept of a machine. One installation makes a few hundred.
const EVENTS_KEPT: u32 = 5000;
/// Older events are deleted each time that so many have come in.
const TRIM_EVERY: i64 = 64;

enum Job {
    Work(Box<dyn FnOnce(&mut Store) + Send>),
    /// Closes the file, then answers.
    End(oneshot::Sender<()>),
}

/// A handle on the database; cheap to clone. The thread ends with the last handle, or with [`State::end`].
#[derive(Clone)]
pub struct State {
    jobs: JobSender<Job>,
    pub heard: Heard,
    pub metrics: Arc<Metrics>,
    gone: watch::Receiver<Option<String>>,
}

/// A file as it was when its digest was computed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileStamp {
    pub path: String,
    /// Bytes; signed as SQLite's integers are.
    pub size: i64,
    /// Modification time in nanoseconds since 1970.
    pub mtime: String,
}

impl State {
    /// Opens or creates the database at `path`. A boot that has not called for `quiet` is not heard any more.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(path: &Path, quiet: Duration) -> Result<State> {
        let (say_gone, gone) = watch::channel(None);
        State::start(Store::open(path, say_gone)?, quiet, gone)
    }

    /// Opens the database of a server, which may run, to read what it says.
    ///
    /// # Errors
    /// As [`Store::open_to_read`].
    pub fn open_to_read(path: &Path) -> Result<State> {
        let (say_gone, gone) = watch::channel(None);
        State::start(Store::open_to_read(path, say_gone)?, Duration::ZERO, gone)
    }

    fn start(mut store: Store, quiet: Duration, gone: watch::Receiver<Option<String>>) -> Result<State> {
        let (jobs, queue) = jobs::queue::<Job>();
        let run = move || {
            while let Some(job) = queue.receive() {
                match job {
                    // A panic ends one call only: its transaction is rolled back, and its caller gets an error.
                    Job::Work(work) => drop(catch_unwind(AssertUnwindSafe(|| work(&mut store)))),
                    Job::End(done) => {
                        drop(store);
                        let _ = done.send(());
                        return;
                    }
                }
            }
        };
        let what = || "start the state file's thread";
        std::thread::Builder::new().name("state".to_owned()).spawn(run).context(Phase::Serve, what)?;
        Ok(State { jobs, heard: Heard::new(quiet), metrics: Arc::default(), gone })
    }

    /// Finishes the waiting work, and closes the file, which is whole then.
    pub async fn end(&self) {
        let (done, ended) = oneshot::channel();
        self.jobs.send_last(Job::End(done));
        // An error means that the thread has ended already.
        let _ = ended.await;
    }

    /// Returns when the server has to stop, with the reason.
    pub async fn gone(&self) -> String {
        let mut gone = self.gone.clone();
        let why = gone.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        match why {
            Some(why) => why,
            // The thread has ended as it should: there will be no reason.
            None => std::future::pending().await,
        }
    }

    /// Checks that the file is still in its place. If it is not, [`State::gone`] returns.
    pub fn look(&self) {
        self.jobs.send(None, Job::Work(Box::new(|store| drop(store.must_be_there()))));
    }

    fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> Result<T> + Send + 'static,
    ) -> oneshot::Receiver<Result<T>> {
        let (answer, receiver) = oneshot::channel();
        // The receiver is gone if the caller has hung up; the work is done all the same.
        let (began, metrics) = (Instant::now(), self.metrics.clone());
        let work = move |store: &mut Store| {
            let done = work(store);
            metrics.stored(began.elapsed());
            drop(answer.send(done));
        };
        // A job that cannot be sent drops `answer`, and the receiver gets an error.
        self.jobs.send(requests::client(), Job::Work(Box::new(work)));
        receiver
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        settle(self.submit(|store| in_file(work(&mut store.connection))).await)
    }

    fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        settle(self.submit(|store| in_file(work(&mut store.connection))).blocking_recv())
    }

    /// Does the work in [`Store::durably`].
    async fn durably<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        settle(self.submit(|store| store.durably(work)).await)
    }

    /// Does the work in [`Store::as_durable_as_needed`].
    async fn as_durable_as_needed<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction) -> rusqlite::Result<(T, Durability)> + Send + 'static,
    ) -> Result<T> {
        settle(self.submit(|store| store.as_durable_as_needed(work)).await)
    }

    /// Returns when the database has answered a trivial read and write, or has failed to: then other calls report why.
    pub async fn pulse(&self) {
        let _ = self.submit(Store::pulse).await;
    }

    /// Blocks the database's thread until the other end of the channel is dropped.
    #[cfg(test)]
    pub fn block(&self, until: std::sync::mpsc::Receiver<()>) {
        self.jobs.send(None, Job::Work(Box::new(move |_| until.recv().unwrap_or_default())));
    }

    /// Returns the clients whose jobs the database has taken, in their order.
    #[cfg(test)]
    pub fn served(&self) -> Vec<Option<std::net::IpAddr>> {
        self.jobs.taken()
    }

    /// Returns how many jobs of that client wait for the database.
    #[cfg(test)]
    pub fn waiting_jobs(&self, client: std::net::IpAddr) -> usize {
        self.jobs.waiting(Some(client))
    }

    /// When the machine was last seen, and the last event that it sent.
    ///
    /// # Errors
    /// The database's.
    pub async fn last_event(&self, machine: &str) -> Result<Option<(String, String)>> {
        let machine = machine.to_owned();
        self.run(move |connection| {
            let select = "SELECT last_seen, last_event FROM machines WHERE id = ?1 AND last_event IS NOT NULL";
            connection.query_row(select, [&machine], |row| Ok((row.get(0)?, row.get(1)?))).optional()
        })
        .await
    }

    /// Does the database know this allocation of the machine? It was handed out, adopted or reported at some time.
    ///
    /// # Errors
    /// The database's.
    pub async fn has_allocation(&self, machine: &str, allocation: &str) -> Result<bool> {
        let key = [machine.to_owned(), allocation.to_owned()];
        self.run(move |connection| {
            let select = "SELECT 1 FROM allocations WHERE machine = ?1 AND id = ?2";
            connection.query_row(select, key, |_| Ok(())).optional().map(|there| there.is_some())
        })
        .await
    }

    /// Keeps an event; of a machine without a file, only the last event. A power failure of the server may lose an event, which
    /// is harmless.
    ///
    /// # Errors
    /// The database's.
    pub async fn event(&self, machine: &str, event: &Event) -> Result<()> {
        let (machine, text) = (machine.to_owned(), json(event)?);
        self.run(move |connection| {
            let time = now();
            let transaction = connection.transaction()?;
            let kept = transaction.execute(
                "INSERT INTO events (machine, time, event) SELECT ?1, ?2, ?3
                 WHERE NOT EXISTS (SELECT 1 FROM machines WHERE id = ?1 AND stranger IS NOT NULL)",
                params![machine, time, text],
            )?;
            if kept > 0 && transaction.last_insert_rowid() % TRIM_EVERY == 0 {
                transaction.execute(
                    "DELETE FROM events WHERE machine = ?1 AND id <= (SELECT id FROM events WHERE machine = ?1
                     ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                    params![machine, EVENTS_KEPT],
                )?;
            }
            transaction.execute(
                "INSERT INTO machines (id, last_seen, last_event) VALUES (?1, ?2, ?3)
                 ON CONFLICT (id) DO UPDATE SET last_seen = ?2, last_event = ?3",
                params![machine, time, text],
            )?;
            transaction.commit()
        })
        .await
    }

    /// The digest of a file that has not changed since it was computed.
    ///
    /// # Errors
    /// The database's.
    pub fn digest(&self, file: &FileStamp) -> Result<Option<String>> {
        let file = file.clone();
        self.run_blocking(move |connection| {
            connection
                .query_row(
                    "SELECT digest FROM digests WHERE path = ?1 AND size = ?2 AND mtime = ?3",
                    params![file.path, file.size, file.mtime],
                    |row| row.get(0),
                )
                .optional()
        })
    }

    /// Keeps the digest of a file.
    ///
    /// # Errors
    /// The database's.
    pub fn keep_digest(&self, file: &FileStamp, digest: &str) -> Result<()> {
        let (file, digest) = (file.clone(), digest.to_owned());
        self.run_blocking(move |connection| {
            connection.execute(
                "INSERT OR REPLACE INTO digests (path, size, mtime, digest) VALUES (?1, ?2, ?3, ?4)",
                params![file.path, file.size, file.mtime, digest],
            )
        })
        .map(drop)
    }
}

fn in_file<T>(result: rusqlite::Result<T>) -> Result<T> {
    result.context(Phase::Serve, || "the state file")
}

fn settle<T>(answer: Result<Result<T>, oneshot::error::RecvError>) -> Result<T> {
    answer.unwrap_or_else(|_| {
        Err(Error::new(Phase::Serve, "the state file's thread has ended, or this call has panicked"))
    })
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).context(Phase::Serve, || "write JSON for the state file")
}

/// The time as RFC 3339 in UTC.
pub fn now() -> String {
    OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default()
}
