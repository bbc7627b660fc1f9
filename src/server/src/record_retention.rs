//! Task that deletes old events and console logs.

use super::limit_options::LimitOptions;
use common::error::Result;
use http_server::rate_limited_log::RateLimitedLog;
use std::time::Duration;
use store::ServerState;
use store::record_retention::{RetainedRecords, RetentionPolicy};

/// Pause between two deletions of old records.
const INTERVAL: Duration = Duration::from_secs(600);
/// Pause between two batches of a deletion, in which the database serves machines.
const BATCH_PAUSE: Duration = Duration::from_millis(50);

/// Deletes the records that exceed the limits, at regular intervals.
pub(crate) async fn delete_expired_records(state: ServerState, limits: LimitOptions, rate_limited_log: RateLimitedLog) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let all = [(RetainedRecords::Events, limits.retain_events), (RetainedRecords::Logs, limits.retain_logs)];
        for (records, policy) in all {
            if let Err(error) = delete_expired(&state, records, policy).await {
                rate_limited_log.log_problem(format!("cannot delete old events and logs: {error}"));
            }
        }
    }
}

async fn delete_expired(state: &ServerState, records: RetainedRecords, policy: RetentionPolicy) -> Result<()> {
    let first_kept = state.find_oldest_retained_id(records, policy.max_bytes).await?;
    while state.delete_expired_batch(records, first_kept, policy.max_age).await? {
        tokio::time::sleep(BATCH_PAUSE).await;
    }
    Ok(())
}
