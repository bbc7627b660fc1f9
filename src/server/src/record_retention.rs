//! Task that deletes old events and console logs.

use super::limit_options::LimitOptions;
use common::error::Result;
use http_server::rate_limited_log::RateLimitedLog;
use std::time::Duration;
use store::ServerState;
use store::retention::{RetainedRecords, RetentionPolicy};

/// Interval at which records are deleted.
const INTERVAL: Duration = Duration::from_secs(600);
/// Pause between two batches, in which the jobs of machines run.
const PAUSE: Duration = Duration::from_millis(50);

/// Deletes the records above the limits, again and again.
pub(crate) async fn delete_expired_records(state: ServerState, limits: LimitOptions, alarms: RateLimitedLog) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let all = [(RetainedRecords::Events, limits.retain_events), (RetainedRecords::Logs, limits.retain_logs)];
        for (records, policy) in all {
            if let Err(error) = delete_expired(&state, records, policy).await {
                alarms.log_problem(format!("cannot delete old events and logs: {error}"));
            }
        }
    }
}

async fn delete_expired(state: &ServerState, records: RetainedRecords, policy: RetentionPolicy) -> Result<()> {
    let first_kept = state.find_first_within(records, policy.max_bytes).await?;
    while state.delete_expired_batch(records, first_kept, policy.max_age).await? {
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
