//! Transactions that share one commit, because waiting for the disk in one commit takes as long as dozens of
//! transactions.
//!
//! A group is one transaction of PostgreSQL, and each transaction of the group is a savepoint in it. A transaction that
//! fails is rolled back to its savepoint, and the other transactions of the group remain. While a group is open, reads
//! are part of it: they see the changes of the group, and must therefore not be acknowledged before the commit of the
//! group. If the session is lost, or the commit fails, all transactions of the group have failed.

use super::{Error, PostgresConnection, Result, TransactionKind, synchronous_commit, value_conversion};
use std::time::{Duration, Instant};

/// Maximum number of transactions in a group. PostgreSQL tracks at most 64 subtransactions of a session in memory.
const TRANSACTIONS: usize = 60;
/// Time after which a group accepts no further transaction, since an open group blocks the other servers.
pub(super) const MAXIMUM_GROUP_DURATION: Duration = Duration::from_millis(20);

const SAVEPOINT: &str = "SAVEPOINT part;";
const RELEASE: &str = "RELEASE SAVEPOINT part;";
const ROLL_BACK: &str = "ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part";

/// Adds one to the number of durable transactions, and notifies the other servers.
const COUNT_AND_NOTIFY: &str =
    "WITH counted AS (UPDATE identity SET transactions = transactions + 1 RETURNING transactions)
     SELECT transactions, CAST(pg_notify(?1, ?2) AS TEXT) FROM counted";

/// Open group.
pub(super) struct TransactionGroup {
    began: Instant,
    /// Number of transactions, including those that were rolled back.
    transactions: usize,
    /// Type of the latest transaction of the group.
    kind: TransactionKind,
    /// True if the group must be on disk before it is acknowledged.
    is_synced: bool,
}

impl PostgresConnection {
    /// Commits transactions in groups from now on. The caller must call [`PostgresConnection::commit_group`] after
    /// one or several transactions.
    pub(crate) fn group_transactions(&self) {
        self.is_grouping.set(true);
    }

    /// Removes the time limit of groups.
    #[cfg(test)]
    pub(crate) fn disable_group_limit(&self) {
        self.group_limit.set(Duration::MAX);
    }

    /// Returns whether a group is open.
    pub(crate) fn has_group(&self) -> bool {
        self.group.borrow().is_some()
    }

    /// Returns whether the open group must be committed before another transaction begins.
    pub(crate) fn is_group_full(&self) -> bool {
        let is_lost = self.session.borrow().is_none();
        self.group.borrow().as_ref().is_some_and(|group| {
            is_lost || group.transactions >= TRANSACTIONS || group.began.elapsed() >= self.group_limit.get()
        })
    }

    /// Commits the open group. If `notification` is specified, counts the group as a durable transaction, sends this
    /// payload to the other servers through this channel, and returns the new number of durable transactions.
    ///
    /// # Errors
    /// Returns an error if no transaction of the group was committed, or the outcome is unknown.
    pub(crate) fn commit_group(&self, notification: Option<[&str; 2]>) -> Result<Option<i64>> {
        let Some(group) = self.group.take() else { return Ok(None) };
        let done = match notification {
            None => {
                let commit = format!("{}COMMIT", synchronous_commit(group.is_synced));
                self.run_commit(|| self.execute_batch(&commit)).map(|()| None)
            }
            Some(values) => {
                let values = values.map(|value| super::Value::Text(value.to_owned()));
                let count = async |session: &mut super::Session| {
                    session.query_and_commit(COUNT_AND_NOTIFY, &values, "COMMIT").await
                };
                self.run_commit(|| self.call(count)).and_then(|rows| {
                    let row = rows.first().map(value_conversion::read_row).transpose()?.ok_or(Error::NoRows)?;
                    row.get(0).map(Some)
                })
            }
        };
        done.inspect_err(|_| self.roll_back_transaction())
    }

    pub(super) fn begin_in_group(&self, kind: TransactionKind) -> Result<()> {
        if !self.has_group() {
            self.begin_transaction(TransactionKind::Write)?;
            let group = TransactionGroup { began: Instant::now(), transactions: 0, kind, is_synced: false };
            self.group.replace(Some(group));
        }
        if let Some(group) = self.group.borrow_mut().as_mut() {
            group.transactions += 1;
            group.kind = kind;
        }
        match self.session.borrow_mut().as_mut() {
            Some(session) => session.pending.push_str(SAVEPOINT),
            None => return Err(self.session_ended()),
        }
        Ok(())
    }

    pub(super) fn commit_in_group(&self, is_synced: bool) -> Result<()> {
        match self.session.borrow_mut().as_mut() {
            Some(session) => {
                if !remove_savepoint(&mut session.pending) {
                    session.pending.push_str(RELEASE);
                }
            }
            None => return Err(self.session_ended()),
        }
        if let Some(group) = self.group.borrow_mut().as_mut() {
            group.is_synced |= is_synced && group.kind == TransactionKind::Write;
        }
        Ok(())
    }

    pub(super) fn roll_back_in_group(&self) {
        if !self.session.borrow_mut().as_mut().is_some_and(|session| remove_savepoint(&mut session.pending)) {
            self.roll_back_with(ROLL_BACK);
        }
    }
}

/// Removes the last savepoint if its transaction contains no statement, so that the savepoint is not sent. Returns
/// whether it was removed.
fn remove_savepoint(pending: &mut String) -> bool {
    let is_unsent = pending.ends_with(SAVEPOINT);
    if is_unsent {
        pending.truncate(pending.len() - SAVEPOINT.len());
    }
    is_unsent
}
