//! Lease on a machine's management controller. The server that performs an action holds the lease, and renews it until
//! the action ends. Before each request that changes the machine, this server asks the database for permission.

use super::AppState;
use bmc::{WriteGuard, WriteKind};
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::ServerState;
use store::server_leases::{ActionOrigin, LeaseClaim, LeasedAction, RENEWAL, ServerLease};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Maximum time for which an operator's request waits until a running Redfish step releases the lease.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
const STEP_INTERVAL: Duration = Duration::from_millis(200);

/// Lease that this server holds. It is renewed until the value is dropped.
pub(crate) struct HeldLease {
    state: ServerState,
    pub lease: ServerLease,
    refused: Arc<AtomicBool>,
    renewal: JoinHandle<()>,
}

impl HeldLease {
    pub(crate) fn new(state: &ServerState, lease: ServerLease) -> HeldLease {
        let (renewed, kept) = (lease.clone(), state.clone());
        let renewal = tokio::spawn(async move {
            loop {
                tokio::time::sleep(RENEWAL).await;
                // An error of the renewal is ignored: while the database is unavailable, it also cannot permit any
                // request of the action.
                if kept.renew_lease(&renewed).await.is_ok_and(|is_held| !is_held) {
                    return;
                }
            }
        });
        HeldLease { state: state.clone(), lease, refused: Arc::default(), renewal }
    }

    /// Returns the guard for the requests of the action. Must be called on a thread of the Tokio runtime.
    pub(crate) fn guard(&self) -> LeaseGuard {
        let (state, lease, refused) = (self.state.clone(), self.lease.clone(), self.refused.clone());
        LeaseGuard { state, lease, refused, runtime: Handle::current() }
    }

    /// Returns whether the database has refused a request of the action.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::SeqCst)
    }

    /// Releases the lease. If the database is unavailable, the lease expires, and another server treats it as
    /// abandoned.
    pub(crate) async fn release(self) {
        self.renewal.abort();
        let _ = self.state.release_lease(&self.lease).await;
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// Guard that asks the database for permission before each request that changes the machine.
pub(crate) struct LeaseGuard {
    state: ServerState,
    lease: ServerLease,
    refused: Arc<AtomicBool>,
    runtime: Handle,
}

impl WriteGuard for LeaseGuard {
    fn permit(&self, write: WriteKind) -> Result<()> {
        let switches = write == WriteKind::Power;
        let permit = async {
            match self.lease.action.origin {
                ActionOrigin::Rollout { rollout, number } => {
                    self.state.permit_power_cycle((rollout, number), &self.lease, switches).await
                }
                _ => self.state.permit_request(&self.lease, switches).await,
            }
        };
        let why = match self.runtime.block_on(permit) {
            Ok(true) => return Ok(()),
            Ok(false) => "the action was canceled, or this server no longer owns the action".to_owned(),
            Err(error) => error.to_string(),
        };
        self.refused.store(true, Ordering::SeqCst);
        Err(Error::refusal(Phase::Control, format!("no request was sent to the management controller: {why}")))
    }

    fn confirm(&self) {
        // If the response cannot be recorded, another server will treat the outcome of the request as unknown.
        let _ = self.runtime.block_on(self.state.confirm_request(&self.lease));
    }
}

/// Claims the lease for an action of an operator. Returns `None` if only this server uses the database; no lease is
/// needed then.
///
/// # Errors
/// Returns an error if another action on the machine is in progress, or the database cannot be written.
pub(crate) async fn claim_controller(
    app: &AppState,
    id: &str,
    action: LeasedAction,
) -> Result<Option<HeldLease>, ApiError> {
    if !app.state.is_shared() {
        return Ok(None);
    }
    let began = std::time::Instant::now();
    loop {
        let other = match app.state.claim_lease(id, action.clone(), None).await? {
            LeaseClaim::Claimed(lease) => return Ok(Some(HeldLease::new(&app.state, lease))),
            LeaseClaim::Busy(other) => other,
            LeaseClaim::Refused => continue,
        };
        if other.origin != ActionOrigin::Step || began.elapsed() > STEP_TIMEOUT {
            return Err(refuse_busy(app, id, &action, &other));
        }
        tokio::time::sleep(STEP_INTERVAL).await;
    }
}

fn refuse_busy(app: &AppState, id: &str, action: &LeasedAction, other: &LeasedAction) -> ApiError {
    let name = app.directory().display_name(id).to_owned();
    let why = format!(
        "machine {name}: cannot perform {}: another action is in progress: {}; try again when that action has ended",
        action.action,
        other.describe()
    );
    ApiError::new(axum::http::StatusCode::CONFLICT, why)
        .with_code("controller-busy")
        .with_error_code(ErrorCode::RequestDeferred)
}
