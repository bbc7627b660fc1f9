//! Transactions that write the audit log, and transactions that mark the entry of the current request as committed.

use crate::ServerState;
use crate::audit;
use crate::database_file::DatabaseFile;
use crate::database_handle::flatten_answer;
use crate::sql::{self, Transaction};
use common::error::Result;

impl ServerState {
    /// Runs a transaction with [`DatabaseFile::run_synced_uncounted`].
    pub(crate) async fn run_synced_uncounted<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction) -> sql::Result<T> + Send + 'static,
    ) -> Result<T> {
        flatten_answer(self.submit_job(|store| store.run_synced_uncounted(work)).await)
    }
}

impl DatabaseFile {
    /// Runs one transaction that is on disk when this function returns. It does not increment the number of durable
    /// transactions, so a backup without this transaction does not count as outdated.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written. If the file is missing, the server stops.
    pub(crate) fn run_synced_uncounted<T>(&mut self, work: impl FnOnce(&Transaction) -> sql::Result<T>) -> Result<T> {
        self.check_file()?;
        let sqlite_synchronous = |level: &str| match self.connection.as_sqlite() {
            Some(connection) => connection.pragma_update(None, "synchronous", level),
            None => Ok(()),
        };
        let done = (|| {
            sqlite_synchronous("FULL")?;
            let done = (|| {
                let transaction = self.connection.transaction()?;
                let value = work(&transaction)?;
                transaction.commit().map(|()| value)
            })();
            sqlite_synchronous("NORMAL")?;
            done
        })();
        self.stop_or_convert(done)
    }
}

/// Runs `work` within the transaction. If it changes the database, marks the audit entry of the request as committed.
pub(crate) fn mark_audited<T>(
    transaction: &Transaction,
    entry: Option<i64>,
    work: impl FnOnce(&Transaction) -> sql::Result<T>,
) -> sql::Result<T> {
    let before = transaction.total_changes();
    let value = work(transaction)?;
    match entry {
        Some(entry) if transaction.total_changes() > before => {
            audit::mark_committed(transaction, entry).map(|()| value)
        }
        _ => Ok(value),
    }
}
