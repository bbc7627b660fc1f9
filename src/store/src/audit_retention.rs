//! Deletion of old entries of the audit log. A clock that is ahead must not cause the deletion of the log, so entries
//! are deleted by age only if the log is plausible at the current time, and only a few at a time.

use crate::ServerState;
use crate::audit::AuditRetention;
use crate::sql::{self, OptionalExtension, Transaction, params};
use common::error::Result;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

/// Age from which an entry shows that the clock is plausible. Newer entries may have been stored since the clock was
/// set forward.
const SETTLED_AGE: Duration = Duration::days(1);
/// Longest plausible pause before the last day. After a longer pause without any entry, the clock may be ahead.
const LONGEST_PAUSE: Duration = Duration::days(31);
/// Maximum number of entries that are deleted by age in one run. There is one run per 64 new entries, so that no more
/// than two old entries are deleted for each new entry.
const EXPIRED_PER_RUN: i64 = 128;

/// Ends of the periods that determine which entries are deleted, as RFC 3339.
struct AgeLimits {
    expired: String,
    settled: String,
    longest_pause: String,
}

impl AgeLimits {
    /// Returns the limits at this time; `None` if one of them cannot be represented, so that no entry is old enough.
    fn new(now: OffsetDateTime, days: u32) -> Option<AgeLimits> {
        let before = |age: Duration| now.checked_sub(age).and_then(|time| time.format(&Rfc3339).ok());
        Some(AgeLimits {
            expired: before(Duration::days(days.into()))?,
            settled: before(SETTLED_AGE)?,
            longest_pause: before(SETTLED_AGE + LONGEST_PAUSE)?,
        })
    }
}

impl ServerState {
    /// Deletes entries that exceed the retention. Returns the problem if entries are not deleted by age because the
    /// clock may be ahead.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn trim_audit(&self, retention: AuditRetention) -> Result<Option<String>> {
        let now = self.shared_time();
        let limits = AgeLimits::new(now, retention.days);
        self.run_deferred(move |transaction| {
            transaction.execute(
                "DELETE FROM audit WHERE id <= (SELECT id FROM audit ORDER BY id DESC LIMIT 1 OFFSET ?1)",
                [i64::from(retention.entries)],
            )?;
            limits.map_or(Ok(None), |limits| delete_expired(transaction, &limits, now))
        })
        .await
    }
}

fn delete_expired(transaction: &Transaction, limits: &AgeLimits, now: OffsetDateTime) -> sql::Result<Option<String>> {
    let select = "SELECT time FROM audit WHERE time < ?1 ORDER BY id DESC LIMIT 1";
    let newest: Option<String> = transaction.query_row(select, [&limits.settled], |row| row.get(0)).optional()?;
    if let Some(newest) = newest.filter(|newest| *newest < limits.longest_pause) {
        let has_expired = transaction.prepare("SELECT 1 FROM audit WHERE time < ?1")?.exists([&limits.expired])?;
        return Ok(has_expired.then(|| {
            format!(
                "no entries are deleted by age, because the clock may be ahead: it shows {now}, but the newest entry before \
                 the last day is from {newest}; check the clock. If it is correct, entries are deleted again after one day",
                now = now.format(&Rfc3339).unwrap_or_default()
            )
        }));
    }
    let delete = "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE time < ?1 ORDER BY id LIMIT ?2)";
    transaction.execute(delete, params![limits.expired, EXPIRED_PER_RUN])?;
    Ok(None)
}
