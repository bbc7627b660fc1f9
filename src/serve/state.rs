//! What the server remembers, in SQLite: one thread owns the connection, everybody else sends it work.

use super::token::Hash;
use crate::control::wire::{Event, Register, Report};
use crate::error::{Context, Error, Phase, Result};
use rusqlite::{Connection, OptionalExtension, params};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::oneshot;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS machines (
        id TEXT PRIMARY KEY, macs TEXT NOT NULL DEFAULT '[]', name TEXT NOT NULL DEFAULT '', registered TEXT,
        last_seen TEXT, last_event TEXT) STRICT;
    CREATE TABLE IF NOT EXISTS tokens (machine TEXT PRIMARY KEY, hash BLOB NOT NULL, created TEXT NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS allocations (
        machine TEXT NOT NULL, id TEXT NOT NULL, created TEXT NOT NULL, succeeded INTEGER NOT NULL DEFAULT 0,
        reinstalled INTEGER NOT NULL DEFAULT 0, report TEXT, PRIMARY KEY (machine, id)) STRICT;
    CREATE TABLE IF NOT EXISTS layouts (
        machine TEXT NOT NULL, allocation TEXT NOT NULL, layout TEXT NOT NULL, PRIMARY KEY (machine, allocation)) STRICT;
    CREATE TABLE IF NOT EXISTS events (
        id INTEGER PRIMARY KEY, machine TEXT NOT NULL, time TEXT NOT NULL, event TEXT NOT NULL) STRICT;
    CREATE INDEX IF NOT EXISTS events_of_machine ON events (machine, id);
    CREATE TABLE IF NOT EXISTS digests (
        path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime TEXT NOT NULL, digest TEXT NOT NULL) STRICT;
";

/// As many events of a machine are kept; a few hundred make one installation.
const EVENTS_KEPT: u32 = 5000;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// A handle on the database; cheap to clone. The thread ends with the last handle.
#[derive(Clone)]
pub struct State {
    jobs: mpsc::Sender<Job>,
}

/// How far an allocation has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// When it was first asked for; empty before.
    pub created: String,
    pub succeeded: bool,
    /// The reinstallation that the operator asked for is done.
    pub reinstalled: bool,
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
        connection
            .execute_batch(&format!(
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=5000; {SCHEMA}"
            ))
            .context(Phase::Serve, what)?;
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

    /// Makes `hash` the only token of that machine, durably.
    ///
    /// # Errors
    /// The database's.
    pub async fn new_token(&self, machine: &str, hash: Hash) -> Result<()> {
        let machine = machine.to_owned();
        self.run(move |connection| {
            durably(connection, |connection| {
                connection.execute(
                    "INSERT OR REPLACE INTO tokens (machine, hash, created) VALUES (?1, ?2, ?3)",
                    params![machine, hash, now()],
                )
            })
        })
        .await
        .map(drop)
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

    /// How far the allocation is.
    ///
    /// # Errors
    /// The database's.
    pub async fn standing(&self, machine: &str, allocation: &str) -> Result<Standing> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.run(move |connection| {
            connection
                .query_row(
                    "SELECT created, succeeded, reinstalled FROM allocations WHERE machine = ?1 AND id = ?2",
                    [machine, allocation],
                    |row| Ok(Standing { created: row.get(0)?, succeeded: row.get(1)?, reinstalled: row.get(2)? }),
                )
                .optional()
                .map(Option::unwrap_or_default)
        })
        .await
    }

    /// Remembers when the allocation was first handed out, and with which layout last; says how far it is.
    ///
    /// # Errors
    /// The database's.
    pub async fn handed_out(&self, machine: &str, allocation: &str, layout: &str) -> Result<Standing> {
        let (owned_machine, owned_allocation) = (machine.to_owned(), allocation.to_owned());
        let layout = layout.to_owned();
        self.run(move |connection| {
            connection.execute(
                "INSERT OR REPLACE INTO layouts (machine, allocation, layout) VALUES (?1, ?2, ?3)",
                params![owned_machine, owned_allocation, layout],
            )?;
            connection.execute(
                "INSERT OR IGNORE INTO allocations (machine, id, created) VALUES (?1, ?2, ?3)",
                params![owned_machine, owned_allocation, now()],
            )
        })
        .await?;
        self.standing(machine, allocation).await
    }

    /// The layout that the allocation has been installed with: the one that it was handed out with last.
    ///
    /// # Errors
    /// The database's.
    pub fn installed_layout(&self, machine: &str, allocation: &str) -> Result<Option<String>> {
        let key = [machine.to_owned(), allocation.to_owned()];
        self.run_blocking(move |connection| {
            let select = "SELECT layout FROM layouts JOIN allocations USING (machine)
                 WHERE machine = ?1 AND allocation = ?2 AND allocations.id = allocation AND succeeded";
            connection.query_row(select, key, |row| row.get(0)).optional()
        })
    }

    /// Keeps the report and, when it is a good one, that the allocation has succeeded: in one transaction that is on
    /// the disk when this returns. Saying the same again changes nothing and gives `false`.
    ///
    /// # Errors
    /// The database's.
    pub async fn report(&self, machine: &str, allocation: &str, report: &Report, reinstall: bool) -> Result<bool> {
        let (machine, allocation, text) = (machine.to_owned(), allocation.to_owned(), json(report)?);
        let success = report.success;
        self.run(move |connection| {
            durably(connection, |connection| {
                let transaction = connection.transaction()?;
                transaction.execute(
                    "INSERT OR IGNORE INTO allocations (machine, id, created) VALUES (?1, ?2, ?3)",
                    params![machine, allocation, now()],
                )?;
                let select = "SELECT succeeded, reinstalled, report FROM allocations WHERE machine = ?1 AND id = ?2";
                let read = |transaction: &rusqlite::Transaction| {
                    transaction.query_row(select, [&machine, &allocation], |row| {
                        Ok((row.get::<_, bool>(0)?, row.get::<_, bool>(1)?, row.get::<_, Option<String>>(2)?))
                    })
                };
                let before = read(&transaction)?;
                transaction.execute(
                    "UPDATE allocations SET succeeded = succeeded OR ?3, reinstalled = reinstalled OR ?4, report = ?5
                     WHERE machine = ?1 AND id = ?2",
                    params![machine, allocation, success, success && reinstall, text],
                )?;
                let changed = before != read(&transaction)?;
                transaction.commit()?;
                Ok(changed)
            })
        })
        .await
    }

    /// The operator has taken the order to reinstall these (machine, allocation) back: the next order is a new one.
    ///
    /// # Errors
    /// The database's.
    pub fn no_reinstall(&self, allocations: Vec<(String, String)>) -> Result<()> {
        self.run_blocking(move |connection| {
            let transaction = connection.transaction()?;
            for (machine, id) in allocations {
                transaction.execute(
                    "UPDATE allocations SET reinstalled = 0 WHERE machine = ?1 AND id = ?2 AND reinstalled",
                    [machine, id],
                )?;
            }
            transaction.commit()
        })
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

/// With WAL, `synchronous=NORMAL` survives a crash of the server but not of its power; what is acknowledged must.
fn durably<T>(
    connection: &mut Connection,
    work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    let result = work(connection);
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    result
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

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    fn report(success: bool) -> Report {
        Report { success, allocationuuid: "a".to_owned(), ..Report::default() }
    }

    #[test]
    fn what_was_acknowledged_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.sqlite");
        let stamp = FileStamp { path: "/i".to_owned(), size: 3, mtime: "1".to_owned() };
        runtime().block_on(async {
            let state = State::open(&path).unwrap();
            state.new_token("m", [1; 32]).await.unwrap();
            state.new_token("m", [2; 32]).await.unwrap();
            state.report("m", "a", &report(true), false).await.unwrap();
        });
        State::open(&path).unwrap().keep_digest(&stamp, "sha256:00").unwrap();
        let state = State::open(&path).unwrap();
        assert_eq!(state.digest(&stamp).unwrap().as_deref(), Some("sha256:00"));
        assert_eq!(state.digest(&FileStamp { size: 4, ..stamp }).unwrap(), None);
        runtime().block_on(async {
            assert_eq!(state.token("m").await.unwrap(), Some([2; 32]));
            assert_eq!(state.token("n").await.unwrap(), None);
            assert!(state.standing("m", "a").await.unwrap().succeeded);
            assert_eq!(state.standing("m", "b").await.unwrap(), Standing::default());
            assert_eq!(state.standing("n", "a").await.unwrap(), Standing::default());
        });
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_reinstallation_is_done_once_for_each_order() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(&dir.path().join("state.sqlite")).unwrap();
        let standing = || runtime().block_on(state.standing("m", "a")).unwrap();
        let report =
            |success, reinstall| runtime().block_on(state.report("m", "a", &report(success), reinstall)).unwrap();
        report(false, false);
        assert_eq!((standing().succeeded, standing().reinstalled), (false, false));
        report(true, false);
        assert_eq!((standing().succeeded, standing().reinstalled), (true, false));
        report(false, true);
        assert_eq!((standing().succeeded, standing().reinstalled), (true, false));
        report(true, true);
        report(true, true);
        assert!(standing().reinstalled, "though the reports of both installations are the same text");
        state.no_reinstall(vec![("m".to_owned(), "a".to_owned())]).unwrap();
        assert!(!standing().reinstalled && standing().succeeded);
    }

    #[test]
    fn a_file_that_is_no_database_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.sqlite");
        std::fs::write(&path, "not a database, but long enough to be read as one, and then some more of it").unwrap();
        let error = State::open(&path).err().unwrap().to_string();
        assert!(error.contains("open the state file") && error.contains("not a database"), "{error}");
    }
}
