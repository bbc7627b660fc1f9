//! Transactions that are on disk before they are acknowledged. Each has a scope, the machines whose records it may
//! change. After the commit, other servers of a PostgreSQL database are notified of the scope.

use crate::ServerState;
use crate::audit_transactions::mark_audited;
use crate::change_scope::ChangeScope;
use crate::database_file::{DatabaseFile, Durability};
use crate::database_handle::flatten_answer;
use crate::sql::{self, Transaction};
use common::error::Result;

impl ServerState {
    /// Runs a transaction with [`DatabaseFile::run_durably`]. It may change records of all machines.
    pub(crate) async fn run_durably<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction) -> sql::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_durably_within(ChangeScope::All, work).await
    }

    /// Runs a transaction with [`DatabaseFile::run_durably`]. It must change only records that concern this machine
    /// alone.
    pub(crate) async fn run_durably_for<T: Send + 'static>(
        &self,
        machine: String,
        work: impl FnOnce(&Transaction) -> sql::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_durably_within(ChangeScope::from_machine(machine), work).await
    }

    async fn run_durably_within<T: Send + 'static>(
        &self,
        scope: ChangeScope,
        work: impl FnOnce(&Transaction) -> sql::Result<T> + Send + 'static,
    ) -> Result<T> {
        let entry = (self.hooks.current_audit_entry)();
        let work = move |transaction: &Transaction| mark_audited(transaction, entry, work);
        flatten_answer(self.submit_job(|store| store.run_durably(scope, work)).await)
    }

    /// Runs a transaction with [`DatabaseFile::run_as_durable_as_needed`]. It must change only records that concern
    /// this machine alone.
    pub(crate) async fn run_as_durable_as_needed_for<T: Send + 'static>(
        &self,
        machine: String,
        work: impl FnOnce(&Transaction) -> sql::Result<(T, Durability)> + Send + 'static,
    ) -> Result<T> {
        let scope = ChangeScope::from_machine(machine);
        flatten_answer(self.submit_job(|store| store.run_as_durable_as_needed(scope, work)).await)
    }
}

impl DatabaseFile {
    /// Runs one transaction. If `work` returns [`Durability::Synced`], the next call of
    /// [`DatabaseFile::sync_transactions`] syncs it together with all earlier transactions, and notifies the other
    /// servers of the scope. Transactions that any client can trigger should be [`Durability::Deferred`], since a sync
    /// costs as much as hundreds of transactions.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written. If the file is missing, the server stops.
    pub(crate) fn run_as_durable_as_needed<T>(
        &mut self,
        scope: ChangeScope,
        work: impl FnOnce(&Transaction) -> sql::Result<(T, Durability)>,
    ) -> Result<T> {
        self.check_file()?;
        let done = (|| {
            let transaction = self.connection.transaction()?;
            let done = work(&transaction)?;
            match done.1 {
                Durability::Synced => transaction.commit(),
                Durability::Deferred => transaction.commit_deferred(),
            }
            .map(|()| done)
        })();
        let (value, durability) = self.stop_or_convert(done)?;
        if durability == Durability::Synced {
            self.unsynced = true;
            // No other server uses a SQLite file.
            if self.file.is_none() {
                self.unsent.extend(scope);
            }
        }
        Ok(value)
    }

    /// Runs one transaction, which is synced with its commit group. A transaction that changes nothing is not synced.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written. If the file is missing, the server stops.
    pub(crate) fn run_durably<T>(
        &mut self,
        scope: ChangeScope,
        work: impl FnOnce(&Transaction) -> sql::Result<T>,
    ) -> Result<T> {
        self.run_as_durable_as_needed(scope, |transaction| {
            let before = transaction.total_changes();
            let value = work(transaction)?;
            let is_changed = transaction.total_changes() > before;
            Ok((value, if is_changed { Durability::Synced } else { Durability::Deferred }))
        })
    }
}
