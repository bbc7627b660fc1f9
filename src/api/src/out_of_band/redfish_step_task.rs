//! Task that continues the runs. Each run executes the Redfish steps of one installation. If several servers use the
//! database, the server that holds the lease of the machine continues the run.

use super::advance_run;
use crate::AppState;
use crate::bmc_lease::HeldLease;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::server_leases::{ActionOrigin, LeaseClaim, LeasedAction};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Interval at which unfinished runs are continued.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of management controllers that are in use at the same time.
const CONTROLLERS: usize = 16;
/// Maximum number of consecutive actions of a run without a pause.
const ACTIONS: usize = 16;

/// Continues all unfinished runs, including runs of an earlier server process. Never returns.
pub async fn continue_runs(app: Arc<AppState>) {
    let places = Arc::new(Semaphore::new(CONTROLLERS));
    let mut tasks: BTreeMap<String, JoinHandle<()>> = BTreeMap::new();
    loop {
        tasks.retain(|_, task| !task.is_finished());
        let active = app.state.list_active_runs().await.unwrap_or_default();
        let is_idle = active.is_empty() && tasks.is_empty();
        for (run, _) in active {
            let (app, places, id) = (app.clone(), places.clone(), run.machine.clone());
            tasks.entry(run.machine).or_insert_with(|| {
                tokio::spawn(async move {
                    let _place = places.acquire().await;
                    continue_run(&app, &id).await;
                })
            });
        }
        let pause = if is_idle { Duration::from_secs(3600) } else { app.run_interval };
        let _ = tokio::time::timeout(pause, app.runs.notified()).await;
    }
}

/// Interval of [`continue_runs`], except in tests.
pub const RUN_INTERVAL: Duration = CHECK_INTERVAL;

/// Continues a run, unless another server holds its lease. If the database has refused a request of the run, the lease
/// is not released, so that another server takes over when the lease expires.
async fn continue_run(app: &AppState, id: &str) {
    if !app.state.is_shared() {
        return carry_out_actions(app, id, None).await;
    }
    let action = LeasedAction::new(ActionOrigin::Step, "Redfish steps", "the machine's template");
    if let Ok(LeaseClaim::Claimed(lease)) = app.state.claim_lease(id, action, None).await {
        let held = HeldLease::new(&app.state, lease);
        carry_out_actions(app, id, Some(&held)).await;
        if !held.is_refused() {
            held.release().await;
        }
    }
}

/// Carries out the actions of a run until it must wait.
async fn carry_out_actions(app: &AppState, id: &str, lease: Option<&HeldLease>) {
    for _ in 0..ACTIONS {
        let active = app.state.list_active_runs().await.unwrap_or_default();
        let Some((run, boot)) = active.into_iter().find(|(run, _)| run.machine == id) else { return };
        match advance_run(app, run, boot, lease).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                let name = app.directory().display_name(id).to_owned();
                return app.log_rate_limited(format!("{name}: cannot continue the Redfish steps: {}", error.parts().1));
            }
        }
    }
}
