//! Deletion of old events and console logs, in small batches, so that machines do not wait for the deletion.

use super::ServerState;
use crate::sql::{self, OptionalExtension, params};
use common::error::Result;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Number of rows that are deleted or measured in one job.
const BATCH: i64 = 1000;
/// Number of bytes that are added to the length of a row's text as the size of the row's other columns.
const ROW: i64 = 128;

/// Type of the records that are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetainedRecords {
    Events,
    Logs,
}

impl RetainedRecords {
    /// Returns the names of the table and of the column with the text.
    fn table(self) -> (&'static str, &'static str) {
        match self {
            RetainedRecords::Events => ("events", "event"),
            RetainedRecords::Logs => ("log", "text"),
        }
    }
}

/// Limits of the stored records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionPolicy {
    pub max_age: time::Duration,
    /// Maximum size of all records of the type, in bytes.
    pub max_bytes: u64,
}

impl ServerState {
    /// Deletes at most one batch of the oldest records above the limits. Returns whether there may be more records to
    /// delete.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn delete_expired_batch(
        &self,
        records: RetainedRecords,
        first_kept: i64,
        max_age: time::Duration,
    ) -> Result<bool> {
        let (table, _) = records.table();
        let oldest = OffsetDateTime::now_utc().checked_sub(max_age).and_then(|oldest| oldest.format(&Rfc3339).ok());
        let delete = format!(
            "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY id LIMIT ?3) AND (id < ?1 OR time < ?2)"
        );
        let oldest = oldest.unwrap_or_default();
        self.run_deferred(move |transaction| {
            let deleted = transaction.execute(&delete, params![first_kept, oldest, BATCH])?;
            Ok(deleted as i64 == BATCH)
        })
        .await
    }

    /// Returns the id of the oldest record that is within the size limit, or 0 if all records are within the limit. The
    /// sizes are summed from the newest record on, batch by batch. The whole batch in which the sum exceeds the limit
    /// counts as outside of the limit.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn find_oldest_retained_id(&self, records: RetainedRecords, max_bytes: u64) -> Result<i64> {
        let (table, column) = records.table();
        let select = format!(
            "SELECT min(id), CAST(sum(bytes) AS BIGINT) FROM
             (SELECT id, CAST(octet_length({column}) AS BIGINT) + {ROW} AS bytes FROM {table} WHERE id < ?1
             ORDER BY id DESC LIMIT ?2) AS batch"
        );
        let (mut before, mut bytes) = (i64::MAX, 0);
        loop {
            let select = select.clone();
            let part = self.run_job(move |connection| {
                let read = |row: &sql::Row| Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(1)?));
                connection.prepare_cached(&select)?.query_row(params![before, BATCH], read).optional()
            });
            let Some((Some(first), Some(more))) = part.await? else { return Ok(0) };
            bytes += u64::try_from(more).unwrap_or_default();
            if bytes > max_bytes {
                return Ok(before);
            }
            before = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::install_report::{EventName, ProgressEvent};
    use std::time::Duration;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    fn state_with_events(dir: &tempfile::TempDir, count: usize) -> ServerState {
        let state = ServerState::open(&dir.path().join("drophammer.sqlite"), Duration::ZERO).unwrap();
        let (event, message) = (EventName::Alive, "x".repeat(1000));
        let event = ProgressEvent { event, message, stage: None, seconds: None, progress: None };
        (0..count).for_each(|_| block_on(state.store_event("m", &event, false)).unwrap());
        state
    }

    fn count(state: &ServerState) -> usize {
        block_on(state.list_events("m", 10_000)).unwrap().len()
    }

    #[test]
    fn records_within_the_limits_are_preserved() {
        let dir = tempfile::tempdir().unwrap();
        let state = state_with_events(&dir, 20);
        let first = block_on(state.find_oldest_retained_id(RetainedRecords::Events, 1 << 20)).unwrap();
        assert_eq!(first, 0);
        assert!(
            !block_on(state.delete_expired_batch(RetainedRecords::Events, first, time::Duration::days(1))).unwrap()
        );
        assert_eq!(count(&state), 20);
    }

    #[test]
    fn old_records_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let state = state_with_events(&dir, 20);
        let age = time::Duration::seconds(-60);
        assert!(!block_on(state.delete_expired_batch(RetainedRecords::Events, 0, age)).unwrap());
        assert_eq!(count(&state), 0);
    }

    /// The number of deleted records is rounded up to whole batches.
    #[test]
    fn the_oldest_records_above_the_size_limit_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let state = state_with_events(&dir, 2500);
        let first = block_on(state.find_oldest_retained_id(RetainedRecords::Events, 1_500_000)).unwrap();
        assert_eq!(first, 1501);
        let day = time::Duration::days(1);
        assert!(block_on(state.delete_expired_batch(RetainedRecords::Events, first, day)).unwrap());
        assert!(!block_on(state.delete_expired_batch(RetainedRecords::Events, first, day)).unwrap());
        assert_eq!(count(&state), 1000);
        assert_eq!(block_on(state.find_oldest_retained_id(RetainedRecords::Logs, 0)).unwrap(), 0);
    }
}
