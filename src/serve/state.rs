//! What the server remembers, in SQLite: one thread owns the connection, everybody else sends it work.
//!
//! Here is what all of it rests on, machines and digests; `standing` is how far an allocation is, `orders` what becomes
//! of an order to reinstall.

mod orders;
mod schema;
mod standing;
#[cfg(test)]
mod tests;

pub use orders::{ATTEMPTS, Begun, Cancelled, NextBoot, Ordered, Reported};
pub use standing::{HandedOut, Order, Outcome, Standing};

use super::token::Hash;
use crate::control::wire::{Event, Register};
use crate::error::{Context, Error, Phase, Result};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::oneshot;

/// As many events of a machine are kept; a few hundred make one installation.
const EVENTS_KEPT: u32 = 5000;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// A handle on the database; cheap to clone. The thread ends with the last handle.
#[derive(Clone)]
pub struct State {
    jobs: mpsc::Sender<Job>,
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
    /// Opens or creates the database at `path`, readable for its owner only: reports hold passwords.
    ///
    /// # Errors
    /// The file cannot be made or is not a database of ours.
    pub fn open(path: &Path) -> Result<State> {
        let what = || format!("open the state file {}", path.display());
        OpenOptions::new().create(true).append(true).mode(0o600).open(path).context(Phase::Serve, what)?;
        let mut connection = Connection::open(path).context(Phase::Serve, what)?;
        let settings = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=5000;";
        connection.execute_batch(settings).context(Phase::Serve, what)?;
        schema::bring_up_to_date(&mut connection).context(Phase::Serve, what)?;
        let (jobs, queue) = mpsc::channel::<Job>();
        let run = move || queue.into_iter().for_each(|job| job(&mut connection));
        std::thread::Builder::new().name("state".to_owned()).spawn(run).context(Phase::Serve, what)?;
        Ok(State { jobs })
    }

    fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> oneshot::Receiver<rusqlite::Result<T>> {
        let (answer, receiver) = oneshot::channel();
        // Without a receiver, the machine that asked has hung up; the work is done all the same.
        let job = move |connection: &mut Connection| drop(answer.send(work(connection)));
        // A job that cannot be sent drops `answer`, which the receiver sees.
        let _ = self.jobs.send(Box::new(job));
        receiver
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        settle(self.submit(work).await)
    }

    fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        settle(self.submit(work).blocking_recv())
    }

    /// One transaction that is on the disk when this returns. With WAL, `synchronous=NORMAL` survives a crash of the
    /// server but not of its power; what is acknowledged must survive both.
    async fn durably<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run(move |connection| {
            connection.pragma_update(None, "synchronous", "FULL")?;
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let result = work(&transaction).and_then(|value| transaction.commit().map(|()| value));
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            result
        })
        .await
    }

    /// What that machine last said, and when: of the events that are kept.
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

    /// The hash of that machine's token, if it ever got one.
    ///
    /// # Errors
    /// The database's.
    pub async fn token(&self, machine: &str) -> Result<Option<Hash>> {
        let machine = machine.to_owned();
        self.run(move |connection| {
            connection.query_row("SELECT hash FROM tokens WHERE machine = ?1", [&machine], |row| row.get(0)).optional()
        })
        .await
    }

    /// Keeps what a machine said about itself and forgets its oldest events.
    ///
    /// # Errors
    /// The database's.
    pub async fn register(&self, machine: &str, name: &str, register: &Register) -> Result<()> {
        let macs: Vec<&str> = register.hardware.nics.iter().map(|nic| nic.mac.as_str()).collect();
        let (machine, name) = (machine.to_owned(), name.to_owned());
        let (macs, text) = (json(&macs)?, json(register)?);
        self.run(move |connection| {
            connection.execute(
                "INSERT INTO machines (id, macs, name, registered, last_seen) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (id) DO UPDATE SET macs = ?2, name = ?3, registered = ?4, last_seen = ?5",
                params![machine, macs, name, text, now()],
            )?;
            connection.execute(
                "DELETE FROM events WHERE machine = ?1 AND id NOT IN
                 (SELECT id FROM events WHERE machine = ?1 ORDER BY id DESC LIMIT ?2)",
                params![machine, EVENTS_KEPT],
            )
        })
        .await
        .map(drop)
    }

    /// Keeps an event. Not durable against a power failure of the server: losing one is harmless.
    ///
    /// # Errors
    /// The database's.
    pub async fn event(&self, machine: &str, event: &Event) -> Result<()> {
        let (machine, text) = (machine.to_owned(), json(event)?);
        self.run(move |connection| {
            let time = now();
            let transaction = connection.transaction()?;
            transaction.execute(
                "INSERT INTO events (machine, time, event) VALUES (?1, ?2, ?3)",
                params![machine, time, text],
            )?;
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

fn settle<T>(answer: Result<rusqlite::Result<T>, oneshot::error::RecvError>) -> Result<T> {
    match answer {
        Ok(result) => result.context(Phase::Serve, || "the state file"),
        Err(_) => Err(Error::new(Phase::Serve, "the state file's thread has ended")),
    }
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).context(Phase::Serve, || "write JSON for the state file")
}

/// The time as RFC 3339 in UTC.
pub fn now() -> String {
    OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default()
}
