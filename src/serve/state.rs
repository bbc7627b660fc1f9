//! State of the server in a SQLite database. One thread owns the connection; all others send it jobs, which `jobs` queues fairly.
//!
//! This file contains machines, digests, and what the other modules share. `store` opens the database file, `identity` distinguishes it
//! from others, and `schema` defines its tables. `history` and `log` store events and logs of machines, `standing` the state of an
//! allocation, `boots` the boots that may act for a machine, `registered` its hardware, `machine_identities` its UUID and MACs, and `next`
//! what it boots. `strangers` are machines without a file, `renamed` those with a new id, `moves` migrations, and `freed` machines of a
//! previous tenant. `first` handles the start of a first installation, `orders` reinstalls, `proof` decides which success of either is
//! valid, and `adopted` stores installations that the operator reports. `epoch` issues fencing tokens, and `confirmed` withholds work of a
//! restored database until it is confirmed.

mod adopted;
pub mod boots;
pub mod confirmed;
pub mod epoch;
mod first;
mod freed;
mod history;
pub mod identity;
mod jobs;
mod log;
mod machine_identities;
mod moves;
mod next;
mod orders;
mod proof;
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
pub use boots::{Boot, Enrolled, Enrollment, Heard};
pub use confirmed::ConfirmOutcome;
pub use first::BegunFirst;
pub use log::LogKept;
pub use moves::{Heard as MoveHeard, Placed, in_a_move};
pub use next::{Files, Handed, NextBoot};
pub use orders::{ATTEMPTS, Begun, Cancelled, Ordered, Reported};
pub use proof::{AttemptStart, Unproven};
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

/// Number of events stored per machine. One installation creates a few hundred.
const EVENTS_KEPT: u32 = 5000;
/// Number of events after which older ones are deleted.
const TRIM_EVERY: i64 = 64;

enum Job {
    Work(Box<dyn FnOnce(&mut Store) + Send>),
    /// Closes the file, then responds.
    End(oneshot::Sender<()>),
}

/// Handle on the database; cheap to clone. The thread ends with the last handle, or with [`State::end`].
#[derive(Clone)]
pub struct State {
    jobs: JobSender<Job>,
    pub heard: Heard,
    pub metrics: Arc<Metrics>,
    gone: watch::Receiver<Option<String>>,
}

/// Identity of a file's content at the time its digest was computed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileStamp {
    pub path: String,
    /// Size in bytes; signed like SQLite's integers.
    pub size: i64,
    /// Modification time in nanoseconds since 1970.
    pub mtime: String,
}

impl State {
    /// Opens or creates the database at `path`. A boot that has not called for `quiet` no longer counts as active.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(path: &Path, quiet: Duration) -> Result<State> {
        let (say_gone, gone) = watch::channel(None);
        State::start(Store::open(path, say_gone)?, quiet, gone)
    }

    /// Opens the database of a server, which may be running, for reading.
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
        let what = || "start the database thread";
        std::thread::Builder::new().name("state".to_owned()).spawn(run).context(Phase::Serve, what)?;
        Ok(State { jobs, heard: Heard::new(quiet), metrics: Arc::default(), gone })
    }

    /// Completes the waiting jobs, and closes the file.
    pub async fn end(&self) {
        let (done, ended) = oneshot::channel();
        self.jobs.send_last(Job::End(done));
        // An error means that the thread has ended already.
        let _ = ended.await;
    }

    /// Waits until the server must stop, and returns the reason.
    pub async fn gone(&self) -> String {
        let mut gone = self.gone.clone();
        let why = gone.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        match why {
            Some(why) => why,
            // The thread has ended normally: there will be no reason.
            None => std::future::pending().await,
        }
    }

    /// Checks that the file still exists at its path. If it does not, [`State::gone`] returns.
    pub fn look(&self) {
        self.jobs.send(None, Job::Work(Box::new(|store| drop(store.must_be_there()))));
    }

    fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> Result<T> + Send + 'static,
    ) -> oneshot::Receiver<Result<T>> {
        let (answer, receiver) = oneshot::channel();
        // The receiver is gone if the caller has disconnected; the work is done anyway.
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

    /// Runs the work in [`Store::durably`].
    async fn durably<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        settle(self.submit(|store| store.durably(work)).await)
    }

    /// Runs the work in [`Store::as_durable_as_needed`].
    async fn as_durable_as_needed<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction) -> rusqlite::Result<(T, Durability)> + Send + 'static,
    ) -> Result<T> {
        settle(self.submit(|store| store.as_durable_as_needed(work)).await)
    }

    /// Returns once the database has completed a trivial read and write, or has failed to: then other calls report the error.
    pub async fn pulse(&self) {
        let _ = self.submit(Store::pulse).await;
    }

    /// Blocks the database's thread until the sender of the channel is dropped.
    #[cfg(test)]
    pub fn block(&self, until: std::sync::mpsc::Receiver<()>) {
        self.jobs.send(None, Job::Work(Box::new(move |_| until.recv().unwrap_or_default())));
    }

    /// Returns the clients whose jobs the database has taken, in their order.
    #[cfg(test)]
    pub fn served(&self) -> Vec<Option<std::net::IpAddr>> {
        self.jobs.taken()
    }

    /// Returns how many jobs of that client are waiting for the database.
    #[cfg(test)]
    pub fn waiting_jobs(&self, client: std::net::IpAddr) -> usize {
        self.jobs.waiting(Some(client))
    }

    /// Returns when the machine was last seen, and the last event that it sent.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn last_event(&self, machine: &str) -> Result<Option<(String, String)>> {
        let machine = machine.to_owned();
        self.run(move |connection| {
            let select = "SELECT last_seen, last_event FROM machines WHERE id = ?1 AND last_event IS NOT NULL";
            connection.query_row(select, [&machine], |row| Ok((row.get(0)?, row.get(1)?))).optional()
        })
        .await
    }

    /// Returns whether the database has a record of this allocation of the machine: it was served, adopted or reported at some time.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn has_allocation(&self, machine: &str, allocation: &str) -> Result<bool> {
        let key = [machine.to_owned(), allocation.to_owned()];
        self.run(move |connection| {
            let select = "SELECT 1 FROM allocations WHERE machine = ?1 AND id = ?2";
            connection.query_row(select, key, |_| Ok(())).optional().map(|there| there.is_some())
        })
        .await
    }

    /// Returns whether the database has a record of the machine: it has requested a boot, and is known or within the limit of unknown ones.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn is_recorded(&self, machine: &str) -> Result<bool> {
        let machine = machine.to_owned();
        self.run(move |connection| connection.prepare_cached("SELECT 1 FROM machines WHERE id = ?1")?.exists([machine]))
            .await
    }

    /// Stores an event; for a machine without a file, only the last one. A power failure of the server may lose an event, which is
    /// harmless.
    ///
    /// # Errors
    /// The database cannot be read or written.
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

    /// Returns the digest of a file that has not changed since it was computed.
    ///
    /// # Errors
    /// The database cannot be read or written.
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

    /// Stores the digest of a file.
    ///
    /// # Errors
    /// The database cannot be read or written.
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
    result.context(Phase::Serve, || "the database")
}

fn settle<T>(answer: Result<Result<T>, oneshot::error::RecvError>) -> Result<T> {
    answer.unwrap_or_else(|_| Err(Error::new(Phase::Serve, "the database thread has ended, or this request panicked")))
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).context(Phase::Serve, || "write JSON for the database")
}

/// Returns the current time as RFC 3339 in UTC.
pub fn now() -> String {
    OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default()
}
