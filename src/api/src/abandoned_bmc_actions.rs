//! Task that handles abandoned actions on management controllers. An action is abandoned if the server that ran the
//! action has exited, or could not renew its lease in time. The task continues the action, or reports it to the
//! operator.

use crate::AppState;
use crate::rollouts::power_cycle::take_over_power_cycle;
use common::error::Result;
use common::error_code::ErrorCode;
use std::sync::Arc;
use std::time::Duration;
use store::server_leases::{AbandonedLease, ActionOrigin};

/// Interval at which the leases are read.
const INTERVAL: Duration = Duration::from_secs(2);

/// Handles abandoned actions in an endless loop. Never returns.
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
                // Only one server can claim the abandoned lease, so the power cycle is continued only once.
                tokio::spawn(async move {
                    if let Err(error) = take_over_power_cycle(&app, (rollout, number), abandoned).await {
                        app.log_rate_limited(ErrorCode::ServerProblem.annotate(format!("rollout {rollout}: {error}")));
                    }
                });
            }
            // The task that runs the steps continues from the phase that is recorded in the database.
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

/// Logs that an action of an operator was abandoned, and whether the outcome of the action is unknown. The operator
/// decides whether to repeat the action.
async fn report_unknown(app: &AppState, abandoned: &AbandonedLease) -> Result<()> {
    if !app.state.release_lease(&abandoned.lease).await? {
        return Ok(());
    }
    let name = app.directory().display_name(&abandoned.lease.machine).to_owned();
    let result = match abandoned.may_have_switched || abandoned.is_pending {
        true => "the outcome of the action is unknown",
        false => "the action did not change the power state",
    };
    let action = abandoned.lease.action.describe();
    app.watch.log_problem(format!(
        "{name}: the server has ended during the action {action}: {result}; run `drophammer machine power status {name}`, \
         and repeat the action if necessary"
    ));
    Ok(())
}
