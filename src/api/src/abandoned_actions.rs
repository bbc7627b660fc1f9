//! Task that finds the actions on management controllers whose server has ended, or was paused or cut off for longer than
//! its lease, and continues or reports them.

use crate::AppState;
use crate::rollouts::power_cycle::take_over_power_cycle;
use common::error::Result;
use common::error_code::ErrorCode;
use std::sync::Arc;
use std::time::Duration;
use store::server_leases::{AbandonedLease, ActionOrigin};

/// Interval at which the leases are read.
const INTERVAL: Duration = Duration::from_secs(2);

/// Handles abandoned actions, again and again. Never returns.
pub async fn handle_abandoned_actions(app: Arc<AppState>) {
    loop {
        if let Err(error) = handle_all(&app).await {
            let why = format!(
                "abandoned actions on management controllers cannot be handled: {error}; the server tries again"
            );
            app.log_rate_limited(ErrorCode::ServerProblem.annotate(why));
        }
        tokio::time::sleep(INTERVAL.min(app.run_interval)).await;
    }
}

async fn handle_all(app: &Arc<AppState>) -> Result<()> {
    for abandoned in app.state.list_abandoned_leases().await? {
        match abandoned.lease.action.origin {
            ActionOrigin::Rollout { rollout, number } => {
                let app = app.clone();
                // The claim of the abandoned lease ensures that only one task continues.
                tokio::spawn(async move {
                    if let Err(error) = take_over_power_cycle(&app, (rollout, number), abandoned).await {
                        app.log_rate_limited(ErrorCode::ServerProblem.annotate(format!("rollout {rollout}: {error}")));
                    }
                });
            }
            // The record of the run determines how it is continued.
            ActionOrigin::Step => {
                if app.state.release_step(abandoned).await? {
                    app.runs.notify_one();
                }
            }
            ActionOrigin::Operator => report_unknown(app, &abandoned).await?,
        }
    }
    Ok(())
}

/// Reports an action whose operator has not received a result. It is not repeated, because the operator decides.
async fn report_unknown(app: &AppState, abandoned: &AbandonedLease) -> Result<()> {
    if !app.state.release_lease(&abandoned.lease).await? {
        return Ok(());
    }
    let name = app.directory().display_name(&abandoned.lease.machine).to_owned();
    let result = match abandoned.may_have_switched || abandoned.is_pending {
        true => "its outcome is unknown",
        false => "the power state was not changed",
    };
    let action = abandoned.lease.action.describe();
    app.watch.log_problem(format!(
        "{name}: the server has ended during the action {action}: {result}; run `drophammer machine power status {name}`, \
         and repeat the action if necessary"
    ));
    Ok(())
}
