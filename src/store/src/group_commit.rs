//! Thread of the database. It runs jobs one after the other, and syncs the durable transactions of several jobs
//! together, since a sync takes as long as hundreds of transactions.
//!
//! A commit group begins with the first durable transaction that is not synced yet; on PostgreSQL, with the first
//! transaction that writes. No job of the group is acknowledged before the group is synced. This includes jobs that
//! only read: their results may depend on a transaction that a power failure would undo, or that is not committed yet.
//! If the sync of a SQLite file fails, for example because the disk is full, its transactions belong to the next group,
//! so that all jobs fail until a sync succeeds.

use crate::database_file::DatabaseFile;
use crate::fair_queue::JobReceiver;
use crate::sql::postgres::PostgresConnection;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::sync::oneshot;

/// Maximum number of jobs in a group. It limits the time for which the first job of a group waits. Groups on PostgreSQL
/// are smaller.
const JOBS: usize = 256;

/// Sends the result of a job to its caller. If the group of the job could not be synced, the argument is the reason,
/// and the caller gets this error instead of the result.
pub(crate) type Acknowledgement = Box<dyn FnOnce(&Result<(), GroupFailure>) + Send>;

/// Reason why a group could not be synced.
pub(crate) struct GroupFailure {
    message: String,
    code: Option<ErrorCode>,
}

impl From<Error> for GroupFailure {
    fn from(error: Error) -> GroupFailure {
        GroupFailure { message: error.to_string(), code: error.specific_code() }
    }
}

impl GroupFailure {
    fn to_error(&self) -> Error {
        let error = Error::new(Phase::Serve, self.message.clone());
        match self.code {
            Some(code) => error.with_code(code),
            None => error,
        }
    }
}

pub(crate) enum DatabaseJob {
    Work(Box<dyn FnOnce(&mut DatabaseFile) -> Acknowledgement + Send>),
    /// Closes the file, then sends a response.
    End(oneshot::Sender<()>),
}

impl DatabaseFile {
    /// Returns whether a job must not be acknowledged before [`DatabaseFile::sync_transactions`].
    fn has_unsynced(&self) -> bool {
        self.unsynced || self.connection.as_postgres().is_some_and(PostgresConnection::has_group)
    }

    /// Returns whether the transactions must be synced before another job runs.
    fn is_group_full(&self) -> bool {
        self.connection.as_postgres().is_some_and(PostgresConnection::is_group_full)
    }
}

/// Returns the result of a job after the sync of its group. If the job has succeeded but the sync has failed, returns
/// the error of the sync.
pub(crate) fn combine_results<T>(done: Result<T>, synced: &Result<(), GroupFailure>) -> Result<T> {
    match synced {
        Ok(()) => done,
        Err(failure) => done.and_then(|_| Err(failure.to_error())),
    }
}

/// Runs jobs until all senders were dropped, or a job ends the thread.
pub(crate) fn run_jobs(mut store: DatabaseFile, queue: &JobReceiver<DatabaseJob>) {
    let mut group = Vec::new();
    // A sync that has failed is repeated together with the next job, and at the latest with the next health check.
    let mut has_failed = false;
    loop {
        // A job that has panicked has no acknowledgement in the group, but the transactions before it must be synced.
        let is_open = !group.is_empty() || (store.has_unsynced() && !has_failed);
        let job = if is_open { queue.receive_waiting() } else { queue.receive() };
        match job {
            Some(DatabaseJob::Work(work)) => run_job(&mut store, work, &mut group),
            Some(DatabaseJob::End(done)) => {
                acknowledge_group(&mut store, &mut group);
                store.close();
                let _ = done.send(());
                return;
            }
            None if !is_open => return store.close(),
            None => has_failed = !acknowledge_group(&mut store, &mut group),
        }
        if group.len() >= JOBS || store.is_group_full() {
            has_failed = !acknowledge_group(&mut store, &mut group);
        }
    }
}

/// Runs a job. Its acknowledgement is sent immediately, or added to the group.
fn run_job(
    store: &mut DatabaseFile,
    work: Box<dyn FnOnce(&mut DatabaseFile) -> Acknowledgement + Send>,
    group: &mut Vec<Acknowledgement>,
) {
    // A panic affects one job only: its transaction is rolled back, and its caller gets an error.
    let done = catch_unwind(AssertUnwindSafe(|| work(store)));
    match done {
        Ok(acknowledge) if group.is_empty() && !store.has_unsynced() => acknowledge(&Ok(())),
        Ok(acknowledge) => group.push(acknowledge),
        Err(_) => {}
    }
}

/// Syncs the transactions of the group, and then acknowledges its jobs. Returns whether the sync has succeeded.
fn acknowledge_group(store: &mut DatabaseFile, group: &mut Vec<Acknowledgement>) -> bool {
    let synced = catch_unwind(AssertUnwindSafe(|| store.sync_transactions()));
    let panicked = |_| Err(Error::new(Phase::Serve, "the database could not be synced because of an internal error"));
    let synced = synced.unwrap_or_else(panicked).map_err(GroupFailure::from);
    group.drain(..).for_each(|acknowledge| acknowledge(&synced));
    synced.is_ok()
}

#[cfg(test)]
mod tests {
    use crate::sql::params;
    use crate::tests::test_engine::is_postgres;
    use crate::{FileAllocation, ServerState};
    use common::error::Result;
    use std::fs;
    use std::path::PathBuf;
    use std::sync::mpsc;
    use std::time::Duration;
    use tempfile::TempDir;
    use tokio::task::JoinHandle;

    /// Number of jobs in these tests, more than one group.
    const MACHINES: usize = super::JOBS + 44;
    /// Number of groups on PostgreSQL, in which a group has at most 60 transactions.
    const POSTGRES_GROUPS: i64 = 5;

    /// Opens a database whose groups on PostgreSQL are limited by the number of transactions only.
    async fn open(dir: &TempDir) -> ServerState {
        let state = ServerState::open(&dir.path().join("drophammer.sqlite"), Duration::ZERO).unwrap();
        let disable = state.submit_job(|store| {
            store.connection.as_postgres().iter().for_each(|postgres| postgres.disable_group_limit());
            Ok(())
        });
        disable.await.unwrap().unwrap();
        state
    }

    fn id_file(dir: &TempDir) -> PathBuf {
        match is_postgres("") {
            true => dir.path().join("drophammer.dir/drophammer.id"),
            false => dir.path().join("drophammer.id"),
        }
    }

    async fn count(state: &ServerState, select: &'static str) -> i64 {
        state.run_job(|connection| connection.query_row(select, [], |row| row.get(0))).await.unwrap()
    }

    async fn count_transactions(state: &ServerState) -> i64 {
        count(state, "SELECT transactions FROM identity").await
    }

    /// Sends a job, and waits until it is in the queue of the database's thread, which is blocked.
    async fn send<T: Send + 'static>(
        state: &ServerState,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> JoinHandle<Result<T>> {
        let before = state.count_own_jobs();
        let task = tokio::spawn(work);
        while state.count_own_jobs() == before {
            tokio::task::yield_now().await;
        }
        task
    }

    async fn free(state: ServerState, machine: String) -> Result<()> {
        state.free_machine(&machine).await
    }

    /// Frees many machines at the same time, while the thread of the database is blocked. Calls `blocked` before the
    /// thread continues. Returns the results.
    async fn free_together(state: &ServerState, blocked: impl FnOnce()) -> Vec<Result<()>> {
        let (until, blocks) = mpsc::channel();
        state.block_thread(blocks);
        let start = |number: usize| tokio::spawn(free(state.clone(), format!("m{number}")));
        let mut tasks: Vec<_> = (0..MACHINES).map(start).collect();
        while state.count_own_jobs() < MACHINES {
            tokio::task::yield_now().await;
        }
        blocked();
        drop(until);
        let mut results = Vec::new();
        for task in tasks.drain(..) {
            results.push(task.await.unwrap());
        }
        results
    }

    #[tokio::test]
    async fn durable_transactions_that_wait_together_share_a_sync() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(&dir).await;
        let before = count_transactions(&state).await;
        let results = free_together(&state, || ()).await;
        assert!(results.iter().all(Result::is_ok));
        let groups = if is_postgres("") { POSTGRES_GROUPS } else { 2 };
        assert_eq!(count_transactions(&state).await - before, groups);
        // Without other jobs, a transaction is synced at once.
        state.free_machine("m").await.unwrap();
        assert_eq!(count_transactions(&state).await - before, groups + 1);
        let freed = "SELECT count(*) FROM machines WHERE freed IS NOT NULL";
        assert_eq!(count(&state, freed).await, MACHINES as i64 + 1);
        if is_postgres("") {
            return;
        }
        // All transactions are in the database file, not only in its log.
        drop(state);
        let copy = tempfile::tempdir().unwrap();
        for name in ["drophammer.sqlite", "drophammer.id"] {
            fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
        }
        let database = rusqlite::Connection::open(copy.path().join("drophammer.sqlite")).unwrap();
        let freed: u32 = database.query_row(freed, [], |row| row.get(0)).unwrap();
        assert_eq!(freed as usize, MACHINES + 1);
    }

    #[tokio::test]
    async fn failed_sync_fails_all_transactions_of_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(&dir).await;
        let results = free_together(&state, || fs::remove_file(id_file(&dir)).unwrap()).await;
        assert!(results.iter().all(Result::is_err));
        assert!(state.wait_until_gone().await.contains("drophammer.id is missing"));
    }

    /// The result of a read may depend on a transaction that is not synced yet.
    #[tokio::test]
    async fn read_fails_if_its_group_is_not_synced() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(&dir).await;
        let (until, blocks) = mpsc::channel();
        state.block_thread(blocks);
        let write = send(&state, free(state.clone(), "m".to_owned())).await;
        let reader = state.clone();
        let read = send(&state, async move { reader.is_recorded("m").await }).await;
        fs::remove_file(id_file(&dir)).unwrap();
        drop(until);
        assert!(write.await.unwrap().is_err());
        assert!(read.await.unwrap().is_err());
    }

    /// Jobs that fail, panic or ignore an error change nothing, and the other jobs of their group are stored.
    #[tokio::test]
    async fn failed_job_does_not_affect_others_in_its_group() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(&dir).await;
        let before = count_transactions(&state).await;
        let (until, blocks) = mpsc::channel();
        state.block_thread(blocks);
        let insert = |state: &ServerState, name: &'static str, end: fn() -> bool| {
            let state = state.clone();
            async move {
                let insert = "INSERT INTO former (former, machine) VALUES (?1, 'm')";
                state
                    .run_durably(move |transaction| {
                        transaction.execute(insert, params![name])?;
                        if end() { transaction.execute("INSERT INTO missing VALUES (1)", []) } else { Ok(1) }
                    })
                    .await
            }
        };
        let first = send(&state, insert(&state, "first", || false)).await;
        let failed = send(&state, insert(&state, "failed", || true)).await;
        let panicked = send(&state, insert(&state, "panicked", || panic!("expected by the test"))).await;
        let reader = state.clone();
        let select = "SELECT count(*) FROM former";
        let read = send(&state, async move {
            reader.run_job(|connection| connection.query_row(select, [], |row| row.get::<_, i64>(0))).await
        })
        .await;
        let last = send(&state, insert(&state, "last", || false)).await;
        drop(until);
        assert!(first.await.unwrap().is_ok() && last.await.unwrap().is_ok());
        assert!(failed.await.unwrap().unwrap_err().to_string().contains("missing"));
        assert!(panicked.await.unwrap().unwrap_err().to_string().contains("this request panicked"));
        assert_eq!(read.await.unwrap().unwrap(), 1);
        assert_eq!(count(&state, select).await, 2);
        assert_eq!(count_transactions(&state).await - before, 1, "one group");
    }

    #[tokio::test]
    async fn a_transaction_without_changes_is_not_synced() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(&dir).await;
        let before = count_transactions(&state).await;
        state.record_boot_end("m", [7; 32], true).await.unwrap();
        state.decide_next_boot("m", FileAllocation::Free).await.unwrap();
        assert_eq!(count_transactions(&state).await, before);
    }
}
