//! Thread of the database. It runs jobs one after the other, and syncs the durable transactions of several jobs together,
//! since a sync takes as long as hundreds of transactions. This applies to SQLite; a transaction on PostgreSQL is durable
//! when its job ends.
//!
//! A group begins with the first durable transaction that is not synced yet. Until the group is synced, no job of the group
//! is acknowledged, including those that only read: their results may depend on a transaction that a power failure would
//! undo.

use crate::database_file::DatabaseFile;
use crate::fair_queue::JobReceiver;
use common::error::{Error, Phase, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::sync::oneshot;

/// Maximum number of jobs in a group. It limits the time for which the first job of a group waits.
const JOBS: usize = 256;

/// Sends the result of a job to its caller. If the group of the job could not be synced, the argument is the reason, and
/// the caller gets this error instead of the result.
pub(crate) type Acknowledgement = Box<dyn FnOnce(&Result<(), String>) + Send>;

pub(crate) enum DatabaseJob {
    Work(Box<dyn FnOnce(&mut DatabaseFile) -> Acknowledgement + Send>),
    /// Closes the file, then sends a response.
    End(oneshot::Sender<()>),
}

/// Returns the result of a job whose group was synced, or the error of the sync.
pub(crate) fn combine_results<T>(done: Result<T>, synced: &Result<(), String>) -> Result<T> {
    match synced {
        Ok(()) => done,
        Err(why) => Err(Error::new(Phase::Serve, why.clone())),
    }
}

/// Runs jobs until all senders were dropped, or a job ends the thread.
pub(crate) fn run_jobs(mut store: DatabaseFile, queue: &JobReceiver<DatabaseJob>) {
    let mut group = Vec::new();
    loop {
        let job = if group.is_empty() { queue.receive() } else { queue.receive_waiting() };
        match job {
            Some(DatabaseJob::Work(work)) => run_job(&mut store, work, &mut group),
            Some(DatabaseJob::End(done)) => {
                acknowledge_group(&mut store, &mut group);
                store.close();
                let _ = done.send(());
                return;
            }
            None if group.is_empty() => return store.close(),
            None => acknowledge_group(&mut store, &mut group),
        }
        if group.len() >= JOBS {
            acknowledge_group(&mut store, &mut group);
        }
    }
}

/// Runs a job. Its acknowledgement is sent immediately, or added to the group.
fn run_job(
    store: &mut DatabaseFile,
    work: Box<dyn FnOnce(&mut DatabaseFile) -> Acknowledgement + Send>,
    group: &mut Vec<Acknowledgement>,
) {
    // A panic ends one call only: its transaction is rolled back, and its caller gets an error.
    let done = catch_unwind(AssertUnwindSafe(|| work(store)));
    match done {
        Ok(acknowledge) if group.is_empty() && !store.has_unsynced() => acknowledge(&Ok(())),
        Ok(acknowledge) => group.push(acknowledge),
        Err(_) => {}
    }
}

/// Syncs the transactions of the group, and then acknowledges its jobs.
fn acknowledge_group(store: &mut DatabaseFile, group: &mut Vec<Acknowledgement>) {
    let synced = catch_unwind(AssertUnwindSafe(|| store.sync_transactions()));
    let synced = match synced {
        Ok(synced) => synced.map_err(|error| error.to_string()),
        Err(_) => Err("the database could not be synced because of an internal error".to_owned()),
    };
    group.drain(..).for_each(|acknowledge| acknowledge(&synced));
}

#[cfg(test)]
mod tests {
    use crate::tests::engine::is_postgres;
    use crate::{FileAllocation, ServerState};
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Duration;
    use tempfile::TempDir;

    /// Number of jobs in these tests, more than one group.
    const MACHINES: usize = super::JOBS + 44;

    fn open(dir: &TempDir) -> ServerState {
        ServerState::open(&dir.path().join("drophammer.sqlite"), Duration::ZERO).unwrap()
    }

    fn count_transactions(dir: &Path) -> i64 {
        let database = rusqlite::Connection::open(dir.join("drophammer.sqlite")).unwrap();
        database.query_row("SELECT transactions FROM identity", [], |row| row.get(0)).unwrap()
    }

    /// Frees many machines at the same time, while the thread of the database is blocked. Runs `blocked` before it
    /// continues. Returns the results.
    async fn free_together(state: &ServerState, blocked: impl FnOnce()) -> Vec<common::error::Result<()>> {
        let (until, blocks) = mpsc::channel();
        state.block_thread(blocks);
        let free = |number: usize| {
            let state = state.clone();
            tokio::spawn(async move { state.free_machine(&format!("m{number}")).await })
        };
        let mut tasks: Vec<_> = (0..MACHINES).map(free).collect();
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
        if is_postgres("the transactions of a PostgreSQL database are not grouped") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let state = open(&dir);
        let before = count_transactions(dir.path());
        let results = free_together(&state, || ()).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(count_transactions(dir.path()) - before, 2, "two groups");
        // Without other jobs, a transaction is synced at once.
        state.free_machine("m").await.unwrap();
        assert_eq!(count_transactions(dir.path()) - before, 3);
        // All of them are in the database file, not only in its log.
        drop(state);
        let copy = tempfile::tempdir().unwrap();
        for name in ["drophammer.sqlite", "drophammer.id"] {
            std::fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
        }
        let database = rusqlite::Connection::open(copy.path().join("drophammer.sqlite")).unwrap();
        let freed = "SELECT count(*) FROM machines WHERE freed IS NOT NULL";
        let freed: u32 = database.query_row(freed, [], |row| row.get(0)).unwrap();
        assert_eq!(freed as usize, MACHINES + 1);
    }

    #[tokio::test]
    async fn nothing_is_acknowledged_if_its_group_cannot_be_synced() {
        if is_postgres("the transactions of a PostgreSQL database are not grouped") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let state = open(&dir);
        let results = free_together(&state, || std::fs::remove_file(dir.path().join("drophammer.id")).unwrap()).await;
        assert!(results.iter().all(Result::is_err));
        assert!(state.wait_until_gone().await.contains("drophammer.id is missing"));
    }

    /// The result of a read may depend on a transaction that is not synced yet.
    #[tokio::test]
    async fn a_read_in_a_group_is_acknowledged_with_it() {
        if is_postgres("the transactions of a PostgreSQL database are not grouped") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let state = open(&dir);
        let (until, blocks) = mpsc::channel();
        state.block_thread(blocks);
        let (writer, reader) = (state.clone(), state.clone());
        let write = tokio::spawn(async move { writer.free_machine("m").await });
        while state.count_own_jobs() < 1 {
            tokio::task::yield_now().await;
        }
        let read = tokio::spawn(async move { reader.is_recorded("m").await });
        while state.count_own_jobs() < 2 {
            tokio::task::yield_now().await;
        }
        std::fs::remove_file(dir.path().join("drophammer.id")).unwrap();
        drop(until);
        assert!(write.await.unwrap().is_err());
        assert!(read.await.unwrap().is_err());
    }

    #[tokio::test]
    async fn a_transaction_without_changes_is_not_synced() {
        if is_postgres("the transactions of a PostgreSQL database are not grouped") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let state = open(&dir);
        let before = count_transactions(dir.path());
        state.record_boot_end([7; 32], true).await.unwrap();
        state.decide_next_boot("m", FileAllocation::Free).await.unwrap();
        assert_eq!(count_transactions(dir.path()), before);
    }
}
