//! Handle on the database, and the thread that owns the connection. Also stores events, which have no module of their
//! own.

use crate::boot_activity::BootActivity;
use crate::change_listener::{self, ChangeFeed, ChangeReceiver};
use crate::change_scope::ChangeScope;
use crate::database_file::DatabaseFile;
use crate::fair_queue::{self, JobSender};
use crate::group_commit::{self, Acknowledgement, DatabaseJob, GroupFailure, combine_results};
use crate::read_connection::ReadConnection;
use crate::server_leases::ServerInstance;
use crate::sql::{self, Connection, OptionalExtension, Transaction, params};
use crate::store_address::PostgresAddress;
use crate::unknown_machines::DEFAULT_UNKNOWN_MACHINES_LIMIT;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::timestamp::now;
use model::install_report::ProgressEvent;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot, watch};

/// Maximum number of events stored per machine. One installation creates a few hundred events.
const MAXIMUM_MACHINE_EVENTS: u32 = 5000;
/// Number of newly stored events after which excess events are deleted.
const EVENTS_PER_TRIM: i64 = 64;

/// Name of the database file in the operator's directory.
pub const DATABASE: &str = "drophammer.sqlite";

/// Functions that the server provides, because the store cannot access the server's requests and metrics.
#[derive(Clone)]
pub struct StoreHooks {
    /// Returns the client that sent the current request; `None` for jobs of the server itself. Jobs are queued by
    /// client.
    pub current_client: fn() -> Option<IpAddr>,
    /// Returns the id of the current request's entry in the audit log. Each transaction of the request marks this entry
    /// as committed.
    pub current_audit_entry: fn() -> Option<i64>,
    /// Returns the name of the user who sent the current request, or a fixed name if no user sent it.
    pub current_user: fn() -> String,
    /// Receives the duration of each job, including its time in the queue.
    pub observe_job: Arc<dyn Fn(Duration) + Send + Sync>,
}

impl Default for StoreHooks {
    fn default() -> StoreHooks {
        StoreHooks {
            current_client: || None,
            current_audit_entry: || None,
            current_user: String::new,
            observe_job: Arc::new(|_| ()),
        }
    }
}

/// Handle on the database; cheap to clone. The thread exits when the last clone is dropped, or when
/// [`ServerState::close`] is called.
#[derive(Clone)]
pub struct ServerState {
    jobs: JobSender<DatabaseJob>,
    pub heard: BootActivity,
    pub(crate) hooks: StoreHooks,
    gone: watch::Receiver<Option<String>>,
    /// Notified when a job has failed because the database is unavailable.
    failed: Arc<Notify>,
    /// Changes that other servers have committed.
    changes: watch::Receiver<ChangeFeed>,
    pub(crate) reader: Option<ReadConnection>,
    /// Copy of the records of machines, for lists and scans.
    pub(crate) record_copy: Option<ReadConnection>,
    /// Maximum number of machines without a machine file.
    pub(crate) most_unknown: usize,
    pub(crate) instance: ServerInstance,
}

impl ServerState {
    /// Opens or creates the database at `path`. A boot is considered active until the duration `quiet` has passed since
    /// its last request.
    ///
    /// # Errors
    /// Fails as [`DatabaseFile::open`] does.
    pub fn open(path: &Path, quiet: Duration) -> Result<ServerState> {
        #[cfg(test)]
        if let Some((address, dir)) = crate::tests::test_engine::postgres_database(path)? {
            return ServerState::open_postgres(&address, &dir, quiet);
        }
        let path = path.to_owned();
        let open = move |gone| DatabaseFile::open(&path, gone)?.with_reader();
        ServerState::start_thread(open, quiet, watch::channel(ChangeFeed::default()).1)
    }

    /// Opens the PostgreSQL database of the server in the directory `dir`.
    ///
    /// # Errors
    /// Returns an error if the database is unreachable or unsuitable, or does not belong to the directory.
    pub fn open_postgres(address: &PostgresAddress, dir: &Path, quiet: Duration) -> Result<ServerState> {
        let (path, origin) = (dir.join(DATABASE), uuid::Uuid::new_v4().to_string());
        let changes = change_listener::start_listener(address.clone(), origin.clone())?;
        let address = address.clone();
        let open = move |gone| DatabaseFile::open_postgres(&address, &path, origin, gone)?.with_reader();
        let mut state = ServerState::start_thread(open, quiet, changes)?;
        state.heard.is_shared = true;
        Ok(state)
    }

    /// Opens the database that `store` specifies, or the SQLite file in the directory if `store` is `None`.
    ///
    /// # Errors
    /// Fails as [`ServerState::open`] and [`ServerState::open_postgres`] do.
    pub fn open_store(store: Option<&PostgresAddress>, dir: &Path, quiet: Duration) -> Result<ServerState> {
        match store {
            Some(address) => ServerState::open_postgres(address, dir, quiet),
            None => ServerState::open(&dir.join(DATABASE), quiet),
        }
    }

    /// Opens the database of a server for reading. The server may be running.
    ///
    /// # Errors
    /// Fails as [`DatabaseFile::open_to_read`] does.
    pub fn open_to_read(path: &Path) -> Result<ServerState> {
        let path = path.to_owned();
        let open = move |gone| DatabaseFile::open_to_read(&path, gone);
        ServerState::start_thread(open, Duration::ZERO, watch::channel(ChangeFeed::default()).1)
    }

    fn start_thread(
        open: impl FnOnce(watch::Sender<Option<String>>) -> Result<DatabaseFile> + Send + 'static,
        quiet: Duration,
        changes: watch::Receiver<ChangeFeed>,
    ) -> Result<ServerState> {
        let (jobs, queue) = fair_queue::create_queue::<DatabaseJob>();
        let (say_gone, gone) = watch::channel(None);
        let (opened, is_open) = mpsc::channel();
        let run = move || match open(say_gone) {
            Ok(store) => {
                drop(opened.send(Ok(store.reader.clone())));
                group_commit::run_jobs(store, &queue);
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let what = || "start the database thread";
        std::thread::Builder::new().name("state".to_owned()).spawn(run).context(Phase::Serve, what)?;
        let reader = is_open.recv().context(Phase::Serve, || "open the database")??;
        Ok(ServerState {
            jobs,
            heard: BootActivity::new(quiet),
            hooks: StoreHooks::default(),
            gone,
            failed: Arc::default(),
            changes,
            reader,
            record_copy: None,
            most_unknown: DEFAULT_UNKNOWN_MACHINES_LIMIT,
            instance: ServerInstance::default(),
        })
    }

    /// Sets how long a boot must be inactive before another boot may register from the same address. The timeout for
    /// boots from other addresses is the upper limit.
    pub fn with_same_address_timeout(mut self, quiet: Duration) -> ServerState {
        self.heard.quiet_at_same_address = quiet.min(self.heard.quiet);
        self
    }

    /// Sets the maximum number of machines that have no machine file.
    pub fn with_unknown_machines_limit(self, most_unknown: usize) -> ServerState {
        ServerState { most_unknown, ..self }
    }

    /// Sets the functions that connect the store with its server.
    pub fn with_hooks(self, hooks: StoreHooks) -> ServerState {
        ServerState { hooks, ..self }
    }

    pub(crate) fn current_user(&self) -> String {
        (self.hooks.current_user)()
    }

    /// Completes the waiting jobs, and closes the database file.
    pub async fn close(&self) {
        let (done, ended) = oneshot::channel();
        self.jobs.send_last(DatabaseJob::End(done));
        // An error is ignored, because it only means that the thread has exited already.
        let _ = ended.await;
    }

    /// Waits until the server must stop, because its database was lost or replaced, and returns the reason.
    pub async fn wait_until_gone(&self) -> String {
        let mut gone = self.gone.clone();
        let why = gone.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        match why {
            Some(why) => why,
            // The thread has exited normally, so no reason will arrive.
            None => std::future::pending().await,
        }
    }

    /// Waits until a job has failed because the database is unavailable.
    pub async fn wait_for_failure(&self) {
        self.failed.notified().await;
    }

    /// Returns whether other servers may use the same database.
    pub fn is_shared(&self) -> bool {
        self.heard.is_shared
    }

    /// Waits until another server may have changed the database, and returns the scope of the changes since the last
    /// call. Never returns for a SQLite file, which belongs to one server.
    pub async fn wait_for_change(&self, changes: &mut ChangeReceiver) -> ChangeScope {
        changes.receive().await
    }

    /// Returns the receiver for [`ServerState::wait_for_change`].
    pub fn changes(&self) -> ChangeReceiver {
        ChangeReceiver::new(self.changes.clone())
    }

    /// Checks that the database file exists at its path. If it does not, [`ServerState::wait_until_gone`] returns.
    pub fn check_file(&self) {
        self.jobs.send(
            None,
            DatabaseJob::Work(Box::new(|store| {
                drop(store.check_file());
                Box::new(|_| ())
            })),
        );
    }

    pub(crate) fn submit_job<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut DatabaseFile) -> Result<T> + Send + 'static,
    ) -> oneshot::Receiver<Result<T>> {
        let (answer, receiver) = oneshot::channel();
        // If the caller has disconnected, the receiver no longer exists. The work is done anyway.
        let (began, observe, failed) = (Instant::now(), self.hooks.observe_job.clone(), self.failed.clone());
        let work = move |store: &mut DatabaseFile| {
            let done = work(store);
            let acknowledge = move |synced: &Result<(), GroupFailure>| {
                observe(began.elapsed());
                let done = combine_results(done, synced);
                if done.as_ref().is_err_and(|error| error.code() == ErrorCode::DatabaseUnavailable) {
                    failed.notify_one();
                }
                drop(answer.send(done));
            };
            Box::new(acknowledge) as Acknowledgement
        };
        // If the job cannot be sent, it is dropped together with `answer`, and the receiver gets an error.
        self.jobs.send((self.hooks.current_client)(), DatabaseJob::Work(Box::new(work)));
        receiver
    }

    /// Reads with [`DatabaseFile::read`].
    pub(crate) async fn run_job<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> sql::Result<T> + Send + 'static,
    ) -> Result<T> {
        flatten_answer(self.submit_job(|store| store.read(work)).await)
    }

    /// Blocking variant of [`ServerState::run_job`].
    pub(crate) fn run_job_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> sql::Result<T> + Send + 'static,
    ) -> Result<T> {
        flatten_answer(self.submit_job(|store| store.read(work)).blocking_recv())
    }

    /// Runs a transaction whose result a power failure may undo.
    pub(crate) async fn run_deferred<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction) -> sql::Result<T> + Send + 'static,
    ) -> Result<T> {
        flatten_answer(self.submit_job(|store| store.run_deferred(work)).await)
    }

    /// Blocking variant of [`ServerState::run_deferred`].
    pub(crate) fn run_deferred_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction) -> sql::Result<T> + Send + 'static,
    ) -> Result<T> {
        flatten_answer(self.submit_job(|store| store.run_deferred(work)).blocking_recv())
    }

    /// Waits until the database has performed a trivial read and write.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn check_pulse(&self) -> Result<()> {
        let heard = self.heard.clone();
        let check = move |store: &mut DatabaseFile| {
            store.check_pulse()?;
            store.check_space()?;
            store.exchange_calls(&heard)
        };
        flatten_answer(self.submit_job(check).await)
    }

    /// Blocks the database's thread until the sender of the channel is dropped.
    #[cfg(any(test, feature = "testing"))]
    pub fn block_thread(&self, until: std::sync::mpsc::Receiver<()>) {
        let (start, started) = std::sync::mpsc::channel();
        self.jobs.send(
            None,
            DatabaseJob::Work(Box::new(move |_| {
                start.send(()).unwrap_or_default();
                until.recv().unwrap_or_default();
                Box::new(|_| ())
            })),
        );
        // Once the blocking job runs, the queue contains only later jobs, so that tests can count these.
        started.recv().unwrap_or_default();
    }

    /// Returns the client of each job that the database has run, in the order of the jobs.
    #[cfg(any(test, feature = "testing"))]
    pub fn served_clients(&self) -> Vec<Option<std::net::IpAddr>> {
        self.jobs.taken_origins()
    }

    /// Returns the number of jobs of a client that are waiting for the database.
    #[cfg(any(test, feature = "testing"))]
    pub fn waiting_jobs(&self, client: std::net::IpAddr) -> usize {
        self.jobs.count_waiting(Some(client))
    }

    /// Returns the number of jobs of the server itself that are waiting for the database.
    #[cfg(test)]
    pub(crate) fn count_own_jobs(&self) -> usize {
        self.jobs.count_waiting(None)
    }

    /// Stores an event. For a machine that has no machine file, only the latest event is stored. The event may be lost
    /// if the server loses power; this is harmless. `is_late` is true for an event of a boot that has already reported
    /// the end of its installation; such an event does not change the machine's phase.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn store_event(&self, machine: &str, event: &ProgressEvent, is_late: bool) -> Result<()> {
        let (machine, text) = (machine.to_owned(), to_json(event)?);
        self.run_deferred(move |transaction| {
            let time = now();
            let insert = "INSERT INTO events (machine, time, event) SELECT ?1, ?2, ?3
                 WHERE NOT EXISTS (SELECT 1 FROM machines WHERE id = ?1 AND stranger IS NOT NULL) RETURNING id";
            let stored = transaction.query_row(insert, params![machine, time, text], |row| row.get::<_, i64>(0));
            if stored.optional()?.is_some_and(|number| number % EVENTS_PER_TRIM == 0) {
                transaction.execute(
                    "DELETE FROM events WHERE machine = ?1 AND id <= (SELECT id FROM events WHERE machine = ?1
                     ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                    params![machine, MAXIMUM_MACHINE_EVENTS],
                )?;
            }
            let update = "INSERT INTO machines (id, last_seen, last_event) VALUES (?1, ?2, ?3)
                 ON CONFLICT (id) DO UPDATE SET last_seen = ?2, last_event = ?3,
                 reported = CASE WHEN ?4 = 1 THEN machines.reported END";
            transaction.execute(update, params![machine, time, text, is_late]).map(drop)
        })
        .await
    }
}

pub(crate) fn flatten_answer<T>(answer: Result<Result<T>, oneshot::error::RecvError>) -> Result<T> {
    answer.unwrap_or_else(|_| Err(Error::new(Phase::Serve, "the database thread has exited, or this request panicked")))
}

pub(crate) fn to_json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).context(Phase::Serve, || "encode a record as JSON for the database")
}
