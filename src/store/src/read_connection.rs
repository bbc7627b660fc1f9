//! Second connection to the database, for lists and snapshots. Its reads do not wait for the jobs of machines, and do
//! not delay those jobs. The reads see all committed transactions. In a SQLite file, some of these transactions are not
//! synced yet, and a power failure may undo them. The reads must therefore not decide anything that affects a machine.
//! Such reads are permitted for:
//!
//! * Lists, statistics, caches and forecasts: they are displayed, and are read again after a restart.
//! * Snapshots of the directory, which contain states of allocations and migrations: before the server sends a boot
//!   script, an allocation or a permission to start, it also waits for a later job of the database's thread. That job
//!   is acknowledged after all earlier transactions are synced.
//! * The MACs of a new machine file: if the registration that contains them is undone, the machine registers again.
//! * Tokens of users: a revocation, or a change to a lower role, applies before it is synced and acknowledged. A power
//!   failure can undo such a change only before the administrator has received the acknowledgement. A new token is sent
//!   to its user only after the sync. A change that a user makes with a new role is synced after the role, because the
//!   log is sequential.

use crate::ServerState;
use crate::database_file::{DatabaseFile, open_existing};
use crate::database_loss_stop::stop_or_convert;
use crate::sql::{self, Connection, TransactionKind, convert_error};
use common::error::{Context, Error, Phase, Result};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use tokio::sync::watch;

/// Connection for reading, or `None` after it was closed; cheap to clone. The write-ahead log of a SQLite file is
/// emptied only while no read is in progress: otherwise SQLite would wait for the reader, in steps of up to a tenth
/// of a second.
#[derive(Clone)]
pub(crate) struct ReadConnection {
    connection: Arc<Mutex<Option<Connection>>>,
    /// Reason why the server must stop.
    gone: watch::Sender<Option<String>>,
}

impl ReadConnection {
    /// Opens the connection to the same database.
    ///
    /// # Errors
    /// Returns an error if the database cannot be opened.
    fn open(store: &DatabaseFile) -> Result<ReadConnection> {
        let connection = match store.connection.as_postgres() {
            Some(postgres) => {
                let opened = postgres.connect_again();
                let failed = |error| convert_error(error, "open a second connection to the PostgreSQL database");
                Connection::from_postgres(opened.map_err(failed)?)
            }
            None => {
                let what = || format!("open the database {}", store.path.display());
                let connection = open_existing(&store.path).context(Phase::Serve, what)?;
                let settings = "PRAGMA busy_timeout=5000; PRAGMA query_only=ON;";
                connection.execute_batch(settings).context(Phase::Serve, what)?;
                connection
            }
        };
        Ok(ReadConnection { connection: Arc::new(Mutex::new(Some(connection))), gone: store.gone.clone() })
    }

    /// Runs `work` while no other thread reads with this connection.
    pub(crate) fn exclude_reads<T>(&self, work: impl FnOnce() -> T) -> T {
        let _connection = self.connection.lock();
        work()
    }

    /// Closes the connection. The last connection that is closed moves the log into the database file.
    pub(crate) fn close(&self) {
        drop(self.connection.lock().take());
    }

    /// Opens another connection to the same PostgreSQL database; `None` for a SQLite file.
    pub(crate) fn connect_again(&self) -> Result<Option<Connection>> {
        let connection = self.connection.lock();
        let Some(postgres) = connection.as_ref().and_then(Connection::as_postgres) else { return Ok(None) };
        stop_or_convert(postgres.connect_again().map(Connection::from_postgres), &self.gone).map(Some)
    }

    /// Returns a handle of another connection, such as a copy in memory.
    pub(crate) fn with_connection(&self, connection: sql::Result<Connection>) -> Result<ReadConnection> {
        let connection = stop_or_convert(connection, &self.gone)?;
        Ok(ReadConnection { connection: Arc::new(Mutex::new(Some(connection))), gone: self.gone.clone() })
    }

    /// Reads in one transaction, so that all reads see the same state.
    pub(crate) fn read<T>(&self, work: impl FnOnce(&Connection) -> sql::Result<T>) -> Result<T> {
        let connection = self.connection.lock();
        let read = |connection: &Connection| {
            let transaction = connection.begin(TransactionKind::Read)?;
            let value = work(&transaction)?;
            transaction.commit().map(|()| value)
        };
        let result = connection.as_ref().map(read);
        // A list of ten thousand machines reads in hundreds of short transactions. Without fairness, they would delay
        // all other readers until the list is complete, which takes ten seconds with PostgreSQL.
        MutexGuard::unlock_fair(connection);
        let closed = || Error::new(Phase::Serve, "the database is closed");
        stop_or_convert(result.ok_or_else(closed)?, &self.gone)
    }
}

impl DatabaseFile {
    /// Opens the second connection, with which other threads read.
    ///
    /// # Errors
    /// Returns an error if the database cannot be opened.
    pub(crate) fn with_reader(self) -> Result<DatabaseFile> {
        let reader = Some(ReadConnection::open(&self)?);
        Ok(DatabaseFile { reader, ..self })
    }
}

impl ServerState {
    /// Reads with the second connection or, if there is none, in a job of the database's thread.
    pub(crate) async fn read_committed<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> sql::Result<T> + Send + 'static,
    ) -> Result<T> {
        let Some(reader) = self.reader.clone() else { return self.run_job(work).await };
        let read = tokio::task::spawn_blocking(move || reader.read(work)).await;
        read.unwrap_or_else(|_| Err(Error::new(Phase::Serve, "this request panicked")))
    }

    /// Blocking variant of [`ServerState::read_committed`].
    pub(crate) fn read_committed_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> sql::Result<T> + Send + 'static,
    ) -> Result<T> {
        match &self.reader {
            Some(reader) => reader.read(work),
            None => self.run_job_blocking(work),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    #[tokio::test]
    async fn committed_records_are_read_while_the_writer_is_busy() {
        let dir = tempfile::tempdir().unwrap();
        let state = ServerState::open(&dir.path().join("drophammer.sqlite"), Duration::ZERO).unwrap();
        state.free_machine("m").await.unwrap();
        let (until, blocks) = mpsc::channel();
        state.block_thread(blocks);
        let count = |connection: &Connection| {
            connection.query_row("SELECT count(*) FROM machines", [], |row| row.get::<_, i64>(0))
        };
        assert_eq!(state.read_committed(count).await.unwrap(), 1);
        let reader = state.clone();
        let read = tokio::task::spawn_blocking(move || reader.read_committed_blocking(count)).await.unwrap();
        assert_eq!(read.unwrap(), 1);
        drop(until);
        state.close().await;
        assert!(state.read_committed(count).await.unwrap_err().to_string().contains("the database is closed"));
        assert!(!dir.path().join("drophammer.sqlite-wal").exists());
    }

    #[test]
    fn many_short_reads_do_not_delay_another_reader() {
        let dir = tempfile::tempdir().unwrap();
        let state = ServerState::open(&dir.path().join("drophammer.sqlite"), Duration::ZERO).unwrap();
        let (started, has_started) = mpsc::channel();
        let (reads, is_done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let list = {
            let (state, reads, is_done) = (state.clone(), reads.clone(), is_done.clone());
            std::thread::spawn(move || {
                while !is_done.load(Ordering::SeqCst) && reads.fetch_add(1, Ordering::SeqCst) < 2000 {
                    let started = started.clone();
                    let pause = move |_: &Connection| {
                        let _ = started.send(());
                        std::thread::sleep(Duration::from_millis(5));
                        Ok(())
                    };
                    state.read_committed_blocking(pause).unwrap();
                }
            })
        };
        has_started.recv().unwrap();
        let before = reads.load(Ordering::SeqCst);
        state.read_committed_blocking(|_| Ok(())).unwrap();
        let missed = reads.load(Ordering::SeqCst) - before;
        is_done.store(true, Ordering::SeqCst);
        list.join().unwrap();
        assert!(missed < 200, "{missed} reads were executed first");
    }

    #[tokio::test]
    async fn reads_cannot_write_and_survive_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let state = ServerState::open(&dir.path().join("drophammer.sqlite"), Duration::ZERO).unwrap();
        state.free_machine("m").await.unwrap();
        let write = |connection: &Connection| connection.execute("DELETE FROM machines", []);
        assert!(state.read_committed(write).await.is_err());
        assert!(state.read_committed::<()>(|_| panic!("expected by the test")).await.is_err());
        assert!(state.is_recorded("m").await.unwrap());
        let one = |connection: &Connection| connection.query_row("SELECT 1", [], |row| row.get::<_, i64>(0));
        assert_eq!(state.read_committed(one).await.unwrap(), 1);
    }
}
